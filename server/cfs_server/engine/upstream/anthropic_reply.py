"""The protocol of Anthropic's messages: the events of an answer. Pure: no I/O."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from cfs.errors import EngineError
from cfs.sse import ServerSentEvent
from cfs.wire import FinishReason
from cfs_server.engine.interface import CallDelta, Delta
from cfs_server.engine.upstream import failures
from cfs_server.engine.upstream.dialect import Spent
from cfs_server.engine.upstream.signed import Block

_PASSING = ("overloaded_error", "api_error", "rate_limit_error", "timeout_error")
_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "stop",  # only with tools that the upstream runs itself, which are never asked for
}


class _Usage(BaseModel):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Message(BaseModel):
    usage: _Usage | None = None


class _Block(BaseModel):
    """The beginning of a block; what it has beside its type goes back as it is."""

    model_config = ConfigDict(extra="allow")

    type: str
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""


class _Change(BaseModel):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(BaseModel):
    """What we read of all events together; each has a part of it."""

    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Change | None = None
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class _Part:
    """A block of the answer while it grows; `call` is its number among the calls of tools."""

    block: Block
    call: int | None = None
    pieces: list[str] = field(default_factory=list)

    def closed(self) -> Block | None:
        """The block as it goes back to the upstream, which takes no blank text."""
        match self.block["type"]:
            case "tool_use":
                return self.block | {"input": json.loads("".join(self.pieces) or "{}")}
            case "text":
                text = "".join(self.pieces)
                return self.block | {"text": text} if text.strip() else None
            case "thinking":
                return self.block | {"thinking": "".join(self.pieces)}
            case _:
                return self.block


class AnthropicReply:
    """Reads the events of one message.

    With `answer` the reply is the input of the tool of that name, as text; `wrapped` input has it as its `value`.
    `keep` gets the blocks of a complete message.
    """

    def __init__(
        self, *, answer: str | None = None, wrapped: bool = False, keep: Callable[[Sequence[Block]], None] | None = None
    ) -> None:
        self.over = False
        self.spent = Spent()
        self._answer = answer
        self._wrapped = wrapped
        self._keep = keep
        self._usage = _Usage()
        self._reason: str | None = None
        self._parts: dict[int, _Part] = {}
        self._calls = 0

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Take an event; return what is new. Events of kinds to come are passed over, as the protocol asks."""
        said = failures.read(_Event, event.data)
        for usage in (said.message.usage if said.message else None, said.usage):
            self._count(usage)
        match said.type:
            case "error":
                raise failures.of_event(failures.refusal_of(event.data), _PASSING)
            case "content_block_start" if said.content_block is not None:
                return self._begin(said.index, said.content_block)
            case "content_block_delta" if said.delta is not None:
                return self._grow(self._part(said.index, event.data), said.delta)
            case "content_block_stop":
                return self._close(self._part(said.index, event.data))
            case "message_delta" if said.delta is not None:
                self._reason = said.delta.stop_reason or self._reason
            case "message_stop":
                self.over = True
        return ()

    def finish(self) -> FinishReason:
        """Say how the answer ended."""
        if not self.over or self._reason is None:
            raise failures.broken_off()
        if self._reason == "refusal":
            raise failures.Failure(EngineError("the upstream's model declined to answer"))
        reason = _REASONS.get(self._reason, "stop")
        if reason == "tool_calls" and not self._calls:  # it called nothing but the tool that is its answer
            return "stop"
        if reason == "tool_calls":
            self._hand_over()
        return reason

    def _hand_over(self) -> None:
        try:
            blocks = [block for part in self._parts.values() if (block := part.closed()) is not None]
        except ValueError:
            raise failures.broken_off("the upstream's call of a tool is no JSON") from None
        if self._keep is not None:
            self._keep(blocks)

    def _part(self, index: int, data: str) -> _Part:
        if (part := self._parts.get(index)) is None:
            raise failures.nonsense(data)
        return part

    def _begin(self, index: int, block: _Block) -> Iterable[Delta]:
        part = self._parts[index] = _Part(block.model_dump(exclude_unset=True))
        if block.type == "tool_use" and block.name != self._answer:
            part.call = self._calls
            self._calls += 1
            return [Delta("", 1, calls=(CallDelta(part.call, block.id, block.name),))]
        return self._grow(part, _Change(text=block.text, thinking=block.thinking))

    def _grow(self, part: _Part, change: _Change) -> Iterable[Delta]:
        if change.signature:
            part.block["signature"] = change.signature
        piece = change.text or change.thinking or change.partial_json
        if not piece:
            return ()
        part.pieces.append(piece)
        return self._said(part, piece)

    def _said(self, part: _Part, piece: str) -> Iterable[Delta]:
        match part.block["type"]:
            case "thinking":
                return [Delta("", 1, thinking=piece)]
            case "tool_use" if part.call is not None:
                return [Delta("", 1, calls=(CallDelta(part.call, arguments=piece),))]
            case "tool_use":
                return [] if self._wrapped else [Delta(piece, 1)]
            case "text" if self._answer is None:
                return [Delta(piece, 1)]
        return []

    def _close(self, part: _Part) -> Iterable[Delta]:
        """Let out what could not be said before its end: an answer in its wrapping, and input that is empty."""
        if part.block["type"] != "tool_use":
            return ()
        text = "".join(part.pieces)
        if part.call is not None:
            return () if text else [Delta("", 0, calls=(CallDelta(part.call, arguments="{}"),))]
        if self._wrapped:
            return [Delta(_unwrapped(text), 1)]
        return () if text else [Delta("{}", 1)]

    def _count(self, usage: _Usage | None) -> None:
        """Take over what an event counts: numbers are totals so far, and those that are missing stay."""
        if usage is None:
            return
        self._usage = self._usage.model_copy(update=usage.model_dump(exclude_none=True))
        seen = self._usage
        read, written = seen.cache_read_input_tokens or 0, seen.cache_creation_input_tokens or 0
        prompt = None if seen.input_tokens is None else seen.input_tokens + read + written
        self.spent = Spent(prompt, read, seen.output_tokens)


def _unwrapped(text: str) -> str:
    """Take a value out of the object around it; what the length has cut short stays as it is."""
    try:
        return json.dumps(json.loads(text)["value"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return text
