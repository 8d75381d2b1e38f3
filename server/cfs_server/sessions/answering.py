"""The answer of the model to a turn. Each failure ends in a message, never in a blocked session (S5).

A history that is longer than the model's context is cut (S8): old exchanges leave the prompt, or a summary replaces
them, until the engine accepts the prompt. The cut stays until the prompt is too long again, so that the prompts of the
next turns share a cached prefix.
"""

import asyncio
from dataclasses import replace

import structlog

from cfs.errors import CfsError, ContextTooLong, EngineError
from cfs.wire import FinishReason, Settings, Usage
from cfs_server.domain.changes import ContextShifted, MessageExcluded, TokensSpent
from cfs_server.domain.history import Window, first_window, tokens_between
from cfs_server.domain.turns import Turn, TurnState
from cfs_server.engine.contract.fitting import TARGET, count_of_part, leading_systems
from cfs_server.engine.contract.interface import (
    MAX_TIMES,
    TOO_LONG,
    Delta,
    Finished,
    GenerationRequest,
    HistoryRefused,
    ReplyLost,
    engine_of,
)
from cfs_server.sessions import tracing
from cfs_server.sessions.session import Services, Session
from cfs_server.sessions.summaries import summarize

_log = structlog.get_logger(__name__)
_LATEST = 10.0
"""Seconds after a turn's time limit in which the engine must end it. After that the turn fails without the engine."""


_MOST_REFUSALS = 2
"""How often a prompt is shortened because an upstream refuses it and does not say why."""


_AGAIN = 0.5
"""The part of the text that stays in a prompt when an upstream refuses it again without naming its limit."""


async def answer(session: Session, turn: Turn, services: Services) -> None:
    """Answer the running turn with the engine, and end it."""
    limit = services.limits.turn_seconds
    try:
        async with asyncio.timeout(limit + _LATEST):
            reason, usage = await _answer(session, turn, services)
    except CfsError as error:
        session.fail_turn(turn, error)
    except TimeoutError:
        session.fail_turn(turn, EngineError(TOO_LONG.format(limit)))
    except Exception:  # noqa: BLE001 - a defect must not leave the session generating forever
        _log.exception("turn.defect", session=session.id, turn=turn.id)
        session.fail_turn(turn, EngineError("internal error"))
    else:
        session.finish_turn(turn, reason, turn.text, usage)


async def _answer(session: Session, turn: Turn, services: Services) -> tuple[FinishReason, Usage]:
    """Send the history to the engine, and shorten it until it fits the context (S8)."""
    settings, history = session.settings.patched(turn.request.settings), session.history
    services.spending.check(session.account, settings.model, session.settings, session)
    loop, limit = asyncio.get_running_loop(), services.limits.turn_seconds
    ends_at, times, refused = loop.time() + limit, 1, 0
    context_tokens = engine_of(services.engine, settings.model).context_tokens
    window, tokens = first_window(history, settings, context_tokens)
    while turn.state is not TurnState.CANCELLING:  # before this task's first step no engine has it
        request = turn.generation(
            session.id,
            session.key,
            services.root_key(session),
            history.prompt(window),
            session.settings,
            session.account.owner,
            limit if tokens is None and times == 1 else max(round(ends_at - loop.time(), 1), 0.0),
            times,
        )
        try:
            return await _stream(session, turn, request, services, window, tokens)
        except ReplyLost:
            if times == MAX_TIMES:
                raise
            times, tokens = times + 1, None
            session.begin_again(turn)
        except ContextTooLong as error:
            if settings.overflow == "error":
                raise
            shorter = _shorten(session, turn, settings, window, error, TARGET if tokens is None else _AGAIN)
            tokens = (tokens or 0) + (error.leaving or tokens_between(history, window, shorter.cut))
            if settings.overflow == "summarize":
                summary, usage = await summarize(history, request, services.engine, shorter)
                if usage != Usage():
                    usage = services.spending.price(usage, settings.model)
                    session.apply(TokensSpent(usage))
                    services.spending.add(session.account, usage, settings.model, session)
                shorter = replace(shorter, summary=summary)
            window = shorter
        except HistoryRefused as refusal:
            # So a message that an upstream will never take, such as one that its filter refuses, ends no session.
            if refused == _MOST_REFUSALS or len(history.exchanges(window)) < 2:
                raise refusal.error from refusal
            shorter = history.newest(window, 1 if refused else refusal.fits)
            refused, tokens = refused + 1, (tokens or 0) + tokens_between(history, window, shorter.cut)
            window = replace(shorter, summary="") if refused == _MOST_REFUSALS else shorter
    return "cancelled", Usage()


async def _stream(
    session: Session, turn: Turn, request: GenerationRequest, services: Services, window: Window, tokens: int | None
) -> tuple[FinishReason, Usage]:
    finished: Finished | None = None
    async for item in tracing.generate(services.engine, request):
        if tokens is not None:  # the engine has accepted the shortened history
            session.apply(ContextShifted(turn.id, window, tokens))
            tokens = None
        if isinstance(item, Delta):
            session.add(turn, item)
        else:
            finished = item
    if finished is None:
        raise EngineError("the engine ended without saying why")
    turn.stop, turn.warnings = finished.stop, finished.warnings
    return finished.reason, services.spending.price(finished.usage, request.settings.model)


def _shorten(
    session: Session, turn: Turn, settings: Settings, window: Window, error: ContextTooLong, part: float
) -> Window:
    """Cut a window so that its prompt fits, by the engine's counts or else by text length.

    Raises `ContextTooLong` if even the last exchange does not fit. A single message that is too long is left out of all
    later prompts, because it would push out everything before it.
    """
    history = session.history
    starts = history.exchanges(window)
    if error.fits != 0 and len(starts) > 1:
        fits = count_of_part(history.messages, starts, part) if error.fits is None else error.fits
        return history.newest(window, fits)
    if window.summary:
        return replace(window, summary="")
    first = history.messages[: leading_systems(history.messages)]
    instructions = len(settings.system or "") + sum(len(message.content) for message in first)
    if turn.base is not None and len(turn.message.content) > instructions:
        session.apply(MessageExcluded(turn.base))
        raise ContextTooLong(f"the message is too long by itself: {error.detail}")
    raise error
