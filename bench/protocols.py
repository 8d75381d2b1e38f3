"""What the protocols of other services cost beside our own route: time to the first token, and tokens per second.

Run by `scripts/bench protocols [--smoke] [--json FILE]`. The server is a process of its own with the scripted
engine, which answers with the words of the question at once, so that nothing of a model is in the figures. Each
protocol streams the same answers as `POST /v1/sessions/{id}/messages` does, in turn with it, on a bare socket.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FIRST_BAR_MS = 1.0
RATE_BAR_PERCENT = 5.0
OWN = "POST /v1/sessions/{id}/messages"


@dataclass(frozen=True, slots=True)
class Route:
    """How one protocol is asked to stream, and the bytes that its first token brings."""

    name: str
    path: str
    first: bytes
    members: dict[str, Any] = field(hash=False)
    asked: str
    """The member that has the question: `messages`, or the name of a text."""

    def body(self, words: int) -> bytes:
        """Return the request for an answer of this many words."""
        question = " ".join(f"w{number}" for number in range(words))
        said: Any = [{"role": "user", "content": question}] if self.asked == "messages" else question
        return json.dumps({"model": "any", self.asked: said} | self.members).encode()


_MOST = 8_000
ROUTES = (
    Route("chat completions", "/v1/chat/completions", b"w0", {"stream": True, "max_tokens": _MOST}, "messages"),
    Route("completions", "/v1/completions", b"w0", {"stream": True, "max_tokens": _MOST}, "prompt"),
    Route(
        "responses",
        "/v1/responses",
        b"event: response.output_text.delta",
        {"stream": True, "store": False, "max_output_tokens": _MOST},
        "input",
    ),
    Route("messages", "/v1/messages", b"text_delta", {"stream": True, "max_tokens": _MOST}, "messages"),
    Route("/api/chat", "/api/chat", b"w0", {"options": {"num_predict": _MOST}}, "messages"),
    Route("/api/generate", "/api/generate", b"w0", {"options": {"num_predict": _MOST}}, "prompt"),
)


@contextmanager
def serving() -> Iterator[str]:
    """Run `cfs serve` with the scripted engine on a free port; yield its URL."""
    program = str(Path(sys.executable).with_name("cfs"))
    command = [program, "serve", "--port", "0", "--log-level", "error", "--engine", "scripted"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Caller:
    """A client on one open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def stream(self, path: str, body: bytes, first: bytes, *headers: str) -> tuple[int, float, float]:
        """Return the status, and the seconds to the first token and to the end of the response."""
        head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
        data = "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body
        began = time.perf_counter()
        self._writer.write(data)
        start = b""
        seen = end = b""
        reached = 0.0
        while not end.endswith(b"0\r\n\r\n"):
            piece = await self._reader.read(65_536)
            assert piece, start
            if not reached:
                seen += piece
                if first in seen.partition(b"\r\n\r\n")[2]:
                    reached = time.perf_counter() - began
            start = start or piece
            end = (end + piece)[-16:]
            if b"content-length" in start[:400].lower():  # an error, or a body that is not a stream
                break
        return int(start.split(b" ", 2)[1]), reached, time.perf_counter() - began


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[Caller]:
    """Open a connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of a protocol's runs, and of what they were beyond the runs of our own route beside them."""

    protocol: str
    recorded: bool
    first_ms: float
    added_ms: float
    rate: float
    slower_percent: float

    @property
    def within(self) -> bool:
        """Whether both are within the bars."""
        return self.added_ms <= FIRST_BAR_MS and self.slower_percent <= RATE_BAR_PERCENT


class Bench:
    """Measures all routes in turn; every run has a session of its own, or none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._count = 0

    async def run(self, runs: int, words: int, long_runs: int) -> list[Cost]:
        """Measure the first token by short answers, and the rate by long ones."""
        asked = [(route, recorded) for route in await self._present() for recorded in (False, True)]
        first = await self._medians(asked, runs, 4, end=False)
        whole = await self._medians(asked, long_runs, words, end=True)
        costs = [Cost(OWN, True, first[None][0] * 1000, 0.0, words / whole[None][0], 0.0)]
        for each in asked:
            seconds, added = whole[each]
            slower = (1 - (seconds - added) / seconds) * 100
            reached, later = first[each]
            costs.append(Cost(each[0].name, each[1], reached * 1000, later * 1000, words / seconds, slower))
        return costs

    async def _present(self) -> list[Route]:
        """Return the routes that this server has."""
        found = []
        for route in ROUTES:
            async with calling(self._url) as caller:
                status, _, _ = await caller.stream(route.path, route.body(2), route.first)
            if status == 200:
                found.append(route)
            elif status != 404:
                raise SystemExit(f"{route.path}: {status}")
        return found

    async def _medians(
        self, asked: list[tuple[Route, bool]], runs: int, words: int, *, end: bool
    ) -> dict[tuple[Route, bool] | None, tuple[float, float]]:
        """Return for each the median of its seconds, and of the difference to our own route's in the same round."""
        times: dict[tuple[Route, bool] | None, list[float]] = {None: [], **{each: [] for each in asked}}
        async with calling(self._url) as caller:
            for number in range(runs + 3):  # the first rounds are not counted
                order = [None, *asked]
                turn = number % len(order)
                for each in order[turn:] + order[:turn]:
                    spent = await self._once(caller, each, words, end=end)
                    if number >= 3:
                        times[each].append(spent)
        own = times[None]
        return {
            each: (
                statistics.median(found),
                statistics.median(mine - ours for mine, ours in zip(found, own, strict=True)),
            )
            for each, found in times.items()
        }

    async def _once(self, caller: Caller, each: tuple[Route, bool] | None, words: int, *, end: bool) -> float:
        self._count += 1
        session = f"bench{self._count}"
        if each is None:
            text = " ".join(f"w{number}" for number in range(words))
            body = json.dumps({"content": text, "settings": {"max_tokens": _MOST}}).encode()
            path, first, headers = f"/v1/sessions/{session}/messages", b"event: token", ["Accept: text/event-stream"]
        else:
            route, recorded = each
            path, first, body = route.path, route.first, route.body(words)
            headers = [f"X-CFS-Session: {session}"] if recorded else []
        status, reached, whole = await caller.stream(path, body, first, *headers)
        assert status in (200, 202), (path, status)
        assert reached, path
        return whole if end else reached


def report(costs: list[Cost], runs: int, words: int, long_runs: int) -> None:
    """Print the table."""
    print(
        f"Medians of {runs} interleaved runs to the first token and {long_runs} of answers of {words:,} tokens "
        f"(bars: {FIRST_BAR_MS:g} ms added, {RATE_BAR_PERCENT:g} % fewer tokens per second)\n"
    )
    print("| route | in a session | first token, ms | added, ms | tokens/s | compared | within the bars |")
    print("|---|---|---|---|---|---|---|")
    for cost in costs:
        own = cost.protocol == OWN
        print(
            f"| {cost.protocol} | {'yes' if cost.recorded else 'no'} | {cost.first_ms:.2f} | "
            f"{'' if own else f'{cost.added_ms:+.2f}'} | {cost.rate:,.0f} | "
            f"{'' if own else f'{-cost.slower_percent:+.0f}%'} | {'' if own else 'yes' if cost.within else 'no'} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few and short runs: does it work at all?")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    runs, words, long_runs = (5, 50, 2) if options.smoke else (200, 2_000, 15)
    with serving() as url:
        costs = asyncio.run(Bench(url).run(runs, words, long_runs))
    report(costs, runs, words, long_runs)
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2))


if __name__ == "__main__":
    main()
