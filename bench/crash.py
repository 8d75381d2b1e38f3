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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil

from crash_checks import Checks, Report
from crash_load import EchoUpstream, Reader, Trees
from ports import free_port

CFS = Path(sys.executable).with_name("cfs")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
Engine = Literal["scripted", "embedded", "upstream"]
Victim = Literal["server", "worker", "both", "agent", "nothing"]

_START_SECONDS = 30.0
_BLOCK = 20
"""Kills with one engine before the next."""
_WRITES = 80
_LEAST_WRITES = 5
_LOAD_SECONDS = 5.0
"""A kill comes after 5 to 79 writes; after this time, after 5."""
_FULL_CHECK = 50
"""Kills between two checks of all sessions that there ever were."""


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


class Run(Checks):
    """One run: rounds of load, kill, restart and check."""

    def __init__(self, server: Server, mount: Path | None, report: Report, *, keys: bool, calm: bool) -> None:
        super().__init__(server.url, mount, report, keys=keys)
        self.server, self.calm = server, calm
        self.engine: Engine = "scripted"
        self.upstream: EchoUpstream | None = None
        self.trees: Trees | None = None

    async def begin(self, engine: Engine) -> None:
        """Start the server for the first time, the clients and the readers."""
        self.engine = engine
        await self._start()
        await self.make_clients()
        self.readers.append(Reader(self.world, None))

    async def close(self) -> None:
        """End the agents, and close all connections."""
        await self._end_trees()
        if self.upstream is not None:
            self.upstream.close()
        await super().close()

    def complaints(self) -> list[str]:
        return self.server.complaints()

    async def round(self, engine: Engine) -> None:
        """Let the clients work, kill something, start it again, and check."""
        world, report = self.world, self.report
        world.stop, world.echo = False, "embedded" not in (self.engine, engine)
        working = [asyncio.create_task(client.run()) for client in self.clients]
        before, end = sum(world.counts.values()), time.monotonic() + _LOAD_SECONDS
        least, done = before + _LEAST_WRITES, before + self.draw.randrange(_LEAST_WRITES, _WRITES)
        while True:
            written = sum(world.counts.values())
            is_late = written >= done or time.monotonic() >= end
            if is_late and written >= least and self.readers[0].newest:  # a kill before that would cost nothing
                break
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
        if self.engine == "embedded":  # a run of few rounds starts the server again, too
            return self.draw.choice(("server", "both") if self.report.restarts < 2 else ("server", "worker", "both"))
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
    """Run until so many kills have been made. No round but the first begins after this time."""
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
        made = 0
        while made < kills and (made == 0 or time.monotonic() < end):
            await run.round(engines[made // _BLOCK % len(engines)])
            made = sum(run.report.kills.values())
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
