"""A chat outlives the context of an upstream, which only says that it is too long (S5, S8)."""

import pytest

from cfs.wire import Message, SettingsPatch
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.turns import TurnRequest
from cfs_server.engine.contract.interface import UpstreamKind
from cfs_server.sessions.store import SessionStore
from tests.upstream.stub import WINDOW
from tests.upstream.support import pair


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_conversation_that_is_too_long_is_cut_and_sent_again(kind: UpstreamKind) -> None:
    words = WINDOW // 30
    async with pair(kind) as both, SessionStore(both.engine, StoreLimits(session_events=20_000)) as store:
        store.create("chat", SettingsPatch(system="Be brief."))
        for number in range(40):
            request = TurnRequest(Message(role="user", content=f"{number} " + "word " * words))
            session, turn, _ = store.submit("chat", request)
            result = await turn.result
            assert result.error is None
            assert result.reply.startswith(f"{number} ")
        events = session.log.since(0)
        assert isinstance(events, list)
        shifts = [event for event in events if event.type == "context.shifted"]
        assert 3 <= len(shifts) <= 20
        assert (await both.engine.stats()).gauges["upstream_requests"] == 40 + len(shifts)
        _, alone, _ = store.submit("chat", TurnRequest(Message(role="user", content="word " * (WINDOW + 1))))
        assert "too long by itself" in ((await alone.result).error or "")
        _, after, _ = store.submit("chat", TurnRequest(Message(role="user", content="hello")))
        assert (await after.result).reply == "hello"


async def test_a_history_far_beyond_the_context_is_halved_until_it_fits() -> None:
    async with pair("openai") as both, SessionStore(both.engine) as store:
        store.create("chat", transcript="User: a b c\nAssistant: d e f\n" * WINDOW)
        session, turn, _ = store.submit("chat", TurnRequest(Message(role="user", content="hello")))
        assert (await turn.result).reply == "hello"
        assert len(session.history) == 2 * WINDOW + 2
        assert (await both.engine.stats()).gauges["upstream_requests"] <= 6
