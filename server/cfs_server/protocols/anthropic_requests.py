"""Requests of the messages protocol of Anthropic, as completions. Pure: no I/O (H4).

Members are those of the public API, version 2023-06-01. Unknown ones are ignored, unlike by the service itself: clients
send what is new before it is read here.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag

from cfs.completions.messages import Open
from cfs.completions.models import Number
from cfs.errors import InvalidParameters
from cfs.wire import FunctionName, FunctionSpec, Message, NamedTool, ToolCall, ToolSpec
from cfs_server.completions.requests import CompletionSpec, checked, patch_of, read_tools, refusal
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.reply_options import ReplyOptions, ToolChoice

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


def read_request(request: MessagesRequest, limits: StoreLimits) -> CompletionSpec:
    """Convert a request. Raises `InvalidParameters` for what is not supported, and `TooLarge`."""
    messages = conversation_of(request, limits)
    if messages[-1].role == "assistant":
        raise refusal("messages", "the last message is the user's: a reply cannot be begun for the model here")
    tools, choice = tools_of(request)
    form = request.output_format or (request.output_config and request.output_config.format)
    requested = request.tool_choice
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
            parallel_calls=not (requested and requested.disable_parallel_tool_use),
        ),
        account=(request.metadata and request.metadata.user_id) or "",
    )


def conversation_of(request: TokenCountRequest, limits: StoreLimits) -> tuple[Message, ...]:
    """Convert the messages and the system prompt. Raises `InvalidParameters` and `TooLarge`."""
    _require_possible(request.model_extra or {})
    messages = [Message(role="system", content=_joined(request.system))] if request.system else []
    for number, message in enumerate(request.messages):
        messages += _converted(message, f"messages.{number}")
    return checked(tuple(messages), limits)


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
    choice = request.tool_choice
    if choice is not None and choice.type == "tool":
        return read_tools(tools, NamedTool(function=FunctionName(name=choice.name or "")))
    return read_tools(tools, _CHOICES[choice.type if choice else "auto"])


_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def _converted(message: InputMessage, path: str) -> list[Message]:
    """Convert a message: results of tools become messages of their own, before the text beside them."""
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    blocks = message.content
    by_model = message.role == "assistant"
    for block in blocks:
        if isinstance(block, TextBlock):
            continue
        if isinstance(block, ToolResultBlock) == by_model or message.role == "system":
            raise refusal(path, f"a message of the role {message.role!r} has no blocks of the type {block.type!r}")
    if by_model:
        return [_reply(blocks)]
    results = [_result(block) for block in blocks if isinstance(block, ToolResultBlock)]
    texts = tuple(block for block in blocks if isinstance(block, TextBlock))
    if not blocks:
        raise refusal(path, "a message must not be empty")
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
