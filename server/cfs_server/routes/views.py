"""Sessions as the wire shows them."""

from urllib.parse import quote

from fastapi import Response
from pydantic import BaseModel, TypeAdapter
from starlette.types import Receive, Scope, Send

from cfs.wire import Message, Reply, SessionDetail, SessionInfo, SessionTree
from cfs_server.sessions.gate import SessionGate
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import Turn, TurnResult

_SLICE = 256 << 10
_MESSAGES_AT_ONCE = 500
_MESSAGES = TypeAdapter(tuple[Message, ...])
_NO_HISTORY = b'"history":[]'
"""No text holds it: a quote within a text is written with a backslash."""


def info(session: Session, sessions: SessionGate) -> SessionInfo:
    """Describe a session without its messages."""
    return session.info(len(sessions.children(session)))


def detail(session: Session, sessions: SessionGate) -> SessionDetail:
    """Describe a session with its messages."""
    return SessionDetail(
        **dict(info(session, sessions)),
        history=session.history.messages,
        queue=tuple(turn.message for turn in session.queue),
        partial=session.partial,
        settings=session.settings,
    )


def detail_json(shown: SessionDetail) -> bytes:
    """Write it as JSON, some messages at a time: in a thread others get their turn in between."""
    if len(shown.history) <= _MESSAGES_AT_ONCE:
        return shown.model_dump_json().encode()
    pieces = [
        _MESSAGES.dump_json(shown.history[start : start + _MESSAGES_AT_ONCE])[1:-1]
        for start in range(0, len(shown.history), _MESSAGES_AT_ONCE)
    ]
    head, _, tail = shown.model_copy(update={"history": ()}).model_dump_json().encode().partition(_NO_HISTORY)
    return b"".join([head, _NO_HISTORY[:-1], b",".join(pieces), b"]", tail])


def tree(session: Session, sessions: SessionGate) -> SessionTree:
    """Describe a session and everything below it."""
    children = sessions.children(session)
    return SessionTree(**dict(session.info(len(children))), children=tuple(tree(child, sessions) for child in children))


def reply(session: Session, turn: Turn, result: TurnResult, *, transcript: bool = False) -> Reply:
    """Describe a finished turn; with the transcript up to its end if that is asked for."""
    return Reply(
        session=session.id,
        turn=turn.id,
        event=result.event,
        reply=result.reply,
        tool_calls=result.calls,
        transcript=session.history.up_to(result.messages) if transcript else None,
        finish_reason=result.reason,
        error=result.error,
        usage=result.usage,
        logprobs=turn.ranked or None,
    )


def location(session_id: str) -> str:
    """Path of a session: percent-encoded, but for the slashes of sub-sessions."""
    return f"/v1/sessions/{quote(session_id)}"


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer by a wire model, written by pydantic at once."""
    return Response(model.model_dump_json(), status, headers, "application/json")


class LongText(Response):
    """A text that goes out slice by slice, so that a slow reader of 64 MB has one slice in its buffer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the body in slices of one copy."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), _SLICE):
            await send({"type": "http.response.body", "body": bytes(body[start : start + _SLICE]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
