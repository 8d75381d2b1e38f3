"""Anthropic's messages, as the public API reference describes them."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from tests.upstream.stub import MODEL, WINDOW, NotAllowed, Speech, Strict, Stub

Text = Annotated[str, StringConstraints(pattern=r"\S")]
"""Text blocks must not be blank."""
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]


class Cache(Strict):
    type: Literal["ephemeral"]


class TextBlock(Strict):
    type: Literal["text"]
    text: Text
    cache_control: Cache | None = None


class ToolUse(Strict):
    type: Literal["tool_use"]
    id: Id
    name: str
    input: dict[str, Any]


class ToolResult(Strict):
    type: Literal["tool_result"]
    tool_use_id: Id
    content: str
    cache_control: Cache | None = None


class Thinking(Strict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class Redacted(Strict):
    type: Literal["redacted_thinking"]
    data: str


UserBlock = Annotated[TextBlock | ToolResult, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ToolUse | Thinking | Redacted, Field(discriminator="type")]


class UserMessage(Strict):
    role: Literal["user"]
    content: Annotated[list[UserBlock], Field(min_length=1)]


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Annotated[list[AssistantBlock], Field(min_length=1)]


class InputSchema(Strict):
    model_config = Strict.model_config | {"extra": "allow"}

    type: Literal["object"]


class Tool(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    description: str = ""
    input_schema: InputSchema


class Choice(Strict):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Enabled(Strict):
    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1024)]


class Adaptive(Strict):
    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class Metadata(Strict):
    user_id: str


class Body(Strict):
    model: str
    max_tokens: Annotated[int, Field(ge=1)]
    messages: Annotated[list[UserMessage | AssistantMessage], Field(min_length=1)]
    stream: Literal[True]
    system: list[TextBlock] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: list[Text] | None = None
    tools: Annotated[list[Tool], Field(min_length=1)] | None = None
    tool_choice: Choice | None = None
    thinking: Annotated[Enabled | Adaptive, Field(discriminator="type")] | None = None
    metadata: Metadata | None = None


def signed(thinking: str) -> str:
    """Sign what was thought, so that a change is noticed."""
    return hashlib.sha256(f"secret {thinking}".encode()).hexdigest()


class AnthropicStub(Stub):
    """Speaks as Anthropic does. With `adaptive` its model is one of the newer ones, which take no budget."""

    path = "/messages"
    adaptive = False
    _calls = itertools.count(1)

    def check(self, headers: Mapping[str, str]) -> None:
        """The key and the version have headers of their own."""
        if headers.get("anthropic-version") != "2023-06-01":
            raise NotAllowed("anthropic-version: header is required")
        if self.key is not None and headers.get("x-api-key") != self.key:
            raise NotAllowed(f"invalid x-api-key {headers.get('x-api-key')}", 401, "authentication_error")

    def read(self, body: Any) -> Iterable[str]:
        """Roles, results, signatures, thinking and tools have their rules."""
        found = TypeAdapter(Body).validate_python(body)
        _check_roles(found)
        _check_results(found)
        _check_signatures(found)
        self._check_thinking(found)
        _check_tools(found)
        if json.dumps(body).count('"cache_control"') > 4:
            raise NotAllowed("A maximum of 4 blocks with cache_control may be provided.")
        words = [[word for block in message.content for word in _text(block).split()] for message in found.messages]
        if (total := sum(map(len, words))) > WINDOW:
            raise NotAllowed(f"prompt is too long: {total} tokens > {WINDOW} maximum")
        return words[-1]

    def _check_thinking(self, body: Body) -> None:
        if body.thinking is None:
            return
        if isinstance(body.thinking, Enabled):
            if self.adaptive:
                message = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
                raise NotAllowed(message)
            if body.thinking.budget_tokens >= body.max_tokens:
                raise NotAllowed("`max_tokens` must be greater than `thinking.budget_tokens`")
            if body.tool_choice and body.tool_choice.type not in ("auto", "none"):
                raise NotAllowed("Thinking may not be enabled when tool_choice forces tool use.")
            if body.temperature not in (None, 1) or body.top_k is not None:
                raise NotAllowed("`temperature` may only be set to 1 when thinking is enabled")
            last = [message for message in body.messages if isinstance(message, AssistantMessage)][-1:]
            is_loop = isinstance(body.messages[-1].content[0], ToolResult)
            if is_loop and last and not isinstance(last[0].content[0], Thinking | Redacted):
                raise NotAllowed("Expected `thinking` or `redacted_thinking`, but found `tool_use`")

    def most(self, body: dict[str, Any]) -> int:
        """Thinking counts; what is thought here fits into the budget."""
        return int(body["max_tokens"] - body.get("thinking", {}).get("budget_tokens", 0))

    def events(self, speech: Speech, words: Iterable[str], prompt: int, most: int) -> Iterator[str]:
        """The message begins, blocks come one after the other, the message ends."""
        used = {"input_tokens": prompt, "cache_read_input_tokens": speech.cached, "cache_creation_input_tokens": 0}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
        start = {"usage": used | {"output_tokens": 1}} if speech.usage else {}
        yield _event("message_start", message=message | {"stop_reason": None, "stop_sequence": None} | start)
        yield _event("ping")
        numbers = itertools.count()
        said = 0
        if speech.thinking:
            number = next(numbers)
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            yield _event("content_block_start", index=number, content_block=empty)
            for piece in speech.thinking:
                yield _delta(number, "thinking_delta", thinking=piece)
            yield _delta(number, "signature_delta", signature=signed("".join(speech.thinking)))
            yield _event("content_block_stop", index=number)
        if speech.hidden:
            number = next(numbers)
            block = {"type": "redacted_thinking", "data": speech.hidden}
            yield _event("content_block_start", index=number, content_block=block)
            yield _event("content_block_stop", index=number)
        reason = speech.stop or ("tool_use" if speech.calls else "end_turn")
        number = next(numbers)
        for count, word in enumerate(words):
            if count == 0:
                yield _event("content_block_start", index=number, content_block={"type": "text", "text": ""})
            if said == most:
                reason = "max_tokens"
                break
            said += 1
            if speech.pings:
                yield _event("ping")
            yield _delta(number, "text_delta", text=word)
        if said:
            yield _event("content_block_stop", index=number)
        for name, pieces in speech.calls:
            number = next(numbers)
            call = {"type": "tool_use", "id": f"toolu_{next(self._calls)}", "name": name, "input": {}}
            yield _event("content_block_start", index=number, content_block=call)
            for piece in pieces:
                said += 1
                yield _delta(number, "input_json_delta", partial_json=piece)
            yield _event("content_block_stop", index=number)
        if speech.failing:
            kind, text = speech.failing
            yield _event("error", error={"type": kind, "message": text})
            return
        usage = {"usage": {"output_tokens": said}} if speech.usage else {}
        yield _event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, **usage)
        if speech.marker:
            yield _event("message_stop")

    def error(self, kind: str, message: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The type is said twice."""
        return {"type": "error", "error": {"type": kind, "message": message} | dict(extra), "request_id": "req_1"}

    def model(self, name: str) -> dict[str, Any]:
        """The members of the API."""
        times = {"created_at": "2025-01-01T00:00:00Z"}
        return {"type": "model", "id": name, "display_name": name, "max_input_tokens": WINDOW} | times


def _event(kind: str, **members: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | members)}\n\n"


def _delta(index: int, kind: str, **members: Any) -> str:
    return _event("content_block_delta", index=index, delta={"type": kind} | members)


def _text(block: Any) -> str:
    return str(getattr(block, "text", "") or getattr(block, "content", ""))


def _check_roles(body: Body) -> None:
    wanted = itertools.cycle(("user", "assistant"))
    if any(message.role != role for message, role in zip(body.messages, wanted, strict=False)):
        raise NotAllowed("messages: roles must alternate between user and assistant, and begin with user")
    if body.messages[-1].role == "assistant":
        raise NotAllowed("This model does not support assistant message prefill.")


def _check_results(body: Body) -> None:
    """Results stand at the beginning of the message that follows the calls, one for each."""
    asked: list[str] = []
    seen: set[str] = set()
    for message in body.messages:
        results = [block.tool_use_id for block in message.content if isinstance(block, ToolResult)]
        first = [block.tool_use_id for block in message.content[: len(asked)] if isinstance(block, ToolResult)]
        if sorted(first) != sorted(asked) or len(results) != len(asked):
            raise NotAllowed(f"`tool_use` ids were found without `tool_result` blocks immediately after: {asked}")
        asked = [block.id for block in message.content if isinstance(block, ToolUse)]
        if seen & set(asked):
            raise NotAllowed("`tool_use` ids must be unique")
        seen |= set(asked)


def _check_signatures(body: Body) -> None:
    for message in body.messages:
        for block in message.content:
            if isinstance(block, Thinking) and block.signature != signed(block.thinking):
                raise NotAllowed("Invalid `signature` in `thinking` block")


def _check_tools(body: Body) -> None:
    used = any(isinstance(block, ToolUse | ToolResult) for message in body.messages for block in message.content)
    if used and not body.tools:
        raise NotAllowed("Requests which include `tool_use` or `tool_result` blocks must define tools")
    names = {tool.name for tool in body.tools or ()}
    if body.tool_choice and (not names or (body.tool_choice.name or next(iter(names))) not in names):
        raise NotAllowed("tool_choice: there is no such tool")
