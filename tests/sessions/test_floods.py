"""What a thousand sessions cost those who are interested in a few of them, counted by the looks at sessions."""

from collections.abc import Iterator

import pytest

from cfs_filesystem import InMemoryFileSystem
from cfs_server.domain.ids import SESSIONS
from cfs_server.domain.quotas import Quota
from cfs_server.domain.state import SessionState
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.authorized import AuthorizedSessions
from tests.sessions.support import running_store


class Unwalked(list[str]):
    """A sorted list of ids that may be read in places only."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a page goes through the ids before it")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the sessions whose state is looked at."""
    looks: list[str] = []

    def idle(session: SessionState) -> bool:
        looks.append(session.id)
        return session.running is None and not session.queue

    monkeypatch.setattr(SessionState, "idle", property(idle))
    return looks


async def test_a_wait_for_a_tree_looks_at_none_of_its_sessions_again(looks: list[str]) -> None:
    """A wait for the root of a thousand sessions is woken by each of them, and looks at the root only."""
    async with running_store() as d:
        for number in range(1000):
            d.store.open(f"tree/s{number}")
        d.engine.hold()
        turn = d.say("tree/s500", "hello")
        assert not d.store.is_settled(d.store.get("tree"))
        d.engine.release()
        looks.clear()
        await d.settled("tree")
        assert turn.result.done()
        assert len(looks) < 50


async def test_a_list_of_the_active_sessions_looks_at_these_only(looks: list[str]) -> None:
    """Two of a thousand are busy, and one of them may be listed."""
    async with running_store() as d:
        handle = InMemoryFileSystem([SESSIONS]).create_handle(())
        handle.grants = [{"prefix": "/sessions/s5", "ops": frozenset({"list"})}]
        gate = AuthorizedSessions(d.store, Authorization("bob", handle), d.store.account.part("bob", Quota()))
        for number in range(1000):
            d.store.open(f"s{number}")
        d.engine.hold()
        d.say("s5", "hello")
        d.say("s500", "hello")
        looks.clear()
        assert [session.id for session in gate.active()] == ["s5"]
        assert not looks
        d.engine.release()
        await d.settled("s5")
        await d.settled("s500")
        assert gate.active() == []


async def test_a_page_reads_its_ids_only() -> None:
    """The last page of a thousand costs what the first one does."""
    async with running_store() as d:
        for number in range(1000):
            d.store.open(f"s{number:03}")
        d.store._sessions.roots = Unwalked(d.store._sessions.roots)
        assert [session.id for session in d.store.page(after="s989", limit=3)] == ["s990", "s991", "s992"]
        assert [session.id for session in d.store.page("s99", "s997")] == ["s998", "s999"]
        assert d.store.page("s99", "s999") == []
        d.store._sessions.roots = sorted(d.store._sessions)
