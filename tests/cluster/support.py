"""Replicas as real processes on one real database."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg

from cfs_server.domain.placement import slot_of
from tests.server.support import Process, serving

SLOTS = 6


@dataclass(frozen=True, slots=True)
class Replicas:
    """Running replicas of one store, and the database that they share."""

    processes: list[Process]
    database: str
    token: str | None = None
    """A token that may read the metrics, where the replicas want one."""

    @property
    def urls(self) -> list[str]:
        """The addresses of all replicas."""
        return [process.url for process in self.processes]

    def owners(self) -> dict[int, str | None]:
        """Return the address of each slot's owner, as the database has it."""
        with psycopg.connect(self.database) as connection:
            found = connection.execute(
                "SELECT slot, url FROM cfs.slots LEFT JOIN cfs.replicas ON id = owner ORDER BY slot"
            )
            return {int(slot): url for slot, url in found.fetchall()}

    def until_served(self, *urls: str) -> None:
        """Wait until every slot has one of these owners, and each of them has one; the test's time-out is the limit."""
        wanted = set(urls or self.urls)
        while set(self.owners().values()) != wanted or not all(map(self._serves, wanted)):
            time.sleep(0.02)

    def until_balanced(self) -> None:
        """Wait until all replicas serve the same number of slots: then none moves. `SLOTS` is a multiple of theirs."""
        self.until_served()
        while len(set(Counter(self.owners().values()).values())) > 1 or not all(map(self._serves, self.urls)):
            time.sleep(0.02)

    def _serves(self, url: str) -> bool:
        mine = sum(owner == url for owner in self.owners().values())
        return metric(url, "cfs_cluster_slots", self.token) == mine

    def owner_of(self, name: str) -> Process:
        """Return the replica that serves a session which still has its first name."""
        url = self.owners()[slot_of(name, SLOTS)]
        return next(process for process in self.processes if process.url == url)

    def others(self, name: str) -> list[Process]:
        """Return the other replicas."""
        owner = self.owner_of(name)
        return [process for process in self.processes if process is not owner]


def metric(url: str, name: str, token: str | None = None) -> float:
    """Return a metric without labels; 0 if it is not there."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    text = httpx.get(f"{url}/metrics", headers=headers, timeout=30, trust_env=False).text
    lines = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[1]) if lines else 0


@contextmanager
def replicas(count: int, database: str, *flags: str, token: str | None = None, **env: str) -> Iterator[Replicas]:
    """Run replicas, each with the scripted engine, until the end of the block. All slots have their owners."""
    with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
        starting = [threads.submit(stack.enter_context, replica(database, *flags, **env)) for _ in range(count)]
        found = Replicas([each.result() for each in starting], database, token)
        found.until_balanced()
        yield found


def replica(database: str, *flags: str, **env: str) -> Any:
    """Run one replica."""
    engine = () if {"--engine", "--upstream", "--models"} & set(flags) else ("--engine", "scripted")
    return serving("--store", database, "--slots", str(SLOTS), *engine, *flags, **env)


def say(url: str, session: str, text: str, **params: str) -> dict[str, Any]:
    """Send a message and return the reply. A request that found no owner is repeated, as its answer says."""
    while True:
        answer = httpx.post(
            f"{url}/v1/sessions/{session}/messages",
            params={"wait": "true", **params},
            content=text.encode(),
            headers={"Idempotency-Key": f"{session}-{text}"},
            timeout=60,
            trust_env=False,
        )
        if answer.status_code != 503 or "Retry-After" not in answer.headers:
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = json.loads(answer.content)
            return found


def text_of(url: str, session: str) -> str:
    """Return the transcript of a session."""
    answer = httpx.get(f"{url}/v1/sessions/{session}", headers={"Accept": "text/plain"}, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.text


def names(url: str) -> list[str]:
    """Return the names of all sessions, page by page."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        answer = httpx.get(f"{url}/v1/sessions", params={"after": after, "limit": 7}, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [session["id"] for session in page["sessions"]]
        after = page["next"]
    return found
