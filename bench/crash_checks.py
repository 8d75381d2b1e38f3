"""Compare a server with what its clients know of it (`crash_ledger`), and the streams of its events with each other."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cfs.contract.transcript import render
from cfs.wire import Message
from crash_ledger import Seen, Shown, Talk, Versions
from crash_load import AgentClient, Client, DavClient, MountClient, Reader, RestClient, SdkClient, World, decoded, show

_SETTLE_SECONDS = 30.0
_READERS = 5


@dataclass
class Report:
    """What was found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    seconds: float = 0.0
    start_seconds: list[float] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    events: int = 0
    stales: int = 0
    orphans: int = 0
    uncompared: int = 0
    """Times that the events of all sessions could only be checked for gaps, because a session had been deleted."""
    readers: int = 0
    sessions: int = 0
    trees: int = 0
    checks: int = 0
    problems: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return it for a file."""
        return vars(self) | {"counts": {" ".join(key): count for key, count in self.counts.items()}}


class Checks:
    """The clients and readers of a server, and what is compared when the clients have stopped."""

    def __init__(
        self,
        url: str,
        mount: Path | None,
        report: Report,
        *,
        keys: bool,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare. `transport` sends the requests of the checks."""
        self.report = report
        self.draw = random.Random(report.seed)
        self.world = World(url, mount, self.draw, keys=keys)
        self.versions = Versions()
        self.http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, transport=transport)
        self.readers: list[Reader] = []
        self.clients: list[Client] = []
        self._restarts_checked = 0

    def complaints(self) -> list[str]:
        """Return what the logs say of defects."""
        return []

    async def make_clients(self) -> None:
        """Make the clients, and the sessions that they share."""
        kinds = [RestClient] * 4 + [SdkClient] * 2 + [DavClient] * 2 + [AgentClient] * 2
        self.clients = [kind(self.world) for kind in kinds]
        if self.world.mount is not None:
            self.clients += [MountClient(self.world), MountClient(self.world)]
        for _ in range(2):
            await self.clients[0].create(self.world.talk("shared"))

    async def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            await client.close()
        for reader in self.readers:
            await reader.close()
        await self.http.aclose()
        self.world.threads.shutdown()

    async def check(self, *, everything: bool) -> None:
        """Compare the server with what is known of it."""
        self.report.checks += 1
        for talk in self.world.talks:
            if talk.touched or everything:
                await self._check_talk(talk)
        await asyncio.gather(*(self._check_file(path) for path in self.world.files))
        await self._check_readers()
        self._restarts_checked = self.report.restarts
        await self._more_readers()
        found = [*self.world.problems, *self.complaints()]
        self.world.problems.clear()
        for problem in found:
            if problem not in self.report.problems:
                print(f"PROBLEM after {sum(self.report.kills.values())} kills: {problem}", flush=True)
                self.report.problems.append(problem)

    async def _check_talk(self, talk: Talk) -> None:
        shown: Shown | None = None
        body: dict[str, Any] = {}
        problems = self.world.problems
        for name in talk.names:
            if (found := await show(self.http, name, wait=0 if talk.agent else _SETTLE_SECONDS)) is not None:
                if shown is not None:
                    problems.append(f"{talk.names} are there both")
                shown, body = found
        if shown is not None:
            self.report.sessions += talk.etag == ""
            if not shown.settled and not talk.agent:
                problems.append(f"{shown.id} is {body['state']} for more than {_SETTLE_SECONDS} s")
            await self._check_faces(shown, body)
        problems += talk.check(shown)

    async def _check_faces(self, shown: Shown, body: dict[str, Any]) -> None:
        """Compare the JSON, the text, WebDAV and the mount, and the versions."""
        expected = render([Message(**each) for each in body["history"]])
        text = await self.http.get(f"/v1/sessions/{shown.id}", headers={"Accept": "text/plain"})
        problems = self.world.problems
        if shown.settled and text.text != expected:
            problems.append(f"{shown.id}: the text is {text.text!r}, the messages are {expected!r}")
        if shown.settled and text.headers["ETag"] != shown.etag:
            problems.append(f"{shown.id}: the text's version is {text.headers['ETag']}, the messages' {shown.etag}")
        if shown.settled:
            problems += self.versions.check(shown.etag, expected)
            again = await self.http.get(
                f"/v1/sessions/{shown.id}", headers={"Accept": "text/plain", "If-None-Match": shown.etag}
            )
            if again.status_code != 304:
                problems.append(f"{shown.id}: {again.status_code} for its own version")
        dav = await self.http.get(f"/dav/sessions/{shown.id}", headers={"Prefer": "wait=0"})
        if shown.settled and dav.text != expected:
            problems.append(f"{shown.id}: WebDAV shows {dav.text!r} instead of {expected!r}")
        if self.world.mount is not None and shown.settled:
            path = self.world.mount / shown.id
            end = time.monotonic() + 30
            while (read := await self.world.in_thread(lambda: _read(path))) != expected:
                if time.monotonic() > end:
                    problems.append(f"{shown.id}: the mount shows {read!r} instead of {expected!r}")
                    break
                await asyncio.sleep(0.05)

    async def _check_file(self, path: str) -> None:
        response = await self.http.get(path)
        content = response.content if response.status_code == 200 else None
        if content not in self.world.files[path]:
            size = None if content is None else len(content)
            self.world.problems.append(f"{path} has {size} bytes that no client has written there")
        self.world.files[path] = {content}

    async def _check_readers(self) -> None:
        """Compare each reader's stream with one that was never cut."""
        fence = self.world.talk("fence")
        await self.clients[0].create(fence)
        for reader in list(self.readers):
            full = await self._full(reader, fence.id)
            newest = max(full, default=0)
            end = time.monotonic() + 30
            while reader.newest < newest and not reader.ended and time.monotonic() < end:  # noqa: ASYNC110 - rare
                await asyncio.sleep(0.01)
            self.report.events += len(reader.reading.events)
            stales, orphans = reader.reading.stales, reader.reading.orphans
            if full:
                self.world.problems += reader.reading.check(full, self.report.restarts - self._restarts_checked)
            self.report.stales += reader.reading.stales - stales
            self.report.orphans += reader.reading.orphans - orphans
            if reader.ended or self.draw.random() < 0.02 < (reader.talk is not None):
                await reader.close()
                self.readers.remove(reader)

    async def _full(self, reader: Reader, fence: str) -> dict[int, Seen]:
        """Read a whole stream up to now; nothing if its session has ended."""
        after = reader.reading.last
        if reader.talk is None:
            path, last = "/v1/events", None
        else:
            found = await show(self.http, reader.talk.id, wait=0)
            if found is None:
                return {}
            path, last = f"/v1/sessions/{reader.talk.id}/events", found[1]["event"]
        full: dict[int, Seen] = {}
        if last is not None and last <= after:
            return full
        async with self.http.stream("GET", path, params={"after": str(after)}) as response:
            async for event in decoded(response, all_sessions=reader.talk is None):
                if event.type == "stale" and reader.talk is None:  # events of deleted sessions are deleted, too
                    self.report.uncompared += 1
                    return {each.number: each for each in reader.reading.events if each.type != "stale"}
                if event.type == "stale":
                    self.world.problems.append(f"{path}: events after {after} are not kept")
                    return {}
                full[event.number] = event
                if event.number == last or (last is None and f'"session":"{fence}"' in event.json):
                    break
        return full

    async def _more_readers(self) -> None:
        while len(self.readers) <= _READERS:
            read = {reader.talk.id for reader in self.readers if reader.talk is not None}
            new = [talk for talk in self.world.talks if talk.certain and talk.id not in read and talk.id[:5] != "fence"]
            if not new:
                return
            self.readers.append(Reader(self.world, self.draw.choice(new[-30:])))
            self.report.readers += 1


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError as error:
        return f"({error})"
