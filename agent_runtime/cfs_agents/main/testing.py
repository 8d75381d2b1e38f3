"""Test doubles for agents: a model that replies from a script, and a clock that a test advances.

A test reads like the conversation:

    model = ScriptedModel([
        calls("write_file", path="a.txt", content="hello"),
        raises(Unavailable("the engine restarts")),
        says("I have written it."),
    ])
"""

import asyncio
import heapq
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from cfs.completions import read_arguments
from cfs.errors import CfsError
from cfs.wire import FinishReason, Message, ToolCall, Usage
from cfs_agents.base.events import Retrying
from cfs_agents.loop.model import CallPiece, Chunk, CompleteResponse, Item
from cfs_agents.loop.replies import fault_of


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a script: a reply or a failure. `says`, `calls` and the functions below create lines.

    `calls` are names with the JSON text of their arguments. After its pieces the line raises `error`. With `retrying`
    the reply is interrupted, and the next line is the reply to the repeated request. `delay` is in seconds of the
    model's clock.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    error: CfsError | None = None
    retrying: Retrying | None = None
    delay: float = 0.0
    usage: Usage | None = None
    finish_reason: FinishReason | None = None


def says(text: str, *, thinking: str = "", delay: float = 0.0, usage: Usage | None = None) -> Line:
    """Reply with text."""
    return Line(text, thinking, delay=delay, usage=usage)


def calls(name: str, /, **arguments: Any) -> Line:
    """Call a tool."""
    return Line(calls=((name, json.dumps(arguments, ensure_ascii=False)),))


def garbles(name: str, arguments: str, /) -> Line:
    """Call a tool with this text as arguments, which may be invalid JSON."""
    return Line(calls=((name, arguments),))


def raises(error: CfsError, *, after: str = "") -> Line:
    """Fail, after some text or at once."""
    return Line(after, error=error)


def breaks_off(text: str = "", *, reason: str = "the connection was lost", seconds: float = 1.0) -> Line:
    """Begin a reply that is interrupted and requested again; the next line of the script is the new reply."""
    return Line(text, retrying=Retrying(reason, seconds))


def cut_off(line: Line) -> Line:
    """Return the line as a reply that is truncated at its limit of tokens."""
    return replace(line, finish_reason="length")


def together(first: Line, *others: Line) -> Line:
    """Combine several lines in one reply."""
    for line in others:
        first = replace(
            first,
            text=first.text + line.text,
            thinking=first.thinking + line.thinking,
            calls=first.calls + line.calls,
            error=first.error or line.error,
            delay=first.delay + line.delay,
            usage=line.usage or first.usage,
        )
    return first


class ManualClock:
    """A clock that advances only by `advance`, or, with `jumps`, immediately at each `sleep`."""

    def __init__(self, now: float = 0.0, *, jumps: bool = False) -> None:
        self.slept: list[float] = []
        self._now = now
        self._jumps = jumps
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._changed = asyncio.Event()

    def time(self) -> float:
        """Return the time in seconds."""
        return self._now

    @property
    def sleepers(self) -> int:
        """Number of tasks that sleep."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has advanced by `seconds`; `slept` lists the times of all calls, in order."""
        self.slept.append(seconds)
        if self._jumps or seconds <= 0:
            self._now += max(seconds, 0) if self._jumps else 0
            await asyncio.sleep(0)
            return
        due, woken = self._now + seconds, asyncio.Event()
        sleeper = (due, next(self._order), woken)
        heapq.heappush(self._sleepers, sleeper)
        self._changed.set()
        try:
            await woken.wait()
        finally:
            if sleeper in self._sleepers:  # cancelled
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    def advance(self, seconds: float) -> None:
        """Advance the clock and wake the tasks whose time has come, in the order of their times."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            heapq.heappop(self._sleepers)[2].set()

    async def until_asleep(self, sleepers: int = 1) -> None:
        """Wait until `sleepers` tasks sleep."""
        while len(self._sleepers) < sleepers:
            self._changed.clear()
            await self._changed.wait()


class ScriptOver(AssertionError):
    """The model got more or fewer requests than its script has lines."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the model: the conversation and the descriptions of tools."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]

    @property
    def last(self) -> Message:
        """The last message, to which the model replies."""
        return self.messages[-1]


class ScriptedModel:
    """A `Model` that replies from a script, line by line, and records the requests in `asked`.

    `cut` is the length of the pieces of texts, thinking and arguments, or a function that splits them; without it they
    are whole. Calls get the ids `call_1`, `call_2` and so on. A line without `usage` uses one token for each word.
    Raises `ScriptOver` for a request after the last line, and in `check_finished` if lines are left.
    """

    def __init__(
        self,
        script: Sequence[Line],
        *,
        cut: int | Callable[[str], Sequence[str]] | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.asked: list[Asked] = []
        self._script = tuple(script)
        self._next = 0
        self._ids = count(1)
        self._cut = cut
        self._clock = clock

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Reply with the next line of the script (see `Model`)."""
        self.asked.append(Asked(tuple(messages), tuple(tools)))
        while True:
            line = self._line()
            if line.delay:
                await self._wait(line.delay)
            named = [(f"call_{next(self._ids)}", *call) for call in line.calls]
            for chunk in self._chunks(line, named):
                yield chunk
                await asyncio.sleep(0)  # other tasks run between two pieces, as with a network
            if line.error is not None:
                raise line.error
            if line.retrying is None:
                break
            yield line.retrying
        yield _reply(line, named, self.asked[-1])

    def check_finished(self) -> None:
        """Raise `ScriptOver` if lines of the script are left."""
        if left := self._script[self._next :]:
            raise ScriptOver(f"{len(left)} of {len(self._script)} lines of the script were not said; next: {left[0]}")

    def _line(self) -> Line:
        if self._next == len(self._script):
            last = self.asked[-1].messages[-1:] or ("nothing",)
            times = len(self.asked)
            raise ScriptOver(f"the script's {self._next} lines are said, and here is question {times}: {last[0]}")
        self._next += 1
        return self._script[self._next - 1]

    async def _wait(self, seconds: float) -> None:
        if self._clock is None:
            raise ValueError("a line with a delay needs a clock: ScriptedModel(..., clock=ManualClock())")
        await self._clock.sleep(seconds)

    def _chunks(self, line: Line, named: Sequence[tuple[str, str, str]]) -> Iterator[Chunk]:
        yield from (Chunk(thinking=piece) for piece in self._pieces(line.thinking))
        yield from (Chunk(piece) for piece in self._pieces(line.text))
        for index, (call_id, name, arguments) in enumerate(named):
            yield Chunk(calls=(CallPiece(index, call_id, name),))
            yield from (Chunk(calls=(CallPiece(index, arguments=piece),)) for piece in self._pieces(arguments))

    def _pieces(self, text: str) -> Sequence[str]:
        if not text:
            return ()
        if callable(self._cut):
            return self._cut(text)
        size = self._cut or len(text)
        return [text[start : start + size] for start in range(0, len(text), size)]


def _reply(line: Line, named: Sequence[tuple[str, str, str]], asked: Asked) -> CompleteResponse:
    reason = line.finish_reason or ("tool_calls" if named else "stop")
    tool_calls = tuple(ToolCall(id=call_id, name=name, arguments=read_arguments(text)) for call_id, name, text in named)
    faults = {call_id: fault_of(name, text, cut_off=reason == "length") for call_id, name, text in named}
    return CompleteResponse(
        message=Message(role="assistant", content=line.text, tool_calls=tool_calls, thinking=line.thinking or None),
        finish_reason=reason,
        usage=line.usage or _cost(line, asked),
        broken={call_id: fault for call_id, fault in faults.items() if fault is not None},
    )


def _cost(line: Line, asked: Asked) -> Usage:
    texts = [line.thinking, line.text, *(text for _, text in line.calls)]
    return Usage(
        prompt_tokens=sum(len(message.content.split()) for message in asked.messages),
        completion_tokens=sum(len(text.split()) for text in texts),
    )


__all__ = [
    "Asked",
    "Line",
    "ManualClock",
    "ScriptOver",
    "ScriptedModel",
    "breaks_off",
    "calls",
    "cut_off",
    "garbles",
    "raises",
    "says",
    "together",
]
