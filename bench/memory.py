"""How much memory sessions take: a server with 10,000 and 100,000 sessions in its store.

    scripts/bench memory [--sessions 10000 100000] [--messages 20] [--memory 512MiB] [--reads 2000] [--json FILE]

For each number of sessions, a store is filled, and `cfs serve` with the scripted engine is started on it. The resident
memory of its process is read when it is ready, and again when `--reads` random transcripts have been read over HTTP,
each of which must be right. An empty server is the baseline: what is above it, by the number of sessions, is the memory
of a session.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from cfs.contract.transcript import render
from cfs.wire import Message
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.journal.journal import Journal
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.sessions.store import SessionStore

CFS = Path(sys.executable).with_name("cfs")
AT_ONCE = 500
UNLIMITED = 1 << 40
WORDS = (
    *["each", "session", "is", "a", "file", "with", "the", "messages", "of", "a", "conversation"],
    *["and", "a", "write", "to", "it", "asks", "the", "model"],
)


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured with a number of sessions. Sizes are in bytes."""

    sessions: int
    messages: int
    file: int
    ready_seconds: float
    ready: int
    """Resident memory when the server is ready."""
    used: int
    """Resident memory after the reads."""
    read_p50_ms: float
    read_p99_ms: float

    def kilobytes(self, empty: "Row") -> float:
        """The memory of a session without its messages."""
        return (self.ready - empty.ready) / max(1, self.sessions) / 1024


def transcript_of(number: int, count: int) -> list[Message]:
    """Return the messages of a session: 350 characters each on average."""
    words = random.Random(number)
    return [
        Message(
            role="assistant" if at % 2 else "user",
            content=f"{number}/{at} " + " ".join(words.choices(WORDS, k=words.randint(20, 120))),
        )
        for at in range(count)
    ]


async def fill(path: Path, sessions: int, messages: int) -> None:
    """Write a store with this many sessions."""
    journal = Journal(SqliteBackend(path, fast=True))
    await journal.open()
    engine = ScriptedEngine()
    await engine.start()
    limits = StoreLimits(sessions=UNLIMITED, total_bytes=UNLIMITED, memory=0, all_event_bytes=1 << 20)
    async with SessionStore(engine, limits, journal=journal) as store:
        for number in range(sessions):
            store.create(name_of(number), None, SizedMessages.of(transcript_of(number, messages)))
            if number % AT_ONCE == 0:
                await journal.durable()
    await journal.close()
    await engine.stop()


def name_of(number: int) -> str:
    """Return a name whose order is not that of the numbers."""
    return f"{number * 2_654_435_761 % (1 << 32):08x}-{number}"


@contextmanager
def serving(path: Path, memory: str) -> Iterator[tuple[psutil.Process, str, float]]:
    """Run `cfs serve` on a store. Yields the process, its URL, and the seconds until it was ready."""
    began = time.monotonic()
    flags = ["--port", "0", "--engine", "scripted", "--store", str(path), "--memory", memory, "--log-level", "warning"]
    limits = ["--max-sessions", str(UNLIMITED), "--max-total-bytes", str(UNLIMITED)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}
    process = subprocess.Popen(
        [CFS, "serve", *flags, *limits],
        stdout=subprocess.PIPE,
        text=True,
        env=clean | {"CFS_DATA_DIR": "temporary"},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        if not url.startswith("http"):
            raise SystemExit("cfs serve did not start")
        yield psutil.Process(process.pid), url, time.monotonic() - began
    finally:
        process.terminate()
        process.wait(60)


def measure(path: Path, sessions: int, messages: int, memory: str, reads: int) -> Row:
    """Serve a filled store, and read transcripts from it."""
    chosen = random.Random(1)
    with serving(path, memory) as (process, url, seconds), httpx.Client(base_url=url, trust_env=False) as client:
        ready = process.memory_info().rss
        took: list[float] = []
        for number in (chosen.randrange(sessions) for _ in range(reads if sessions else 0)):
            began = time.perf_counter()
            answer = client.get(f"/v1/sessions/{name_of(number)}", headers={"Accept": "text/plain"})
            took.append(1000 * (time.perf_counter() - began))
            if answer.text != render(transcript_of(number, messages)):
                raise SystemExit(f"the transcript of session {number} is wrong: {answer.status_code}")
        used = process.memory_info().rss
    took.sort()
    p50, p99 = (statistics.median(took), took[len(took) * 99 // 100]) if took else (0.0, 0.0)
    return Row(sessions, messages, path.stat().st_size, seconds, ready, used, p50, p99)


def table(rows: list[Row], empty: Row) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| sessions | messages | store MB | ready s | memory MB | KB a session | after reads MB | read p50 / p99 ms |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in (empty, *rows):
        kilobytes = f"{row.kilobytes(empty):.1f}" if row.sessions else ""
        lines.append(
            f"| {row.sessions:,} | {row.sessions * row.messages:,} | {row.file / 1e6:.0f} | {row.ready_seconds:.1f}"
            f" | {row.ready / 1e6:.0f} | {kilobytes} | {row.used / 1e6:.0f}"
            f" | {row.read_p50_ms:.1f} / {row.read_p99_ms:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--reads", type=int, default=2_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (0, *options.sessions):
            path = Path(folder) / f"{count}.db"
            asyncio.run(fill(path, count, options.messages))
            rows.append(measure(path, count, options.messages, options.memory, options.reads))
    print(table(rows[1:], rows[0]))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
