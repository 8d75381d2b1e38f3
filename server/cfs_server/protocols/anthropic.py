"""The messages protocol of Anthropic: requests in, messages or events out. Pure: no I/O (H4).

Members are those of the public API, version 2023-06-01. Unknown ones are ignored, unlike by the service itself: clients
send what is new before it is read here.
"""

import json
import uuid
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag

from cfs.completions import UNREADABLE, ModelCard, Recorded, read_arguments
from cfs.completions.messages import Open
from cfs.completions.models import Number
from cfs.errors import InvalidParameters
from cfs.wire import FinishReason, FunctionName, FunctionSpec, Message, NamedTool, ToolCall, ToolSpec, Usage
from cfs_server.completions.requests import CompletionSpec, checked, patch_of, read_tools, refusal
from cfs_server.domain.quotas import Limits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.engine.contract.reply_options import ReplyOptions, ToolChoice

# -- requests ---------------------------------------------------------------------------------------------------------

_SERVICE_ONLY = {
    "compaction": "conversations are summarized at the service of Anthropic only",
    "container": "there are no containers here: the tools of Anthropic that need one do not run",
    "mcp_servers": "only the service of Anthropic connects to these: give the model their tools from your program",
}
"""Members without which the answer would be another one, and why they are refused unless they are empty."""
_THREAD_REFUSED = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Details of the error by which the tool runners of Anthropic's clients know that they have to send the whole
conversation with each request (`anthropic/lib/threads/_thread_state.py`; `ThreadState.ts` of the JavaScript client)."""


class TextBlock(Open):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Open):
    """What the model thought before its answer. Signatures are not checked here."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Open):
    """Thinking that only the service of Anthropic can read; left out here."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Open):
    """A call of a tool, by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


def _texts_only(value: Any) -> Any:
    return _checked(value, frozenset({"text"}))


_TextBlocks = Annotated[tuple[TextBlock, ...], BeforeValidator(_texts_only)]


def _form(value: Any) -> str:
    return "text" if isinstance(value, str) else "blocks"


_Text = Annotated[Annotated[str, Tag("text")] | Annotated[_TextBlocks, Tag("blocks")], Discriminator(_form)]
"""A text, or text in blocks."""


class ToolResultBlock(Open):
    """The result of a call, by the program that has the tools."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: _Text = ""
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
_KINDS = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})


def _known_blocks(value: Any) -> Any:
    return _checked(value, _KINDS)


def _checked(value: Any, kinds: frozenset[str]) -> Any:
    """Name the first block that cannot be read, more clearly than the message of a union would."""
    if not isinstance(value, list):
        return value
    for block in value:
        kind = block.get("type") if isinstance(block, dict) else type(block).__name__
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"blocks of the type {kind!r} are not read here, only {', '.join(sorted(kinds))}")
    return tuple(value)


_Blocks = Annotated[tuple[Annotated[Block, Field(discriminator="type")], ...], BeforeValidator(_known_blocks)]


class InputMessage(Open):
    """One message of a conversation: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Annotated[str, Tag("text")] | Annotated[_Blocks, Tag("blocks")], Discriminator(_form)]


def _own_tool(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in (None, "custom"):
        raise ValueError(f"the tool {kind!r} belongs to the service of Anthropic: describe a tool of your own")
    return value


class MessagesTool(Open):
    """A tool that the model may call; `input_schema` is a JSON schema of an object."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None


class MessagesToolChoice(Open):
    """Whether the model may (`auto`), must (`any`), must not (`none`) call a tool, or must call the one named."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Open):
    """The form of the reply: JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Open):
    """How the reply is written. `effort` has no effect here."""

    format: OutputFormat | None = None


class ThinkingConfig(Open):
    """Whether thinking is shown. Whether a model thinks is its own decision here; it has no budget."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class RequestMetadata(Open):
    """`user_id` names the account within the caller's that the message draws on."""

    user_id: Annotated[str, StringConstraints(max_length=1024)] | None = None


class TokenCountRequest(BaseModel):
    """Body of `POST /v1/messages/count_tokens`."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    messages: Annotated[tuple[InputMessage, ...], Field(min_length=1)]
    model: str = ""
    system: _Text | None = None
    tools: tuple[Annotated[MessagesTool, BeforeValidator(_own_tool)], ...] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(TokenCountRequest):
    """Body of `POST /v1/messages`.

    A server with several models answers with the one that `model` names; a server with one takes any name.
    Members that are not known are ignored.
    """

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    stop_sequences: tuple[str, ...] | None = None
    metadata: RequestMetadata | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the model's thinking is part of the answer."""
        return self.thinking is None or self.thinking.type != "disabled"


def read_request(request: MessagesRequest, limits: Limits) -> CompletionSpec:
    """Convert a request. Raises `InvalidParameters` for what is not supported, and `TooLarge`."""
    messages = conversation_of(request, limits)
    if messages[-1].role == "assistant":
        raise refusal("messages", "the last message is the user's: a reply cannot be begun for the model here")
    tools, choice = tools_of(request)
    form = request.output_format or (request.output_config and request.output_config.format)
    wanted = request.tool_choice
    return CompletionSpec(
        messages=messages,
        before=SizedMessages.of(messages[:-1]),
        patch=patch_of(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=request.stop_sequences,
        ),
        options=ReplyOptions(
            json_schema=form.json_schema if form else None,
            tools=tools,
            tool_choice=choice,
            parallel_calls=not (wanted and wanted.disable_parallel_tool_use),
        ),
        account=(request.metadata and request.metadata.user_id) or "",
    )


def conversation_of(request: TokenCountRequest, limits: Limits) -> tuple[Message, ...]:
    """Convert the messages and the system prompt. Raises `InvalidParameters` and `TooLarge`."""
    _require_possible(request.model_extra or {})
    found = [Message(role="system", content=_joined(request.system))] if request.system else []
    for number, message in enumerate(request.messages):
        found += _converted(message, f"messages.{number}")
    return checked(tuple(found), limits)


def _require_possible(members: Mapping[str, Any]) -> None:
    """Raise `InvalidParameters` for what only the service of Anthropic can do."""
    if members.get("thread") is not None:
        raise InvalidParameters(
            "thread: conversations are not held here for the client; send the whole conversation with each request",
            errors=[{"at": "thread", "message": "not supported"}],
            details=_THREAD_REFUSED,
        )
    for name, reason in _SERVICE_ONLY.items():
        if members.get(name):
            raise refusal(name, reason)


def tools_of(request: TokenCountRequest) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
    """Return the tools that may be called, and whether a call is required. Raises `InvalidParameters`."""
    tools = [
        ToolSpec(function=FunctionSpec(name=tool.name, description=tool.description, parameters=tool.input_schema))
        for tool in request.tools or ()
    ]
    wanted = request.tool_choice
    if wanted is not None and wanted.type == "tool":
        return read_tools(tools, NamedTool(function=FunctionName(name=wanted.name or "")))
    return read_tools(tools, _CHOICES[wanted.type if wanted else "auto"])


_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def _converted(message: InputMessage, place: str) -> list[Message]:
    """Convert a message: results of tools become messages of their own, before the text beside them."""
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    blocks = message.content
    by_model = message.role == "assistant"
    for block in blocks:
        if isinstance(block, TextBlock):
            continue
        if isinstance(block, ToolResultBlock) == by_model or message.role == "system":
            raise refusal(place, f"a message of the role {message.role!r} has no blocks of the type {block.type!r}")
    if by_model:
        return [_reply(blocks)]
    results = [_result(block) for block in blocks if isinstance(block, ToolResultBlock)]
    texts = tuple(block for block in blocks if isinstance(block, TextBlock))
    if not blocks:
        raise refusal(place, "a message must not be empty")
    return [*results, Message(role=message.role, content=_joined(texts))] if texts else results


def _reply(blocks: Sequence[Block]) -> Message:
    thinking = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    return Message(
        role="assistant",
        content="".join(block.text for block in blocks if isinstance(block, TextBlock)),
        tool_calls=tuple(
            ToolCall(id=block.id, name=block.name, arguments=block.input)
            for block in blocks
            if isinstance(block, ToolUseBlock)
        ),
        thinking=thinking or None,
    )


def _result(block: ToolResultBlock) -> Message:
    """Convert a result. A message has no mark for an error, so its text says it."""
    text = _joined(block.content)
    failed = block.is_error and "error" not in text[:80].lower()
    return Message(role="tool", content=f"Error: {text}" if failed else text, tool_call_id=block.tool_use_id)


def _joined(content: str | tuple[TextBlock, ...]) -> str:
    return content if isinstance(content, str) else "\n\n".join(block.text for block in content)


# -- responses --------------------------------------------------------------------------------------------------------

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
    found = message.model_dump()
    for member in ("warnings", "cfs"):
        if found[member] is None:
            del found[member]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
