"""The protocol of Ollama: requests in, answers or their pieces out. Pure: no I/O (H4).

Its calls of tools have no ids in most clients, and the results of calls come in their order. `context` of
`/api/generate` is opaque to clients: here it holds the conversation itself, so that nothing is kept between requests.
"""

import hashlib
import json
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, TypeAdapter, ValidationError, WithJsonSchema

from cfs.completions import UNREADABLE, ModelCard, Recorded, read_arguments
from cfs.completions.messages import Open
from cfs.completions.models import Number
from cfs.wire import FinishReason, Message, SettingsPatch, TokenLogprob, ToolCall, ToolSpec, Usage
from cfs_server.completions.requests import CompletionSpec, checked, patch_of, read_tools, refusal
from cfs_server.domain.quotas import Limits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.engine.contract.reply_options import ReplyOptions

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is. Clients compare it with the least one that they need."""

# -- requests ---------------------------------------------------------------------------------------------------------


def _no_pictures(value: Any) -> Any:
    if value not in (None, []):
        raise ValueError("pictures are not read here: the model reads text")
    return None


Pictures = Annotated[None, BeforeValidator(_no_pictures), WithJsonSchema({"type": ["array", "null"], "maxItems": 0})]


class OllamaFunction(Open):
    """The name of a tool and its arguments."""

    name: str
    arguments: Annotated[dict[str, Any], Field(default_factory=dict)]


class OllamaCall(Open):
    """A call that an assistant's message makes."""

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Open):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Pictures = None
    tool_calls: tuple[OllamaCall, ...] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaOptions(Open):
    """Sampling options. Those that load a model, such as `num_ctx`, are ignored: the operator has loaded it."""

    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    num_predict: Annotated[int, Field(ge=-2)] | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    repeat_penalty: Annotated[Number | None, WithJsonSchema({"enum": [None, 0, 1]})] = None
    presence_penalty: Annotated[Number | None, WithJsonSchema({"enum": [None, 0]})] = None
    frequency_penalty: Annotated[Number | None, WithJsonSchema({"enum": [None, 0]})] = None
    mirostat: Annotated[int | None, WithJsonSchema({"enum": [None, 0]})] = None


_Form = Annotated[
    Literal["", "json"] | dict[str, Any] | None,
    WithJsonSchema({"anyOf": [{"enum": ["", "json", None]}, {"type": "object"}]}),
]


class _Request(Open):
    model: str = ""
    stream: bool | None = None
    format: _Form = None
    options: OllamaOptions | None = None
    keep_alive: str | Number | None = None
    think: bool | Literal["low", "medium", "high", ""] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces, as it does unless the request says otherwise."""
        return self.stream is not False

    @property
    def shows_thinking(self) -> bool:
        """Whether the model's thinking is part of the answer."""
        return self.think is not False

    @property
    def unloads(self) -> bool:
        """Whether the request only asks to unload the model."""
        return self.keep_alive in (0, "0")


class OllamaChatRequest(_Request):
    """Body of `POST /api/chat`.

    A server with several models answers with the one that `model` names; a server with one takes any name.
    `keep_alive` and options that load a model have no effect. Members that are not listed are ignored.
    """

    messages: tuple[OllamaMessage, ...] | None = None
    tools: tuple[ToolSpec, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.messages


class OllamaGenerateRequest(_Request):
    """Body of `POST /api/generate`: a prompt, and the conversation before it as the `context` of the last answer."""

    prompt: str = ""
    system: str | None = None
    context: tuple[Annotated[int, Field(ge=0, lt=1 << 24)], ...] | None = None
    images: Pictures = None
    suffix: Annotated[str | None, WithJsonSchema({"enum": [None, ""]})] = None
    template: Annotated[str | None, WithJsonSchema({"enum": [None, ""]})] = None
    raw: Annotated[bool | None, WithJsonSchema({"enum": [None, False]})] = None

    @property
    def is_empty(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.prompt


class OllamaShowRequest(Open):
    """Body of `POST /api/show`. `name` is an older word for `model`."""

    model: Annotated[str, StringConstraints(max_length=256)] = ""
    name: Annotated[str, StringConstraints(max_length=256)] = ""


_MOST_SYSTEM = 262_144


def read_request(
    request: OllamaChatRequest | OllamaGenerateRequest, limits: Limits, *, recorded: bool = False
) -> CompletionSpec:
    """Convert a request. Raises `InvalidParameters` for what is not supported, and `TooLarge`.

    A prompt without `context` that a session records continues that session.
    """
    if isinstance(request, OllamaChatRequest):
        return _spec(request, checked(tuple(map(_converted, request.messages or ())), limits), request.tools)
    for member in ("suffix", "template", "raw"):
        if getattr(request, member):
            raise refusal(member, "the prompt is one message of a chat here: leave it out")
    if recorded and request.context is None:
        said = Message(role="user", content=request.prompt)
        spec = replace(_spec(request, checked((said,), limits)), before=None)
        if not request.system:
            return spec
        if len(request.system) > _MOST_SYSTEM:
            raise refusal("system", f"it has {_MOST_SYSTEM} characters at most in a session")
        return replace(spec, patch=spec.patch.model_copy(update={"system": request.system}))
    return _spec(request, checked(_generation(request), limits))


def _generation(request: OllamaGenerateRequest) -> tuple[Message, ...]:
    """Return the conversation before a prompt, and the prompt. A new system prompt replaces that of the context."""
    before = read_context(request.context or ())
    if request.system:
        said = (message for message in before if message.role != "system")
        before = (Message(role="system", content=request.system), *said)
    return *before, Message(role="user", content=request.prompt)


def _spec(
    request: _Request, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...] | None = None
) -> CompletionSpec:
    if request.top_logprobs and not request.logprobs:
        raise refusal("top_logprobs", "it goes with `logprobs`: set that to true, too")
    known, choice = read_tools(tools, None)
    form = request.format
    return CompletionSpec(
        messages=messages,
        before=SizedMessages.of(messages[:-1]),
        patch=_patch(request.options or OllamaOptions()),
        options=ReplyOptions(
            json_schema={"type": "object"} if form == "json" else form if isinstance(form, dict) else None,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            tools=known,
            tool_choice=choice,
        ),
        account="",
    )


def _patch(options: OllamaOptions) -> SettingsPatch:
    for member, off in (("repeat_penalty", 1), ("presence_penalty", 0), ("frequency_penalty", 0)):
        if getattr(options, member) not in (None, 0, off):
            raise refusal(f"options.{member}", f"penalties are not applied here: leave it out, or set it to {off}")
    if options.mirostat:
        raise refusal("options.mirostat", "it is not applied here: leave it out, or set it to 0")
    most = options.num_predict
    return patch_of(
        max_tokens=None if most is None or most < 0 else max(most, 1),
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
    )


def _converted(message: OllamaMessage) -> Message:
    by_tool = message.role == "tool"
    return Message(
        role=message.role,
        content=message.content or "",
        tool_calls=tuple(
            ToolCall(id=call.id or "", name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id if by_tool else None,
        name=message.tool_name if by_tool else None,
        thinking=message.thinking or None,
    )


# -- the context of /api/generate -------------------------------------------------------------------------------------

_MESSAGES = TypeAdapter(tuple[Message, ...])
_BYTES = 3
"""Bytes in each number."""


def write_context(messages: Sequence[Message]) -> list[int]:
    """Write a conversation as numbers that clients send back unread."""
    data = _MESSAGES.dump_json(tuple(messages), exclude_defaults=True)
    data += b" " * (-len(data) % _BYTES)
    return [int.from_bytes(data[at : at + _BYTES]) for at in range(0, len(data), _BYTES)]


def read_context(numbers: Sequence[int]) -> tuple[Message, ...]:
    """Read the conversation in a context. Raises `InvalidParameters` for numbers that this server did not make."""
    if not numbers:
        return ()
    try:
        return _MESSAGES.validate_json(b"".join(number.to_bytes(_BYTES) for number in numbers), strict=True)
    except ValidationError:
        raise refusal("context", "it is not the context of an answer of this server") from None


# -- responses --------------------------------------------------------------------------------------------------------

DoneReason = Literal["stop", "length", "load", "unload"]
_REASONS: dict[FinishReason, DoneReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "cancelled": "stop",  # the protocol has no value for it; `cfs.finish_reason` has
    "error": "stop",
}


class OllamaReplyMessage(Open):
    """The message of an answer."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[OllamaCall, ...] | None = None


class OllamaReply(Open):
    """An answer or a piece of it. The last piece is `done`, and has the counts; durations are in nanoseconds.

    `message` is in answers of `/api/chat`, the other texts are in those of `/api/generate`.
    """

    model: str
    created_at: str
    message: OllamaReplyMessage | None = None
    response: str | None = None
    thinking: str | None = None
    logprobs: tuple[dict[str, Any], ...] | None = None
    done: bool
    done_reason: DoneReason | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    context: tuple[int, ...] | None = None
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None


Piece = dict[str, Any]


class OllamaWriter:
    """Formats one answer, of a chat or of a generation. `prompt` has the messages before it, for its `context`."""

    def __init__(
        self,
        model: str,
        recorded: Recorded | None,
        *,
        chats: bool,
        thinking: bool = True,
        prompt: Sequence[Message] | None = None,
    ) -> None:
        self._model = model
        self._recorded = recorded
        self._chats = chats
        self._thinking = thinking
        self._prompt = prompt
        self._said: list[str] = []
        self._calls: dict[int, list[CallDelta]] = {}

    def loaded(self, *, unload: bool) -> Piece:
        """Return the answer to a request without messages, by which clients load or unload a model."""
        return {**self._piece(), "done": True, "done_reason": "unload" if unload else "load"}

    def write(self, item: Delta | Finished) -> Iterator[Piece]:
        """Yield the pieces of a piece, or of the end. A call is sent as a whole, wherever its pieces were cut."""
        if isinstance(item, Finished):
            if calls := self._take_calls(len(self._calls)):
                yield self._piece(calls=calls)
            yield self._end(item)
            return
        thinking = item.thinking if self._thinking else ""
        if item.text or thinking or item.logprobs:
            if calls := self._take_calls(self._complete()):
                yield self._piece(calls=calls)
            self._said.append(item.text)
            yield self._piece(item.text, thinking, logprobs=tuple(map(_logprob, item.logprobs)))
        for call in item.calls:
            self._calls.setdefault(call.index, []).append(call)
        if item.calls and (calls := self._take_calls(min(self._complete(), len(self._calls) - 1))):
            yield self._piece(calls=calls)

    async def reply(self, items: AsyncIterable[Delta | Finished]) -> Piece:
        """Return the complete answer."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Piece] = []
        ranked: list[Piece] = []
        found: Piece = {}
        async for item in items:
            for found in self.write(item):
                said = found.get("message", found)
                texts.append(said.get("content") or said.get("response") or "")
                thoughts.append(said.get("thinking") or "")
                calls += said.get("tool_calls") or ()
                ranked += found.get("logprobs") or ()
        more = self._piece("".join(texts), "".join(thoughts), tuple(calls), tuple(ranked))
        return found | more | {"created_at": found["created_at"], "done": True}

    def _piece(
        self, text: str = "", thinking: str = "", calls: tuple[Piece, ...] = (), logprobs: tuple[Piece, ...] = ()
    ) -> Piece:
        head = {"model": self._model, "created_at": _now()}
        tail = {**({"logprobs": list(logprobs)} if logprobs else {}), "done": False}
        more = {"thinking": thinking} if thinking else {}
        if not self._chats:
            return {**head, "response": text, **more, **tail}
        called = {"tool_calls": list(calls)} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **more, **called}, **tail}

    def _complete(self) -> int:
        """Return how many of the first calls that wait are complete."""
        count = 0
        for _, pieces in sorted(self._calls.items()):
            if not pieces[-1].arguments.rstrip().endswith("}") or UNREADABLE in _arguments(pieces):
                break
            count += 1
        return count

    def _take_calls(self, count: int) -> tuple[Piece, ...]:
        found = []
        for index, pieces in sorted(self._calls.items())[:count]:
            name = next((piece.name for piece in pieces if piece.name), "")
            known = next((piece.id for piece in pieces if piece.id), "")
            found.append({"id": known, "function": {"index": index, "name": name, "arguments": _arguments(pieces)}})
            del self._calls[index]
        return tuple(found)

    def _end(self, item: Finished) -> Piece:
        found = {**self._piece(), "done": True, "done_reason": _REASONS[item.reason], **_spent(item.usage)}
        if self._prompt is not None:
            said = Message(role="assistant", content="".join(self._said))
            found["context"] = write_context([*self._prompt, said])
        if item.warnings:
            found["warnings"] = list(item.warnings)
        if self._recorded:
            found["cfs"] = self._recorded.model_copy(update={"finish_reason": item.reason}).model_dump()
        return found


def _arguments(pieces: Iterable[CallDelta]) -> dict[str, Any]:
    return read_arguments("".join(piece.arguments for piece in pieces))


def writer_of(
    request: OllamaChatRequest | OllamaGenerateRequest, model: str, recorded: Recorded | None
) -> OllamaWriter:
    """Return the writer of the answer to a request."""
    if isinstance(request, OllamaChatRequest):
        return OllamaWriter(model, recorded, chats=True, thinking=request.shows_thinking)
    prompt = None if recorded and request.context is None else _generation(request)
    return OllamaWriter(model, recorded, chats=False, thinking=request.shows_thinking, prompt=prompt)


def _spent(usage: Usage) -> dict[str, int]:
    """Return counts and times. The time in the queue stands where Ollama has the time to load the model."""
    reading = max(0.0, usage.first_token_seconds - usage.queue_seconds)
    return {
        "total_duration": _nanoseconds(usage.total_seconds),
        "load_duration": _nanoseconds(usage.queue_seconds),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(reading),
        "eval_count": usage.completion_tokens,
        "eval_duration": _nanoseconds(max(0.0, usage.total_seconds - usage.first_token_seconds)),
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _logprob(token: TokenLogprob) -> Piece:
    top = [{"token": each.token, "logprob": each.logprob, "bytes": each.bytes} for each in token.top]
    return {"token": token.token, "logprob": token.logprob, "bytes": token.bytes, "top_logprobs": top}


def line(piece: Mapping[str, Any]) -> bytes:
    """Format a piece as a line of JSON."""
    return json.dumps(piece, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


# -- models -----------------------------------------------------------------------------------------------------------


class OllamaModelDetails(Open):
    """What is known of a model. It has no parts that a client could use."""

    parent_model: str = ""
    format: str = ""
    family: str
    families: tuple[str, ...]
    parameter_size: str
    quantization_level: str = ""


class OllamaModel(Open):
    """A model of the server."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str
    details: OllamaModelDetails
    context_length: int | None = None


class OllamaModels(Open):
    """Models of the server."""

    models: tuple[OllamaModel, ...]


class OllamaModelInfo(Open):
    """The description of a model."""

    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    modified_at: str
    details: OllamaModelDetails
    model_info: dict[str, Any]
    capabilities: tuple[str, ...] = ("completion", "tools", "thinking")


class OllamaVersion(Open):
    """The version of the API, as Ollama counts it."""

    version: str


_UNKNOWN = "unknown"


def models_of(cards: Iterable[ModelCard], families: Mapping[str, str]) -> OllamaModels:
    """Return a list of models. `families` has the architectures of those for which it is known."""
    return OllamaModels(
        models=tuple(
            OllamaModel(
                name=card.id,
                model=card.id,
                modified_at=_date(card),
                digest=hashlib.sha256(card.id.encode()).hexdigest(),
                details=_details(card, families.get(card.id, _UNKNOWN)),
                context_length=card.max_model_len,
            )
            for card in cards
        )
    )


def info_of(card: ModelCard, families: Mapping[str, str]) -> OllamaModelInfo:
    """Return the description of a model."""
    family = families.get(card.id, _UNKNOWN)
    facts: dict[str, Any] = {"general.architecture": family}
    if card.parameters is not None:
        facts["general.parameter_count"] = card.parameters
    if card.max_model_len is not None:
        facts[f"{family}.context_length"] = card.max_model_len
    return OllamaModelInfo(modified_at=_date(card), details=_details(card, family), model_info=facts)


def _details(card: ModelCard, family: str) -> OllamaModelDetails:
    count = card.parameters or 0
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    return OllamaModelDetails(family=family, families=(family,), parameter_size=size if count else "")


def _date(card: ModelCard) -> str:
    return datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
