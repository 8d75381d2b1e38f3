"""Requests in the protocol of Ollama, as completions. Pure: no I/O (H4).

Calls of tools have no ids in most clients, and the results of calls come in their order.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema

from cfs.completions.messages import Open
from cfs.completions.models import LogitOptions, Number
from cfs.wire import Message, SettingsPatch, ToolCall, ToolSpec
from cfs_server.completions.requests import CompletionSpec, checked, patch_of, read_tools, refusal
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.protocols.ollama_context import read_context


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


def _off(value: float | None) -> float | None:
    return value or None


class OllamaOptions(LogitOptions):
    """Sampling options. Those that load a model, such as `num_ctx`, are ignored: the operator has loaded it."""

    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    num_predict: Annotated[int, Field(ge=-2)] | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    repeat_penalty: Annotated[Annotated[float, Field(ge=0, le=10)] | None, AfterValidator(_off)] = None
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
    request: OllamaChatRequest | OllamaGenerateRequest, limits: StoreLimits, *, recorded: bool = False
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
        message = Message(role="user", content=request.prompt)
        spec = replace(_spec(request, checked((message,), limits)), before=None)
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
        messages = (message for message in before if message.role != "system")
        before = (Message(role="system", content=request.system), *messages)
    return *before, Message(role="user", content=request.prompt)


def _spec(
    request: _Request, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...] | None = None
) -> CompletionSpec:
    if request.top_logprobs and not request.logprobs:
        raise refusal("top_logprobs", "it goes with `logprobs`: set that to true, too")
    offered, choice = read_tools(tools, None)
    form = request.format
    return CompletionSpec(
        messages=messages,
        before=SizedMessages.of(messages[:-1]),
        patch=_patch(request.options or OllamaOptions()),
        options=ReplyOptions(
            json_schema={"type": "object"} if form == "json" else form if isinstance(form, dict) else None,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            tools=offered,
            tool_choice=choice,
        ),
        account="",
    )


def _patch(options: OllamaOptions) -> SettingsPatch:
    if options.mirostat:
        raise refusal("options.mirostat", "it is not applied here: leave it out, or set it to 0")
    max_tokens = options.num_predict
    return patch_of(
        max_tokens=None if max_tokens is None or max_tokens < 0 else max(max_tokens, 1),
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
        logits=options,
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
