"""Kill the server again and again while clients write through every face, and look for what was lost.

    scripts/bench crash [--kills 1000] [--seed N] [--store fast] [--engines scripted,embedded,upstream] [--json FILE]
                        [--docs] [--no-mount]

Clients of REST, the SDK, WebDAV and a mount, agents over HTTP and `cfs agent serve` write to one `cfs serve` with a
store. At random moments the server, the engine's worker, both, or the agent's process gets SIGKILL; now and then the
server gets it again while it starts. Then the server starts on the same store and port. When the clients have finished
what they were doing, all of it is compared (`crash_ledger`): each acknowledged message is there once and in order, with
its reply; nothing is there that was not sent; settings, renames, copies, deletions, edits, files and properties are as
acknowledged; REST, WebDAV and the mount show the same; versions stay valid; and each reader's stream of events is the
one that a reader without interruptions gets, or has one `stale` for a restart. Exit code 1: something was wrong.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

from cfs.transcript import render
from cfs.wire import Message
from crash_ledger import Seen, Shown, Talk, Versions
from crash_load import (
    AgentClient,
    Client,
    DavClient,
    EchoUpstream,
    MountClient,
    Reader,
    RestClient,
    SdkClient,
    Trees,
    World,
    decoded,
    show,
)
from ports import free_port

CFS = Path(sys.executable).with_name("cfs")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
Engine = Literal["scripted", "embedded", "upstream"]
Victim = Literal["server", "worker", "both", "agent", "nothing"]

_START_SECONDS = 30.0
_SETTLE_SECONDS = 30.0
_BLOCK = 20
"""Kills with one engine before the next."""
_WRITES = 80
_LOAD_SECONDS = 5.0
"""A kill comes after fewer writes than this, or after this time."""
_READERS = 5
_FULL_CHECK = 50
"""Kills between two checks of all sessions that there ever were."""


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


class Server:
    """`cfs serve` on one port and one store, which is killed and started again."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        self._data = folder / "data"
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, engine: Engine, upstream: str) -> None:
        """Start it, without waiting."""
        chosen = {
            "scripted": ["--engine", "scripted", "--scripted-interval", "0.005"],
            "embedded": [],
            "upstream": ["--upstream", upstream, "--upstream-retry-pause", "0.05"],
        }[engine]
        command = [str(CFS), "serve", "--port", str(self.port), "--data-dir", str(self._data), "--log-level", "warning"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *chosen, *self._flags], stdout=subprocess.PIPE, stderr=log, env=environment()
            )

    async def ready(self) -> None:
        """Wait until it listens."""
        assert self._process is not None
        output = self._process.stdout
        assert output is not None
        line = await asyncio.wait_for(asyncio.to_thread(output.readline), _START_SECONDS)
        if not line.startswith(b"listening"):
            raise RuntimeError(f"the server does not start: {self.log.read_text()[-2000:]}")

    def workers(self) -> list[psutil.Process]:
        """Return the processes of the engine."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """Kill it as the kernel does; its workers notice."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def complaints(self) -> list[str]:
        """Return what its log says of defects."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [f"the log has {found!r}" for found in re.findall(r".*(?:Traceback|defect|AssertionError).*", text)]


def environment() -> dict[str, str]:
    """The environment without settings of CFS."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}


@contextmanager
def mounted(url: str, path: Path) -> Iterator[Path]:
    """A mount of the server that lives as long as the block."""
    path.mkdir()
    log = (path.parent / "mount.log").open("wb")
    process = subprocess.Popen(
        [str(CFS), "mount", str(path), "--url", url], stdout=subprocess.PIPE, stderr=log, env=environment()
    )
    assert process.stdout is not None
    try:
        if not process.stdout.readline().startswith(b"ready"):
            raise RuntimeError(f"nothing is mounted: {(path.parent / 'mount.log').read_text()}")
        yield path
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(path)], check=False)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()
        log.close()


class Run:
    """One run: rounds of load, kill, restart and check."""

    def __init__(self, server: Server, mount: Path | None, report: Report, *, keys: bool, calm: bool) -> None:
        self.server, self.report, self.calm = server, report, calm
        self.draw = random.Random(report.seed)
        self.world = World(server.url, mount, self.draw, keys=keys)
        self.versions = Versions()
        self.http = httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False)
        self.readers: list[Reader] = []
        self.clients: list[Client] = []
        self.engine: Engine = "scripted"
        self.upstream: EchoUpstream | None = None
        self.trees: Trees | None = None
        self._restarts_checked = 0

    async def begin(self, engine: Engine) -> None:
        """Start the server for the first time, the clients and the readers."""
        self.engine = engine
        await self._start()
        kinds = [RestClient] * 4 + [SdkClient] * 2 + [DavClient] * 2 + [AgentClient] * 2
        self.clients = [kind(self.world) for kind in kinds]
        if self.world.mount is not None:
            self.clients += [MountClient(self.world), MountClient(self.world)]
        for _ in range(2):
            await self.clients[0].create(self.world.talk("shared"))
        self.readers.append(Reader(self.world, None))

    async def close(self) -> None:
        """End the agents, and close all connections."""
        await self._end_trees()
        if self.upstream is not None:
            self.upstream.close()
        for client in self.clients:
            await client.close()
        for reader in self.readers:
            await reader.close()
        await self.http.aclose()
        self.world.threads.shutdown()

    async def round(self, engine: Engine) -> None:
        """Let the clients work, kill something, start it again, and check."""
        world, report = self.world, self.report
        world.stop, world.echo = False, "embedded" not in (self.engine, engine)
        working = [asyncio.create_task(client.run()) for client in self.clients]
        done, end = sum(world.counts.values()) + self.draw.randrange(5, _WRITES), time.monotonic() + _LOAD_SECONDS
        while sum(world.counts.values()) < done and time.monotonic() < end:  # noqa: ASYNC110 - a random moment
            await asyncio.sleep(self.draw.uniform(0.001, 0.01))
        victim = self._victim()
        report.kills[victim] += 1
        if victim in ("worker", "both"):
            for worker in self.server.workers():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
        if engine != self.engine and self.trees is not None:
            await self._end_trees()
        if victim in ("server", "both"):
            world.up.clear()
            self.server.kill()
            self.engine = engine
            if self.draw.random() < 0.15:  # again, while it starts
                self._spawn()
                await asyncio.sleep(self.draw.uniform(0.0, 1.2))
                self.server.kill()
                report.kills["server that starts"] += 1
                report.restarts += 1
            await self._start()
        await asyncio.sleep(self.draw.uniform(0.0, 0.2))
        world.stop = True
        await asyncio.gather(*working)
        if self.engine == "upstream" and self.trees is None:
            self.trees = Trees(world, self._upstream(), self.server.log.parent)
        await self.check(everything=sum(report.kills.values()) % _FULL_CHECK == 0)

    def _victim(self) -> Victim:
        if self.calm:
            return "nothing"
        if self.trees is not None and self.draw.random() < 0.3 and self.trees.kill():
            return "agent"
        if self.engine == "embedded":
            return self.draw.choice(("server", "worker", "both"))
        return "server"

    async def _start(self) -> None:
        began = time.monotonic()
        self._spawn()
        await self.server.ready()
        self.report.start_seconds.append(time.monotonic() - began)
        self.report.restarts += 1
        self.world.up.set()

    def _spawn(self) -> None:
        self.server.spawn(self.engine, self._upstream().url if self.engine == "upstream" else "")

    def _upstream(self) -> EchoUpstream:
        if self.upstream is None:
            self.upstream = EchoUpstream()
        return self.upstream

    async def _end_trees(self) -> None:
        if self.trees is not None:
            await self.trees.finish()
            self.report.trees += self.trees.done
            self.trees = None

    # -- checking -------------------------------------------------------------------------------------------------

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
        found = [*self.world.problems, *self.server.complaints()]
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


async def crash(
    kills: int,
    seed: int,
    engines: Sequence[Engine],
    flags: Sequence[str],
    folder: Path,
    *,
    seconds: float = math.inf,
    mount: bool = True,
    keys: bool = True,
    calm: bool = False,
) -> Report:
    """Run until so many kills have been made."""
    report = Report(seed)
    server = Server(folder, flags)
    began = time.monotonic()
    run = Run(server, None, report, keys=keys, calm=calm)
    server_url_mount = folder / "mount"
    try:
        if mount:
            server.spawn("scripted", "")
            await server.ready()
            with mounted(server.url, server_url_mount) as run.world.mount:
                server.kill()
                await _rounds(run, kills, engines, began + seconds)
        else:
            await _rounds(run, kills, engines, began + seconds)
    finally:
        server.kill()
        report.counts, report.seconds = run.world.counts, time.monotonic() - began
    return report


async def _rounds(run: Run, kills: int, engines: Sequence[Engine], end: float) -> None:
    try:
        await run.begin(engines[0])
        while (made := sum(run.report.kills.values())) < kills and time.monotonic() < end:
            await run.round(engines[made // _BLOCK % len(engines)])
        await run.check(everything=True)
    finally:
        run.world.stop = True
        await run.close()


def main() -> int:
    """Run, print what was found, and return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--store", help="passed to the server")
    parser.add_argument("--engines", default="scripted,embedded,upstream")
    parser.add_argument("--no-mount", action="store_true")
    parser.add_argument("--no-keys", action="store_true", help="send no idempotency keys")
    parser.add_argument("--calm", action="store_true", help="kill nothing: what is found then is wrong in this program")
    parser.add_argument("--keep", type=Path, help="a folder for the store and the logs, which stays")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    flags = ["--store", asked.store] if asked.store else []
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="cfs-crash-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        report = asyncio.run(
            crash(
                asked.kills,
                asked.seed,
                asked.engines.split(","),
                flags,
                folder,
                seconds=asked.minutes * 60,
                mount=not asked.no_mount,
                keys=not asked.no_keys,
                calm=asked.calm,
            )
        )
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(found := table(report))
    if asked.json:
        asked.json.write_text(json.dumps(report.json(), indent=1))
    if asked.docs:
        page = re.sub(
            r"(?s)(<!-- crash -->\n).*?(<!-- /crash -->)", lambda m: f"{m[1]}{found}\n{m[2]}", PAGE.read_text()
        )
        PAGE.write_text(page)
    return int(bool(report.problems))


def table(report: Report) -> str:
    """Write the table of the documentation."""
    starts = sorted(report.start_seconds)
    acknowledged = sum(count for (_, outcome), count in report.counts.items() if outcome == "acknowledged")
    unknown = sum(count for (_, outcome), count in report.counts.items() if outcome == "unknown")
    kills = ", ".join(f"{count} {name}" for name, count in sorted(report.kills.items()))
    rows = [
        ("kills", f"{sum(report.kills.values()):,} ({kills})"),
        ("time", f"{report.seconds / 60:.0f} minutes; a start takes {statistics.median(starts):.2f} s"),
        ("sessions", f"{report.sessions:,}"),
        ("tasks of agents in processes of their own", f"{report.trees:,}"),
        ("writes that were acknowledged", f"{acknowledged:,}"),
        ("writes whose answer was lost", f"{unknown:,}"),
        ("events compared", f"{report.events:,}, of {report.readers + 1} readers"),
        ("events taken back by a restart, times `stale`", f"{report.orphans:,}, {report.stales:,}"),
        ("**problems**", f"**{len(report.problems)}**"),
    ]
    return "\n".join(["| | |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows)])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
