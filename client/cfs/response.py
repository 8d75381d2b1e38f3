"""What `send` returns: the reply, and the conversation up to it (C3)."""

from typing import Generic

from pydantic import BaseModel, SkipValidation
from typing_extensions import TypeVar

from cfs.errors import EngineError
from cfs.transcript import render_one
from cfs.turn import Outcome
from cfs.wire import FinishReason, Message, ToolCall, Usage

Parsed = TypeVar("Parsed", default=None)


class Response(BaseModel, Generic[Parsed]):
    """A reply.

    `content` is the assistant's line as the transcript shows it, with its prefix; `text` is what the model said.
    `history` has one entry for each message up to the reply, as the transcript shows it: joined by line ends it is
    the transcript. `parsed` is the object that was asked for by `response_format`. `usage` and `finish_reason` are
    known over HTTP only, and so are `tool_calls`, the calls that the reply makes. `error` is the reason why the turn
    failed: then `text` is `[Error: reason]` (S5).
    """

    session_id: str
    content: str
    text: str
    history: list[str]
    parsed: SkipValidation[Parsed]
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    error: str | None = None

    def raise_for_error(self) -> None:
        """Raise `EngineError` if the turn has failed."""
        if self.error is not None:
            raise EngineError(self.error)


def respond(session_id: str, outcome: Outcome, parsed: Parsed) -> Response[Parsed]:
    """Make a response of what came of a message."""
    return Response(
        session_id=session_id,
        content=render_one(Message(role="assistant", content=outcome.reply, tool_calls=outcome.calls)),
        text=outcome.reply,
        history=[render_one(turn) for turn in outcome.history],
        parsed=parsed,
        usage=outcome.usage,
        finish_reason=outcome.finish_reason,
        tool_calls=outcome.calls,
        error=outcome.error,
    )
