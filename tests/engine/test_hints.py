"""What the sessions tell the engine decides whose state stays in a pool that is too small for all (E3)."""

from pathlib import Path
from typing import Any

from cfs.wire import Message, SettingsPatch, Usage
from cfs_server.domain.turns import TurnRequest
from cfs_server.sessions.store import SessionStore
from tests.engine.support import running


async def turn(store: SessionStore, session_id: str, content: str, tokens: int) -> Usage:
    """Run a whole turn of a session."""
    request = TurnRequest(Message(role="user", content=content), settings=SettingsPatch(max_tokens=tokens))
    _, asked, _ = store.submit(session_id, request)
    return (await asked.result).usage


async def test_whoever_waits_for_children_stays_longer_than_whoever_waits_for_a_user(tiny: Path) -> None:
    """The parent goes on from where it was; the user's session, although it is newer, is read again."""
    small: dict[str, Any] = {"pool_tokens": 768, "context_tokens": 768, "parked_bytes": 0, "idle_seconds": 1e9}
    async with running(tiny, flash_attention=False, **small) as engine, SessionStore(engine) as store:
        parent = await turn(store, "main", "a plan " * 35, 2)
        other = await turn(store, "user", "hi there " * 28, 2)
        child = await turn(store, "main/child", "work", 400)
        assert parent.prompt_tokens + other.prompt_tokens + child.completion_tokens > 768
        before = await engine.stats()
        resumed = await turn(store, "main", "go on", 2)
        after = await engine.stats()
        again = await turn(store, "user", "go on", 2)
    assert resumed.cached_tokens >= parent.prompt_tokens
    assert after.prompt_tokens_evaluated - before.prompt_tokens_evaluated < 60
    assert again.cached_tokens < other.prompt_tokens / 2
