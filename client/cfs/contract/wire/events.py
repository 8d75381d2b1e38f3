"""Events of sessions (S11)."""

from typing import Any, Literal

from cfs.contract.wire.base import WireModel

EventType = Literal[
    "session.created",
    "message.added",
    "turn.started",
    "turn.interrupted",
    "token",
    "turn.finished",
    "turn.failed",
    "call.decided",
    "question.asked",
    "question.answered",
    "work.reported",
    "history.replaced",
    "context.shifted",
    "settings.changed",
    "state.changed",
    "session.deleted",
    "stale",
    "goodbye",
]


class Event(WireModel):
    """Something that happened to a session. `number` counts within the session, `position` over all of them."""  # S11

    type: EventType
    session: str
    number: int
    position: int
    time: float
    data: dict[str, Any]
