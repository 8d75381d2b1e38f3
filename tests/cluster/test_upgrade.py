"""Each of three replicas is replaced by a new one under load, as in an upgrade, and no request fails."""

import asyncio
import uuid
from collections import Counter
from itertools import count
from pathlib import Path

import httpx
import pytest

from replica_set import HAPROXY, ReplicaSet, replica_set

pytestmark = [
    pytest.mark.external,
    pytest.mark.usefixtures("forks"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: scripts/test installs it on Debian"),
]


class Load:
    """Clients behind the load balancer, and what became of their requests."""

    def __init__(self, url: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self.answered: dict[str, list[str]] = {}
        self.ended = False
        self._http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)

    async def run(self, session: str) -> None:
        """Write to a session, and read it, by several protocols."""
        messages = self.answered.setdefault(session, [])
        for number in count():
            if self.ended:
                return
            text = f"m{number}"
            said = await self.ask("POST", f"/v1/sessions/{session}/messages?wait=true", content=text.encode())
            if said:
                messages.append(text)
            await self.ask("GET", f"/v1/sessions/{session}")
            await self.ask("GET", "/v1/sessions?limit=5")
            await self.ask("GET", f"/dav/sessions/{session}")
            await self.ask("PUT", f"/dav/workspaces/{session}-files/note.txt", content=text.encode())

    async def read(self, path: str) -> None:
        """Read a stream of events, and go on after the last one when it ends."""
        cursor = ""
        while not self.ended:
            headers, lines = {"Last-Event-ID": cursor} if cursor else {}, list[str]()
            try:
                async with self._http.stream("GET", path, params={"after": "0"}, headers=headers) as response:
                    if not response.is_success:
                        await response.aread()
                    self._count("GET", path, response)
                    async for line in response.aiter_lines():
                        lines.append(line)
                        if not line:  # the event is complete
                            cursor = next((each[4:] for each in lines if each.startswith("id: ")), cursor)
                            self.outcomes[f"{path}: stale"] += "event: stale" in lines
                            lines.clear()
            except httpx.TransportError as error:
                self.outcomes[f"GET {path}: {error!r}"] += 1

    async def ask(self, method: str, path: str, content: bytes | None = None) -> bool:
        """Send a request once, with a key as the SDK does, and return whether it succeeded."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return self._count(method, path, await self._http.request(method, path, content=content, headers=key))
        except httpx.TransportError as error:
            self.outcomes[f"{method} {path}: {error!r}"] += 1
            return False

    def _count(self, method: str, path: str, response: httpx.Response) -> bool:
        if response.status_code == 503 and "Retry-After" in response.headers:
            self.outcomes["later"] += 1
        elif response.is_success:
            self.outcomes["succeeded"] += 1
        else:
            self.outcomes[f"{method} {path}: {response.status_code} {response.text}"] += 1
        return response.is_success

    async def close(self) -> None:
        await self._http.aclose()


async def upgrade(found: ReplicaSet, load: Load) -> None:
    """Replace one replica after the other, each when the one before it serves."""
    try:
        for replica in found.replicas:
            await found.replace(replica)
            await found.settle()
    finally:
        load.ended = True


async def test_no_request_fails_while_replicas_are_replaced(tmp_path: Path) -> None:
    """It succeeds, or is answered with 503 and the time after which it can be repeated."""
    async with replica_set(tmp_path) as found:
        load = Load(found.url)
        sessions = [f"s{number}" for number in range(3)]
        for session in sessions:
            assert await load.ask("POST", f"/v1/sessions/{session}/messages?wait=true", content=b"begin")
            assert await load.ask("MKCOL", f"/dav/workspaces/{session}-files/")
        readers = [asyncio.create_task(load.read(path)) for path in ("/v1/events", "/v1/sessions/s0/events")]
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(load.run(session))
            group.create_task(upgrade(found, load))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert {kind for kind, number in load.outcomes.items() if number} <= {"succeeded", "later"}, load.outcomes
        async with httpx.AsyncClient(base_url=found.url, timeout=60, trust_env=False) as http:
            for session in sessions:
                shown = (await http.get(f"/v1/sessions/{session}")).json()["history"]
                said = [message["content"] for message in shown if message["role"] == "user"]
                assert [text for text in said if text in load.answered[session]] == load.answered[session]
        await load.close()
