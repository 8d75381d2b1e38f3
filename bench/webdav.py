"""What WebDAV costs: listings, reads beside REST and a bare FastAPI answer, uploads, and many that wait (W1, W4).

Run by `scripts/bench webdav [--smoke] [--json FILE]`. Servers are processes of their own; what is compared takes turns,
so that a busy machine slows all of it alike.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Response

CFS = Path(sys.executable).with_name("cfs")
MEGABYTES = 64
LISTED = (
    b"<?xml version='1.0'?><propfind xmlns='DAV:'><prop>"
    b"<getcontentlength/><getlastmodified/><resourcetype/><getetag/></prop></propfind>"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure and what it should be."""

    what: str
    figure: float
    unit: str
    bar: float
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is as it should be."""
        return self.figure >= self.bar if self.least else self.figure <= self.bar


class Line:
    """An open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str) -> "Line":
        """Connect."""
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 20))

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> float:
        """Send a request and read the answer to its end; return the seconds that it took."""
        began = time.perf_counter()
        await self.send(method, path, body, **headers)
        await self.answered()
        return time.perf_counter() - began

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        """Send a request."""
        fields = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        await self.writer.drain()

    async def answered(self) -> None:
        """Read an answer to its end."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 2"), head
        if b"content-length: " in head:
            left = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            while left:
                left -= len(await self.reader.read(min(left, 1 << 20)))

    def close(self) -> None:
        """Hang up."""
        self.writer.transport.abort()


@contextmanager
def running(*command: str) -> Iterator[tuple[str, int]]:
    """Run a server that says where it listens; yield that and its process id."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("listening on ").strip(), process.pid
    finally:
        process.kill()
        process.communicate()


def peer() -> None:
    """Serve as many bytes from memory as FastAPI does."""
    app = FastAPI()
    content = os.urandom(MEGABYTES << 20)

    @app.get("/big")
    async def big() -> Response:
        return Response(content, media_type="application/octet-stream")

    config = uvicorn.Config(app, port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    asyncio.run(server.serve(sockets=[listener]))


async def listing(url: str, sessions: int, runs: int) -> list[Bar]:
    """Ask for the properties that clients ask for, of very many sessions."""
    line = await Line.open(url)
    for number in range(sessions):
        await line.ask("POST", "/v1/sessions", json.dumps({"id": f"s{number:05}"}).encode(), **JSON)
    taken = [await line.ask("PROPFIND", "/dav/sessions/", LISTED, Depth="1") for _ in range(runs)]
    line.close()
    return [Bar(f"PROPFIND of {sessions:,} sessions", statistics.median(taken), "s", 0.5)]


JSON = {"Content-Type": "application/json"}


async def large(url: str, pid: int, beside: str, runs: int) -> list[Bar]:
    """Put a large file and read it back, beside the same from memory by FastAPI alone."""
    line, other = await Line.open(url), await Line.open(beside)
    await line.ask("MKCOL", "/dav/workspaces/main")
    content = os.urandom(MEGABYTES << 20)
    await line.ask("PUT", "/dav/workspaces/main/big", content)
    before = forgotten_peak(pid)
    puts = [await line.ask("PUT", "/dav/workspaces/main/big", content) for _ in range(runs)]
    grown = peak(pid) - before
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(await line.ask("GET", "/dav/workspaces/main/big"))
        theirs.append(await other.ask("GET", "/big"))
    line.close()
    other.close()
    ratio = statistics.median(theirs) / statistics.median(ours)
    return [
        Bar(
            f"GET of {MEGABYTES} MiB against FastAPI ({MEGABYTES / statistics.median(ours):.0f} MiB/s)",
            ratio,
            "x",
            0.5,
            True,
        ),
        Bar(f"memory for a PUT of {MEGABYTES} MiB ({MEGABYTES / statistics.median(puts):.0f} MiB/s)", grown, "MiB", 8),
    ]


def forgotten_peak(pid: int) -> float:
    """Let the kernel count the most memory of a process anew; return what it is now, in MiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    return peak(pid)


def peak(pid: int) -> float:
    """Most memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def small(url: str, runs: int) -> list[Bar]:
    """Read one session by both faces, in turns."""
    line = await Line.open(url)
    await line.ask("POST", "/v1/sessions/small/messages?wait=true", b"one two three")
    rest, dav = [], []
    for _ in range(runs):
        rest.append(await line.ask("GET", "/v1/sessions/small", Accept="text/plain"))
        dav.append(await line.ask("GET", "/dav/sessions/small"))
    line.close()
    ratio = statistics.median(rest) / statistics.median(dav)
    shown = (
        f"small GET against REST ({statistics.median(dav) * 1e6:.0f} against {statistics.median(rest) * 1e6:.0f} µs)"
    )
    return [Bar(shown, ratio, "x", 0.7, True)]


async def waiting(url: str, readers: int, runs: int) -> list[Bar]:
    """Look at a collection and use REST while many readers wait for a reply."""
    line = await Line.open(url)
    await line.ask("POST", "/v1/sessions/slow/messages", b"word " * 2000)
    lines = await asyncio.gather(*(Line.open(url) for _ in range(readers)))
    for each in lines:
        await each.send("GET", "/dav/sessions/slow")
    await asyncio.sleep(0.5)  # until all of them wait
    found = [await line.ask("PROPFIND", "/dav/workspaces/", LISTED, Depth="1") for _ in range(runs)]
    rest = [await line.ask("GET", "/healthz") for _ in range(runs)]
    for each in (*lines, line):
        each.close()
    return [
        Bar(f"PROPFIND beside {readers} waiting GETs, the slowest", max(found) * 1e3, "ms", 100),
        Bar(f"REST beside {readers} waiting GETs, the slowest", max(rest) * 1e3, "ms", 100),
    ]


async def bench(smoke: bool) -> list[Bar]:
    """Measure everything."""
    runs, sessions, readers = (3, 500, 50) if smoke else (21, 10_000, 500)
    served = (str(CFS), "serve", "--port", "0", "--engine", "scripted", "--log-level", "error")
    found: list[Bar] = []
    with running(*served) as (url, _):
        found += await listing(url, sessions, runs)
    with running(*served) as (url, pid), running(sys.executable, __file__, "--peer") as (beside, _):
        found += await small(url, runs * 50)
        found += await large(url, pid, beside, runs)
    with running(*served, "--scripted-interval", "0.02") as (url, _):
        found += await waiting(url, readers, runs)
    return found


def show(bars: list[Bar]) -> str:
    """Write the table."""
    lines = ["| what | figure | bar | within the bar |", "|---|---|---|---|"]
    lines += [
        f"| {each.what} | {each.figure:.3g} {each.unit} | {'at least' if each.least else 'at most'} {each.bar:g} "
        f"{each.unit} | {'yes' if each.met else '**no**'} |"
        for each in bars
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What WebDAV costs.")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer()
        sys.exit()
    load = os.getloadavg()
    figures: list[Bar] = asyncio.run(bench(options.smoke))
    print("\n" + show(figures))
    print(f"\nLoad of the machine ({os.cpu_count()} processors): {load} to {os.getloadavg()}")
    if options.json:
        written: list[dict[str, Any]] = [
            {"what": each.what, "figure": each.figure, "unit": each.unit} for each in figures
        ]
        options.json.write_text(json.dumps(written, indent=2) + "\n")
