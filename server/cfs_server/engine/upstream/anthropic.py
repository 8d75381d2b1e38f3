"""The protocol of Anthropic's messages: request bodies. Pure: no I/O.

Members are those of the public API reference, version 2023-06-01. A reply in JSON is requested as the input of a tool
that the model has to call. Only this way works with all models.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from cfs.errors import EngineError
from cfs.wire import Message
from cfs_server.engine.contract.history_forms import NOTHING, HistoryForm, portable_name, short_id
from cfs_server.engine.contract.interface import GenerationRequest
from cfs_server.engine.contract.schema_references import FlatSchema, flattened, portable
from cfs_server.engine.upstream.affinity import value_of
from cfs_server.engine.upstream.anthropic_replies import AnthropicReply
from cfs_server.engine.upstream.conversation import conversation_of
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.optional_fields import Instead, OptionalFields
from cfs_server.engine.upstream.options import UpstreamOptions
from cfs_server.engine.upstream.signed_replies import Block, SignedReplies

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
    embeddings_path: str | None = None

    def __init__(self, options: UpstreamOptions, model: str) -> None:
        self._options = options
        self._model = model
        self._fields = OptionalFields(_OPTIONAL)
        self._adaptive = False
        self._signed = SignedReplies(options.documents)

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def body(self, request: GenerationRequest, form: HistoryForm = HistoryForm.PLAIN) -> dict[str, Any]:
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

    def _blocks(self, request: GenerationRequest, message: Message, form: HistoryForm) -> list[Block]:
        strict = form is not HistoryForm.PLAIN
        if message.role == "tool":
            answered = _id(message.tool_call_id or "") if strict else message.tool_call_id
            return [{"type": "tool_result", "tool_use_id": answered, "content": message.content}]
        if self._options.thinking_tokens and (signed := self._signed.of(request.owner, message)):
            return list(signed)
        marked = f"(system) {message.content}" if message.role == "system" else message.content
        text = [{"type": "text", "text": marked}] if message.content.strip() else []
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
    result: list[Block] = []
    for role, blocks in spoken:
        if not blocks:
            continue
        if result and result[-1]["role"] == role:
            result[-1]["content"] += blocks
        elif not result and role == "assistant":
            result += [_said_nothing(), {"role": role, "content": blocks}]
        else:
            result.append({"role": role, "content": blocks})
    return result if result and result[-1]["role"] == "user" else [*result, _said_nothing()]


def _said_nothing() -> Block:
    return {"role": "user", "content": [{"type": "text", "text": NOTHING}]}


def _role(message: Message) -> str:
    return "assistant" if message.role == "assistant" else "user"


def _loop(messages: Sequence[Message]) -> list[Message]:
    """Find the model's messages since the last input without tool results: Anthropic counts them as one turn."""
    result: list[Message] = []
    for by_model, group in groupby(reversed(messages), key=lambda message: message.role == "assistant"):
        members = list(group)
        if by_model:
            result += members
        elif not any(message.role == "tool" for message in members):
            break
    return result


def _tools(request: GenerationRequest, messages: Iterable[Message], form: HistoryForm) -> list[Block]:
    """Describe the tools; include tools that only the history calls, as the protocol requires."""
    tools = [_tool(tool.get("function", tool)) for tool in request.options.tools]
    names = {tool["name"] for tool in tools}
    called = {call.name for message in messages for call in message.tool_calls}
    called = set(map(portable_name, called)) if form is not HistoryForm.PLAIN else called
    tools += [{"name": name, "input_schema": _ANYTHING} for name in sorted(called - names)]
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
