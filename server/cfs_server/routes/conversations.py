"""Conversations in the protocol of OpenAI: each is a session, and its id is that of the session (H4)."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.convertors import register_url_convertor

from cfs.contract.route_words import ROUTE_WORDS
from cfs.errors import (
    AlreadyExists,
    Conflict,
    Gone,
    InvalidIdentifier,
    InvalidRequest,
    NotFound,
    StorageFull,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from cfs_server.completions.requests import refusal
from cfs_server.http.bodies import apart, json_body
from cfs_server.http.caller import Me
from cfs_server.http.generation import NamedSession
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json
from cfs_server.http.session_paths import SessionId, SessionIdConvertor, id_regex
from cfs_server.protocols.conversations import (
    AnyItem,
    ConversationObject,
    ItemList,
    NewConversation,
    NewItems,
    page_of,
    text_of,
)
from cfs_server.protocols.response_events import DeletedObject
from cfs_server.protocols.response_items import NO_MESSAGE, items_of, message_place, read_items
from cfs_server.routes.responses import After, Limit, Order
from cfs_server.sessions.session import Session


class ConversationIdConvertor(SessionIdConvertor):
    """The same as for sessions, with one more word of a route: a sub-session called `items` is no conversation here."""

    regex = id_regex(ROUTE_WORDS | {"items"})


register_url_convertor("conversation", ConversationIdConvertor())

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])

_FOUND = (InvalidRequest, InvalidIdentifier, NotFound, Gone)
_WRITTEN = (*_FOUND, Conflict, StorageFull, TooLarge, UnsupportedMedia, Unavailable)


@router.post(
    "",
    responses={
        200: answer("The conversation", json=ConversationObject),
        **problems(*_WRITTEN, AlreadyExists),
    },
    openapi_extra=body(required=False, json=NewConversation),
)
async def create_conversation(
    request: Request,
    payload: Annotated[NewConversation, Depends(json_body(NewConversation))],
    session: NamedSession,
    me: Me,
) -> Response:
    """Create a session as a conversation. `X-CFS-Session` may name it. Its first items are not answered."""
    messages = await apart(request, partial(read_items, payload.items or (), me.sessions.limits))
    created = me.sessions.create(session)
    if messages:
        try:
            me.responses.add(created, messages)
        except BaseException:
            me.sessions.discard(created)
            raise
    return as_json(_shown(created))


@router.get(
    "/{id:conversation}/items",
    responses={200: answer("The items", json=ItemList), **problems(*_FOUND)},
)
async def list_items(
    id: SessionId,  # noqa: A002 - the name in the path
    me: Me,
    order: Order = "desc",
    limit: Limit = 20,
    after: After = None,
) -> Response:
    """List the items of a conversation: its messages, calls and results, and what the model thought."""
    session = me.sessions.get(id, "read_binary")
    async with me.sessions.loaded(session):
        return as_json(page_of(_items(session), order=order, after=after, limit=limit))


@router.post(
    "/{id:conversation}/items",
    responses={200: answer("The new items", json=ItemList), **problems(*_WRITTEN)},
    openapi_extra=body(json=NewItems),
)
async def add_items(
    request: Request,
    id: SessionId,  # noqa: A002
    payload: Annotated[NewItems, Depends(json_body(NewItems))],
    me: Me,
) -> Response:
    """Add items to a conversation. They are not answered."""
    messages = await apart(request, partial(read_items, payload.items, me.sessions.limits))
    if not messages:
        raise refusal("items", NO_MESSAGE)
    session = me.sessions.get(id, "write")
    async with me.sessions.loaded(session):
        begins = len(session.history)
        me.responses.add(session, messages)
    added = [
        item
        for at, message in enumerate(messages, begins)
        for item in items_of(message, message_place(session.key, at))
    ]
    return as_json(page_of(added, order="asc", after=None, limit=len(added)))


@router.get(
    "/{id:conversation}/items/{item}",
    responses={200: answer("The item", json=AnyItem), **problems(*_FOUND)},
)
async def get_item(
    id: SessionId,  # noqa: A002
    item: Annotated[str, Path(description="Id of the item.")],
    me: Me,
) -> Response:
    """Return an item of a conversation."""
    session = me.sessions.get(id, "read_binary")
    async with me.sessions.loaded(session):
        match = next((candidate for candidate in _items(session) if candidate["id"] == item), None)
    if match is None:
        raise NotFound(f"conversation {id!r} has no item {item[:80]!r}")
    return Response(text_of(match) + "\n", media_type="application/json")


@router.get(
    "/{id:conversation}",
    responses={200: answer("The conversation", json=ConversationObject), **problems(*_FOUND)},
)
async def get_conversation(
    id: SessionId,  # noqa: A002
    me: Me,
) -> Response:
    """Return a conversation."""
    return as_json(_shown(me.sessions.get(id, "file")))


@router.delete(
    "/{id:conversation}",
    responses={200: answer("Deleted", json=DeletedObject), **problems(*_FOUND)},
)
async def delete_conversation(
    id: SessionId,  # noqa: A002
    me: Me,
) -> Response:
    """Delete the session of a conversation, with its responses and its sub-sessions."""
    me.sessions.delete(id)
    return as_json(DeletedObject(id=id, object="conversation.deleted"))


def _shown(session: Session) -> ConversationObject:
    return ConversationObject(id=session.id, created_at=int(session.created_at))


def _items(session: Session) -> list[dict[str, object]]:
    messages = session.history.messages
    return [item for at, message in enumerate(messages) for item in items_of(message, message_place(session.key, at))]
