"""Measure what it costs to keep sessions: against a store in memory, and beside the stores of other programs.

    scripts/bench store [--only accept,token,tokens,start,journal,peers] [--install] [--smoke] [--docs] [--json FILE]

- **accept**: the time from a message to its 202, with 16 and 64 clients: at a steady rate, and as fast as they can;
- **token**: the time to the first token of a reply;
- **tokens**: processor time while 800 tokens a second are written;
- **start**: the time until the server listens, with 10,000 and 100,000 sessions;
- **journal**: accepts without HTTP, by the journal alone: on the default file, and on PostgreSQL where it is installed;
- **peers**: the same work on the checkpointers of LangGraph (SQLite, and PostgreSQL where it is installed), the log
  database of `llm`, and the file store of OpenHands. Each has an environment of its own in the cache folder, which
  `--install` makes.

Each figure of ours is measured with `--store memory`, `--store fast` and the default in turn, in one run, so that a
busy machine slows all of them alike. Medians of the rounds.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

import memory
from cfs.wire import Message, Settings
from cfs_server.domain.changes import Created, MessageAdded, Record, SessionChange, StateAnnounced
from cfs_server.domain.events import LoggedEvent
from cfs_server.journal.journal import Backend, Journal
from cfs_server.journal.postgres import PostgresBackend
from cfs_server.journal.postgres_database import prepare
from cfs_server.journal.sqlite import SqliteBackend
from ports import free_port

CFS = Path(sys.executable).with_name("cfs")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PEERS = Path(__file__).with_name("store_peers.py")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cfs-bench" / "store"
STORES = ("memory", "fast", "default")
PACKAGES = {
    "langgraph": ["langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg[binary,pool]"],
    "llm": ["llm"],
    "openhands": ["openhands-sdk"],
}
BYTES = 500
RATE = 200
"""Messages a second of all clients together, in the measurements at a steady rate."""
TOKENS = 800
UNLIMITED = ("--max-sessions", "1000000", "--max-total-bytes", f"{1 << 40}")

ACCEPT_P50_BAR_MS = 2.0
ACCEPT_P99_BAR_MS = 15.0
FIRST_TOKEN_BAR_MS = 1.0
CPU_BAR = 0.05
START_BARS = {10_000: 1.0, 100_000: 5.0}


@dataclass
class Sizes:
    """How much is measured."""

    rounds: int = 3
    seconds: float = 3.0
    turns: int = 100
    token_seconds: float = 10.0
    starts: tuple[int, ...] = (10_000, 100_000)
    start_rounds: int = 3
    messages: int = 1600
    conversations: int = 10_000


SMOKE = Sizes(1, 0.5, 5, 1.0, (200,), 1, 320, 50)


@dataclass
class Server:
    """A running server and its process."""

    url: str
    process: psutil.Process
    started: float
    """Seconds until it listened."""
    data: Path
    client: httpx.Client = field(repr=False)

    def cpu(self) -> float:
        """Return the processor time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def serving(store: str, data: Path, *flags: str) -> Iterator[Server]:
    """Run `cfs serve` with a store."""
    command = [
        str(CFS),
        "serve",
        "--port",
        "0",
        "--log-level",
        "error",
        "--engine",
        "scripted",
        "--data-dir",
        str(data),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}
    began = time.perf_counter()
    process = subprocess.Popen([*command, "--store", store, *flags], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().removeprefix("listening on ").strip()
        started = time.perf_counter() - began
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield Server(url, psutil.Process(process.pid), started, data, client)
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def all_stores(folder: Path, *flags: str) -> Iterator[dict[str, Server]]:
    """Run one server for each kind of store."""
    with ExitStack() as stack:
        yield {store: stack.enter_context(serving(store, folder / store, *flags)) for store in STORES}


def percentile(values: Sequence[float], part: float) -> float:
    """Return a percentile."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def synced_writes(folder: Path) -> dict[str, float]:
    """Measure how long the disk takes to keep 8 KB: no durable answer can be quicker."""
    times = []
    with (folder / "probe").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * 8192)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
            time.sleep(0.002)
    return {"p50": percentile(times, 0.5) * 1e3, "p99": percentile(times, 0.99) * 1e3}


# -- accepting messages -----------------------------------------------------------------------------------------------


class Line:
    """A connection that sends one request after the other, with little work in between."""

    def __init__(self, url: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))

    async def post(self, path: str, body: bytes) -> int:
        """Send a body and return the status, when the answer is complete."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        self._writer.write(f"{head}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if (length := re.search(rb"(?i)content-length: (\d+)", answer)) is not None:
            await self._reader.readexactly(int(length[1]))
        return int(answer.split(b" ", 2)[1])

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def accept(url: str, clients: int, seconds: float, rate: float | None, session: str) -> list[float]:
    """Send messages that want no reply; return the seconds of each, from the moment at which it was due."""
    body = json.dumps({"content": "x" * BYTES, "generate": False}).encode()
    begin = time.perf_counter() + 0.1
    times: list[float] = []

    async def client(number: int) -> None:
        line, due, path = Line(url), begin, f"/v1/sessions/{session}-{number}/messages"
        await line.open()
        assert await line.post(path, body) == 202
        if rate is not None:
            due += number / rate
        while due < begin + seconds:
            await asyncio.sleep(due - time.perf_counter())
            if rate is None:
                due = time.perf_counter()
            assert await line.post(path, body) == 202
            times.append(time.perf_counter() - due)
            due = time.perf_counter() if rate is None else due + clients / rate
        line.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return times


def bench_accept(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Measure the time to a 202."""
    found: dict[str, Any] = {}
    with all_stores(folder) as servers:
        for clients in (16, 64):
            for rate in (RATE, None):
                rows: dict[str, list[list[float]]] = {store: [] for store in STORES}
                for number in range(sizes.rounds):
                    for store, server in servers.items():
                        name = f"{clients}-{rate}-{number}"
                        rows[store].append(asyncio.run(accept(server.url, clients, sizes.seconds, rate, name)))
                found[f"{clients} {'steady' if rate else 'fast'}"] = {
                    store: {
                        "p50": statistics.median(percentile(times, 0.5) for times in measured) * 1e3,
                        "p99": statistics.median(percentile(times, 0.99) for times in measured) * 1e3,
                        "accepts": statistics.median(len(times) for times in measured) / sizes.seconds,
                    }
                    for store, measured in rows.items()
                }
    return found


# -- tokens -----------------------------------------------------------------------------------------------------------


def bench_token(folder: Path, sizes: Sizes) -> dict[str, float]:
    """Measure the time to the first token; the servers take turns with each turn."""
    times: dict[str, list[float]] = {store: [] for store in STORES}
    with all_stores(folder) as servers:
        for number in range(sizes.turns + 3):
            for store, server in servers.items():
                began = time.perf_counter()
                with server.client.stream(
                    "POST",
                    f"/v1/sessions/t{number % 7}/messages",
                    content=b"one two three",
                    headers={"Accept": "text/event-stream"},
                ) as response:
                    first = 0.0
                    for line in response.iter_lines():
                        if line == "event: token":
                            first = first or time.perf_counter() - began
                    if number >= 3:
                        times[store].append(first)
    return {store: statistics.median(measured) * 1e3 for store, measured in times.items()}


def bench_tokens(folder: Path, sizes: Sizes) -> dict[str, float]:
    """Measure the processor time while replies of many sessions are written, as a part of one core."""
    sessions, interval = 16, 16 / TOKENS
    text = "word " * int(sizes.token_seconds / interval * 3)
    shares: dict[str, list[float]] = {store: [] for store in STORES}
    rates: list[float] = []
    for _ in range(max(sizes.rounds // 2, 1)):
        for store in STORES:
            with (
                tempfile.TemporaryDirectory(dir=folder) as data,
                serving(store, Path(data), "--scripted-interval", f"{interval}") as server,
            ):
                for number in range(sessions):
                    body = {"content": text, "settings": {"max_tokens": 1_000_000}}
                    server.client.post(f"/v1/sessions/s{number}/messages", json=body)
                time.sleep(0.5)
                began, before, events = time.perf_counter(), server.cpu(), _events(server, sessions)
                time.sleep(sizes.token_seconds)
                taken = time.perf_counter() - began
                shares[store].append((server.cpu() - before) / taken)
                rates.append((_events(server, sessions) - events) / taken)
    medians = {store: statistics.median(measured) for store, measured in shares.items()}
    return medians | {"rate": statistics.median(rates)}


def _events(server: Server, sessions: int) -> int:
    infos = server.client.get("/v1/sessions", params={"limit": sessions}).json()["sessions"]
    return sum(info["event"] for info in infos)


# -- starting ---------------------------------------------------------------------------------------------------------


def bench_start(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Measure how long a start takes with many sessions, and how large the store is."""
    found: dict[str, Any] = {}
    for sessions in sizes.starts:
        data = folder / f"{sessions}"
        data.mkdir()
        asyncio.run(memory.fill(data / "sessions.db", sessions, 2))
        taken: dict[str, list[float]] = {store: [] for store in STORES}
        for _ in range(sizes.start_rounds):
            for store in STORES:
                with serving(store, data, *UNLIMITED) as server:
                    taken[store].append(server.started)
                    if store == "default":
                        found_there = server.client.get("/v1/sessions", params={"limit": 10}).json()["sessions"]
                        assert [info["messages"] for info in found_there] == [2] * 10
        found[f"{sessions}"] = {store: statistics.median(times) for store, times in taken.items()}
        shutil.rmtree(data)
    return found


def fill(data: Path, sessions: int) -> None:
    """Make a store with so many sessions: a message in each, by eight clients."""

    async def client(server: Server, numbers: range) -> None:
        body, line = json.dumps({"content": "x" * BYTES, "generate": False}).encode(), Line(server.url)
        await line.open()
        for number in numbers:
            assert await line.post(f"/v1/sessions/s{number}/messages", body) == 202
        line.close()

    async def clients(server: Server) -> None:
        await asyncio.gather(*(client(server, range(first, sessions, 8)) for first in range(8)))

    with serving("default", data, *UNLIMITED) as server:
        asyncio.run(clients(server))


# -- the journal alone ------------------------------------------------------------------------------------------------


def bench_journal(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Measure how many messages a second become durable, two records each, and how long one takes."""
    found: dict[str, Any] = {}
    with _postgres() as address:
        if address:
            prepare(address, 2 * sizes.rounds)
        for clients in (16, 64):
            rows: dict[str, list[dict[str, float]]] = {"SQLite": [], "PostgreSQL": []}
            for number in range(sizes.rounds):
                file = SqliteBackend(folder / f"{clients}-{number}.db")
                rows["SQLite"].append(asyncio.run(_accepts(file, clients, sizes.seconds)))
                if address:
                    slot = PostgresBackend(address, number + (sizes.rounds if clients == 64 else 0))
                    rows["PostgreSQL"].append(asyncio.run(_accepts(slot, clients, sizes.seconds)))
            found[f"{clients}"] = {
                store: {name: statistics.median(each[name] for each in measured) for name in measured[0]}
                for store, measured in rows.items()
                if measured
            }
    return found


async def _accepts(backend: Backend, clients: int, seconds: float) -> dict[str, float]:
    journal = Journal(backend)
    position = (await journal.open()).position
    times: list[float] = []
    cpu, commits, ends = time.process_time(), journal.commits, time.perf_counter() + seconds

    def append(key: str, number: int, change: SessionChange, kind: Any) -> None:
        nonlocal position
        position += 1
        event = LoggedEvent(kind, key, number, position, time.time(), {})
        journal.append(Record(key, time.time(), change, (event,), None, number, position))

    async def client(key: str) -> None:
        append(key, 1, Created(key, key, "1f", "the server", Settings()), "session.created")
        number = 1
        while (began := time.perf_counter()) < ends:
            append(key, number + 1, MessageAdded(Message(role="user", content="x" * BYTES), "t"), "message.added")
            append(key, number + 2, StateAnnounced(), "state.changed")
            await journal.durable()
            number += 2
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(client(f"{number}") for number in range(clients)))
    used, commits = time.process_time() - cpu, journal.commits - commits
    await journal.close()
    return {
        "accepts": len(times) / seconds,
        "p50": percentile(times, 0.5) * 1e3,
        "p99": percentile(times, 0.99) * 1e3,
        "per_commit": len(times) / commits,
        "cpu": used / len(times) * 1e6,
    }


# -- others -----------------------------------------------------------------------------------------------------------


def bench_peers(folder: Path, sizes: Sizes, *, install: bool) -> dict[str, Any]:
    """Measure the same work on each store."""
    found: dict[str, Any] = {"CFS": _ours(folder, sizes)}
    for name in ("langgraph-sqlite", "langgraph-postgres", "llm", "openhands"):
        python = _environment(name.partition("-")[0], install=install)
        if python is None:
            found[name] = None
        elif name == "langgraph-postgres":
            with _postgres() as address:
                found[name] = _peer(python, name, folder / name, sizes, address) if address else None
        else:
            found[name] = _peer(python, name, folder / name, sizes)
    return found


def _ours(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Our server, with all that a request over HTTP costs."""
    figures: dict[str, Any] = {}
    for clients in (16, 64):
        with serving("default", folder / f"cfs{clients}") as server:
            times = asyncio.run(accept(server.url, clients, max(sizes.messages / 800, 0.5), None, "s"))
            taken = max(sizes.messages / 800, 0.5)
        figures |= {f"accepts{clients}": len(times) / taken, f"p99{clients}": percentile(times, 0.99) * 1e3}
        data = folder / f"cfs{clients}"
        size = sum(path.stat().st_blocks * 512 for path in data.iterdir() if path.is_file())
        figures["bytes"] = size / (len(times) + clients)
    data = folder / "cfs-start"
    fill(data, sizes.conversations)
    began = time.perf_counter()
    with serving("default", data, *UNLIMITED) as server:
        history = server.client.get("/v1/sessions/s1").json()["history"]
        assert len(history) == 1
        server.client.post("/v1/sessions/s1/messages", json={"content": "x", "generate": False}).raise_for_status()
        figures["start"] = time.perf_counter() - began
    return figures


def _peer(python: Path, name: str, folder: Path, sizes: Sizes, postgres: str = "") -> dict[str, Any]:
    quiet = {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "POSTGRES": postgres}

    def run(what: str, *numbers: int, place: Path) -> dict[str, Any]:
        command = [str(python), str(PEERS), name, str(place), what, *map(str, numbers)]
        environment = os.environ | quiet | {"BEGAN": f"{time.time()}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1800)
        if done.returncode:
            raise RuntimeError(f"{name} {what}: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    figures: dict[str, Any] = {}
    for clients in (16, 64):
        loaded = run("load", clients, sizes.messages, place=folder / f"{clients}")
        figures |= {f"accepts{clients}": loaded["accepts"], f"p99{clients}": loaded["p99"], "bytes": loaded["bytes"]}
    run("seed", sizes.conversations, place=folder / "start")
    figures["start"] = run("start", sizes.conversations, place=folder / "start")["seconds"]
    return figures


def _environment(name: str, *, install: bool) -> Path | None:
    """Return the Python of a peer's environment, or None if it is not installed."""
    python = CACHE / name / "bin" / "python"
    if not install or python.exists():
        return python if python.exists() else None
    newer = next((path for each in ("3.13", "3.12") if (path := shutil.which(f"python{each}"))), sys.executable)
    subprocess.run([newer, "-m", "venv", str(CACHE / name)], check=True)
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES[name]], check=False)
    return python if done.returncode == 0 else None


@contextmanager
def _postgres() -> Iterator[str]:
    """Run a PostgreSQL server of our own; yield its address, or nothing if it is not installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        yield ""
        return
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="cfs-postgres-"))
    as_user: list[str | Path] = (
        ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    )
    if as_user:
        shutil.chown(folder, "postgres", "postgres")
    place = programs[-1].parent
    try:
        data = str(folder / "data")
        subprocess.run(
            [*as_user, f"{place}/initdb", "-D", data, "-U", "postgres", "-A", "trust"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        server = subprocess.Popen(
            [*as_user, f"{place}/postgres", "-D", data, "-p", f"{port}", "-k", str(folder), "-h", "127.0.0.1"],
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        try:
            ready = [f"{place}/pg_isready", "-q", "-h", "127.0.0.1", "-p", f"{port}"]
            while subprocess.run(ready, check=False).returncode:
                time.sleep(0.1)
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- report -----------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> str:
    """Write the tables of the documentation."""
    parts: list[list[str]] = []
    if "accept" in found:
        rows = ["| clients | store | accepts/s | p50 ms | p99 ms |", "|---|---|--:|--:|--:|"]
        for case, stores in found["accept"].items():
            for store, row in stores.items():
                clients, kind = case.split()
                way = f"{RATE} messages a second" if kind == "steady" else "as fast as they can"
                rows.append(
                    f"| {clients}, {way} | `{store}` | {row['accepts']:,.0f} | {row['p50']:.2f} | {row['p99']:.1f} |"
                )
        parts.append(rows)
    rows = ["| | `memory` | `fast` | `default` | bar |", "|---|--:|--:|--:|---|"]
    if "accept" in found:
        for clients in (16, 64):
            row = found["accept"][f"{clients} steady"]
            for name, bar in (("p50", ACCEPT_P50_BAR_MS), ("p99", ACCEPT_P99_BAR_MS)):
                more = {store: row[store][name] - row["memory"][name] for store in STORES}
                rows.append(_row(f"accept, {clients} clients, {name}: ms more", more, f"< {bar:g}", more, bar))
    if "token" in found:
        more = {store: value - found["token"]["memory"] for store, value in found["token"].items()}
        rows.append(_row("first token, ms", found["token"], f"< {FIRST_TOKEN_BAR_MS:g} more", more, FIRST_TOKEN_BAR_MS))
    if "tokens" in found:
        share = {store: found["tokens"][store] for store in STORES}
        more = {store: value - share["memory"] for store, value in share.items()}
        name = f"processor at {found['tokens']['rate']:,.0f} tokens a second, % of a core"
        percent = {store: value * 100 for store, value in share.items()}
        rows.append(_row(name, percent, f"≤ {CPU_BAR * 100:g} more", more, CPU_BAR))
    for sessions, row in found.get("start", {}).items():
        bar = START_BARS.get(int(sessions), 1.0)
        rows.append(_row(f"ready with {int(sessions):,} sessions, s", row, f"< {bar:g}", row, bar))
    if len(rows) > 2:
        parts.append(rows)
    if "journal" in found:
        rows = ["| clients | store | accepts/s | p50 ms | p99 ms | accepts in a commit | µs of processor each |"]
        rows.append("|--:|---|--:|--:|--:|--:|--:|")
        for clients, stores in found["journal"].items():
            for store, row in stores.items():
                rows.append(
                    f"| {clients} | {store} | {row['accepts']:,.0f} | {row['p50']:.1f} | {row['p99']:.1f} |"
                    f" {row['per_commit']:.1f} | {row['cpu']:.0f} |"
                )
        parts.append(rows)
    if "peers" in found:
        rows = [
            "| store | 16 clients: accepts/s | p99 ms | 64 clients: accepts/s | p99 ms | bytes a message | start, s |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for name, row in found["peers"].items():
            if row is None:
                rows.append(f"| {name} | not installed | | | | | |")
            else:
                rows.append(
                    f"| {name} | {row['accepts16']:,.0f} | {row['p9916']:.0f} | {row['accepts64']:,.0f} |"
                    f" {row['p9964']:.0f} | {row['bytes']:,.0f} | {row['start']:.2f} |"
                )
        parts.append(rows)
    disk = found["disk"]
    pace = f"To keep 8 KB the disk took {disk['p50']:.1f} ms (p50) and {disk['p99']:.1f} ms (p99) during this run"
    parts.append([f"{pace}; the machine's load was {found['load']:.1f}."])
    return "\n\n".join("\n".join(rows) for rows in parts)


def _row(name: str, values: dict[str, float], wanted: str, judged: dict[str, float], bar: float) -> str:
    met = "met" if judged["default"] <= bar else "**missed**"
    shown = " | ".join(f"{values[store]:.2f}" for store in STORES)
    return f"| {name} | {shown} | {wanted}: {met} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="accept,token,tokens,start,journal,peers")
    parser.add_argument("--smoke", action="store_true", help="as little as possible, for tests")
    parser.add_argument("--install", action="store_true", help="install what is compared with")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md")
    asked = parser.parse_args()
    sizes = SMOKE if asked.smoke else Sizes()
    benches: dict[str, Callable[[Path], Any]] = {
        "accept": lambda folder: bench_accept(folder, sizes),
        "token": lambda folder: bench_token(folder, sizes),
        "tokens": lambda folder: bench_tokens(folder, sizes),
        "start": lambda folder: bench_start(folder, sizes),
        "journal": lambda folder: bench_journal(folder, sizes),
        "peers": lambda folder: bench_peers(folder, sizes, install=asked.install),
    }
    found: dict[str, Any] = {"conversations": sizes.conversations, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="cfs-store-") as folder:
        found["disk"] = synced_writes(Path(folder))
    for name in asked.only.split(","):
        with tempfile.TemporaryDirectory(prefix="cfs-store-") as folder:
            found[name] = benches[name](Path(folder))
            print(name, json.dumps(found[name]), flush=True)
    print(shown := tables(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    if asked.docs:
        page = re.sub(
            r"(?s)(<!-- store -->\n).*?(<!-- /store -->)", lambda m: f"{m[1]}{shown}\n{m[2]}", PAGE.read_text()
        )
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
