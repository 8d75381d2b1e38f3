"""Completions that a session records: a turn like any other, whether anybody reads it or not (S4, H4)."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from cfs.errors import Conflict, EngineError
from cfs.wire import Settings, SettingsPatch
from cfs_server.completions.orders import DEFAULT_TOKENS, Order
from cfs_server.engine.interface import Delta, Finished
from cfs_server.sessions.gate import SessionGate
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import Turn


def submit(sessions: SessionGate, session_id: str, order: Order) -> tuple[Session, Turn]:
    """Give a session the last message to answer, and the others as what the conversation was before it.

    Needs the rights to write and to read; to put another conversation in the history's place also the right to delete.
    Raises `Conflict` where an agent answers, which has tools of its own.
    """
    known = sessions.find(session_id, "write")
    sessions.require("read_binary", session_id)
    settings = known.settings if known else Settings()
    if settings.driver == "agent" and (order.tools or order.json_schema):
        raise Conflict(f"session {session_id!r} is answered by an agent, which takes neither tools nor a form")
    turn = Turn(
        order.messages[-1],
        settings=_patch(order.patch, settings),
        json_schema=order.json_schema,
        logprobs=order.logprobs,
        view=order.before,
        tools=order.tools,
        tool_choice=order.tool_choice,
        parallel_calls=order.parallel_calls,
    )
    session, _ = sessions.submit(session_id, turn)
    return session, turn


async def follow(session: Session, turn: Turn, check: Callable[[], None]) -> AsyncIterator[Delta | Finished]:
    """Yield a turn's pieces, those that are there first, then its end. Leaving this ends nothing.

    `check` raises when the reader may not go on reading. Raises what the turn failed with.
    """
    seen = 0
    while True:
        if seen < len(turn.said):
            check()
            seen += 1
            yield turn.said[seen - 1]
        elif turn.result.done():
            break
        else:
            await session.log.pulse.wait()
            seen = min(seen, len(turn.said))  # what a dead agent had said is taken back (S10)
    result = turn.result.result()
    check()
    if result.error is not None:
        raise turn.failure or EngineError(result.error)
    said = turn.text.strip()
    if result.reason != "cancelled" and result.reply.startswith(said) and result.reply != said:
        yield Delta(result.reply[len(said) :], 0)  # an agent may end its turn by a reply that it did not stream
    yield Finished(result.reason, result.usage)


def _patch(patch: SettingsPatch, settings: Settings) -> SettingsPatch:
    """Let a reply be as long as a program expects of one, unless the session was given a length of its own.

    A program that brings the conversation decides itself what leaves it: a prompt that is too long is an error.
    """
    changes: dict[str, Any] = {"overflow": "error"}
    if patch.max_tokens is None and settings.max_tokens == Settings().max_tokens:
        changes["max_tokens"] = DEFAULT_TOKENS
    return patch.model_copy(update=changes)
