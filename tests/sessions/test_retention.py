"""Sessions are deleted when they have not changed for as long as they are to be kept."""

from dataclasses import dataclass

import pytest

from cfs.api import EVENTS
from cfs.wire import Keep, SettingsPatch, seconds_of
from cfs_server.sessions import retention
from cfs_server.sessions.retention import Retention
from cfs_server.sessions.session import Session
from tests.server.support import running_server
from tests.sessions.support import StoreHarness, running_store

DAY = 86_400.0


@dataclass
class ManualClock:
    """A time that a test sets, relative to the last change of a session."""

    session: Session
    days: float = 0.0

    def __call__(self) -> float:
        return self.session.updated_at + self.days * DAY


def names(d: StoreHarness) -> list[str]:
    return sorted(session.id for session in d.store)


def aged(d: StoreHarness, keep: Keep, days: float) -> Retention:
    """A retention whose clock says that so many days have passed since the newest change."""
    newest = max(d.store, key=lambda session: session.updated_at)
    return Retention(d.store, keep, ManualClock(newest, days))


@pytest.mark.parametrize(
    ("span", "days"), [("90m", 1 / 16), ("12h", 0.5), ("90d", 90), ("2w", 14), ("1y", 365), ("forever", float("inf"))]
)
def test_a_time_is_a_number_and_a_unit(span: Keep, days: float) -> None:
    assert seconds_of(span) == days * DAY


async def test_what_has_not_changed_for_so_long_is_deleted_with_all_below_it() -> None:
    async with running_store() as d:
        for name in ("old/a/b", "old/c", "young"):
            d.store.open(name)
        clock = ManualClock(d.store.get("old"), days=89)
        cleaner = Retention(d.store, "90d", clock)
        d.store.get("young").updated_at += 10 * DAY
        assert await cleaner.sweep() == 0
        clock.days = 90.1
        assert await cleaner.sweep() == 4
        assert names(d) == ["young"]


async def test_a_change_anywhere_in_a_tree_keeps_the_tree() -> None:
    async with running_store() as d:
        d.store.open("main/coder/tester")
        clock = ManualClock(d.store.get("main"), days=100)
        d.store.get("main/coder/tester").updated_at += 50 * DAY
        cleaner = Retention(d.store, "90d", clock)
        assert await cleaner.sweep() == 0
        clock.days = 141
        assert await cleaner.sweep() == 3


async def test_for_ever_is_the_default_and_a_session_may_say_otherwise() -> None:
    async with running_store() as d:
        d.store.create("short", SettingsPatch(keep="1d"))
        d.store.open("plain")
        assert await aged(d, "forever", 10_000).sweep() == 1
        assert names(d) == ["plain"]


async def test_a_session_that_is_kept_for_ever_outlives_the_servers_limit() -> None:
    async with running_store() as d:
        d.store.create("kept", SettingsPatch(keep="forever"))
        d.store.open("parent")
        d.store.create("parent/kept", SettingsPatch(keep="forever"))
        d.store.open("parent/other")
        d.store.open("plain")
        assert await aged(d, "1d", 10_000).sweep() == 1
        assert names(d) == ["kept", "parent", "parent/kept", "parent/other"]


async def test_a_sub_session_goes_alone_only_if_it_says_so() -> None:
    async with running_store() as d:
        d.store.create("main", SettingsPatch(keep="10d"))
        d.store.create("main/short", SettingsPatch(keep="1d"))
        d.store.open("main/short/below")
        d.store.open("main/long")
        assert await aged(d, "forever", 2).sweep() == 2
        assert names(d) == ["main", "main/long"]
        assert await aged(d, "forever", 11).sweep() == 2


async def test_nothing_is_deleted_while_a_turn_runs_or_waits() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("busy/below", "hi")
        d.store.create("agent", SettingsPatch(driver="agent"))
        d.say("agent", "hi")
        assert await aged(d, "1d", 2).sweep() == 0
        d.engine.release()
        await d.settled("busy")
        assert await aged(d, "1d", 2).sweep() == 2
        assert names(d) == ["agent"]


async def test_all_of_many_sessions_are_seen_and_others_may_work_in_between() -> None:
    async with running_store() as d:
        for number in range(1_000):
            d.store.create(f"s{number:04}", SettingsPatch(keep="1d" if number % 2 else "forever"))
        assert await aged(d, "1m", 2).sweep() == 500
        assert len(d.store) == 500


async def test_a_server_deletes_what_is_due_and_readers_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROUND_SECONDS", 0.001)
    async with running_server(keep="30d") as server:
        for name in ("old", "young"):
            await server.say(name, "hi", wait="true")
        async with server.client.stream("GET", "/v1/sessions/old/events", headers={"Accept": EVENTS}) as events:
            server.store.get("old").updated_at -= 31 * DAY
            assert any([line == "event: session.deleted" async for line in events.aiter_lines()])
        assert (await server.client.get("/v1/sessions/old")).status_code == 404
        assert (await server.client.get("/v1/sessions/young")).status_code == 200
