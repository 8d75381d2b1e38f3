"""What it costs that every request has a caller: refusals, authentication, rights, and reads through the gate.

Run by `scripts/bench access [--smoke] [--json FILE]`. Everything is in one process, and what is compared takes turns,
so that a busy machine slows all of it alike. For the reads two servers run: one with tokens, and one whose caller has a
handle that lets everything through and reads the file, or the transcript, without looking at anything else.
"""

import argparse
import asyncio
import json
import logging
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import structlog

from cfs.errors import Unauthorized
from cfs_filesystem import EntryMeta, FsHandle, VersionedEntryMeta
from cfs_filesystem import Path as LogicalPath
from cfs_server.access import tokens
from cfs_server.access.auth import Principals
from cfs_server.access.tokens import TokenGrant
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.http.caller import Context
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.authorized import AuthorizedSessions

TOKENS = 1000
RATIO_BAR = 0.8
FILE = "/workspaces/main/notes/small.txt"
SESSION = "main/coder"
TEXT = b"a line of a small file\n" * 40
LENGTHS = (0, 4, 8, 16, 24, 32, 40, 46)
"""How much of a wrong token is right."""


class Open:
    """A handle without a gate: what the same routes cost with it is what everything but the gate costs."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def require(self, _operation: str, _path: LogicalPath) -> None:
        """Let it pass."""

    def allows(self, _operation: str, _path: LogicalPath) -> bool:
        """Let it pass."""
        return True

    def file(self, path: LogicalPath) -> EntryMeta:
        """Look at the file."""
        status = os.stat(f"{self._root}{path}")  # noqa: PTH116 - what is compared with
        return VersionedEntryMeta(
            path=path,
            size=status.st_size,
            updated_at=datetime.fromtimestamp(status.st_mtime, UTC),
            version=f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}",
        )

    def open(self, path: LogicalPath) -> BinaryIO:
        """Open the file."""
        return open(f"{self._root}{path}", "rb")  # noqa: PTH123 - the answer closes it


@dataclass(frozen=True, slots=True)
class Served:
    """A running server and one open connection to it."""

    parts: Context
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> float:
        """Send a request and read the answer; return the microseconds that it took."""
        began = time.perf_counter()
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
        taken = time.perf_counter() - began
        assert head.startswith(b"HTTP/1.1 2"), head
        return taken * 1e6


@asynccontextmanager
async def served(**changes: Any) -> AsyncIterator[Served]:
    """Serve in this process."""
    settings = ServerSettings(port=0, engine="scripted", **changes)
    engine = ScriptedEngine()
    await engine.start()
    listener = listen("127.0.0.1", 0, settings.send_timeout)
    app = create_app(settings, engine)
    started = asyncio.Event()
    server = UvicornServer(server_config(app), started.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await started.wait()
    host, _, port = url_of(listener).removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Served(app.state.cfs, reader, writer)
    finally:
        writer.close()
        server.should_exit = True
        await serving
        await engine.stop()


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Write a request."""
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def measure(actions: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Microseconds of one call of each action: the median of rounds that take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            for _ in range(calls):
                action()
            seconds[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(taken) * 1e6 for name, taken in seconds.items()}


def refusal(principals: Principals, wrong: str) -> Callable[[], None]:
    """Make a caller with a token that is not right."""
    header = f"Bearer {wrong}"

    def refused() -> None:
        with suppress(Unauthorized):
            principals.authenticate(header)
            raise AssertionError("a wrong token was taken")

    return refused


def wrong_tokens(secret: str, length: int) -> str:
    """Make a token of which that many characters are right."""
    end = secrets.token_urlsafe(64)[: len(secret) - length]
    return secret[:length] + ("A" if secret[length] != "A" else "B") + end[1:]


def bench_calls(gated: Served, secret: str, rounds: int, calls: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure refusals by how much was right, and the parts of what a good request costs."""
    principals = gated.parts.principals
    principal = principals.authenticate(f"Bearer {secret}")
    assert principal is not None
    gate = AuthorizedSessions(gated.parts.store, Authorization("bench", principal.handle), principal.account)
    refusals = {str(length): refusal(principals, wrong_tokens(secret, length)) for length in LENGTHS}
    costs: dict[str, Callable[[], object]] = {
        "authentication": lambda: principals.authenticate(f"Bearer {secret}"),
        "rate": principal.traffic.rate.take,
        "right to a session": lambda: gate.require("read_binary", SESSION),
        "right to a file": lambda: principal.handle.require("read_binary", FILE),
    }
    return measure(refusals, rounds, calls), measure(costs, rounds, calls)


@dataclass(frozen=True, slots=True)
class Read:
    """Reads of one thing over HTTP, in microseconds; `ratio` is how many are served for each one without the gate."""

    what: str
    runs: int
    plain: float
    gated: float

    @property
    def ratio(self) -> float:
        """Speed through the gate against speed without it."""
        return self.plain / self.gated


async def bench_reads(gated: Served, plain: Served, secret: str, runs: int) -> list[Read]:
    """Read a small transcript and a small file in turns, through the gate and without it."""
    whole = {"Authorization": f"Bearer {secret}"}
    wanted: dict[str, tuple[str, dict[str, str]]] = {
        "session, JSON": (f"/v1/sessions/{SESSION}", {"Accept": "application/json"}),
        "session, text": (f"/v1/sessions/{SESSION}", {"Accept": "text/plain"}),
        "file": (f"/v1/files{FILE}", {}),
    }
    found: list[Read] = []
    for what, (path, headers) in wanted.items():
        times: tuple[list[float], list[float]] = [], []
        asked, shown = request("GET", path, headers), request("GET", path, headers | whole)
        for number in range(runs + 20):
            pair = await plain.ask(asked), await gated.ask(shown)
            if number >= 20:  # the first ones warm up
                times[0].append(pair[0])
                times[1].append(pair[1])
        found.append(Read(what, runs, statistics.median(times[0]), statistics.median(times[1])))
    return found


async def bench(smoke: bool) -> dict[str, Any]:
    """Start both servers, fill them with the same, and measure."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rounds, calls, runs = (5, 20, 50) if smoke else (101, 200, 3000)
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "tokens.toml"
        secret = await asyncio.to_thread(fill, known)
        plain_data, gated_data = Path(folder) / "plain", Path(folder) / "gated"
        async with AsyncExitStack() as stack:
            plain = await stack.enter_async_context(served(data_dir=plain_data))
            gated = await stack.enter_async_context(served(data_dir=gated_data, tokens=known))
            whole = {"Authorization": f"Bearer {secret}"}
            for each, headers in ((plain, {}), (gated, whole)):
                await each.ask(request("PUT", f"/v1/files{FILE}", headers, TEXT))
                await each.ask(request("POST", f"/v1/sessions/{SESSION}/messages?wait=true", headers, b"one two"))
            local = plain.parts.principals.authenticate(None)
            assert local is not None
            local.handle = cast("FsHandle", Open(plain_data))
            refusals, costs = bench_calls(gated, secret, rounds, calls)
            reads = await bench_reads(gated, plain, secret, runs)
    return {
        "refusals_us": refusals,
        "costs_us": costs,
        "reads": [{"what": read.what, "plain_us": read.plain, "gated_us": read.gated} for read in reads],
        "table": show(refusals, costs, reads),
    }


def fill(known: Path) -> str:
    """Write a file of many tokens; return the secret of the one that is used."""
    ops = frozenset({"list", "file", "read", "write"})
    grants = [TokenGrant(prefix=prefix, ops=ops) for prefix in ("/sessions/notes", "/sessions/main", "/workspaces/")]
    secret = tokens.create(known, "me", grants)
    with known.open("a") as out:
        for number in range(TOKENS - 1):
            out.write(f'[tokens.t{number}]\nhash = "{tokens.digest(str(number))}"\n')
    return secret


def verdict(ok: bool) -> str:
    """Say whether a bar is met."""
    return "yes" if ok else "**no**"


def show(refusals: dict[str, float], costs: dict[str, float], reads: list[Read]) -> str:
    """Write the tables."""
    lines = [f"Refusing a wrong token, {TOKENS:,} tokens known; medians in µs, taken in turns", ""]
    lines += ["| characters that are right | " + " | ".join(refusals) + " |", "|---" * (len(refusals) + 1) + "|"]
    lines += ["| µs | " + " | ".join(f"{each:.2f}" for each in refusals.values()) + " |", ""]
    lines += ["What a good request costs more, in µs", "", "| " + " | ".join(costs) + " |", "|---" * len(costs) + "|"]
    lines += ["| " + " | ".join(f"{each:.2f}" for each in costs.values()) + " |", ""]
    lines += [f"A small read over HTTP, medians in µs (bar: {RATIO_BAR} of the speed without the gate)", ""]
    lines += [
        "| what | reads | without the gate | through the gate | ratio | within the bar |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {read.what} | {read.runs} | {read.plain:.0f} | {read.gated:.0f} | {read.ratio:.2f} "
        f"| {verdict(read.ratio >= RATIO_BAR)} |"
        for read in reads
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What access control costs.")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    load = os.getloadavg()
    figures = asyncio.run(bench(options.smoke))
    print("\n" + figures.pop("table"))
    print(f"\nLoad of the machine ({os.cpu_count()} processors): {load} to {os.getloadavg()}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
