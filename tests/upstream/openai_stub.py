"""OpenAI's chat completions, as the public API reference describes them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tests.upstream.stub import (
    MODEL,
    WINDOW,
    Act,
    NotAllowed,
    Receive,
    Refusal,
    Send,
    Speech,
    Strict,
    Stub,
    body_of,
    send_json,
)


class CalledFunction(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    arguments: str


class Call(Strict):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"]
    function: CalledFunction


class SystemMessage(Strict):
    role: Literal["system"]
    content: str


class UserMessage(Strict):
    role: Literal["user"]
    content: str


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: Annotated[list[Call], Field(min_length=1)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ToolMessage(Strict):
    role: Literal["tool"]
    tool_call_id: str
    content: str


Said = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: dict[str, Any] | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class Schema(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class Format(Strict):
    type: Literal["json_schema"]
    json_schema: Schema


class StreamOptions(Strict):
    include_usage: bool


class Body(Strict):
    model: str
    messages: Annotated[list[Said], Field(min_length=1)]
    stream: Literal[True]
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    repeat_penalty: float | None = None  # of llama-server
    min_tokens: int | None = None  # of vLLM
    stop: Annotated[list[str], Field(max_length=4)] | None = None
    tools: Annotated[list[Tool], Field(min_length=1)] | None = None
    tool_choice: Literal["auto", "none", "required"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    logprobs: bool | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class EmbeddingsBody(Strict):
    """Texts or tokens. The vectors of this server have three numbers, or two."""

    model: str
    input: Annotated[list[str] | list[list[int]], Field(min_length=1)]
    dimensions: Literal[2, 3] = 3


_CONTINUING = ("continue_final_message", "add_generation_prompt")


class OpenAIStub(Stub):
    """Speaks as OpenAI does. `thinking` is what it calls its model's thinking: there is no word for it in the API."""

    path = "/chat/completions"
    thinking = "reasoning_content"

    async def _route(self, method: str, path: str, receive: Receive, send: Send) -> None:
        if (method, path.removeprefix("/v1")) == ("POST", "/embeddings"):
            await self._embed(await body_of(receive), send)
        else:
            await super()._route(method, path, receive, send)

    async def _embed(self, raw: bytes, send: Send) -> None:
        """Answer in the reverse order: the numbers say which vector belongs to which text."""
        body = json.loads(raw)
        try:
            asked = EmbeddingsBody.model_validate(body)
        except ValidationError as error:
            raise NotAllowed(error.errors()[0]["msg"]) from error
        self.bodies.append(body)
        if isinstance(act := self.acts.popleft() if self.acts else None, Refusal):
            await send_json(send, act.status, self.error(act.kind, act.message, act.extra), act.headers)
            return
        data = [
            {"object": "embedding", "index": index, "embedding": [float(len(text)), 0.1, 1e-3][: asked.dimensions]}
            for index, text in enumerate(asked.input)
        ]
        usage = {"prompt_tokens": len(data) * 7, "total_tokens": len(data) * 7}
        await send_json(send, 200, {"object": "list", "data": data[::-1], "model": asked.model, "usage": usage})

    def check(self, headers: Mapping[str, str]) -> None:
        """A key comes as a bearer token."""
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            raise NotAllowed(f"Incorrect API key provided: {headers.get('authorization')}", 401, "invalid_api_key")

    def read(self, body: Any) -> Iterable[str]:
        """Calls of tools are followed by their results; tools are chosen among those that there are."""
        found = TypeAdapter(Body).validate_python(body)
        open_calls: list[str] = []
        for message in found.messages:
            if isinstance(message, ToolMessage):
                if message.tool_call_id not in open_calls:
                    raise NotAllowed("messages with role 'tool' must be a response to a preceding 'tool_calls' message")
                open_calls.remove(message.tool_call_id)
                continue
            if open_calls:
                raise NotAllowed(f"tool_call_ids did not have response messages: {open_calls}")
            if isinstance(message, AssistantMessage):
                if message.content is None and message.tool_calls is None:
                    raise NotAllowed("an assistant message has content or tool_calls")
                open_calls = [call.id for call in message.tool_calls or ()]
                for call in message.tool_calls or ():
                    json.loads(call.function.arguments)
        if open_calls:
            raise NotAllowed(f"tool_call_ids did not have response messages: {open_calls}")
        if found.tool_choice and not found.tools:
            raise NotAllowed("tool_choice is only allowed when tools are specified")
        if sum(len((message.content or "").split()) for message in found.messages) > WINDOW:
            too_long = f"This model's maximum context length is {WINDOW} tokens."
            raise NotAllowed(too_long, code="context_length_exceeded", param="messages")
        return (found.messages[-1].content or "").split()

    def most(self, body: dict[str, Any]) -> int:
        """Either name of the limit."""
        return int(body.get("max_tokens") or body["max_completion_tokens"])

    def events(self, speech: Speech, words: Iterable[str], prompt: int, most: int) -> Iterator[str]:
        """Chunks: the role, then pieces, then the reason, then what was used, then the marker."""
        yield self._chunk({"role": "assistant", "content": ""})
        said, full = 0, False
        for piece in speech.thinking:
            said += 1
            yield self._chunk({self.thinking: piece})
        for word in words:
            if said == most:
                full = True
                break
            said += 1
            if speech.pings:
                yield ": keep-alive\n\n"
            yield self._chunk({"content": word})
        for number, (name, pieces) in enumerate(speech.calls):
            function = {"name": name, "arguments": ""}
            call = {"index": number, "id": f"call_{number}", "type": "function", "function": function}
            yield self._chunk({"tool_calls": [call]})
            for piece in pieces:
                said += 1
                yield self._chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        if speech.failing:
            yield f"data: {json.dumps(self.error(*speech.failing, {}))}\n\n"
            return
        reason = speech.stop or ("length" if full else "tool_calls" if speech.calls else "stop")
        yield self._chunk({}, reason)
        if speech.usage:
            details = {"prompt_tokens_details": {"cached_tokens": speech.cached}}
            used = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
            yield f"data: {json.dumps(self._envelope() | {'choices': [], 'usage': used | details})}\n\n"
        if speech.marker:
            yield "data: [DONE]\n\n"

    def error(self, kind: str, message: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Everything is below `error`."""
        return {"error": {"message": message, "type": kind, "param": None, "code": None} | dict(extra)}

    def model(self, name: str) -> dict[str, Any]:
        """The members of the API, and the length that vLLM adds."""
        return {"id": name, "object": "model", "created": 1, "owned_by": "us", "max_model_len": WINDOW}

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return f"data: {json.dumps(self._envelope() | {'choices': [choice], 'usage': None})}\n\n"

    def _envelope(self) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}


class VLLMStub(OpenAIStub):
    """Speaks as vLLM does: it can continue a reply that the last message begins."""

    def __init__(self, *acts: Act, **options: Any) -> None:
        super().__init__(*acts, **options)
        self.continued: list[str] = []

    def read(self, body: Any) -> Iterable[str]:
        """Say only what is not said yet."""
        if not body.get("continue_final_message"):
            return super().read(body)
        plain = {name: value for name, value in body.items() if name not in _CONTINUING}
        begun = plain["messages"][-1]
        if body.get("add_generation_prompt") is not False or begun["role"] != "assistant":
            raise NotAllowed("continue_final_message wants add_generation_prompt=false and a message of the assistant")
        words = super().read(plain | {"messages": plain["messages"][:-1]})
        self.continued.append(begun["content"])
        said = len(begun["content"].split())
        return ["", *list(words)[said:]]  # so that the first word is said with its space
