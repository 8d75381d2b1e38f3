"""What HTTP costs: streams with a thousand idle readers beside ten busy ones, and the way to the first token.

Run by `scripts/bench rest [--smoke] [--json FILE] [--only streams|overhead]`. For the
streams the server is a process of its own, so its memory is its own; readers are here, on bare sockets, so that they
cost as little as can be. For the overhead the server is here, too, so that its engine can be called directly as well.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import structlog

from cfs.wire import Message, Settings
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings as Configuration
from cfs_server.engine.contract.interface import Delta, GenerationRequest
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of

SESSIONS = 10
RATE = 50
LATENCY_BAR_MS = 20.0
MEMORY_BAR_KB = 50.0
OVERHEAD_BAR_MS = 3.0
_TIME = re.compile(rb'^data: \{"type":"token".*?"time":([0-9.]+)', re.MULTILINE)


@contextmanager
def serving(*flags: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run `cfs serve` on a free port; its URL and its process."""
    program = str(Path(sys.executable).with_name("cfs"))
    command = [program, "serve", "--port", "0", "--log-level", "error", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@asynccontextmanager
async def stream(url: str, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """Open a stream of events."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=8192)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], head
    try:
        yield reader
    finally:
        writer.transport.abort()


async def drain(reader: asyncio.StreamReader) -> None:
    """Read what comes and forget it."""
    while await reader.read(8192):
        pass


async def measure_tokens(reader: asyncio.StreamReader, delays: list[float], count: int) -> None:
    """Note for each token how long it was on its way: from its event's time to its receipt here."""
    seen = 0
    while seen < count:
        data = await reader.readuntil(b"\n\n")
        now = time.time()
        if (found := _TIME.search(data)) is not None:
            delays.append((now - float(found[1])) * 1000)
            seen += 1


def resident(process: psutil.Process) -> int:
    """Bytes of memory that a process holds."""
    found: int = process.memory_info().rss
    return found


@dataclass(frozen=True, slots=True)
class Streams:
    """What a run with idle subscribers showed; times in milliseconds, memory in KB."""

    subscribers: int
    where: str
    tokens: int
    p50: float
    p99: float
    longest: float
    memory_each: float
    cpu_share: float


async def bench_streams(subscribers: int, tokens: int, *, same: bool) -> Streams:
    """Let ten sessions stream beside many idle subscribers, each of its own session or all of one."""
    with serving("--engine", "scripted", "--scripted-interval", str(1 / RATE)) as (url, process):
        async with httpx.AsyncClient(base_url=url, timeout=120) as client, contextlib.AsyncExitStack() as stack:
            await client.post("/v1/sessions/warm/messages?wait=true", content=b"a b c")
            for n in range(1 if same else subscribers):
                await client.post("/v1/sessions", json={"id": f"idle{n}"})
            async with contextlib.AsyncExitStack() as warm:  # what the first streams cost once is not each one's
                for _ in range(20):
                    await warm.enter_async_context(stream(url, "/v1/sessions/warm/events"))
            before = resident(process)
            idle = [
                await stack.enter_async_context(stream(url, f"/v1/sessions/idle{0 if same else n}/events"))
                for n in range(subscribers)
            ]
            await asyncio.sleep(1)
            memory = (resident(process) - before) / subscribers / 1024 if subscribers else 0.0
            readers = [asyncio.create_task(drain(reader)) for reader in idle]
            delays: list[float] = []
            words = " ".join(f"word{n}" for n in range(tokens)).encode()
            busy = [f"busy{n}" for n in range(SESSIONS)]
            for name in busy:
                await client.post("/v1/sessions", json={"id": name, "settings": {"max_tokens": tokens}})
            active = [await stack.enter_async_context(stream(url, f"/v1/sessions/{name}/events")) for name in busy]
            cpu, began = sum(process.cpu_times()[:2]), time.monotonic()
            for name in busy:
                await client.post(f"/v1/sessions/{name}/messages", content=words)
            await asyncio.gather(*(measure_tokens(reader, delays, tokens) for reader in active))
            share = (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - began)
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
    cuts = statistics.quantiles(delays, n=100)
    where = "one session" if same else "a session each"
    return Streams(subscribers, where, len(delays), cuts[49], cuts[98], max(delays), memory, share)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time to the first token, in milliseconds: medians of interleaved runs."""

    runs: int
    direct: float
    http: float
    added: float


async def first_direct(engine: LlamaEngine, number: int) -> float:
    """Time from the request to the first token, engine called directly."""
    message = Message(role="user", content="Hello!")
    settings = Settings(max_tokens=4, temperature=0)
    request = GenerationRequest(f"d{number}", f"direct{number}", (message,), settings)
    began = time.perf_counter()
    first = 0.0
    async for item in engine.generate(request):
        if isinstance(item, Delta) and not first:
            first = time.perf_counter() - began
    engine.forget(f"direct{number}")
    return first * 1000


class Caller:
    """A client on one open connection, that costs next to nothing itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def first_token(self, session: str) -> float:
        """Time from the request to the receipt of the first token; the rest of the turn is read, too."""
        body = b'{"content":"Hello!","settings":{"max_tokens":4,"temperature":0}}'
        head = f"POST /v1/sessions/{session}/messages HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        began = time.perf_counter()
        self._writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        first = 0.0
        seen = b""
        while not seen.endswith(b"0\r\n\r\n"):
            seen += await self._reader.read(8192)
            if not first and b"event: token" in seen:
                first = time.perf_counter() - began
        return first * 1000


@asynccontextmanager
async def served(engine: LlamaEngine) -> AsyncIterator[str]:
    """Serve an engine in this process, so that it can be called directly as well; yields the URL."""
    settings = Configuration(port=0)
    listener = listen("127.0.0.1", 0, settings.send_timeout)
    started = asyncio.Event()
    server = UvicornServer(server_config(create_app(settings, engine)), started.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await started.wait()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        await serving


async def bench_overhead(runs: int) -> Overhead:
    """Ask the same engine, and so the same worker, directly and over HTTP in turns; each time a new session."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    engine = LlamaEngine()
    await engine.start()
    direct: list[float] = []
    over_http: list[float] = []
    try:
        async with served(engine) as url:
            host, _, port = url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            caller = Caller(reader, writer)
            for number in range(runs + 5):
                pair = await first_direct(engine, number), await caller.first_token(f"http{number}")
                if number >= 5:  # the first ones warm up
                    direct.append(pair[0])
                    over_http.append(pair[1])
            writer.close()
    finally:
        await engine.stop()
    added = statistics.median(over_http) - statistics.median(direct)
    return Overhead(runs, statistics.median(direct), statistics.median(over_http), added)


def verdict(ok: bool) -> str:
    """Say whether a bar is met."""
    return "yes" if ok else "**no**"


def show_streams(found: list[Streams]) -> None:
    """Print the table of the streams."""
    print(f"\nTen sessions at {RATE} tokens/s beside idle subscribers")
    print(f"(bars: p99 {LATENCY_BAR_MS:g} ms, {MEMORY_BAR_KB:g} KB each)\n")
    print("| idle subscribers | of | tokens | p50 ms | p99 ms | longest ms | KB each | server CPU | within the bars |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in found:
        ok = row.p99 <= LATENCY_BAR_MS and row.memory_each <= MEMORY_BAR_KB
        print(
            f"| {row.subscribers} | {row.where} | {row.tokens} | {row.p50:.2f} | {row.p99:.2f} | {row.longest:.1f} "
            f"| {row.memory_each:.1f} | {row.cpu_share:.0%} | {verdict(ok)} |"
        )


def show_overhead(row: Overhead) -> None:
    """Print the table of the overhead."""
    print(f"\nTime to the first token, medians of {row.runs} interleaved runs (bar: {OVERHEAD_BAR_MS:g} ms added)\n")
    print("| engine called directly, ms | over HTTP, ms | added, ms | within the bar |")
    print("|---|---|---|---|")
    print(f"| {row.direct:.2f} | {row.http:.2f} | {row.added:.2f} | {verdict(row.added <= OVERHEAD_BAR_MS)} |")


async def main(options: argparse.Namespace) -> dict[str, Any]:
    """Run what was asked for."""
    found: dict[str, Any] = {"load_at_start": os.getloadavg(), "cpus": os.cpu_count()}
    if options.only != "overhead":
        subscribers, tokens = (20, 25) if options.smoke else (1000, 500)
        rows = [await bench_streams(0, tokens, same=True)]
        rows += [await bench_streams(subscribers, tokens, same=same) for same in (False, True)]
        show_streams(rows)
        found["streams"] = [{name: getattr(row, name) for name in Streams.__slots__} for row in rows]
    if options.only != "streams":
        row = await bench_overhead(5 if options.smoke else 100)
        show_overhead(row)
        found["overhead"] = {name: getattr(row, name) for name in Overhead.__slots__}
    found["load_at_end"] = os.getloadavg()
    print(f"\nLoad of the machine ({found['cpus']} processors): {found['load_at_start']} to {found['load_at_end']}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What HTTP costs.")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--only", choices=["streams", "overhead"])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    found = asyncio.run(main(options))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
