"""Answers in the messages protocol of Anthropic: messages, their events, and the list of models. Pure: no I/O (H4)."""

import json
import uuid
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from cfs.completions import UNREADABLE, ModelCard, Recorded, read_arguments
from cfs.completions.messages import Open
from cfs.wire import FinishReason, Usage
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished

SIGNATURE = "cfs"
"""The signature of thinking. Clients send no thinking back that has none."""

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_REASONS: dict[FinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "cancelled": "end_turn",  # the protocol has no value for it; `cfs.finish_reason` has
    "error": "end_turn",
}


class MessageUsage(Open):
    """What a message cost, in tokens. Those that needed no computation are in `cache_read_input_tokens` only."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> "MessageUsage":
        """Convert from the usage of a turn."""
        return cls(
            input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens),
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )


class MessageReply(Open):
    """A finished message."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[dict[str, Any], ...]
    stop_reason: StopReason | None
    stop_sequence: str | None = None
    usage: MessageUsage
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None


class InputTokens(Open):
    """How many tokens a request would have."""

    input_tokens: int


class AnthropicModel(Open):
    """A model that answers here, as clients of Anthropic read it."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None

    @classmethod
    def of(cls, card: ModelCard) -> "AnthropicModel":
        """Convert from the model of other protocols."""
        loaded = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
        return cls(id=card.id, display_name=card.id, created_at=loaded, max_input_tokens=card.max_model_len)


class AnthropicModels(Open):
    """All models that answer here, the default first."""

    data: tuple[AnthropicModel, ...]
    first_id: str
    last_id: str
    has_more: bool = False

    @classmethod
    def of(cls, cards: Sequence[ModelCard]) -> "AnthropicModels":
        """List models."""
        return cls(data=tuple(map(AnthropicModel.of, cards)), first_id=cards[0].id, last_id=cards[-1].id)


class _OpenBlock(NamedTuple):
    kind: str
    call: int = -1


Event = dict[str, Any]


class MessageWriter:
    """Formats one message. `recorded` is the session and turn that record it, if any."""

    def __init__(
        self, model: str, recorded: Recorded | None, *, thinking: bool = True, stops: Sequence[str] = ()
    ) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._recorded = recorded
        self._thinking = thinking
        self._stops = stops
        self._open: _OpenBlock | None = None
        self._index = -1
        self._of_call: dict[int, int] = {}
        self._arguments: list[str] = []
        """The arguments of the open call so far."""
        self._late = ""
        """Text that came before the open call was complete; only one block is open at a time."""

    def begin(self) -> Iterator[Event]:
        """Yield the first events. What the prompt cost is known at the end only."""
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": MessageUsage().model_dump(),
        }
        if self._recorded:
            message["cfs"] = self._recorded.model_dump(exclude_none=True)
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}

    def write(self, item: Delta | Finished) -> Iterator[Event]:
        """Yield the events of a piece, or of the end."""
        if isinstance(item, Finished):
            yield from self._end(item)
            return
        if item.thinking and self._thinking:
            yield from self._enter(_OpenBlock("thinking"), {"type": "thinking", "thinking": "", "signature": ""})
            yield self._grow(self._index, type="thinking_delta", thinking=item.thinking)
        if item.text:
            self._late += item.text
            if not self._is_amid_call():
                yield from self._text()
        for call in item.calls:
            yield from self._call(call)

    def _is_amid_call(self) -> bool:
        if self._open is None or self._open.kind != "tool_use":
            return False
        return not self._arguments or UNREADABLE in read_arguments("".join(self._arguments))

    def _text(self) -> Iterator[Event]:
        if self._late:
            yield from self._enter(_OpenBlock("text"), {"type": "text", "text": ""})
            yield self._grow(self._index, type="text_delta", text=self._late)
            self._late = ""

    async def message(self, items: AsyncIterable[Delta | Finished]) -> MessageReply:
        """Return the complete response."""
        blocks: list[dict[str, Any]] = []
        inputs: dict[int, list[str]] = {}
        end: Event = {}
        async for item in items:
            for event in self.write(item):
                if event["type"] == "content_block_start":
                    blocks.append(event["content_block"])
                elif event["type"] == "content_block_delta":
                    _add(blocks[event["index"]], inputs.setdefault(event["index"], []), event["delta"])
                elif event["type"] == "message_delta":
                    end = event
        for index, pieces in inputs.items():
            for name in ("text", "thinking"):
                if name in blocks[index]:
                    blocks[index][name] = "".join(pieces)
            if blocks[index]["type"] == "tool_use":
                blocks[index]["input"] = read_arguments("".join(pieces))
        return MessageReply(
            id=self._id,
            model=self._model,
            content=tuple(blocks),
            usage=MessageUsage.model_validate(end["usage"]),
            warnings=end.get("warnings"),
            cfs=end.get("cfs"),
            **end["delta"],
        )

    def _enter(self, block: _OpenBlock, content: dict[str, Any]) -> Iterator[Event]:
        """Close the open block and open another one, unless it is open already."""
        if self._open == block:
            return
        yield from self._close()
        self._index += 1
        self._open = block
        yield {"type": "content_block_start", "index": self._index, "content_block": content}

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open.kind == "thinking":
            yield self._grow(self._index, type="signature_delta", signature=SIGNATURE)
        yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _call(self, call: CallDelta) -> Iterator[Event]:
        if call.index not in self._of_call:
            yield from self._text()
            self._arguments.clear()
            head = {"type": "tool_use", "id": call.id or "", "name": call.name or "", "input": {}}
            yield from self._enter(_OpenBlock("tool_use", call.index), head)
            self._of_call[call.index] = self._index
        if call.arguments:
            self._arguments.append(call.arguments)
            yield self._grow(self._of_call[call.index], type="input_json_delta", partial_json=call.arguments)

    @staticmethod
    def _grow(index: int, **delta: str) -> Event:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def _end(self, item: Finished) -> Iterator[Event]:
        yield from self._text()
        yield from self._close()
        end: Event = {
            "type": "message_delta",
            "delta": {"stop_reason": _REASONS[item.reason], "stop_sequence": None},
            "usage": MessageUsage.of(item.usage).model_dump(),
        }
        if item.stop in self._stops and item.reason == "stop":
            end["delta"] = {"stop_reason": "stop_sequence", "stop_sequence": item.stop}
        if item.warnings:
            end["warnings"] = list(item.warnings)
        if self._recorded:
            end["cfs"] = self._recorded.model_copy(update={"finish_reason": item.reason}).model_dump()
        yield end
        yield {"type": "message_stop"}


def _add(block: dict[str, Any], pieces: list[str], delta: Mapping[str, str]) -> None:
    if delta["type"] == "signature_delta":
        block["signature"] = delta["signature"]
    else:
        pieces.append(delta.get("text") or delta.get("thinking") or delta.get("partial_json") or "")


def message_json(message: MessageReply) -> str:
    """Return the JSON of a message."""
    document = message.model_dump()
    for member in ("warnings", "cfs"):
        if document[member] is None:
            del document[member]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
