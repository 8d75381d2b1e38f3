"""All sessions: names, families, limits, copies, waiting, the end (S2, S11-S14, P3)."""

import asyncio

import pytest

from cfs.errors import (
    AlreadyExists,
    Conflict,
    InvalidIdentifier,
    InvalidTranscript,
    NotFound,
    PreconditionFailed,
    StorageFull,
    TooLarge,
    Unavailable,
)
from cfs.wire import SettingsPatch, Usage
from cfs_server.domain.quotas import StoreLimits
from tests.sessions.support import StoreHarness, running_store


def ids(d: StoreHarness, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
    return [session.id for session in d.store.page(prefix, after, limit)]


async def test_opening_an_unknown_name_makes_an_empty_session() -> None:
    async with running_store() as d:
        assert d.store.open("chat").history.text == ""
        assert d.store.open("chat") is d.store.get("chat")
        assert d.types("chat") == ["session.created"]


async def test_without_a_name_a_new_one_is_made() -> None:
    async with running_store() as d:
        assert d.store.create().id != d.store.create().id


async def test_a_transcript_becomes_a_history_without_a_turn() -> None:
    async with running_store() as d:
        text = "System: be brief\nUser: hi\nAssistant: hello\n"
        d.store.create("old", SettingsPatch(seed=1), text)
        assert await d.text("old") == text
        assert (d.engine.requests, d.store.get("old").settings.seed) == ([], 1)
        with pytest.raises(AlreadyExists):
            d.store.create("old")
        with pytest.raises(InvalidTranscript):
            d.store.create("bad", transcript="no turns")
        with pytest.raises(InvalidIdentifier):
            d.store.create(".bad")
        assert ids(d) == ["old"]


async def test_listing_is_by_id_in_pages_of_roots_or_of_one_parents_children() -> None:
    async with running_store() as d:
        for name in ("b", "a", "c", "a/2", "a/1", "a/1/x", "ab"):
            d.store.open(name)
        assert ids(d) == ["a", "ab", "b", "c"]
        assert ids(d, limit=2) == ["a", "ab"]
        assert ids(d, after="ab", limit=2) == ["b", "c"]
        assert ids(d, prefix="a") == ["a", "ab"]
        assert ids(d, prefix="a/") == ["a/1", "a/2"]
        assert ids(d, prefix="a/", after="a/1") == ["a/2"]
        assert ids(d, prefix="nobody/") == []


async def test_a_sub_session_brings_its_parents_and_goes_with_them() -> None:
    async with running_store() as d:
        d.store.open("main/coder/tester")
        d.store.open("mainly")
        family = [session.id for session in d.store.family(d.store.get("main"))]
        assert family == ["main", "main/coder", "main/coder/tester"]
        d.store.delete("main")
        assert ids(d) == ["mainly"]
        with pytest.raises(NotFound):
            d.store.get("main/coder")


async def test_a_session_is_settled_when_everything_below_it_is() -> None:
    async with running_store() as d:
        d.engine.hold()
        root = d.store.open("main")
        d.say("main/coder/tester", "work")
        assert not d.store.is_settled(root)
        waiting = asyncio.create_task(d.store.wait_settled(root))
        await asyncio.sleep(0)
        assert root.changed.waiting == 1
        d.engine.release()
        assert await waiting
        assert d.store.is_settled(root)


async def test_a_deleted_child_no_longer_keeps_its_parent_unsettled() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("main/coder", "work")
        waiting = asyncio.create_task(d.store.wait_settled(d.store.get("main")))
        await asyncio.sleep(0)
        d.store.delete("main/coder")
        assert await waiting


async def test_cancelling_a_session_reaches_its_sub_sessions_when_asked() -> None:
    async with running_store() as d:
        d.engine.hold()
        for name in ("main", "main/a", "main/a/b", "other"):
            d.say(name, "work")
        assert d.store.cancel("main", cascade=True) == (3, 0)
        await d.settled("main")
        assert d.store.get("other").state == "generating"
        d.engine.release()


async def test_turns_of_different_sessions_run_side_by_side() -> None:
    async with running_store() as d:
        d.engine.hold()
        for name in ("a", "b", "c"):
            d.say(name, "work")
        await asyncio.sleep(0)
        assert (await d.engine.stats()).running == 3
        d.engine.release()


async def test_a_fork_goes_on_on_its_own() -> None:
    async with running_store() as d:
        d.say("a", "one")
        await d.settled("a")
        d.store.get("a").change_settings(SettingsPatch(seed=5))
        fork = d.store.fork("a", "b")
        d.say("b", "two")
        assert await d.text("b") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
        assert await d.text("a") == "User: one\nAssistant: one\n"
        assert fork.settings.seed == 5
        assert d.store.fork("a", messages=1).history.text == "User: one\n"
        with pytest.raises(Conflict, match="2 messages"):
            d.store.fork("a", messages=3)
        with pytest.raises(AlreadyExists):
            d.store.fork("a", "b")


async def test_a_fork_of_a_busy_session_ends_before_the_turn_that_runs() -> None:
    async with running_store() as d:
        d.say("a", "one")
        await d.settled("a")
        d.engine.hold()
        d.say("a", "two")
        assert d.store.fork("a", "b").history.text == "User: one\nAssistant: one\n"
        assert d.store.get("b").state == "idle"
        d.engine.release()


async def test_renaming_takes_the_family_the_log_and_the_running_turn_along() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("old", "hi")
        d.store.open("old/sub")
        key, last = d.store.get("old").key, d.store.get("old").log.last
        d.store.rename("old", "new")
        assert ids(d) == ["new"]
        assert ids(d, prefix="new/") == ["new/sub"]
        assert d.store.get("new").key == key
        assert d.types("new", last) == ["session.deleted", "session.created"]
        d.engine.release()
        assert await d.text("new") == "User: hi\nAssistant: hi\n"


async def test_renaming_over_a_session_or_into_itself_is_refused() -> None:
    async with running_store() as d:
        d.store.open("a")
        d.store.open("b")
        with pytest.raises(AlreadyExists):
            d.store.rename("a", "b")
        with pytest.raises(Conflict):
            d.store.rename("a", "a/b")
        with pytest.raises(InvalidIdentifier):
            d.store.rename("a", ".x")
        assert d.store.rename("a", "a").id == "a"
        assert ids(d) == ["a", "b"]


async def test_a_transcript_is_replaced_only_against_its_present_version() -> None:
    async with running_store() as d:
        d.say("a", "one")
        session = await d.settled("a")
        old = session.etag
        d.store.replace("a", "User: edited\nAssistant: yes\n", old)
        assert session.history.text == "User: edited\nAssistant: yes\n"
        with pytest.raises(PreconditionFailed):
            d.store.replace("a", "User: stale\n", old)
        d.say("a", "two")
        await d.settled("a")
        assert [message.content for message in d.engine.requests[-1].messages] == ["edited", "yes", "two"]


HISTORY = "User: one\nAssistant: two\n"


@pytest.mark.parametrize("last", ["", "User: three\n", "Tool: three\n"])
async def test_a_history_that_ends_with_an_unanswered_message_gets_its_turn(last: str) -> None:
    """However it comes to be: by an import, an edit, or a copy that ends there; nothing else begins a turn (S14)."""
    answered = HISTORY + last + ("Assistant: three\n" if last.startswith("User") else "")
    async with running_store() as d:
        d.store.create("a", transcript=HISTORY + last)
        d.store.open("b")
        d.store.replace("b", HISTORY + last, d.store.get("b").etag)
        d.store.create("c", transcript=HISTORY + last + "Assistant: four\n")
        d.store.fork("c", "d", messages=2 + bool(last))
        for name in "abd":
            assert await d.text(name) == answered
            assert d.types(name).count("turn.started") == d.types(name).count("turn.finished") == bool("User" in last)
        assert "turn.started" not in d.types("c")


async def test_a_copy_of_a_whole_session_answers_nothing() -> None:
    """Its last message may have been one to be kept only."""
    async with running_store() as d:
        d.say("a", "note", generate=False)
        assert d.store.fork("a", "b").idle
        assert await d.text("b") == "User: note\n"


async def test_an_unanswered_message_waits_for_an_agent_and_is_renamed_with_its_session() -> None:
    async with running_store() as d:
        d.store.create("a", SettingsPatch(driver="agent"), HISTORY + "User: three\n")
        d.store.rename("a", "b")
        session = d.store.get("b")
        assert (session.state, session.history.text) == ("waiting_for_agent", HISTORY + "User: three\n")
        turn = session.claim(30)
        assert turn is not None
        assert turn.message.content == "three"
        session.finish(turn.id, turn.lease.secret if turn.lease else "", reply="four", error=None, usage=Usage())
        assert session.history.text == HISTORY + "User: three\nAssistant: four\n"


async def test_an_unanswered_message_that_is_refused_leaves_nothing_behind() -> None:
    async with running_store(limits=StoreLimits(message_bytes=10)) as d:
        d.store.create("a", transcript=HISTORY)
        with pytest.raises(TooLarge):
            d.store.create("b", transcript=HISTORY + "User: " + "x" * 11)
        with pytest.raises(TooLarge):
            d.store.replace("a", HISTORY + "User: " + "x" * 11, "*")
        with pytest.raises(NotFound):
            d.store.get("b")
        assert d.store.get("a").history.text == HISTORY


async def test_the_number_of_sessions_and_their_bytes_are_bounded() -> None:
    async with running_store(limits=StoreLimits(sessions=2)) as d:
        d.store.open("a")
        d.store.open("b")
        with pytest.raises(StorageFull, match="2 sessions"):
            d.store.open("c")
        d.store.delete("a")
        d.store.open("c")
    async with running_store(limits=StoreLimits(total_bytes=1500)) as d:
        with pytest.raises(StorageFull, match="1500 bytes"):
            d.say("a", "x" * 1000)
        assert len(d.store) == 0, "a refused message makes no session"
        d.say("a", "x" * 5)
        await d.settled("a")
        with pytest.raises(StorageFull):
            d.store.create("b", transcript="User: too much for what is left\n")
        d.store.delete("a")
        d.store.create("b", transcript="User: now it fits\n")


async def test_the_stream_of_all_sessions_is_ordered() -> None:
    async with running_store() as d:
        for name in ("a", "b"):
            d.say(name, "one two")
        for name in ("a", "b"):
            await d.settled(name)
        events = d.store.bus.log.since(0)
        assert isinstance(events, list)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        for name in ("a", "b"):
            own = [event.number for event in events if event.session == name]
            assert own == list(range(1, len(own) + 1))


async def test_draining_lets_turns_finish_refuses_new_ones_and_says_goodbye() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("a", "one")
        session = d.store.get("a")
        draining = asyncio.create_task(d.store.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            d.say("b", "too late")
        d.engine.release()
        await draining
        assert session.history.text == "User: one\nAssistant: one\n"
        assert session.log.closed
        assert session.log.goodbye
        assert d.store.bus.log.goodbye


async def test_turns_that_outlast_the_grace_time_are_marked() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("a", "one")
        d.say("a", "two")
        session = d.store.get("a")
        await d.store.drain(0.001)
        assert session.history.text == (
            "User: one\nAssistant: [Error: the server was shut down]\n"
            "User: two\nAssistant: [Error: the server was shut down]\n"
        )
