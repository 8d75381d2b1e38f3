"""Letting the engine answer a turn: whatever goes wrong ends in a message, never in a stuck session (S5).

A history that is longer than the model's context is cut (S8): old exchanges leave the prompt, or their summary takes
their place, until the engine takes it. The cut stays where it is until the prompt is too long again, so that turns in
between begin with what is computed already.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import structlog

from cfs.errors import CfsError, ContextTooLong, EngineError
from cfs.transcript import render
from cfs.wire import FinishReason, Message, Settings, Usage
from cfs_server.engine.fitting import TARGET, leading_systems
from cfs_server.engine.interface import TOO_LONG, Delta, Finished, GenerationRequest
from cfs_server.sessions.history import History, Window
from cfs_server.sessions.turns import Turn

if TYPE_CHECKING:
    from cfs_server.sessions.session import Services, Session

_log = structlog.get_logger(__name__)

_LATEST = 10.0
"""Seconds after a turn's time in which the engine must have ended it; then it is not waited for any more."""
_CHARACTERS_A_TOKEN = 4
_AGAIN = 0.5
"""How much of its text stays in a prompt that an upstream refused again, without a word of how much it takes."""
_SUMMARIZE = (
    "Summarize the following conversation in a few sentences. Keep names, facts, decisions and open questions.\n\n"
)
_SUMMARY_TOKENS = 128
_SUMMARIZED = 1 << 16
"""Characters of a conversation that a summary is made of, the newest ones."""


async def answer(session: "Session", turn: Turn, services: "Services") -> None:
    """Have the running turn answered, and end it."""
    limit = services.limits.turn_seconds
    try:
        async with asyncio.timeout(limit + _LATEST):
            reason, usage = await _answer(session, turn, services)
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


async def _answer(session: "Session", turn: Turn, services: "Services") -> tuple[FinishReason, Usage]:
    """Ask the engine, with less and less of the history as long as that is too long for it (S8)."""
    settings, history = session.settings.patched(turn.settings), session.history
    loop, limit = asyncio.get_running_loop(), services.limits.turn_seconds
    ends_at = loop.time() + limit
    window, tokens = _begin(history, settings, services.engine.context_tokens)
    while not turn.cancelled:  # also before this task had its first step: the engine does not know the turn yet
        request = turn.request(
            session.id,
            session.key,
            history.prompt(window),
            session.settings,
            session.account.owner,
            limit if tokens is None else max(round(ends_at - loop.time(), 1), 0.0),
        )
        try:
            return await _stream(session, turn, request, services, window, tokens)
        except ContextTooLong as error:
            if settings.overflow == "error":
                raise
            shorter = _shorten(history, turn, settings, window, error, TARGET if tokens is None else _AGAIN)
            tokens = (tokens or 0) + (error.leaving or _tokens_between(history, window, shorter.cut))
            if settings.overflow == "summarize":
                shorter = replace(shorter, summary=await _summarize(session, request, services, shorter))
            window = shorter
    return "cancelled", Usage()


def _begin(history: History, settings: Settings, most: int) -> tuple[Window, int | None]:
    """Say with which part of a history to begin, and about how many tokens are left out by that if any are.

    A prompt has no more messages than the context has tokens (`most`, if it is known): no more are looked at.
    """
    if settings.overflow == "error":
        if 0 < most < len(history):
            raise ContextTooLong(f"the prompt has {len(history)} messages; the model's context holds {most} tokens")
        return Window(), None
    window = history.window if settings.overflow == "summarize" else replace(history.window, summary="")
    bounded = history.bounded(window, most) if most else window
    return bounded, None if bounded is window else _tokens_between(history, window, bounded.cut)


def _tokens_between(history: History, window: Window, cut: int) -> int:
    """Guess how many tokens leave a window that is cut anew, as if all messages were of the same length."""
    return history.size * history.count_between(window, cut) // len(history) // _CHARACTERS_A_TOKEN


async def _stream(
    session: "Session", turn: Turn, request: GenerationRequest, services: "Services", window: Window, tokens: int | None
) -> tuple[FinishReason, Usage]:
    finished: Finished | None = None
    async for item in services.engine.generate(request):
        if tokens is not None:  # the engine has taken what is left
            session.shift(turn, window, tokens)
            tokens = None
        if isinstance(item, Delta):
            session.add(turn, item)
        else:
            finished = item
    if finished is None:
        raise EngineError("the engine ended without saying why")
    return finished.reason, finished.usage


def _shorten(
    history: History, turn: Turn, settings: Settings, window: Window, error: ContextTooLong, part: float
) -> Window:
    """Cut a window so that its prompt fits, as the engine says or else to a part of the text.

    Raises `ContextTooLong` when even the last exchange does not fit. A message that is too long by itself is in no
    later prompt: it would drive out everything before it.
    """
    starts = history.exchanges(window)
    if error.fits != 0 and len(starts) > 1:
        fits = _guess(history, starts, part) if error.fits is None else error.fits
        return replace(window, cut=starts[-max(1, min(fits, len(starts) - 1))])
    if window.summary:
        return replace(window, summary="")
    first = history.messages[: leading_systems(history.messages)]
    instructions = len(settings.system or "") + sum(len(message.content) for message in first)
    if turn.base is not None and len(turn.message.content) > instructions:
        history.window = replace(history.window, oversized=history.window.oversized | {turn.base})
        raise ContextTooLong(f"the message is too long by itself: {error.detail}")
    raise error


def _guess(history: History, starts: Sequence[int], part: float) -> int:
    """Count the newest exchanges that have this part of the text of all."""
    messages = history.messages
    sizes = [
        sum(len(message.content) for message in messages[start:end])
        for start, end in pairwise([*starts, len(messages)])
    ]
    room = part * sum(sizes)
    return sum(size <= room for size in accumulate(reversed(sizes)))


async def _summarize(session: "Session", request: GenerationRequest, services: "Services", window: Window) -> str:
    """Have the model write the summary of what is before a window; where it cannot, the one before stays."""
    before = session.history.window
    left = session.history.leaving(before, window.cut, _SUMMARIZED)
    if not left:
        return window.summary
    text = (f"{before.summary}\n\n" if before.summary else "") + render(left)
    key = f"{request.cache_key}/summary"
    try:
        for characters in (_SUMMARIZED, _SUMMARIZED // 8, _SUMMARIZED // 64):
            wanted = GenerationRequest(
                request.id,
                key,
                (Message(role="user", content=_SUMMARIZE + text[-characters:]),),
                Settings(max_tokens=_SUMMARY_TOKENS, temperature=0.0),
                owner=request.owner,
                account=request.account,
                kind=request.kind,
                deadline_seconds=request.deadline_seconds,
            )
            with contextlib.suppress(ContextTooLong):
                said = [item async for item in services.engine.generate(wanted)]
                session.spend(said[-1].usage if isinstance(said[-1], Finished) else Usage())
                summary = "".join(item.text for item in said if isinstance(item, Delta)).strip()
                return summary or before.summary
    except EngineError as error:
        _log.warning("summary.failed", session=session.id, reason=error.detail)
    finally:
        services.engine.forget(key)
    return before.summary
