"""Summaries by the model in place of messages that no longer fit into its context (S8)."""

import contextlib

import structlog

from cfs.contract.transcript import render
from cfs.errors import ContextTooLong, EngineError
from cfs.wire import Message, Settings, Usage
from cfs_server.domain.history import History, Window
from cfs_server.engine.contract.interface import Delta, Engine, Finished, GenerationRequest
from cfs_server.sessions import tracing

_PROMPT = (
    "Summarize the following conversation in a few sentences. Keep names, facts, decisions and open questions.\n\n"
)
_MAX_TOKENS = 128
_MAX_CHARACTERS = 1 << 16
"""Maximum number of characters that are summarized: the newest ones."""
_log = structlog.get_logger(__name__)


async def summarize(history: History, request: GenerationRequest, engine: Engine, window: Window) -> tuple[str, Usage]:
    """Return a summary of the messages before a window, and what it cost. On failure the previous summary stays."""
    before = history.window
    left = history.leaving(before, window.cut, _MAX_CHARACTERS)
    if not left:
        return window.summary, Usage()
    text = (f"{before.summary}\n\n" if before.summary else "") + render(left)
    key = f"{request.cache_key}/summary"
    try:
        for characters in (_MAX_CHARACTERS, _MAX_CHARACTERS // 8, _MAX_CHARACTERS // 64):
            summary_request = GenerationRequest(
                request.id,
                key,
                (Message(role="user", content=_PROMPT + text[-characters:]),),
                Settings(max_tokens=_MAX_TOKENS, temperature=0.0, model=request.settings.model),
                owner=request.owner,
                account=request.account,
                family=request.family,
                kind=request.kind,
                deadline_seconds=request.deadline_seconds,
            )
            with contextlib.suppress(ContextTooLong):
                items = [item async for item in tracing.generate(engine, summary_request)]
                usage = items[-1].usage if isinstance(items[-1], Finished) else Usage()
                summary = "".join(item.text for item in items if isinstance(item, Delta)).strip()
                return summary or before.summary, usage
    except EngineError as error:
        _log.warning("summary.failed", session=request.cache_key, reason=error.detail)
    finally:
        engine.forget(key)
    return before.summary, Usage()
