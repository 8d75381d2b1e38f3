"""The items of OpenAI's responses: reads them as messages, and writes messages as items. Pure: no I/O (H4).

An item is a message, a call of a tool, the result of one, or what the model thought. A message of a session is one or
several items: neighbouring items of the model become one message, as it has said them in one reply.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag, TypeAdapter

from cfs.completions import read_arguments, write_arguments
from cfs.completions.messages import Open
from cfs.wire import Message, ToolCall
from cfs_server.completions.requests import checked, refusal
from cfs_server.domain.quotas import StoreLimits
from cfs_server.protocols.response_tools import custom_arguments, function_name


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


_NO_TEXT: Mapping[str, str] = {
    "input_image": "[A picture, which is not read here]",
    "input_file": "[A file, which is not read here]",
    "input_audio": "[Sound, which is not read here]",
}
"""What stands for parts of a tool's result that are no text. Its client cannot take the result back, so that a refusal
would be the end of the conversation: Codex sends the pictures of `view_image` with each request from then on."""


def _result_pieces(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return _known_pieces([_as_text(part) for part in value])


def _as_text(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    return {"type": "input_text", "text": _NO_TEXT[kind]} if isinstance(kind, str) and kind in _NO_TEXT else part


def _checked(value: Any, kinds: frozenset[str], what: str) -> Any:
    """Name the first type that cannot be read, more clearly than the message of a union would."""
    if not isinstance(value, list):
        return value
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"{what} of the type {kind!r} are not read here, only {', '.join(sorted(kinds))}")
    return tuple(value)


def text_or_parts(value: Any) -> str:
    """Tell the two forms of a content apart."""
    return "text" if isinstance(value, str) else "parts"


_Piece = Annotated[TextPiece | RefusalPiece, Field(discriminator="type")]
_Pieces = Annotated[tuple[_Piece, ...], BeforeValidator(_known_pieces)]
_ResultPieces = Annotated[tuple[_Piece, ...], BeforeValidator(_result_pieces)]
_Text = Annotated[Annotated[str, Tag("text")] | Annotated[_Pieces, Tag("parts")], Discriminator(text_or_parts)]
"""A text, or text in parts."""
_Result = Annotated[Annotated[str, Tag("text")] | Annotated[_ResultPieces, Tag("parts")], Discriminator(text_or_parts)]


_CallId = Annotated[str, StringConstraints(min_length=1)]


class _Named(Open):
    id: str | None = None


class MessageItem(_Named):
    """A message: of a user, of the model, or an instruction. `developer` is another word for `system`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Text


class CallItem(_Named):
    """A call of a tool by the model. `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: _CallId
    name: str
    arguments: str
    namespace: str | None = None

    def call(self) -> ToolCall:
        """Convert to a call of a message."""
        name = function_name(self.name, self.namespace)
        return ToolCall(id=self.call_id, name=name, arguments=read_arguments(self.arguments))


class CustomCallItem(_Named):
    """A call of a custom tool by the model, with a text."""

    type: Literal["custom_tool_call"]
    call_id: _CallId
    name: str
    input: str
    namespace: str | None = None

    def call(self) -> ToolCall:
        """Convert to a call of a message."""
        name = function_name(self.name, self.namespace)
        return ToolCall(id=self.call_id, name=name, arguments=custom_arguments(self.input))


class ActionItem(_Named):
    """A call of a tool that OpenAI defines and the client runs. `action` or `operation` says what it does."""

    type: Literal["local_shell_call", "shell_call", "apply_patch_call"]
    call_id: _CallId
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None

    def call(self) -> ToolCall:
        """Convert to a call of a message. The type says which tool it is."""
        arguments = self.action or self.operation or {}
        return ToolCall(id=self.call_id, name=self.type.removesuffix("_call"), arguments=arguments)


class ResultItem(_Named):
    """The result of a call, by the program that has the tools."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: _CallId
    output: _Result

    @property
    def text(self) -> str:
        """The result as text."""
        return _joined(self.output)


class ActionResultItem(_Named):
    """The result of a call of a tool that OpenAI defines and the client runs."""

    type: Literal["local_shell_call_output", "shell_call_output", "apply_patch_call_output"]
    call_id: _CallId
    output: Any = None

    @property
    def text(self) -> str:
        """The result as text."""
        return self.output if isinstance(self.output, str) else json.dumps(self.output, ensure_ascii=False)


class ReasoningItem(_Named):
    """What the model thought. Encrypted thinking cannot be read here, and is left out."""

    type: Literal["reasoning"]
    summary: _Pieces = ()
    content: _Pieces | None = None


class ItemReference(Open):
    """An item that this server has stored, by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: Annotated[str, StringConstraints(min_length=1, max_length=256)]


_HostedType = Literal[
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
]


class HostedItem(_Named):
    """What a tool that OpenAI runs has done. There is none here: it is left out."""

    type: _HostedType


_MODELS: Mapping[str, type[Open]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "custom_tool_call": CustomCallItem,
    "function_call_output": ResultItem,
    "custom_tool_call_output": ResultItem,
    **dict.fromkeys(("local_shell_call", "shell_call", "apply_patch_call"), ActionItem),
    **dict.fromkeys(("local_shell_call_output", "shell_call_output", "apply_patch_call_output"), ActionResultItem),
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
    **dict.fromkeys(get_args(_HostedType), HostedItem),
}
_ENCRYPTED = frozenset({"compaction", "compaction_summary", "context_compaction"})


def _kind_of(value: Any) -> Any:
    """Return the type of an item. That of messages and of references may be missing."""
    if not isinstance(value, dict):
        return getattr(value, "type", None)
    return value.get("type", "item_reference" if value.keys() == {"id"} else "message")


def _tag_of(value: Any) -> Any:
    model = _MODELS.get(_kind_of(value))
    return model and model.__name__


def _known_items(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    for item in value:
        kind = _kind_of(item) if isinstance(item, dict) else type(item).__name__
        if isinstance(kind, str) and kind in _ENCRYPTED:
            raise ValueError(
                f"an item of the type {kind!r} is encrypted, and cannot be read here: begin a new conversation"
            )
        if not isinstance(kind, str) or kind not in _MODELS:
            raise ValueError(f"items of the type {kind!r} are not read here, only {', '.join(sorted(_MODELS))}")
    return tuple(value)


_Calls = CallItem | CustomCallItem | ActionItem
Item = (
    MessageItem
    | CallItem
    | CustomCallItem
    | ActionItem
    | ResultItem
    | ActionResultItem
    | ReasoningItem
    | ItemReference
    | HostedItem
)
AnyItems = Annotated[
    tuple[
        Annotated[
            Annotated[MessageItem, Tag("MessageItem")]
            | Annotated[CallItem, Tag("CallItem")]
            | Annotated[CustomCallItem, Tag("CustomCallItem")]
            | Annotated[ActionItem, Tag("ActionItem")]
            | Annotated[ResultItem, Tag("ResultItem")]
            | Annotated[ActionResultItem, Tag("ActionResultItem")]
            | Annotated[ReasoningItem, Tag("ReasoningItem")]
            | Annotated[ItemReference, Tag("ItemReference")]
            | Annotated[HostedItem, Tag("HostedItem")],
            Discriminator(_tag_of),
        ],
        ...,
    ],
    BeforeValidator(_known_items),
]
Items = Annotated[AnyItems, Field(min_length=1)]


NO_MESSAGE = "there is no message, call or result in it"
"""Why items are refused that are all left out."""


def read_items(items: str | Sequence[Item], limits: StoreLimits) -> tuple[Message, ...]:
    """Convert items to messages. Raises `TooLarge`."""
    if isinstance(items, str):
        return checked((Message(role="user", content=items),), limits)
    limits.check_messages(len(items))
    return checked(tuple(_messages(items)), limits)


def _messages(items: Sequence[Item]) -> Iterator[Message]:
    reply_items: list[Item] = []
    """The items of the reply that is being read."""
    for item in items:
        if isinstance(item, HostedItem):
            continue
        if reply_items and _begins_anew(item, reply_items):
            yield _reply(reply_items)
            reply_items = []
        if _by_model(item):
            reply_items.append(item)
        elif isinstance(item, ResultItem | ActionResultItem):
            yield Message(role="tool", content=item.text, tool_call_id=item.call_id)
        elif isinstance(item, ItemReference):
            raise refusal("input", f"there is no stored item {item.id[:80]!r} to refer to here")
        elif isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            yield Message(role=role, content=_joined(item.content))
    if reply_items:
        yield _reply(reply_items)


def _by_model(item: Item) -> bool:
    return isinstance(item, _Calls | ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant")


def _begins_anew(item: Item, items: Sequence[Item]) -> bool:
    """Return whether an item is not a part of the same reply: two messages of the model are two replies."""
    if not _by_model(item):
        return True
    return isinstance(item, MessageItem) and isinstance(items[-1], MessageItem)


def _reply(items: Sequence[Item]) -> Message:
    thinking = "".join(_joined(item.content or item.summary) for item in items if isinstance(item, ReasoningItem))
    return Message(
        role="assistant",
        content="".join(_joined(item.content) for item in items if isinstance(item, MessageItem)),
        tool_calls=tuple(item.call() for item in items if isinstance(item, _Calls)),
        thinking=thinking or None,
    )


def _joined(content: str | Sequence[TextPiece | RefusalPiece]) -> str:
    if isinstance(content, str):
        return content
    return "".join(piece.text if isinstance(piece, TextPiece) else piece.refusal for piece in content)


def hosted_items(items: str | Sequence[Item]) -> list[str]:
    """Return the types of items that are left out, each once."""
    if isinstance(items, str):
        return []
    return list(dict.fromkeys(item.type for item in items if isinstance(item, HostedItem)))


def items_of(message: Message, location: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a stored message, in the order of their making. `location` makes their ids unique."""
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "id": item_id("fco", location, 0),
            "call_id": message.tool_call_id or "",
            "output": message.content,
            "status": "completed",
        }
        return
    if message.thinking:
        yield reasoning_item(item_id("rs", location, 0), message.thinking)
    by_model = message.role == "assistant"
    if message.content or not message.tool_calls:
        kind = {"type": "output_text", "annotations": []} if by_model else {"type": "input_text"}
        content = [{**kind, "text": message.content}]
        yield {
            "type": "message",
            "id": item_id("msg", location, 0),
            "role": message.role,
            "status": "completed",
            "content": content,
        }
    for number, call in enumerate(message.tool_calls):
        yield call_item(item_id("fc", location, number), call.id, call.name, write_arguments(call.arguments))


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


def call_item(
    name: str, call: str, tool: str, arguments: str, status: str = "completed", namespace: str | None = None
) -> dict[str, Any]:
    """Return the item of a call."""
    return {
        "type": "function_call",
        "id": name,
        "call_id": call,
        "name": tool,
        "arguments": arguments,
        "status": status,
        **({"namespace": namespace} if namespace else {}),
    }


def custom_call_item(
    name: str, call: str, tool: str, text: str, status: str = "completed", namespace: str | None = None
) -> dict[str, Any]:
    """Return the item of a call of a custom tool."""
    return {
        "type": "custom_tool_call",
        "id": name,
        "call_id": call,
        "name": tool,
        "input": text,
        "status": status,
        **({"namespace": namespace} if namespace else {}),
    }


_ID = re.compile(r"(msg|rs|fc|ctc|fco)_([0-9a-f]{32})_(\d{1,9})_(\d{1,9})")


_ITEMS = TypeAdapter(AnyItems)


def item_id(kind: str, location: str, number: int) -> str:
    """Return the id of an item: the item of its kind with a number, of the message at a place."""
    return f"{kind}_{location}_{number}"


def message_place(session: str, index: int) -> str:
    """Return the place of a message in ids: the key of its session, and its index there."""
    return f"{session}_{index}"


@dataclass(frozen=True, slots=True)
class ItemId:
    """Where a stored item is: the key of its session, the index of its message, and its kind and number in that."""

    session: str
    index: int
    kind: str
    number: int

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read an id; None for one that this server did not give to a stored item."""
        match = _ID.fullmatch(text)
        return match and cls(match[2], int(match[3]), match[1].replace("ctc", "fc"), int(match[4]))

    @classmethod
    def of(cls, item: Item) -> Self | None:
        """Read the id of an item."""
        return None if item.id is None else cls.read(item.id)

    def items(self, message: Message) -> tuple[Item, ...] | None:
        """Return the item of a message; None if it has none.

        A reply that was interrupted by thinking has several messages in its response, and one in its session: the
        first stands for all.
        """
        rows = list(items_of(message, message_place(self.session, self.index)))
        name = item_id(self.kind, message_place(self.session, self.index), self.number)
        if any(row["id"] == name for row in rows):
            return _ITEMS.validate_python([row for row in rows if row["id"] == name])
        is_rest = self.kind in ("msg", "rs") and any(row["id"].startswith(f"{self.kind}_") for row in rows)
        return () if is_rest else None
