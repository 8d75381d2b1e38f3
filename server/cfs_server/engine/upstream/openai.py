"""The protocol of OpenAI's chat completions: request bodies and response events. Pure: no I/O.

Many servers support it. Members are those of the public API reference. vLLM, llama-server and others name a model's
thinking `reasoning_content` or `reasoning`.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from cfs.errors import EngineError
from cfs.sse import ServerSentEvent
from cfs.wire import FinishReason, Message
from cfs_server.engine.history_forms import Form, portable_name, short_id
from cfs_server.engine.interface import CallDelta, Delta, GenerationRequest
from cfs_server.engine.schema_references import portable
from cfs_server.engine.upstream import failures
from cfs_server.engine.upstream.affinity import member_of
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.protocol import OptionalFields, Options, Spent, conversation_of

# -- response events --------------------------------------------------------------------------------------------------

_END = "[DONE]"
_PASSING = ("server_error", "rate_limit_exceeded", "overloaded_error", "unavailable_error")
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}


class _Function(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Piece(BaseModel):
    index: int | None = None
    id: str | None = None
    function: _Function = _Function()


class _Delta(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_Piece, ...] | None = None


class _Choice(BaseModel):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(BaseModel):
    """The members used of a chunk; it may have more."""

    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Voice:
    """The upstream's name of its model's thinking, learned from its answers."""

    thinking: str = "reasoning_content"


class OpenAIReply:
    """Reads the chunks of one completion."""

    def __init__(self, voice: Voice) -> None:
        self.over = False
        self.spent = Spent()
        self.stop = ""
        self._voice = voice
        self._reason: str | None = None
        self._ids: list[str] = []
        self._open: dict[int, int] = {}

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Process an event; return its new output."""
        if event.data.strip() == _END:
            self.over = True
            return ()
        chunk = failures.read(_Chunk, event.data)
        if chunk.error:
            raise failures.of_event(failures.refusal_of(event.data), _PASSING)
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details or _Details()
            self.spent = Spent(chunk.usage.prompt_tokens, details.cached_tokens or 0, chunk.usage.completion_tokens)
        return [delta for choice in (chunk.choices or ())[:1] if (delta := self._choice(choice)) is not None]

    def finish(self) -> FinishReason:
        """Return the end of the answer; a server may omit the last marker or the reason, but not both."""
        if self._reason is None and not self.over:
            raise failures.interrupted()
        if self._reason == "content_filter":
            raise failures.Failure(EngineError("the upstream's content filter stopped the reply"))
        reason = _REASONS.get(self._reason or "stop", "stop")
        return "tool_calls" if self._ids and reason == "stop" else reason

    def _choice(self, choice: _Choice) -> Delta | None:
        self._reason = choice.finish_reason or self._reason
        said = choice.delta or _Delta()
        if said.reasoning and not said.reasoning_content:
            self._voice.thinking = "reasoning"
        text = (said.content or "") + (said.refusal or "")
        thinking = said.reasoning_content or said.reasoning or ""
        calls = tuple(map(self._call, said.tool_calls or ()))
        return Delta(text, 1, thinking, calls) if text or thinking or calls else None

    def _call(self, piece: _Piece) -> CallDelta:
        """Number the calls anew: some servers give all of them the same index, and each whole in one piece."""
        theirs, arguments = piece.index or 0, piece.function.arguments or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        ours = self._open.get(theirs)
        if ours is not None and piece.id in (None, "", self._ids[ours]):
            return CallDelta(ours, arguments=arguments)
        if not piece.function.name:
            raise failures.nonsense(piece.model_dump_json(exclude_none=True))
        ours = self._open[theirs] = len(self._ids)
        self._ids.append(piece.id or f"call_{secrets.token_hex(8)}")
        return CallDelta(ours, self._ids[ours], piece.function.name, arguments)


_THINKING = "reasoning_content"
_OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stream_options",
    "tool_choice",
    "parallel_tool_calls",
    "prompt_cache_key",
    "user",
    _THINKING,  # refused by Groq and Mistral, also that of other models: janhq/jan#8136, charmbracelet/crush#1590
)
_NO_THINKING = re.compile(rf"missing\W+{_THINKING}|{_THINKING}\W+(is missing|must be)", re.IGNORECASE)
"""Calls of other models came without any: abhigyanpatwari/GitNexus#43 (DeepSeek), mastra-ai/mastra#12592 (Kimi)."""
_SPACE = " "
"""A thinking for those, as Kimi takes no empty one: theopenco/llmgateway#2093."""
_MORE_MODERN = "max_completion_tokens"


class OpenAIDialect:
    """The protocol of OpenAI and compatible servers."""

    path = "chat/completions"

    def __init__(self, options: Options, model: str) -> None:
        self._options = options
        self._model = model
        self._fields = OptionalFields(_OPTIONAL)
        self._length = "max_tokens"
        self._voice = Voice()
        self._no_thinking: str | None = None

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, request: GenerationRequest, form: Form = Form.PLAIN) -> dict[str, Any]:
        """Make the body of a turn's request."""
        talk = conversation_of(request, form)
        system = [{"role": "system", "content": talk.system}] if talk.system else []
        optional = self._sampling(request) | {"stop": list(talk.stops), "stream_options": {"include_usage": True}}
        optional |= member_of(self._options.affinity, request)
        if request.tools:
            optional["tool_choice"] = request.tool_choice
            if not request.parallel_calls:
                optional["parallel_tool_calls"] = False
        begun: dict[str, Any] = {}
        if request.partial:  # as vLLM has it
            messages = (*talk.messages, Message(role="assistant", content=request.partial))
            talk = replace(talk, messages=messages)
            begun = {"continue_final_message": True, "add_generation_prompt": False}
        return {
            "model": self._model,
            "messages": [*system, *(self._message(message, form) for message in talk.messages)],
            "stream": True,
            self._length: request.settings.max_tokens,
            **{name: value for name, value in optional.items() if value != [] and self._fields.takes(name)},
            **({"tools": list(map(_tool, request.tools))} if request.tools else {}),
            **_format(request.json_schema),
            **begun,
        }

    def reply(self, request: GenerationRequest) -> OpenAIReply:  # noqa: ARG002 - the other protocol needs it
        """Make the reader of a turn's answer."""
        return OpenAIReply(self._voice)

    def learn(self, failure: Failure) -> None:
        """Omit the members that the upstream refused; newer models of OpenAI use another name for the length."""
        if failure.status == 400 and _MORE_MODERN in failure.said:
            self._length = _MORE_MODERN
        elif failure.status == 400 and _NO_THINKING.search(failure.said):
            self._no_thinking = _SPACE
        else:
            self._fields.learn(failure)

    def forget(self, cache_key: str) -> None:
        """No state is stored for a session."""

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        values = {name: getattr(request.settings, name) for name in self._options.sampling}
        return {name: value for name, value in values.items() if value is not None}

    def _message(self, message: Message, form: Form) -> dict[str, Any]:
        strict = form is not Form.PLAIN
        if message.role == "tool":
            answered = short_id(message.tool_call_id or "") if strict else message.tool_call_id
            return {"role": "tool", "tool_call_id": answered, "content": message.content}
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            # No text is null in the API of OpenAI; some servers refuse that: lmstudio-ai/lmstudio-bug-tracker#261.
            row["content"] = message.content or ("" if strict else None)
            row["tool_calls"] = [
                {
                    "id": short_id(call.id) if strict else call.id,
                    "type": "function",
                    "function": {
                        "name": portable_name(call.name) if strict else call.name,
                        "arguments": json.dumps(call.arguments, ensure_ascii=False),
                    },
                }
                for call in message.tool_calls
            ]
            # Some models need their thinking before a call back, and others refuse any other thinking.
            thinking = self._no_thinking if message.thinking is None else message.thinking
            if thinking is not None and self._fields.takes(_THINKING):
                row[self._voice.thinking] = thinking
        return row


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool as it was sent, unless its schema has references that not every server can follow."""
    function = tool.get("function", {})
    parameters = portable(function.get("parameters"))
    return (
        tool
        if parameters is function.get("parameters")
        else {**tool, "function": {**function, "parameters": parameters}}
    )


def _format(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Request JSON; `strict` stays off because few schemas fit OpenAI's strict mode."""
    if schema is None:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": portable(schema)}}}
