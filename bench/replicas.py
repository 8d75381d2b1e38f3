"""Let replicas crash, freeze, restart and lose their database while clients use them, and look for what was lost.

    scripts/bench replicas [--faults 200] [--seed N] [--minutes N] [--mount] [--json FILE] [--docs]
    scripts/bench replicas --measure [--rounds N]

Three replicas share a PostgreSQL database, behind haproxy. Clients of REST, the SDK and WebDAV, agents over HTTP, and a
mount write to them. At random moments a replica gets SIGKILL and a new one is started, or SIGSTOP for 1 to 6 s, or
SIGTERM and a new one (as in an upgrade), or is cut off from the database for up to 5 s; or the database is restarted,
with and without a shutdown of its own. When the clients have finished what they were doing, all of it is compared, as
`scripts/bench crash` does for one server. Besides, no id of an event may ever stand for two events, each reader of all
sessions must have got the events of each slot without a gap, and each record in the database must be of the replica
that had the slot when it was written. Exit code 1: something was wrong.
"""

import argparse
import asyncio
import json
import math
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, get_args

import httpx
import psycopg

from cfs_server.cluster.event_merging import decode
from cfs_server.domain.placement import slot_of
from crash import mounted
from crash_checks import Checks, Report
from crash_ledger import Seen, Talk
from crash_load import Reader, World, decoded
from replica_ledger import Cursors, Epoch, Meanings, MergedReading, Stored, interleaved, split
from replica_measures import measure, measures_table
from replica_set import SLOTS, ReplicaSet, replica_set

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
Fault = Literal["kill", "freeze", "replace", "cut off", "database fast", "database immediate", "nothing"]
_FAULTS: tuple[Fault, ...] = get_args(Fault)[:-1]
_WRITES = 60
_LOAD_SECONDS = 3.0
"""A fault comes after fewer writes than this, or after this time."""
_TOGETHER = 3
"""Faults between two checks, one after the other."""
_FULL_CHECK = 10
"""Checks between two of all sessions that there ever were."""
_MERGED_READERS = 2
_ATTEMPTS = 5


class MergedReader(Reader):
    """Reads the events of all sessions, from whichever replica the load balancer gives it."""

    def __init__(self, world: World) -> None:
        self.merged = MergedReading()
        super().__init__(world, None)

    async def _read(self, response: httpx.Response) -> None:
        self.merged.connections += 1
        async for event in decoded(response, all_sessions=True):
            self.cursor = event.id
            self.merged.add(event)


class Run(Checks):
    """One run: rounds of load, faults and checks."""

    def __init__(self, replicas: ReplicaSet, mount: Path | None, report: Report) -> None:
        super().__init__(replicas.url, mount, report, keys=True, transport=Patient())
        self.replicas = replicas
        self.merged: list[MergedReader] = []
        self.meanings = Meanings()
        self._full_from = ""
        self._full_cursors: Cursors = {}
        self._unkept: dict[int, int] = {}
        """Slots of which events up to a number are deleted, so that they cannot be compared this time."""
        self._claims = replicas.epochs()

    async def begin(self) -> None:
        """Make the clients and the readers."""
        self.world.up.set()
        await self.make_clients()
        self.merged = [MergedReader(self.world) for _ in range(_MERGED_READERS)]
        await self.check(everything=False)

    async def close(self) -> None:
        """Close all connections."""
        for reader in self.merged:
            await reader.close()
        await super().close()

    def complaints(self) -> list[str]:
        return self.replicas.complaints()

    async def round(self, faults: Sequence[Fault]) -> None:
        """Let the clients work, let something happen at random moments, and check."""
        self.world.stop = False
        working = [asyncio.create_task(client.run()) for client in self.clients]
        for fault in faults:
            done, end = self._written() + self.draw.randrange(5, _WRITES), time.monotonic() + _LOAD_SECONDS
            while self._written() < done and time.monotonic() < end:  # noqa: ASYNC110 - a random moment
                await asyncio.sleep(self.draw.uniform(0.001, 0.01))
            self.report.kills[fault] += 1
            await self._happen(fault)
        await asyncio.sleep(self.draw.uniform(0.0, 0.5))
        self.world.stop = True
        await asyncio.gather(*working)
        await self.replicas.settle()
        claims = self.replicas.epochs()
        self.report.restarts += max(claims[slot] - self._claims.get(slot, 0) for slot in claims)
        self._claims = claims
        await self.check(everything=self.report.checks % _FULL_CHECK == 0)

    def _written(self) -> int:
        return sum(self.world.counts.values())

    async def _happen(self, fault: Fault) -> None:
        replica, draw, replicas = self.draw.choice(self.replicas.replicas), self.draw, self.replicas
        match fault:
            case "kill":
                await replicas.kill(replica, draw.uniform(0.0, 1.0))
            case "freeze":
                await replicas.freeze(replica, draw.uniform(1.0, 6.0))
            case "replace":
                await replicas.replace(replica)
            case "cut off":
                await replicas.cut(replica, draw.uniform(0.3, 5.0))
            case "database fast":
                await replicas.restart_database(signal.SIGINT, draw.uniform(0.0, 1.0))
            case "database immediate":
                await replicas.restart_database(signal.SIGQUIT, draw.uniform(0.0, 4.0))
            case "nothing":
                await asyncio.sleep(0.5)

    # -- checking -------------------------------------------------------------------------------------------------

    async def check(self, *, everything: bool) -> None:
        """Compare the replicas, and their database, with what is known."""
        if everything:
            self.world.problems += await asyncio.to_thread(self._in_database)
        await super().check(everything=everything)

    async def _check_readers(self) -> None:
        for reader in self.readers:
            self.world.problems += self.meanings.check(reader.reading.events)
        fences = await self._fences()
        full = await self._full_merged(fences)
        newest = {slot: max(events, default=self._unkept.get(slot, 0)) for slot, events in full.items()}
        end = time.monotonic() + 30
        for reader in self.merged:
            while not reader.merged.has(newest) and time.monotonic() < end:  # noqa: ASYNC110 - rare
                await asyncio.sleep(0.01)
            for reading in reader.merged.slots.values():
                self.world.problems += self.meanings.check(reading.events)
                self.report.events += len(reading.events)
            stales = sum(each.stales for each in reader.merged.slots.values())
            self.world.problems += reader.merged.check(full, self._unkept)
            self.report.stales += sum(each.stales for each in reader.merged.slots.values()) - stales
        await super()._check_readers()

    async def _fences(self) -> dict[int, str]:
        """Create a session in each slot, whose event ends what is compared."""
        made: dict[int, str] = {}
        while len(made) < SLOTS:
            name = f"fence-{self.world.number()}"
            if (slot := slot_of(name, SLOTS)) not in made:
                made[slot] = name
                talk = Talk([name], exists={False})
                self.world.talks.append(talk)
                body = {"id": name}
                answer = await self.clients[0].ask_again("POST", "/v1/sessions", name, json=body)
                if answer.outcome != "acknowledged":
                    self.world.problems.append(f"{name} cannot be created: {answer}")
                talk.exists = {True}
        return made

    async def _full_merged(self, fences: dict[int, str]) -> dict[int, dict[int, Seen]]:
        """Read the events of all sessions since the last check from one replica."""
        full: dict[int, dict[int, Seen]] = {slot: {} for slot in range(SLOTS)}
        left = dict(fences)
        self._unkept = {}
        for _ in range(_ATTEMPTS):
            headers = {"Last-Event-ID": self._full_from} if self._full_from else {}
            async with self.http.stream("GET", "/v1/events", params={"after": "0"}, headers=headers) as response:
                async for event in decoded(response, all_sessions=True):
                    if (found := split(self._full_cursors, event)) is not None:
                        self._full_from, self._full_cursors = event.id, decode(event.id)
                        if self._add(full, *found) in (left.get(found[0]), None):
                            left.pop(found[0], None)
                    if not left:
                        return full
        self.world.problems.append(f"the events of all sessions end before {left}")
        return full

    def _add(self, full: dict[int, dict[int, Seen]], slot: int, event: Seen) -> str | None:
        """Note an event of a slot, and return the name of its session; None for events that are not kept any more."""
        if event.type == "stale":  # events of deleted sessions are deleted, too
            self.report.uncompared += 1
            self._unkept[slot] = event.number
            return None
        self.world.problems += self.meanings.check([event])
        full[slot][event.number] = event
        return str(json.loads(event.json)["session"])

    def _in_database(self) -> list[str]:
        with psycopg.connect(self.replicas.database) as connection:
            epochs = connection.execute(
                "SELECT slot, epoch, seq, position, extract(epoch FROM at)::double precision FROM cfs.epochs"
            ).fetchall()
            records = connection.execute("SELECT slot, seq, session, at, number, position FROM cfs.records").fetchall()
        return list(interleaved([Epoch(*row) for row in epochs], [Stored(*row) for row in records]))


class Patient(httpx.AsyncHTTPTransport):
    """Repeats reads that are answered with 503, as their answer says."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until it is answered."""
        while True:
            response = await super().handle_async_request(request)
            if response.status_code != 503 or request.method != "GET" or request.url.path == "/readyz":
                return response
            await response.aclose()
            await asyncio.sleep(0.1)


async def run(
    faults: int, seed: int, folder: Path, *, seconds: float = math.inf, mount: bool = False, calm: bool = False
) -> Report:
    """Run until so many faults have happened. No round but the first begins after this time.

    With `calm` no fault happens: what is found is our own.
    """
    report = Report(seed)
    began = time.monotonic()
    async with replica_set(folder) as replicas:
        with ExitStack() as stack:
            path = (
                await asyncio.to_thread(stack.enter_context, mounted(replicas.url, folder / "mount")) if mount else None
            )
            made = Run(replicas, path, report)
            try:
                await made.begin()
                left = _order(faults, made.draw, calm=calm)
                while left and (len(left) == faults or time.monotonic() - began < seconds):
                    await made.round([left.pop() for _ in range(min(_TOGETHER, len(left)))])
                await made.check(everything=True)
            finally:
                made.world.stop = True
                report.counts, report.seconds = made.world.counts, time.monotonic() - began
                await made.close()
    return report


def _order(faults: int, draw: random.Random, *, calm: bool) -> list[Fault]:
    """Return each kind of fault about equally often, in any order; a kill is the first, so that each run has one.

    Of fewer faults than kinds, the kinds are drawn as well.
    """
    if calm:
        return ["nothing"] * faults
    kinds: list[Fault] = ["kill", *draw.sample([fault for fault in _FAULTS if fault != "kill"], len(_FAULTS) - 1)]
    found = [kinds[number % len(kinds)] for number in range(faults)]
    draw.shuffle(found)
    found.append(found.pop(found.index("kill")))  # the last is taken first
    return found


def main() -> int:
    """Run, print what was found, and return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--mount", action="store_true", help="use a mount, too")
    parser.add_argument(
        "--calm", action="store_true", help="let nothing happen: what is found is wrong in this program"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which stays")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help="measure take-overs and costs; nothing else happens")
    parser.add_argument("--rounds", type=int, default=10, help="of --measure")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="cfs-replicas-"))
    folder.mkdir(parents=True, exist_ok=True)
    problems = False
    try:
        if asked.measure:
            found = measures_table(asyncio.run(measure(folder, asked.rounds)))
        else:
            seconds = asked.minutes * 60
            report = asyncio.run(
                run(asked.faults, asked.seed, folder, seconds=seconds, mount=asked.mount, calm=asked.calm)
            )
            found, problems = table(report), bool(report.problems)
            if asked.json:
                asked.json.write_text(json.dumps(report.json(), indent=1))
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(found)
    if asked.docs:
        mark = "replicas-measured" if asked.measure else "replicas"
        pattern = rf"(?s)(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
        PAGE.write_text(re.sub(pattern, lambda m: f"{m[1]}{found}\n{m[2]}", PAGE.read_text()))
    return int(problems)


def table(report: Report) -> str:
    """Write the table of the documentation."""
    outcomes = {"acknowledged": 0, "unknown": 0}
    for (_, outcome), count in report.counts.items():
        if outcome in outcomes:
            outcomes[outcome] += count
    faults = ", ".join(f"{count} {name}" for name, count in sorted(report.kills.items()))
    rows = [
        ("faults", f"{sum(report.kills.values()):,} ({faults})"),
        ("time", f"{report.seconds / 60:.0f} minutes"),
        ("sessions", f"{report.sessions:,}"),
        ("writes that were acknowledged", f"{outcomes['acknowledged']:,}"),
        ("writes whose answer was lost", f"{outcomes['unknown']:,}"),
        ("events compared", f"{report.events:,}, of {report.readers + _MERGED_READERS} readers"),
        ("tokens taken back by a take-over, times `stale`", f"{report.orphans:,}, {report.stales:,}"),
        ("**problems**", f"**{len(report.problems)}**"),
    ]
    return "\n".join(["| | |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows)])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with suppress(KeyboardInterrupt):
        sys.exit(main())
