"""Letting the engine answer a turn: whatever goes wrong ends in a message, never in a stuck session (S5)."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from cfs.errors import CfsError, EngineError
from cfs.wire import FinishReason, Usage
from cfs_server.engine.interface import TOO_LONG, Delta, Finished
from cfs_server.sessions.turns import Turn

if TYPE_CHECKING:
    from cfs_server.sessions.session import Services, Session

_log = structlog.get_logger(__name__)

_LATEST = 10.0
"""Seconds after a turn's time in which the engine must have ended it; then it is not waited for any more."""


async def answer(session: "Session", turn: Turn, services: "Services") -> None:
    """Have the running turn answered, and end it."""
    limit = services.limits.turn_seconds
    try:
        async with asyncio.timeout(limit + _LATEST):
            reason, usage = await _stream(session, turn, services)
    except CfsError as error:
        turn.failure = error
        session.fail_turn(turn, error.detail)
    except TimeoutError:
        session.fail_turn(turn, TOO_LONG.format(limit))
    except Exception:  # noqa: BLE001 - a defect must not leave the session generating for ever
        _log.exception("turn.defect", session=session.id, turn=turn.id)
        session.fail_turn(turn, "internal error")
    else:
        session.finish_turn(turn, reason, turn.text, usage)


async def _stream(session: "Session", turn: Turn, services: "Services") -> tuple[FinishReason, Usage]:
    if turn.cancelled:  # before this task had its first step: the engine does not know the turn yet
        return "cancelled", Usage()
    request = turn.request(
        session.id,
        session.key,
        session.history.messages,
        session.settings,
        session.account.owner,
        services.limits.turn_seconds,
    )
    finished: Finished | None = None
    async for item in services.engine.generate(request):
        if isinstance(item, Delta):
            session.add(turn, item)
        else:
            finished = item
    if finished is None:
        raise EngineError("the engine ended without saying why")
    return finished.reason, finished.usage
