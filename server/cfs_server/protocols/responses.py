"""The responses protocol of OpenAI: reads requests and items of conversations, and writes items. Pure: no I/O (H4).

An item is a message, a call of a tool, the result of one, or what the model thought. A message of a session is one or
several items: neighbouring items of the model become one message, as it has said them in one reply.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag, WithJsonSchema

from cfs.completions import read_arguments, write_arguments
from cfs.completions.models import Number, Open
from cfs.wire import FunctionName, FunctionSpec, Message, NamedTool, ToolCall, ToolSpec
from cfs_server.completions.requests import CompletionSpec, Place, checked, patch_of, read_tools, refusal
from cfs_server.engine.interface import ToolChoice
from cfs_server.sessions.history import Weighed
from cfs_server.sessions.quotas import Limits

# -- items ------------------------------------------------------------------------------------------------------------


class TextPiece(Open):
    """A piece of text. Each kind of item has a type of its own for it."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPiece(Open):
    """Why a model did not answer, in its words."""

    type: Literal["refusal"]
    refusal: str


_PIECES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"})


def _known_pieces(value: Any) -> Any:
    return _checked(value, _PIECES, "parts")


def _checked(value: Any, kinds: frozenset[str], what: str, default: str | None = None) -> Any:
    """Name the first type that cannot be read, more clearly than the message of a union would."""
    if not isinstance(value, list):
        return value
    for part in value:
        kind = part.get("type", default) if isinstance(part, dict) else type(part).__name__
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"{what} of the type {kind!r} are not read here, only {', '.join(sorted(kinds))}")
    return tuple(value)


def _form(value: Any) -> str:
    return "text" if isinstance(value, str) else "parts"


_Pieces = Annotated[
    tuple[Annotated[TextPiece | RefusalPiece, Field(discriminator="type")], ...], BeforeValidator(_known_pieces)
]
_Text = Annotated[Annotated[str, Tag("text")] | Annotated[_Pieces, Tag("parts")], Discriminator(_form)]
"""A text, or text in parts."""


class MessageItem(Open):
    """A message: of a user, of the model, or an instruction. `developer` is another word for `system`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Text


class CallItem(Open):
    """A call of a tool by the model. `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: Annotated[str, StringConstraints(min_length=1)]
    name: str
    arguments: str


class ResultItem(Open):
    """The result of a call, by the program that has the tools."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, StringConstraints(min_length=1)]
    output: _Text


class ReasoningItem(Open):
    """What the model thought. Encrypted thinking cannot be read here, and is left out."""

    type: Literal["reasoning"]
    summary: _Pieces = ()
    content: _Pieces | None = None


Item = MessageItem | CallItem | ResultItem | ReasoningItem
_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})


def _kind_of(value: Any) -> Any:
    return value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)


def _known_items(value: Any) -> Any:
    return _checked(value, _ITEMS, "items", default="message")


_Items = Annotated[
    tuple[
        Annotated[
            Annotated[MessageItem, Tag("message")]
            | Annotated[CallItem, Tag("function_call")]
            | Annotated[ResultItem, Tag("function_call_output")]
            | Annotated[ReasoningItem, Tag("reasoning")],
            Discriminator(_kind_of),
        ],
        ...,
    ],
    BeforeValidator(_known_items),
]
Items = Annotated[_Items, Field(min_length=1)]


def read_items(items: str | Sequence[Item], limits: Limits) -> tuple[Message, ...]:
    """Convert items to messages. Raises `TooLarge`."""
    if isinstance(items, str):
        return checked((Message(role="user", content=items),), limits)
    limits.check_messages(len(items))
    return checked(tuple(_messages(items)), limits)


def _messages(items: Sequence[Item]) -> Iterator[Message]:
    said: list[Item] = []
    """The items of the reply that is being read."""
    for item in items:
        if said and _begins_anew(item, said):
            yield _reply(said)
            said = []
        if _by_model(item):
            said.append(item)
        elif isinstance(item, ResultItem):
            yield Message(role="tool", content=_joined(item.output), tool_call_id=item.call_id)
        elif isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            yield Message(role=role, content=_joined(item.content))
    if said:
        yield _reply(said)


def _by_model(item: Item) -> bool:
    return isinstance(item, CallItem | ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant")


def _begins_anew(item: Item, said: Sequence[Item]) -> bool:
    """Return whether an item is not a part of the same reply: two messages of the model are two replies."""
    if not _by_model(item):
        return True
    return isinstance(item, MessageItem) and isinstance(said[-1], MessageItem)


def _reply(said: Sequence[Item]) -> Message:
    thinking = "".join(_joined(item.content or item.summary) for item in said if isinstance(item, ReasoningItem))
    return Message(
        role="assistant",
        content="".join(_joined(item.content) for item in said if isinstance(item, MessageItem)),
        tool_calls=tuple(
            ToolCall(id=item.call_id, name=item.name, arguments=read_arguments(item.arguments))
            for item in said
            if isinstance(item, CallItem)
        ),
        thinking=thinking or None,
    )


def _joined(content: str | Sequence[TextPiece | RefusalPiece]) -> str:
    if isinstance(content, str):
        return content
    return "".join(piece.text if isinstance(piece, TextPiece) else piece.refusal for piece in content)


def items_of(message: Message, place: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a stored message, in the order of their making. `place` makes their ids unique."""
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "id": f"fco_{place}",
            "call_id": message.tool_call_id or "",
            "output": message.content,
            "status": "completed",
        }
        return
    if message.thinking:
        yield reasoning_item(f"rs_{place}", message.thinking)
    by_model = message.role == "assistant"
    if message.content or not message.tool_calls:
        kind = {"type": "output_text", "annotations": []} if by_model else {"type": "input_text"}
        content = [{**kind, "text": message.content}]
        yield {
            "type": "message",
            "id": f"msg_{place}",
            "role": message.role,
            "status": "completed",
            "content": content,
        }
    for number, call in enumerate(message.tool_calls):
        yield call_item(f"fc_{place}_{number}", call.id, call.name, write_arguments(call.arguments))


def reasoning_item(name: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Return the item of what the model thought.

    All of it is in the place for a summary, which all clients show. It is in that for raw thinking, too: clients such
    as pydantic-ai send the item back only then, and the conversation stays the one that its session has.
    """
    return {
        "type": "reasoning",
        "id": name,
        "summary": [{"type": "summary_text", "text": text}] if text else [],
        "content": [{"type": "reasoning_text", "text": text}] if text else [],
        "status": status,
    }


def call_item(name: str, call: str, tool: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    """Return the item of a call."""
    return {
        "type": "function_call",
        "id": name,
        "call_id": call,
        "name": tool,
        "arguments": arguments,
        "status": status,
    }


# -- requests ---------------------------------------------------------------------------------------------------------


def _own_tools(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    for tool in value:
        kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
        if kind != "function":
            raise ValueError(f"the tool {kind!r} is not here: describe a function of your own")
    return tuple(value)


class FunctionTool(Open):
    """A tool that the model may call; `parameters` is a JSON schema of an object."""

    type: Literal["function"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolName(Open):
    """A tool, by its name."""

    type: Literal["function"]
    name: str


class AllowedTools(Open):
    """The tools that may be called in this response, and whether one of them must be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: tuple[ToolName, ...]


def _choice_form(value: Any) -> Any:
    if isinstance(value, str):
        return "word"
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


_ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("word")]
    | Annotated[ToolName, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_form),
]


class TextFormat(Open):
    """The form of the reply: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    name: str | None = None


class TextConfig(Open):
    """How the reply is written. `verbosity` has no effect here."""

    format: TextFormat | None = None


class ConversationName(Open):
    """A conversation, by its id."""

    id: str


Conversation = Annotated[Annotated[str, Tag("text")] | Annotated[ConversationName, Tag("parts")], Discriminator(_form)]


class ResponsesRequest(Open):
    """Body of `POST /v1/responses`.

    A server with several models answers with the one that `model` names; a server with one takes any name.
    A conversation is a session, and a stored response a turn of it. Members that are not listed are ignored, unless
    they would change the result: these are refused.
    """

    input: Annotated[Annotated[str, Tag("text")] | Annotated[Items, Tag("parts")], Discriminator(_form)]
    model: str = ""
    instructions: Annotated[str, StringConstraints(max_length=262_144)] | None = None
    previous_response_id: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    conversation: Conversation | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    stop: str | tuple[str, ...] | None = None
    tools: Annotated[tuple[FunctionTool, ...], BeforeValidator(_own_tools)] | None = None
    tool_choice: _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    include: tuple[str, ...] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, str] | None = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None
    truncation: Annotated[str | None, WithJsonSchema({"enum": [None, "disabled"]})] = None
    prompt: Annotated[Any, WithJsonSchema({"type": "null"})] = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, if one is named."""
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    @property
    def shows_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())


def place_of(request: ResponsesRequest, session: str | None) -> Place:
    """Return where the response belongs. `session` is that of the header. Raises `InvalidParameters`."""
    conversation, previous = request.conversation_id, request.previous_response_id
    if conversation is not None and previous is not None:
        raise refusal("conversation", "it goes on by itself: leave `previous_response_id` out")
    if conversation is not None and session not in (None, conversation):
        raise refusal("conversation", f"it is another one than the session {session!r} of X-CFS-Session")
    stores = request.store is not False or session is not None
    if not stores and conversation is not None:
        raise refusal("store", "a conversation holds its responses: leave `store` out")
    if not stores and request.background:
        raise refusal("store", "a response in the background is stored: leave `store` out")
    return Place(session, conversation, previous, stores)


def read_request(request: ResponsesRequest, limits: Limits) -> CompletionSpec:
    """Convert a request. Raises `InvalidParameters` for what is not supported, and `TooLarge`.

    A text is added to the conversation; items are the whole conversation, unless what they follow is named.
    """
    for member, value in (
        ("truncation", request.truncation not in (None, "disabled")),
        ("prompt", request.prompt is not None),
    ):
        if value:
            raise refusal(member, "it is not supported here: leave it out")
    messages = read_items(request.input, limits)
    if messages[-1].role == "assistant":
        raise refusal("input", "the last item is the user's, or the result of a call")
    tools, choice = _tools(request)
    patch = patch_of(
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=request.stop,
    )
    if request.instructions:
        patch = patch.model_copy(update={"system": request.instructions})
    return CompletionSpec(
        messages=messages,
        before=None if isinstance(request.input, str) else Weighed.of(messages[:-1]),
        patch=patch,
        json_schema=_schema(request.text.format if request.text else None),
        tools=tools,
        tool_choice=choice,
        parallel_calls=request.parallel_tool_calls is not False,
        account=request.user or "",
        logprobs=(request.top_logprobs or 0) if request.shows_logprobs else None,
    )


def _tools(request: ResponsesRequest) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
    tools = [
        ToolSpec(function=FunctionSpec(name=tool.name, description=tool.description, parameters=tool.parameters))
        for tool in request.tools or ()
    ]
    choice = request.tool_choice
    if isinstance(choice, ToolName):
        return read_tools(tools, NamedTool(function=FunctionName(name=choice.name)))
    if isinstance(choice, AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        if missing := allowed - {tool.function.name for tool in tools}:
            raise refusal("tool_choice", f"there is no tool {min(missing)!r} among the tools")
        return read_tools([tool for tool in tools if tool.function.name in allowed], choice.mode)
    return read_tools(tools, choice)


def _schema(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None:
        raise refusal("text.format", "a format of the type 'json_schema' has a `schema`")
    return form.json_schema


# -- conversations ----------------------------------------------------------------------------------------------------


class NewConversation(Open):
    """Body of `POST /v1/conversations`: its first items. They are not answered. `metadata` is not kept."""

    items: _Items | None = None


class NewItems(Open):
    """Body of `POST /v1/conversations/{id}/items`: items to add. They are not answered."""

    items: Items


class ConversationObject(Open):
    """A conversation. Its id is that of its session."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = Field(default_factory=dict)


class AnyItem(Open):
    """An item: a message, a call or its result, or what the model thought. Other members depend on the type."""

    id: str
    type: str


class ItemList(Open):
    """Items of a conversation, or the input of a response."""

    object: Literal["list"] = "list"
    data: tuple[dict[str, Any], ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def text_of(found: dict[str, Any]) -> str:
    """Return the JSON of an item, a response or an event."""
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def page_of(items: Sequence[dict[str, Any]], *, order: str, after: str | None, limit: int) -> ItemList:
    """Return a page of items, which are given in their order. An unknown `after` is refused."""
    found = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((at for at, item in enumerate(found, 1) if item["id"] == after), None)
        if place is None:
            raise refusal("after", f"there is no item {after[:80]!r}")
        found = found[place:]
    page = found[:limit]
    return ItemList(
        data=tuple(page),
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(found) > limit,
    )
