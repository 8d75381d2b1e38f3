"""The protocol of Anthropic's messages: request bodies and response events. Pure: no I/O.

Members are those of the public API reference, version 2023-06-01. A reply in JSON is requested as the input of a tool
that the model has to call. Only this way works with all models.
"""

import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WrapValidator

from cfs.contract.sse import ServerSentEvent
from cfs.errors import EngineError
from cfs.wire import FinishReason, Message
from cfs_server.engine.contract.history_forms import NOTHING, Form, portable_name, short_id
from cfs_server.engine.contract.interface import Delta, GenerationRequest
from cfs_server.engine.contract.schema_references import FlatSchema, flattened, portable
from cfs_server.engine.upstream import failures
from cfs_server.engine.upstream.affinity import value_of
from cfs_server.engine.upstream.answers import ending, objects_of, or_nothing
from cfs_server.engine.upstream.calls import CallPiece, CallReader, arguments_text
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.protocol import Documents, Instead, OptionalFields, Options, Spent, conversation_of

# -- signed thinking: stored replies that are sent back unchanged -----------------------------------------------------
#
# A thinking model of Anthropic signs its thinking. It requires the thinking unchanged with the results of its tool
# calls. Messages of CFS contain the text of the thinking but not the signature. So the blocks of such replies are
# stored here while the session lives and space allows, also over a restart.

Block = dict[str, Any]
_MOST = 4096


@dataclass(frozen=True, slots=True)
class _Kept:
    cache_key: str
    blocks: tuple[Block, ...]


class SignedReplies:
    """Blocks of replies that called tools, found again by the owner and the first call's id; the oldest go first.

    They are also kept as documents, which outlive the process.
    """

    def __init__(self, documents: Documents | None = None, most: int = _MOST) -> None:
        self._most = most
        self._documents = documents or Documents()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        for name, text in self._documents.kept.items():
            stored = json.loads(text)
            self._kept[name] = _Kept(stored["session"], tuple(stored["blocks"]))

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, owner: str, cache_key: str, blocks: Sequence[Block]) -> None:
        """Remember a reply, if it calls a tool."""
        if ids := [block["id"] for block in blocks if block["type"] == "tool_use"]:
            name = _name(owner, ids[0])
            self._kept[name] = _Kept(cache_key, tuple(blocks))
            self._documents.keep(name, json.dumps({"session": cache_key, "blocks": list(blocks)}))
            if len(self._kept) > self._most:
                self._drop(next(iter(self._kept)))

    def of(self, owner: str, message: Message) -> tuple[Block, ...] | None:
        """Find the blocks of a message; None when they are not known, or the message has been edited since."""
        kept = self._kept.get(_name(owner, message.tool_calls[0].id)) if message.tool_calls else None
        if kept is None:
            return None
        text = "".join(block["text"] for block in kept.blocks if block["type"] == "text")
        calls = [(block["id"], block["name"], block["input"]) for block in kept.blocks if block["type"] == "tool_use"]
        same = text.strip() == message.content.strip()
        return kept.blocks if same and calls == [(c.id, c.name, c.arguments) for c in message.tool_calls] else None

    def forget(self, cache_key: str) -> None:
        """Drop the stored blocks of a session."""
        for name in [name for name, kept in self._kept.items() if kept.cache_key == cache_key]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._kept[name]
        self._documents.keep(name, None)


def _name(owner: str, call: str) -> str:
    return json.dumps([owner, call])


# -- response events --------------------------------------------------------------------------------------------------

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
        self.spent = Spent()
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
        found: list[Delta] = []
        for value in objects_of(event):
            if value is None:  # some gateways end as OpenAI does
                self.over = self._reason is not None
            else:
                found += self._read(value, event.data)
        return found

    def rest(self) -> Iterable[Delta]:
        """Close the blocks whose end was not sent (xemantic/anthropic-sdk-kotlin#147), and return what was held."""
        if not self.over or self._reason is None:
            return []
        is_whole = _REASONS.get(self._reason.lower()) in ("stop", "tool_calls")
        found = [delta for part in self._parts for delta in self._close(part)] if is_whole else []
        calls = self._calls.finish(is_whole=is_whole)
        return [*found, Delta("", 0, calls=calls)] if calls else found

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
        said = failures.read(_Event, value, data)
        if said.type == "error" or said.error:
            raise failures.of_event(failures.refusal_of(data))
        for usage in (said.message.usage if said.message else None, said.usage):
            self._count(usage)
        match said.type:
            case "message":
                return self._whole(failures.read(_Message, value, data))
            case "content_block_start" if said.content_block is not None:
                return self._begin(said.index, said.content_block)
            case "content_block_delta" if said.delta is not None:
                return self._grow(self._part(said.index, said.delta, data), said.delta)
            case "content_block_stop" if (part := self._places.get(said.index)) is not None:
                return self._close(part)
            case "message_delta" if said.delta is not None:
                self._end(said.delta.stop_reason, said.delta.stop_sequence)
            case "message_stop":
                self.over = True
        return ()

    def _whole(self, message: _Message) -> list[Delta]:
        """Read a message that comes in place of its events."""
        blocks = [block for block in message.content or () if block is not None]
        found = [delta for index, block in enumerate(blocks) for delta in self._begin(index, block)]
        self._end(message.stop_reason, message.stop_sequence)
        self.over = True
        return found

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
        found = self._close(self._places[index]) if index in self._places else []
        part = self._places[index] = _Part(block.model_dump(exclude_unset=True))
        self._parts.append(part)
        if block.type != "tool_use" or block.name == self._answer:
            return [*found, *self._grow(part, _Change(text=block.text, thinking=block.thinking))]
        part.call = len(self._calls)
        part.block["id"] = block.id or f"toolu_{secrets.token_hex(8)}"
        return [*found, *self._called(CallPiece(part.call, part.block["id"], block.name or ""))]

    def _called(self, piece: CallPiece, tokens: int = 1) -> list[Delta]:
        calls = self._calls.feed([piece])
        return [Delta("", tokens, calls=calls)] if calls else []

    def _grow(self, part: _Part, change: _Change) -> list[Delta]:
        if change.signature:
            part.block["signature"] = change.signature
        piece = change.text or change.thinking or change.partial_json
        if not piece:
            return []
        part.pieces.append(piece)
        return self._said(part, piece)

    def _said(self, part: _Part, piece: str) -> list[Delta]:
        match part.block["type"]:
            case "thinking":
                return [Delta("", 1, thinking=piece)]
            case "tool_use" if part.call is not None:
                return self._called(CallPiece(part.call, arguments=piece))
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
            return [] if text else self._called(CallPiece(part.call, arguments=part.arguments), tokens=0)
        if self._wrapped:
            return [Delta(_unwrapped(part.arguments), 1)]
        return [] if text else [Delta(part.arguments, 1)]

    def _count(self, usage: _Usage | None) -> None:
        """Update the counts from an event: numbers are totals so far, and missing ones stay."""
        if usage is None:
            return
        self._usage = self._usage.model_copy(update=usage.model_dump(exclude_none=True))
        seen = self._usage
        read, written = seen.cache_read_input_tokens or 0, seen.cache_creation_input_tokens or 0
        prompt = None if seen.input_tokens is None else seen.input_tokens + read + written
        self.spent = Spent(prompt, read, seen.output_tokens)


def _unwrapped(text: str) -> str:
    """Extract a value from the object around it; truncated JSON stays unchanged."""
    try:
        return json.dumps(json.loads(text)["value"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return text


VERSION = "2023-06-01"
ANSWER = "give_answer"
"""Tool whose input is the reply, when that has to be JSON."""
_OPTIONAL: dict[str, Instead] = {
    "temperature": Instead.TOLD,
    "top_p": Instead.TOLD,
    "top_k": Instead.TOLD,
    "stop_sequences": Instead.HERE,
    "cache_control": Instead.NOTHING,
    "metadata": Instead.NOTHING,
}
"""The members that may be left out."""
_HOTTEST = 1.0
_CACHED: Block = {"cache_control": {"type": "ephemeral"}}
_LONGEST_ID = 64
_ANYTHING: Block = {"type": "object"}


class AnthropicDialect:
    """The protocol of Anthropic and compatible servers."""

    path = "messages"

    def __init__(self, options: Options, model: str) -> None:
        self._options = options
        self._model = model
        self._fields = OptionalFields(_OPTIONAL)
        self._adaptive = False
        self._signed = SignedReplies(options.documents)

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def body(self, request: GenerationRequest, form: Form = Form.PLAIN) -> dict[str, Any]:
        """Make the body of a turn's request."""
        talk = conversation_of(request, form)
        thinking = self._thinking(request)
        budget = self._options.thinking_tokens if thinking else 0
        tools = _tools(request, talk.messages, form)
        messages = merged((_role(message), self._blocks(request, message, form)) for message in talk.messages)
        optional = {} if thinking else self._sampling(request)
        if self._options.affinity == "user":
            optional["metadata"] = {"user_id": value_of(request)}
        optional["stop_sequences"] = [stop for stop in talk.stops if stop.strip()]
        return {
            "model": self._model,
            "max_tokens": request.settings.max_tokens + budget,
            "messages": self._marked(messages),
            "stream": True,
            **({"system": [self._mark({"type": "text", "text": talk.system})]} if talk.system.strip() else {}),
            **({"tools": tools, "tool_choice": _choice(request)} if tools else {}),
            **({"thinking": thinking} if thinking else {}),
            **{name: value for name, value in optional.items() if value not in (None, []) and self._fields.takes(name)},
        }

    def reply(self, request: GenerationRequest) -> AnthropicReply:
        """Make the reader of a turn's answer."""

        def keep(blocks: Sequence[Block]) -> None:
            self._signed.keep(request.owner, request.cache_key, blocks)

        schema = request.options.json_schema
        return AnthropicReply(
            answer=None if schema is None else ANSWER,
            wrapped=schema is not None and not _is_object(schema),
            keep=keep if self._thinking(request) else None,
        )

    def learn(self, failure: Failure) -> None:
        """Omit the members that the upstream refused; newer models accept no thinking budget and choose their own."""
        if failure.status == 400 and "adaptive" in failure.said:
            self._adaptive = True
        else:
            self._fields.learn(failure)

    def forget(self, cache_key: str) -> None:
        """Drop the signed replies of a session."""
        self._signed.forget(cache_key)

    def _thinking(self, request: GenerationRequest) -> dict[str, Any] | None:
        """Return the thinking settings, where they are allowed.

        They are not allowed when a tool must be called, or between calls whose thinking is lost.
        """
        if not self._options.thinking_tokens or not self._may_think(request):
            return None
        if self._adaptive:
            return {"type": "adaptive", "display": "summarized"}
        return {"type": "enabled", "budget_tokens": self._options.thinking_tokens}

    def _may_think(self, request: GenerationRequest) -> bool:
        options = request.options
        if options.json_schema is not None or (options.tools and options.tool_choice == "required"):
            return False
        loop = _loop(request.messages)
        return all(self._signed.of(request.owner, message) for message in loop if message.tool_calls)

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        values: dict[str, Any] = {
            name: getattr(request.settings, name) for name in self._options.sampling if name in _OPTIONAL
        }
        if "temperature" in values:
            values["temperature"] = min(values["temperature"], _HOTTEST)
        return values

    def _blocks(self, request: GenerationRequest, message: Message, form: Form) -> list[Block]:
        strict = form is not Form.PLAIN
        if message.role == "tool":
            answered = _id(message.tool_call_id or "") if strict else message.tool_call_id
            return [{"type": "tool_result", "tool_use_id": answered, "content": message.content}]
        if self._options.thinking_tokens and (signed := self._signed.of(request.owner, message)):
            return list(signed)
        said = f"(system) {message.content}" if message.role == "system" else message.content
        text = [{"type": "text", "text": said}] if message.content.strip() else []
        calls = [
            {
                "type": "tool_use",
                "id": _id(call.id) if strict else call.id,
                "name": portable_name(call.name) if strict else call.name,
                "input": call.arguments,
            }
            for call in message.tool_calls
        ]
        return [*text, *calls]

    def _marked(self, messages: list[Block]) -> list[Block]:
        """Mark the cache points for the upstream: the end, and the previous user message."""
        users = [message for message in messages if message["role"] == "user"]
        for message in users[-2:]:
            message["content"][-1] = self._mark(message["content"][-1])
        return messages

    def _mark(self, block: Block) -> Block:
        return block | _CACHED if self._fields.takes("cache_control") else block


def _id(call_id: str) -> str:
    """Shorten an id beyond the 64 characters of Bedrock; those of Anthropic, which it has signed, are shorter."""
    return call_id if len(call_id) <= _LONGEST_ID else short_id(call_id)


def merged(spoken: Iterable[tuple[str, list[Block]]]) -> list[Block]:
    """Merge blocks into messages: roles alternate, the user begins and ends, and no message is empty."""
    found: list[Block] = []
    for role, blocks in spoken:
        if not blocks:
            continue
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        elif not found and role == "assistant":
            found += [_said_nothing(), {"role": role, "content": blocks}]
        else:
            found.append({"role": role, "content": blocks})
    return found if found and found[-1]["role"] == "user" else [*found, _said_nothing()]


def _said_nothing() -> Block:
    return {"role": "user", "content": [{"type": "text", "text": NOTHING}]}


def _role(message: Message) -> str:
    return "assistant" if message.role == "assistant" else "user"


def _loop(messages: Sequence[Message]) -> list[Message]:
    """Find the model's messages since the last input without tool results: Anthropic counts them as one turn."""
    found: list[Message] = []
    for by_model, group in groupby(reversed(messages), key=lambda message: message.role == "assistant"):
        members = list(group)
        if by_model:
            found += members
        elif not any(message.role == "tool" for message in members):
            break
    return found


def _tools(request: GenerationRequest, messages: Iterable[Message], form: Form) -> list[Block]:
    """Describe the tools; include tools that only the history calls, as the protocol requires."""
    tools = [_tool(tool.get("function", tool)) for tool in request.options.tools]
    known = {tool["name"] for tool in tools}
    called = {call.name for message in messages for call in message.tool_calls}
    called = set(map(portable_name, called)) if form is not Form.PLAIN else called
    tools += [{"name": name, "input_schema": _ANYTHING} for name in sorted(called - known)]
    if (schema := request.options.json_schema) is not None:
        schema = _ANYTHING | portable(schema) if _is_object(schema) else _wrapped(schema)
        tools.append({"name": ANSWER, "description": "Give the answer to the user.", "input_schema": schema})
    return tools


def _wrapped(schema: Mapping[str, Any]) -> Block:
    """Make a schema of objects with one value; definitions stay at the root, where references look for them."""
    try:
        flat = flattened(schema)
    except ValueError as error:
        raise EngineError(f"the JSON schema of the reply cannot be sent to the upstream: {error}") from error
    outer = {"type": "object", "properties": {"value": flat.schema}, "required": ["value"]}
    whole: Block = FlatSchema(outer, flat.definitions).whole
    return whole


def _tool(function: Mapping[str, Any]) -> Block:
    described = {"description": function["description"]} if function.get("description") else {}
    return {
        "name": function["name"],
        **described,
        "input_schema": _ANYTHING | portable(function.get("parameters") or {}),
    }


def _choice(request: GenerationRequest) -> Block:
    options = request.options
    if options.json_schema is not None:
        return {"type": "any"} if options.tools else {"type": "tool", "name": ANSWER}
    if not options.tools:
        return {"type": "none"}
    single = {} if options.parallel_calls or options.tool_choice == "none" else {"disable_parallel_tool_use": True}
    return {"type": "any" if options.tool_choice == "required" else options.tool_choice, **single}


def _is_object(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is one of objects, as the input of a tool must be."""
    return schema.get("type", "object") == "object" and not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "enum"}
