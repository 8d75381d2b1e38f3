"""Reads the streamed replies of the Messages API."""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WrapValidator

from cfs.contract.sse import ServerSentEvent
from cfs.wire import FinishReason
from cfs_server.engine.contract.interface import Delta
from cfs_server.engine.upstream import failures
from cfs_server.engine.upstream.answers import ending, objects_of, or_nothing
from cfs_server.engine.upstream.calls import CallReader, UpstreamCallPiece, arguments_text
from cfs_server.engine.upstream.protocol import UpstreamUsage
from cfs_server.engine.upstream.signed_replies import Block

_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "stop",  # only with tools that the upstream runs, which are never requested
}


class _Usage(BaseModel):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


_OddUsage = Annotated[_Usage | None, WrapValidator(or_nothing)]


class _Block(BaseModel):
    """The beginning of a block; its other members are sent back unchanged."""

    model_config = ConfigDict(extra="allow")

    type: str
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: Any = None


class _Message(BaseModel):
    content: tuple[_Block | None, ...] | None = None
    stop_reason: Any = None
    stop_sequence: str | None = None
    usage: _OddUsage = None


class _Change(BaseModel):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: Any = None
    stop_sequence: str | None = None


class _Event(BaseModel):
    """The members used of all events together; each event has some of them. A whole message is an event, too."""

    type: str = ""
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Change | None = None
    usage: _OddUsage = None
    error: Any = None


_IMPLIED = {"text_delta": "text", "thinking_delta": "thinking"}
"""The blocks that a change may begin: gateways leave the beginning out (BerriAI/litellm#30115)."""


@dataclass(slots=True)
class _Part:
    """A block of the answer while it grows; `call` is its number among the calls of tools."""

    block: Block
    call: int | None = None
    pieces: list[str] = field(default_factory=list)
    is_open: bool = True

    @property
    def spoke(self) -> bool:
        """Whether it is a part of a reply: it has content, or it is a call."""
        return self.call is not None or bool(self.pieces)

    @property
    def arguments(self) -> str:
        """The input of a call: what came in pieces, or what its beginning has (anomalyco/opencode#38733)."""
        return "".join(self.pieces).strip() or arguments_text(self.block.get("input")).strip() or "{}"

    def closed(self) -> Block | None:
        """The block in the form for the upstream, which refuses blank text."""
        match self.block["type"]:
            case "tool_use":
                return self.block | {"input": json.loads(self.arguments)}
            case "text":
                text = "".join(self.pieces)
                return self.block | {"text": text} if text.strip() else None
            case "thinking":
                return self.block | {"thinking": "".join(self.pieces)}
            case _:
                return self.block


class AnthropicReply:
    """Reads the events of one message, or a whole one.

    With `answer` the reply is the input of the tool of that name, as text; `wrapped` input has it as its `value`.
    `keep` gets the blocks of a complete message.
    """

    def __init__(
        self, *, answer: str | None = None, wrapped: bool = False, keep: Callable[[Sequence[Block]], None] | None = None
    ) -> None:
        self.over = False
        self.spent = UpstreamUsage()
        self.stop = ""
        self.warnings: tuple[str, ...] = ()
        self._answer = answer
        self._wrapped = wrapped
        self._keep = keep
        self._usage = _Usage()
        self._reason: str | None = None
        self._parts: list[_Part] = []
        self._places: dict[int | None, _Part] = {}
        self._calls = CallReader()

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Process an event; return its new output. Unknown events are ignored, as the protocol requires."""
        deltas: list[Delta] = []
        for value in objects_of(event):
            if value is None:  # some gateways end as OpenAI does
                self.over = self._reason is not None
            else:
                deltas += self._read(value, event.data)
        return deltas

    def rest(self) -> Iterable[Delta]:
        """Close the blocks whose end was not sent (xemantic/anthropic-sdk-kotlin#147), and return what was held."""
        if not self.over or self._reason is None:
            return []
        is_whole = _REASONS.get(self._reason.lower()) in ("stop", "tool_calls")
        deltas = [delta for part in self._parts for delta in self._close(part)] if is_whole else []
        calls = self._calls.finish(is_whole=is_whole)
        return [*deltas, Delta("", 0, calls=calls)] if calls else deltas

    def finish(self) -> FinishReason:
        """Return the end of the answer."""
        if not self.over or self._reason is None:
            raise failures.interrupted()
        reason, warnings = ending(self._reason, _REASONS, spoke=any(part.spoke for part in self._parts))
        self.warnings += warnings
        if reason == "tool_calls" and not self._calls:  # it called nothing but the tool that is its answer
            return "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        if reason == "tool_calls":
            self._hand_over()
        return reason

    def _read(self, value: dict[str, Any], data: str) -> Iterable[Delta]:
        event = failures.read(_Event, value, data)
        if event.type == "error" or event.error:
            raise failures.of_event(failures.refusal_of(data))
        for usage in (event.message.usage if event.message else None, event.usage):
            self._count(usage)
        match event.type:
            case "message":
                return self._whole(failures.read(_Message, value, data))
            case "content_block_start" if event.content_block is not None:
                return self._begin(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                return self._grow(self._part(event.index, event.delta, data), event.delta)
            case "content_block_stop" if (part := self._places.get(event.index)) is not None:
                return self._close(part)
            case "message_delta" if event.delta is not None:
                self._end(event.delta.stop_reason, event.delta.stop_sequence)
            case "message_stop":
                self.over = True
        return ()

    def _whole(self, message: _Message) -> list[Delta]:
        """Read a message that comes in place of its events."""
        blocks = [block for block in message.content or () if block is not None]
        deltas = [delta for index, block in enumerate(blocks) for delta in self._begin(index, block)]
        self._end(message.stop_reason, message.stop_sequence)
        self.over = True
        return deltas

    def _end(self, reason: Any, stop: str | None) -> None:
        self._reason = str(reason) if reason else self._reason
        self.stop = stop or self.stop

    def _hand_over(self) -> None:
        try:
            blocks = [block for part in self._parts if (block := part.closed()) is not None]
        except ValueError:
            raise failures.interrupted("the upstream's call of a tool is no JSON") from None
        if self._keep is not None:
            self._keep(blocks)

    def _part(self, index: int | None, change: _Change, data: str) -> _Part:
        part = self._places.get(index)
        if part is None and change.type in _IMPLIED:
            self._begin(index, _Block(type=_IMPLIED[change.type]))
            return self._parts[-1]
        if part is None:
            raise failures.nonsense(data)
        return part

    def _begin(self, index: int | None, block: _Block) -> list[Delta]:
        """Begin a block. It ends another one of the same index: some gateways count all blocks as one."""
        deltas = self._close(self._places[index]) if index in self._places else []
        part = self._places[index] = _Part(block.model_dump(exclude_unset=True))
        self._parts.append(part)
        if block.type != "tool_use" or block.name == self._answer:
            return [*deltas, *self._grow(part, _Change(text=block.text, thinking=block.thinking))]
        part.call = len(self._calls)
        part.block["id"] = block.id or f"toolu_{secrets.token_hex(8)}"
        return [*deltas, *self._called(UpstreamCallPiece(part.call, part.block["id"], block.name or ""))]

    def _called(self, piece: UpstreamCallPiece, tokens: int = 1) -> list[Delta]:
        calls = self._calls.feed([piece])
        return [Delta("", tokens, calls=calls)] if calls else []

    def _grow(self, part: _Part, change: _Change) -> list[Delta]:
        if change.signature:
            part.block["signature"] = change.signature
        piece = change.text or change.thinking or change.partial_json
        if not piece:
            return []
        part.pieces.append(piece)
        return self._deltas_of(part, piece)

    def _deltas_of(self, part: _Part, piece: str) -> list[Delta]:
        match part.block["type"]:
            case "thinking":
                return [Delta("", 1, thinking=piece)]
            case "tool_use" if part.call is not None:
                return self._called(UpstreamCallPiece(part.call, arguments=piece))
            case "tool_use":
                return [] if self._wrapped else [Delta(piece, 1)]
            case "text" if self._answer is None:
                return [Delta(piece, 1)]
        return []

    def _close(self, part: _Part) -> list[Delta]:
        """Release output that had to wait for the block's end: a wrapped answer, and input that came in no pieces."""
        if part.block["type"] != "tool_use" or not part.is_open:
            return []
        part.is_open = False
        text = "".join(part.pieces).strip()
        if part.call is not None:
            return [] if text else self._called(UpstreamCallPiece(part.call, arguments=part.arguments), tokens=0)
        if self._wrapped:
            return [Delta(_unwrapped(part.arguments), 1)]
        return [] if text else [Delta(part.arguments, 1)]

    def _count(self, usage: _Usage | None) -> None:
        """Update the counts from an event: numbers are totals so far, and missing ones stay."""
        if usage is None:
            return
        self._usage = self._usage.model_copy(update=usage.model_dump(exclude_none=True))
        before = self._usage
        read, written = before.cache_read_input_tokens or 0, before.cache_creation_input_tokens or 0
        prompt = None if before.input_tokens is None else before.input_tokens + read + written
        self.spent = UpstreamUsage(prompt, read, before.output_tokens)


def _unwrapped(text: str) -> str:
    """Extract a value from the object around it; truncated JSON stays unchanged."""
    try:
        return json.dumps(json.loads(text)["value"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return text
