"""Requests in the responses protocol of OpenAI. Pure: no I/O (H4)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, WithJsonSchema

from cfs.completions.messages import Open
from cfs.completions.models import LogitOptions, Number
from cfs_server.completions.requests import CompletionSpec, ResponseParent, patch_of, refusal
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.protocols.response_items import (
    NO_MESSAGE,
    Item,
    ItemId,
    Items,
    hosted_items,
    read_items,
    text_or_parts,
)
from cfs_server.protocols.response_tools import Choice, RequestTools, Tools, left_out


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


Conversation = Annotated[
    Annotated[str, Tag("text")] | Annotated[ConversationName, Tag("parts")], Discriminator(text_or_parts)
]


class ResponsesRequest(LogitOptions):
    """Body of `POST /v1/responses`.

    A server with several models answers with the one that `model` names; a server with one takes any name.
    A conversation is a session, and a stored response a turn of it. Members that are not listed are ignored, unless
    they would change the result: these are refused.
    """

    input: Annotated[Annotated[str, Tag("text")] | Annotated[Items, Tag("parts")], Discriminator(text_or_parts)]
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
    tools: Tools | None = None
    tool_choice: Choice | None = None
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

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about parts of the request that have no effect here."""
        kinds = {"tools": RequestTools(self.tools).hosted, "items": hosted_items(self.input)}
        return tuple(left_out(what, names) for what, names in kinds.items() if names)


def place_of(request: ResponsesRequest, session: str | None) -> ResponseParent:
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
    return ResponseParent(session, conversation, previous, stores, _sessions_of(request.input))


def _sessions_of(items: str | Sequence[Item]) -> tuple[str, ...]:
    """Return the keys of the sessions that items come from, each once, the newest first."""
    ids = () if isinstance(items, str) else filter(None, map(ItemId.of, reversed(items)))
    return tuple(dict.fromkeys(response_id.session for response_id in ids))


def read_request(request: ResponsesRequest, limits: StoreLimits) -> CompletionSpec:
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
    if not messages:
        raise refusal("input", NO_MESSAGE)
    if messages[-1].role == "assistant":
        raise refusal("input", "the last item is the user's, or the result of a call")
    tools, choice = RequestTools(request.tools).offered(request.tool_choice)
    patch = patch_of(
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=request.stop,
        logits=request,
    )
    if request.instructions:
        patch = patch.model_copy(update={"system": request.instructions})
    return CompletionSpec(
        messages=messages,
        before=None if isinstance(request.input, str) else SizedMessages.of(messages[:-1]),
        patch=patch,
        options=ReplyOptions(
            json_schema=_schema(request.text.format if request.text else None),
            logprobs=(request.top_logprobs or 0) if request.shows_logprobs else None,
            tools=tools,
            tool_choice=choice,
            parallel_calls=request.parallel_tool_calls is not False,
        ),
        account=request.user or "",
    )


def _schema(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None:
        raise refusal("text.format", "a format of the type 'json_schema' has a `schema`")
    return form.json_schema
