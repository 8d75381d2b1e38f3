"""The response of `send`."""

from typing import Generic

from pydantic import BaseModel, SkipValidation
from typing_extensions import TypeVar

from cfs.contract.errors import EngineError
from cfs.contract.transcript import render_one
from cfs.contract.wire import FinishReason, Message, ToolCall, Usage
from cfs.state.replies import MessageOutcome

Parsed = TypeVar("Parsed", default=None)


class Response(BaseModel, Generic[Parsed]):
    """A reply.

    `content` is the message as the transcript shows it, with the prefix `Assistant:`; `text` is the text without it.
    `history` has one entry for each message up to the reply, as the transcript shows it; joined by newlines they are
    the transcript. `parsed` is the object for `response_format`. `usage`, `finish_reason` and `tool_calls` are known
    over HTTP only. `error` is the reason why the turn failed; then `text` is `[Error: reason]` (S5).
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


def respond(session_id: str, outcome: MessageOutcome, parsed: Parsed) -> Response[Parsed]:
    """Create a response from the outcome of a message."""
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
