"""How many streams one server passes on from an upstream: 30 tokens a second each, more and more of them.

    scripts/bench gateway [--streams 50,100,...] [--seconds 5] [--litellm PROGRAM] [--py-spy PROGRAM]
                          [--smoke] [--json FILE] [--docs]

A stub of an upstream, `cfs serve --upstream`, and the clients are processes of their own that share the machine. Each
side takes its turn at each number of streams, with a server that has just started, until it is not sustained: fewer
than 97 % of the tokens arrive in their time, or the 99th percentile of the gaps is beyond 250 ms. A gap is the time
between two arrivals at a client, with one token or several. In "stub alone" the clients ask the stub itself: what these
two can do is the limit of the measurement. Other work on the machine changes times and rates; the processor time of the
server for a token hardly changes. `--litellm` is the program of LiteLLM's proxy, and `--py-spy` that of a profiler,
which takes samples of our server in one more run with the most streams that it sustained.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvloop

from gateway_load import MODEL, RATE, Found, Load, Plan, allow_files
from ports import free_port

BENCH = Path(__file__).parent
PAGE = BENCH.parent / "docs" / "benchmarks.md"
RATE_BAR = 0.97
GAP_BAR_MS = 250.0
AIM = 1_000
STREAMS = (25, 50, 75, 100, 150, 200, 300, 400, 700, 1000, 1500)
FUNCTIONS = 15
_SAMPLES_A_SECOND = 200
_START_SECONDS = 60.0
_FLAGS = (
    "--store=memory",
    "--log-level=error",
    "--upstream-parallel=4000",
    "--max-unfinished=4000",  # all clients have one address, and a busy server reads their requests late
)

_LITELLM = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it downloads one
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # our server has no tokens here, either
    "LITELLM_LOG": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Side:
    """Who passes the tokens on, and by which request."""

    name: str
    program: str
    sessions: bool = False


ALONE = Side("stub alone", "")
CHAT = Side("CFS, chat completions", "cfs")
SESSIONS = Side("CFS, messages to sessions", "cfs", sessions=True)
LITELLM = "LiteLLM, chat completions"


@dataclass(frozen=True, slots=True)
class Row:
    """One side with one number of streams. Processor time is in seconds, memory in bytes."""

    side: str
    streams: int
    found: Found
    memory: int

    @property
    def sustained(self) -> bool:
        """Whether all streams got their tokens in time."""
        found = self.found
        enough = found.rate >= RATE_BAR * RATE * self.streams
        return enough and found.gap_p99 <= GAP_BAR_MS and found.begun == self.streams

    @property
    def cpu(self) -> float:
        """Seconds of processor of the server for 1,000 tokens."""
        return 1000 * self.found.meters["server"] / max(1.0, self.found.meters["tokens"])


# -- processes --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(*command: str, folder: Path | None = None, ready: str = "") -> Iterator[tuple[str, psutil.Process]]:
    """Run a server until the end of the block. Yield its URL and process when it has started.

    Its first line says its URL, or `ready` is a URL that answers then.
    """
    environment = os.environ | {"CFS_DATA_DIR": "temporary"} | _LITELLM
    kept = subprocess.DEVNULL if ready else subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=kept, stderr=subprocess.DEVNULL if ready else None, text=True, env=environment, cwd=folder
    )
    try:
        if process.stdout is None:
            _wait_for(ready, process)
            url = ready.rpartition("/health")[0]
        else:
            url = process.stdout.readline().removeprefix("listening on ").strip()
        yield url, psutil.Process(process.pid)
    finally:
        process.kill()  # its streams are over, and nothing of it is kept
        process.communicate()


def _wait_for(url: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2, trust_env=False).status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise SystemExit(f"{process.args!r} did not start")


@contextlib.contextmanager
def gateway(side: Side, stub: str, folder: Path) -> Iterator[tuple[str, psutil.Process | None]]:
    """Start a side's server in front of the stub. Yield its URL and process."""
    if not side.program:
        yield stub, None
    elif side.program == "cfs":
        program = str(Path(sys.executable).with_name("cfs"))
        with started(program, "serve", "--port=0", f"--upstream={stub}/v1", *_FLAGS) as server:
            yield server
    else:
        port = free_port()
        config = folder / "litellm.yaml"
        model = {"model": f"openai/{MODEL}", "api_base": f"{stub}/v1", "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": model}]}))
        address = ("--host", "127.0.0.1", "--port", str(port))
        ready = f"http://127.0.0.1:{port}/health/liveliness"
        with started(side.program, "--config", str(config), *address, "--telemetry", "False", ready=ready) as server:
            yield server


def _cpu(process: psutil.Process | None) -> float:
    """Return the processor time of a process and its children, in seconds."""
    if process is None:
        return 0.0
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _memory(process: psutil.Process | None) -> int:
    if process is None:
        return 0
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


# -- one run ----------------------------------------------------------------------------------------------------------


async def warm(url: str, *, sessions: bool) -> None:
    """Let a server answer for the first time, which takes longer."""
    await Load(url, Plan(2, 0.5, sessions, 0.5, begin="warm")).run(dict, lambda: None)


class Bench:
    """Measures one side after the other, all with the same stub."""

    def __init__(self, stub: tuple[str, psutil.Process], folder: Path, seconds: float, spare: float) -> None:
        self._stub, self._upstream = stub
        self._folder = folder
        self._seconds = seconds
        self._spare = spare

    def run(self, side: Side, streams: int, measuring: Callable[[psutil.Process], None] | None = None) -> Row:
        """Measure a side with so many streams. `measuring` gets the server when all streams have begun."""
        plan = Plan(streams, self._seconds, side.sessions, self._spare)
        memory = 0
        with gateway(side, self._stub, self._folder) as (url, server):

            async def load() -> Found:
                at = Load(url, plan)

                def meters() -> dict[str, float]:
                    nonlocal memory
                    memory = max(memory, _memory(server))
                    return {
                        "server": _cpu(server),
                        "stub": _cpu(self._upstream),
                        "clients": time.process_time(),
                        "tokens": at.counted,
                        "seconds": time.monotonic(),
                    }

                return await at.run(meters, lambda: measuring(server) if measuring and server else None)

            uvloop.run(warm(url, sessions=side.sessions))
            found = uvloop.run(load())
        return Row(side.name, streams, found, memory)

    def profile(self, side: Side, streams: int, program: str) -> list[tuple[str, float]]:
        """Return the functions of a side's server with the most samples of their own, and their share of all."""
        output = self._folder / "samples"
        running: list[subprocess.Popen[bytes]] = []

        def measuring(server: psutil.Process) -> None:
            asked = ["--rate", str(_SAMPLES_A_SECOND), "--duration", str(max(1, int(self._seconds)))]
            what = ["--format", "raw", "--function", "--output", str(output), "--pid", str(server.pid)]
            quiet = subprocess.DEVNULL
            running.append(subprocess.Popen([program, "record", *asked, *what], stdout=quiet, stderr=quiet))

        self.run(side, streams, measuring)
        for each in running:
            each.wait()
        return own_samples(output.read_text()) if output.exists() else []


def own_samples(text: str) -> list[tuple[str, float]]:
    """Return the innermost functions of a profiler's stacks with their share of the samples, the most first.

    A line is a stack, frames divided by `;`, and the number of its samples. A frame is `function (path)`. Only the main
    thread counts: the others wait, for which the profiler takes samples as well.
    """
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, samples = line.rpartition(" ")
        if "Thread." in stack.partition(";")[0]:
            continue
        name, _, path = stack.rpartition(";")[2].rpartition(" (")
        counts[f"`{name}`, {'/'.join(Path(path.rstrip(')')).parts[-2:])}"] += int(samples)
    return [(name, count / counts.total()) for name, count in counts.most_common()]


def measure(sides: Sequence[Side], streams: Sequence[int], bench: Bench) -> list[Row]:
    """Run all sides in turn, each until it is not sustained."""
    rows: list[Row] = []
    left = list(sides)
    for count in streams:
        for side in tuple(left):
            row = bench.run(side, count)
            print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
            rows.append(row)
            if not row.sustained:
                left.remove(side)
    return rows


def most_sustained(rows: Sequence[Row], side: Side) -> int:
    """Return the most streams that a side sustained; 0 for none."""
    return max((row.streams for row in rows if row.side == side.name and row.sustained), default=0)


# -- report -----------------------------------------------------------------------------------------------------------


def tables(rows: Sequence[Row], profiles: dict[str, list[tuple[str, float]]]) -> str:
    """Write the tables of the documentation."""
    head = (
        "side | streams | tokens/s | sustained | gap p50, p99 ms | first token p50, p99 ms | whole streams"
        " | CPU s for 1,000 tokens | tokens for a CPU s | CPU: server, stub, clients | MB"
    )
    shown = [f"| {head} |", "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|"]
    for row in sorted(rows, key=lambda row: [each.side for each in rows].index(row.side)):
        found = row.found
        share = [f"{found.meters[name] / found.meters['seconds']:.0%}" for name in ("server", "stub", "clients")]
        served = [f"{row.cpu:.3f}", f"{1000 / row.cpu:,.0f}"] if row.cpu else ["", ""]
        cells = [
            row.side,
            f"{row.streams:,}",
            f"{found.rate:,.0f}",
            "yes" if row.sustained else "**no**",
            f"{found.gap_p50:.0f}, {found.gap_p99:.0f}",
            f"{found.first_p50:.0f}, {found.first_p99:.0f}",
            f"{found.complete:,}",
            *served,
            ", ".join(share),
            f"{row.memory / 1e6:.0f}" if row.memory else "",
        ]
        shown.append(f"| {' | '.join(cells)} |")
    parts = ["\n".join(shown)]
    for name, functions in profiles.items():
        table = [f"{name}: functions with the most samples of their own", "", "| function | share |", "|---|--:|"]
        parts.append("\n".join(table + [f"| {each} | {share:.1%} |" for each, share in functions[:FUNCTIONS]]))
    return "\n\n".join(parts)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)), help="numbers of concurrent streams")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long all streams are measured")
    parser.add_argument("--litellm", help="program of LiteLLM's proxy, to compare with")
    parser.add_argument("--py-spy", help="program of the profiler")
    parser.add_argument("--smoke", action="store_true", help="few streams and a short time: does it work at all?")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md")
    asked = parser.parse_args()
    streams = [2, 4] if asked.smoke else [int(each) for each in asked.streams.split(",")]
    sides = [ALONE, CHAT, SESSIONS, *([Side(LITELLM, asked.litellm)] if asked.litellm else [])]
    profiles: dict[str, list[tuple[str, float]]] = {}
    allow_files()
    stub = (sys.executable, "-c", f"import gateway_load; gateway_load.serve_stub({RATE})")
    with tempfile.TemporaryDirectory(prefix="cfs-gateway-") as folder, started(*stub, folder=BENCH) as upstream:
        bench = Bench(upstream, Path(folder), *((0.5, 1.0) if asked.smoke else (asked.seconds, 3.0)))
        rows = measure(sides, streams, bench)
        for side in (CHAT, SESSIONS) if asked.py_spy else ():
            if count := most_sustained(rows, side):
                profiles[f"{side.name}, {count:,} streams"] = bench.profile(side, count, asked.py_spy)
    print(shown := tables(rows, profiles))
    if asked.json:
        found: dict[str, Any] = {
            "rows": [asdict(row) | {"sustained": row.sustained, "cpu": row.cpu} for row in rows],
            "most": {side.name: most_sustained(rows, side) for side in sides},
            "profiles": profiles,
        }
        asked.json.write_text(json.dumps(found, indent=1))
    if asked.docs:
        page = re.sub(
            r"(?s)(<!-- gateway -->\n).*?(<!-- /gateway -->)", lambda m: f"{m[1]}{shown}\n{m[2]}", PAGE.read_text()
        )
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
