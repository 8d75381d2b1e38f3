"""Sessions, turns and questions in their wire format."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from urllib.parse import quote

from fastapi import Response
from pydantic import BaseModel, TypeAdapter
from starlette.types import Receive, Scope, Send

from cfs.wire import Message, Question, Reply, SessionDetail, SessionInfo, SessionTree
from cfs_server.domain.past import Version
from cfs_server.domain.questions import Question as AskedQuestion
from cfs_server.domain.questions import open_questions
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import Turn, TurnResult
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

_SLICE = 256 << 10
_MESSAGES_AT_ONCE = 500
_MESSAGES = TypeAdapter(tuple[Message, ...])
_NO_HISTORY = b'"history":[]'
"""This cannot occur inside a text, where a quote is written with a backslash."""


def info(session: Session, sessions: AuthorizedSessions) -> SessionInfo:
    """Return a session without its messages. Its title is a part of them, and its origin the name of another one."""
    session_info = session.info(len(sessions.children(session)))
    if not sessions.may("read_binary", session.id):
        return session_info.model_copy(update={"title": None, "origin": None})
    if session.origin is not None and not sessions.may("read_binary", session.origin.session):
        return session_info.model_copy(update={"origin": None})
    return session_info


def detail(session: Session, sessions: AuthorizedSessions) -> SessionDetail:
    """Return a session with its messages."""
    return SessionDetail(
        **dict(info(session, sessions)),
        history=session.history.messages,
        times=session.history.times,
        queue=tuple(turn.message for turn in session.queue),
        partial=session.partial,
        settings=session.settings,
        questions=tuple(map(question, open_questions(session.questions))),
        work=session.work,
    )


def past_detail(
    session: Session, sessions: AuthorizedSessions, version: Version, history: SizedMessages
) -> SessionDetail:
    """Return a session with the messages of a version. Its settings and its state are those of today."""
    past = info(session, sessions).model_copy(
        update={"messages": version.count, "size": history.size, "etag": f'"{session.nonce}-{version.number}"'}
    )
    return SessionDetail(
        **dict(past),
        history=history.messages,
        times=history.times_from(version.at),
        queue=(),
        partial=None,
        settings=session.settings,
    )


def question(asked_question: AskedQuestion) -> Question:
    """Return a question of an agent."""
    return Question(**asdict(asked_question))


def detail_json(detail: SessionDetail) -> bytes:
    """Serialize to JSON, a few messages at a time, so that other threads can run in between."""
    if len(detail.history) <= _MESSAGES_AT_ONCE:
        return detail.model_dump_json().encode() + b"\n"
    pieces = [
        _MESSAGES.dump_json(detail.history[start : start + _MESSAGES_AT_ONCE])[1:-1]
        for start in range(0, len(detail.history), _MESSAGES_AT_ONCE)
    ]
    head, _, tail = detail.model_copy(update={"history": ()}).model_dump_json().encode().partition(_NO_HISTORY)
    return b"".join([head, _NO_HISTORY[:-1], b",".join(pieces), b"]", tail, b"\n"])


def tree(session: Session, sessions: AuthorizedSessions) -> SessionTree:
    """Return a session and everything below it."""
    children = sessions.children(session)
    return SessionTree(**dict(info(session, sessions)), children=tuple(tree(child, sessions) for child in children))


def reply(session: Session, turn: Turn, result: TurnResult, *, transcript: bool = False) -> Reply:
    """Return a finished turn, on request with the transcript up to its end."""
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
    """Return the path of a session, percent-encoded except the slashes of sub-sessions."""
    return f"/v1/sessions/{quote(session_id)}"


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a wire model, serialized by pydantic."""
    return Response(model.model_dump_json() + "\n", status, headers, "application/json")


async def as_json_with(model: BaseModel, member: str, items: Iterable[str]) -> Response:
    """Return a response with a wire model whose empty list `member` gets these items, each as JSON.

    They are written one at a time, and other requests run in between: vectors may have millions of numbers.
    """
    head, tail = model.model_dump_json().split(f'"{member}":[]', 1)
    pieces: list[str] = []
    for item in items:
        pieces.append(item)
        await asyncio.sleep(0)
    return Response(f'{head}"{member}":[{",".join(pieces)}]{tail}\n', media_type="application/json")


class LongText(Response):
    """A text that is sent in slices. A slow reader of 64 MB has only one slice in its buffer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the body in slices, without copying the whole."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), _SLICE):
            await send({"type": "http.response.body", "body": bytes(body[start : start + _SLICE]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
