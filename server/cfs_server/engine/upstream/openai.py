"""The protocol of OpenAI's chat completions: request bodies and response events. Pure: no I/O.

Many servers support it. Members are those of the public API reference. vLLM, llama-server and others name a model's
thinking `reasoning_content` or `reasoning`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, WrapValidator

from cfs.contract.sse import ServerSentEvent
from cfs.errors import UpstreamRefused
from cfs.wire import FinishReason, Message
from cfs_server.engine.contract.history_forms import HistoryForm, portable_name, short_id
from cfs_server.engine.contract.interface import Delta, GenerationRequest, Sampling
from cfs_server.engine.contract.schema_references import portable
from cfs_server.engine.upstream import failures
from cfs_server.engine.upstream.affinity import member_of
from cfs_server.engine.upstream.answers import ending, objects_of, or_nothing
from cfs_server.engine.upstream.calls import CallReader, UpstreamCallPiece, arguments_text
from cfs_server.engine.upstream.conversation import MOST_STOPS, conversation_of
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.optional_fields import NEUTRAL, Instead, OptionalFields
from cfs_server.engine.upstream.options import UpstreamOptions
from cfs_server.engine.upstream.protocol import UpstreamUsage

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",  # TGI
    "stop_sequence": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
}
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_text", "thinking", "reasoning_details")
"""The names of a model's thinking. A server that gives it several names says the same with each."""


class _Lenient(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class _Function(_Lenient):
    name: str | None = None
    arguments: Any = None


class _Piece(_Lenient):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None

    def read(self) -> UpstreamCallPiece:
        function = self.function or _Function()
        return UpstreamCallPiece(self.index, self.id or "", function.name or "", arguments_text(function.arguments))


class _Delta(_Lenient):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    reasoning_details: Any = None
    tool_calls: tuple[_Piece | None, ...] | None = None
    function_call: _Function | None = None

    def pieces(self) -> list[UpstreamCallPiece]:
        """Return the pieces of calls; there was one call at most in the protocol's older form."""
        if self.function_call is not None and not self.tool_calls:
            return [_Piece(index=0, function=self.function_call).read()]
        return [piece.read() for piece in self.tool_calls or () if piece is not None]


class _Details(_Lenient):
    cached_tokens: int | None = None


class _Usage(_Lenient):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


_OddUsage = Annotated[_Usage | None, WrapValidator(or_nothing)]


class _Choice(_Lenient):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    error: Any = None
    usage: _OddUsage = None


class _Chunk(_Lenient):
    """The members used of a chunk, or of a whole answer; it may have more."""

    choices: tuple[_Choice | None, ...] | None = None
    usage: _OddUsage = None
    error: Any = None


@dataclass(slots=True)
class ThinkingMember:
    """The upstream's name of its model's thinking, learned from its answers."""

    thinking: str = "reasoning_content"


class OpenAIReply:
    """Reads the chunks of one completion, or a whole one."""

    def __init__(self, voice: ThinkingMember) -> None:
        self.over = False
        self.spent = UpstreamUsage()
        self.stop = ""
        self.warnings: tuple[str, ...] = ()
        self._voice = voice
        self._reason: str | None = None
        self._calls = CallReader()
        self._spoke = False

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Process an event; return its new output."""
        deltas: list[Delta] = []
        for value in objects_of(event):
            if value is None:
                self.over = True
            elif (delta := self._read(value, event.data)) is not None:
                deltas.append(delta)
        return deltas

    def rest(self) -> Iterable[Delta]:
        """Return what was held until the end, if the reply has come to one."""
        if self._reason is None and not self.over:
            return []
        is_whole = _REASONS.get((self._reason or "stop").lower()) in ("stop", "tool_calls")
        calls = self._calls.finish(is_whole=is_whole)
        return [Delta("", 0, calls=calls)] if calls else []

    def finish(self) -> FinishReason:
        """Return the end of the answer; a server may omit the last marker or the reason, but not both."""
        if self._reason is None and not self.over:
            raise failures.interrupted()
        if self._reason is None and not self._spoke:
            raise failures.interrupted("the upstream ended its reply without a word")
        reason, warnings = ending(self._reason or "stop", _REASONS, spoke=self._spoke)
        self.warnings += warnings
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _read(self, value: dict[str, Any], data: str) -> Delta | None:
        if text := _only_text(value):
            self._spoke = True
            return Delta(text, 1)
        chunk = failures.read(_Chunk, value, data)
        if chunk.error:
            raise failures.of_event(failures.refusal_of(data))
        self._count(chunk.usage)
        choice = next(iter(chunk.choices or ()), None)
        return None if choice is None else self._choice(choice)

    def _count(self, usage: _Usage | None) -> None:
        if usage is not None:
            details = usage.prompt_tokens_details or _Details()
            self.spent = UpstreamUsage(
                usage.prompt_tokens or self.spent.prompt,
                details.cached_tokens or self.spent.cached,
                usage.completion_tokens or self.spent.completion,
            )

    def _choice(self, choice: _Choice) -> Delta | None:
        if choice.error:
            raise failures.of_event(failures.refusal_of(json.dumps({"error": choice.error})))
        self._count(choice.usage)
        if choice.finish_reason:
            self._reason = str(choice.finish_reason)
        message = choice.delta
        if choice.message is not None and not self._spoke and not _says(message):
            message = choice.message
        if message is None:
            return None
        text, thinking = _parts(message.content)
        text += _parts(message.refusal)[0]
        name = next((name for name in _THOUGHTS if getattr(message, name)), "")
        if name:
            thinking += _plain(getattr(message, name))
        if name in ("reasoning_content", "reasoning"):
            self._voice.thinking = name
        pieces = message.pieces()
        self._spoke = self._spoke or bool(text or thinking or pieces)
        calls = self._calls.feed(pieces)
        return Delta(text, 1, thinking, calls) if text or thinking or calls else None


def _only_text(value: dict[str, Any]) -> str | None:
    """Return the text of a chunk that has nothing else. Almost all are like that, and validation takes longer."""
    choices = value.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or value.get("usage") or value.get("error"):
        return None
    choice = choices[0]
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict) or any(choice.get(name) for name in ("finish_reason", "error", "usage", "message")):
        return None
    text = delta.get("content")
    if not isinstance(text, str) or any(part for name, part in delta.items() if name not in ("content", "role")):
        return None
    return text


_THINKING = "reasoning_content"
_NO_THINKING = re.compile(rf"missing\W+{_THINKING}|{_THINKING}\W+(is missing|must be)", re.IGNORECASE)
"""Calls of other models came without any: abhigyanpatwari/GitNexus#43 (DeepSeek), mastra-ai/mastra#12592 (Kimi)."""
_SPACE = " "
"""A thinking for those, as Kimi takes no empty one: theopenco/llmgateway#2093."""


def _says(delta: _Delta | None) -> bool:
    return delta is not None and any(value for _, value in delta)


def _parts(content: Any) -> tuple[str, str]:
    """Return the text and the thinking of a content, which may be a list of parts (RooCodeInc/Roo-Code#6842)."""
    if content is None or isinstance(content, str):
        return content or "", ""
    parts = content if isinstance(content, list) else [content]
    thoughts = [part for part in parts if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")]
    return _plain([part for part in parts if part not in thoughts]), _plain(thoughts)


def _plain(value: Any) -> str:
    """Return the text in a part, or in a list of them."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(_plain, value))
        case dict():
            names = ("text", "thinking", "reasoning", "content", "summary")
            return next((_plain(value[name]) for name in names if value.get(name)), "")
    return ""


_OPTIONAL: dict[str, Instead] = {
    **dict.fromkeys(get_args(Sampling), Instead.TOLD),
    "stop": Instead.HERE,
    "stream_options": Instead.HERE,
    "tool_choice": Instead.FAILS,
    "parallel_tool_calls": Instead.HERE,
    "prompt_cache_key": Instead.NOTHING,
    "user": Instead.NOTHING,
    _THINKING: Instead.NOTHING,  # refused by Groq and Mistral: janhq/jan#8136, charmbracelet/crush#1590
}
"""The members that may be left out: tokens are estimated without `stream_options`, for example."""
_MORE_MODERN = "max_completion_tokens"


class OpenAIDialect:
    """The protocol of OpenAI and compatible servers."""

    path = "chat/completions"
    embeddings_path: str | None = "embeddings"

    def __init__(self, options: UpstreamOptions, model: str) -> None:
        self._options = options
        self._model = model
        self._fields = OptionalFields(_OPTIONAL)
        self._length = "max_tokens"
        self._voice = ThinkingMember()
        self._no_thinking: str | None = None

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, request: GenerationRequest, form: HistoryForm = HistoryForm.PLAIN) -> dict[str, Any]:
        """Make the body of a turn's request."""
        talk = conversation_of(request, form)
        system = [{"role": "system", "content": talk.system}] if talk.system else []
        optional = self._sampling(request) | {"stop": list(talk.stops[:MOST_STOPS])}
        optional |= {"stream_options": {"include_usage": True}}
        optional |= member_of(self._options.affinity, request)
        tools = list(request.options.tools)
        if tools and not self._fields.takes("tool_choice"):
            tools = self._free_to_choose(request)
        if tools:
            optional["tool_choice"] = request.options.tool_choice
            if not request.options.parallel_calls:
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
            **({"tools": list(map(_tool, tools))} if tools else {}),
            **_format(request.options.json_schema),
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

    def _free_to_choose(self, request: GenerationRequest) -> list[dict[str, Any]]:
        """Return the tools for an upstream that takes no `tool_choice`: the model calls none that it does not know."""
        if request.options.tool_choice == "required":
            reason = "the upstream takes no tool_choice, so no call can be required"
            raise UpstreamRefused(reason, upstream_status=400)
        return list(request.options.tools) if request.options.tool_choice == "auto" else []

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        values = {name: getattr(request.settings, name) for name in self._options.sampling}
        return {name: value for name, value in values.items() if value is not None and value != NEUTRAL.get(name)}

    def _message(self, message: Message, form: HistoryForm) -> dict[str, Any]:
        strict = form is not HistoryForm.PLAIN
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
