"""A model that says what its script says."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from cfs.completions import read_arguments
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.llm import CallPiece, Chunk, Item, Reply
from cfs_agents.replies import fault_of
from cfs_agents.testing.clock import ManualClock
from cfs_agents.testing.lines import Line


class ScriptOver(AssertionError):
    """The model was asked more often than its script has replies, or not as often."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a model was asked: the conversation, and the tools that it was told of."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]

    @property
    def last(self) -> Message:
        """The message that is to be answered."""
        return self.messages[-1]


class ScriptedModel:
    """A `Model` that plays a script, line by line, and remembers in `asked` what it was asked.

    With `cut` texts, thinking and arguments come in pieces of so many characters, else whole; a function cuts as it
    likes. Calls get the ids `call_1`, `call_2` and so on. Without usage of its own a reply costs a token for each word.
    Raises `ScriptOver` when it is asked once too often, and by `check_finished` when lines are left.
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
        """Say the next line of the script (see `Model`)."""
        self.asked.append(Asked(tuple(messages), tuple(tools)))
        while True:
            line = self._line()
            if line.delay:
                await self._wait(line.delay)
            named = [(f"call_{next(self._ids)}", *call) for call in line.calls]
            for chunk in self._chunks(line, named):
                yield chunk
                await asyncio.sleep(0)  # as over a network, others come to their turn between two pieces
            if line.error is not None:
                raise line.error
            if line.retrying is None:
                break
            yield line.retrying
        yield _reply(line, named, self.asked[-1])

    def check_finished(self) -> None:
        """Raise `ScriptOver` when not every line was said."""
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


def _reply(line: Line, named: Sequence[tuple[str, str, str]], asked: Asked) -> Reply:
    reason = line.finish_reason or ("tool_calls" if named else "stop")
    made = tuple(ToolCall(id=call_id, name=name, arguments=read_arguments(text)) for call_id, name, text in named)
    faults = {call_id: fault_of(name, text, cut_off=reason == "length") for call_id, name, text in named}
    return Reply(
        message=Message(role="assistant", content=line.text, tool_calls=made, thinking=line.thinking or None),
        finish_reason=reason,
        usage=line.usage or _cost(line, asked),
        broken={call_id: fault for call_id, fault in faults.items() if fault is not None},
    )


def _cost(line: Line, asked: Asked) -> Usage:
    said = [line.thinking, line.text, *(text for _, text in line.calls)]
    return Usage(
        prompt_tokens=sum(len(message.content.split()) for message in asked.messages),
        completion_tokens=sum(len(text.split()) for text in said),
    )
