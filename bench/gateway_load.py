"""Both ends of `scripts/bench gateway`: a stub of an upstream, and the clients that open streams.

Both cost as little as they can, because they share the machine with the server between them. The stub writes all its
streams by one timer wheel. The clients are bare protocols that count tokens by a character that only tokens have.
"""

import asyncio
import contextlib
import json
import math
import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import uvloop

RATE = 30.0
"""Tokens a second of each stream."""
MODEL = "stub"
_MARK = b"~"
_SLOTS = 32
"""Parts of the time between two tokens of a stream. The streams are spread over them."""
_BUCKETS = 20_000
"""Gaps are counted by the millisecond, up to this many."""
_END_SECONDS = 5.0
"""How much later than planned the streams may end."""


def allow_files() -> None:
    """Raise the limit of open files of this process, and of those that it will start, as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- the upstream -----------------------------------------------------------------------------------------------------


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(**members: object) -> bytes:
    row = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, **members}
    return _chunked(f"data: {json.dumps(row)}\n\n".encode())


def _choice(delta: dict[str, str], reason: str | None = None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": delta, "finish_reason": reason}]


_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + _event(choices=_choice({"role": "assistant", "content": ""}))
)  # fmt: skip
_WORDS = ("once", "upon", "a", "time")
_TOKENS = tuple(_event(choices=_choice({"content": f"{_MARK.decode()}{word} "})) for word in _WORDS)
"""Not the same each time: LiteLLM ends a stream that repeats itself."""


def _end(tokens: int) -> bytes:
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
    return (
        _event(choices=_choice({}, "length"))
        + _event(choices=[], usage=usage)
        + _chunked(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )


def _json(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


_MODELS = _json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "bench"}]})


class _Wheel:
    """Gives each stream its next token when its slot comes round. Tokens that are late follow at once."""

    def __init__(self, rate: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots: list[set[_Answer]] = [set() for _ in range(_SLOTS)]
        self._step = 1 / rate / _SLOTS
        self._at = 0.0
        self._next = 0
        self._streams = 0

    def join(self, answer: "_Answer") -> int:
        """Add a stream to the slot with the fewest; return the slot."""
        slot = min(range(_SLOTS), key=lambda each: len(self._slots[each]))
        self._slots[slot].add(answer)
        self._streams += 1
        if self._streams == 1:
            self._at = self._loop.time()
            self._turn()
        return slot

    def leave(self, answer: "_Answer", slot: int) -> None:
        """Remove a stream."""
        self._slots[slot].remove(answer)
        self._streams -= 1

    def _turn(self) -> None:
        for answer in tuple(self._slots[self._next]):
            answer.token()
        self._next = (self._next + 1) % _SLOTS
        self._at += self._step
        if self._streams:
            self._loop.call_at(self._at, self._turn)


class _Answer(asyncio.Protocol):
    """A connection of the stub. It knows two requests: the list of models, and a chat completion that streams."""

    def __init__(self, wheel: _Wheel) -> None:
        self._wheel = wheel
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._slot: int | None = None
        self._tokens = self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own are no subclasses

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not end or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        if head.startswith(b"GET "):
            self._transport.write(_MODELS)
            return
        asked = json.loads(body)
        self._tokens = self._left = int(asked.get("max_tokens") or asked["max_completion_tokens"])
        self._transport.write(_STREAM + _TOKENS[0])  # at once: the time to the first token is that of the server
        self._left -= 1
        self._slot = self._wheel.join(self)

    def token(self) -> None:
        """Write the next token, and the end after the last one."""
        assert self._transport is not None
        self._left -= 1
        token = _TOKENS[self._left % len(_TOKENS)]
        self._transport.write(token if self._left else token + _end(self._tokens))
        if not self._left:
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        self._leave()

    def _leave(self) -> None:
        if self._slot is not None:
            self._wheel.leave(self, self._slot)
            self._slot = None


def serve_stub(rate: float) -> None:
    """Serve the stub on a free port until this process is ended; print the URL, as `cfs serve` does."""

    async def serve() -> None:
        wheel = _Wheel(rate)
        server = await asyncio.get_running_loop().create_server(lambda: _Answer(wheel), "127.0.0.1", 0, backlog=4096)
        print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()

    uvloop.run(serve())


# -- the clients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Concurrent streams of so many tokens, opened at a pace, and the seconds for which all of them are measured.

    `sessions`: each is a message to a session of its own, instead of a chat completion.
    """

    streams: int
    seconds: float
    sessions: bool = False
    spare_seconds: float = 3.0
    """How much longer the streams are, so that none ends before the others have been measured."""

    opened_a_second: float = 200.0
    begin: str = "gateway"
    """How the names of the sessions begin."""

    @property
    def ramp(self) -> float:
        """Seconds until all streams are asked for."""
        return self.streams / self.opened_a_second

    @property
    def tokens(self) -> int:
        """Tokens of each stream."""
        return math.ceil(RATE * (self.ramp + self.seconds + self.spare_seconds))

    def request(self, number: int) -> bytes:
        """Return a stream's request."""
        words = "Say some words."
        if self.sessions:
            path = f"/v1/sessions/{self.begin}{number}/messages"
            body: dict[str, object] = {"content": words, "settings": {"max_tokens": self.tokens}}
        else:
            path = "/v1/chat/completions"
            said = [{"role": "user", "content": words}]
            body = {"model": MODEL, "messages": said, "stream": True, "max_tokens": self.tokens}
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text


@dataclass(frozen=True, slots=True)
class Found:
    """What the clients saw. Times are in milliseconds. `meters` are what the caller's meters counted meanwhile."""

    rate: float
    gap_p50: float
    gap_p99: float
    first_p50: float
    first_p99: float
    begun: int
    """Streams with a token before the end of the measurement."""
    complete: int
    """Streams that got all their tokens and ended."""
    meters: dict[str, float]


class _Stream(asyncio.Protocol):
    """One client. Tokens that come together are one gap from those before them."""

    def __init__(self, load: "Load", request: bytes) -> None:
        self.tokens = 0
        self.first: float | None = None
        self.last = 0.0
        self.over = False
        self.transport: asyncio.Transport | None = None
        self._load = load
        self._request = request
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._asked = self.last = self._load.time()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if (count := data.count(_MARK)) and (most := self._load.plan.tokens - self.tokens):
            now = self._load.time()
            count = min(count, most)  # a session's last events have the whole text once more
            self.tokens += count
            if self.first is None:
                self.first = now - self._asked
                self._load.began()
            elif self._load.measuring:
                self._load.note(now - self.last)
            if self._load.measuring:
                self._load.counted += count
            self.last = now
        if data.endswith(b"0\r\n\r\n"):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        self._end()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._load.ended()


class Load:
    """Opens the streams of a plan and measures them."""

    def __init__(self, url: str, plan: Plan) -> None:
        self.plan = plan
        self.time = time.perf_counter
        self.measuring = False
        self.counted = 0
        self._url = url
        self._gaps = [0] * (_BUCKETS + 1)
        self._streams: list[_Stream] = []
        self._silent = self._running = plan.streams
        self._all_begun = asyncio.Event()
        self._all_over = asyncio.Event()

    def note(self, gap: float) -> None:
        """Count a gap of so many seconds."""
        self._gaps[min(int(gap * 1000), _BUCKETS)] += 1

    def began(self) -> None:
        """Count the first token of a stream."""
        self._silent -= 1
        if not self._silent:
            self._all_begun.set()

    def ended(self) -> None:
        """Count the end of a stream."""
        self._running -= 1
        if not self._running:
            self._all_over.set()

    async def run(self, meters: Callable[[], dict[str, float]], measuring: Callable[[], None]) -> Found:
        """Open all streams, measure when each has a token or should have, and let them end."""
        try:
            await self._open()
            await self._until(self._all_begun, self.plan.spare_seconds / 2)
            before, began = meters(), self.time()
            self.measuring = True
            measuring()
            await asyncio.sleep(self.plan.seconds)
            self.measuring = False
            elapsed = self.time() - began
            spent = {name: value - before[name] for name, value in meters().items()}
            begun = [each.first * 1000 for each in self._streams if each.first is not None]
            for stream in self._streams:  # one that is silent at the end has a gap, too
                self.note(self.time() - max(stream.last, began))
            await self._until(self._all_over, self.plan.spare_seconds + _END_SECONDS)
            complete = sum(stream.over and stream.tokens == self.plan.tokens for stream in self._streams)
        finally:
            for stream in self._streams:
                if stream.transport is not None:
                    stream.transport.abort()
        ms = [_quantile(begun, part) for part in (0.5, 0.99)]
        return Found(self.counted / elapsed, self._gap(0.5), self._gap(0.99), ms[0], ms[1], len(begun), complete, spent)

    async def _open(self) -> None:
        host, _, port = self._url.removeprefix("http://").partition(":")
        began = self.time()
        for number in range(self.plan.streams):
            stream = _Stream(self, self.plan.request(number))
            self._streams.append(stream)
            await asyncio.get_running_loop().create_connection(partial(_same, stream), host, int(port))
            await asyncio.sleep(max(0.0, began + (number + 1) / self.plan.opened_a_second - self.time()))

    async def _until(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def _gap(self, part: float) -> float:
        wanted, seen = part * sum(self._gaps), 0
        for ms, count in enumerate(self._gaps):
            seen += count
            if seen >= wanted:
                return ms + 0.5
        return _BUCKETS


def _same(stream: _Stream) -> _Stream:
    return stream


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)] if values else math.inf
