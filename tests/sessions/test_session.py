"""One session: messages, turns, replies, cancelling (S2-S5, S7, S9, S12)."""

import asyncio
from collections.abc import Iterable

import pytest

from cfs.errors import Conflict, Gone, TooMany
from cfs.wire import Message, SettingsPatch
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.turns import TurnRequest
from cfs_server.engine.contract.interface import Delta, Finished, GenerationRequest
from cfs_server.engine.host.scripted import failing
from tests.sessions.support import running_store


async def test_a_message_is_answered() -> None:
    async with running_store() as d:
        turn = d.say("chat", "good morning")
        assert await d.text("chat") == "User: good morning\nAssistant: good morning\n"
        result = await turn.result
        assert (result.reply, result.reason, result.usage.completion_tokens) == ("good morning", "stop", 2)


async def test_acceptance_does_not_wait_for_the_reply() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("chat", "hi")
        session = d.store.get("chat")
        assert (session.state, session.history.text) == ("generating", "User: hi\n")
        d.engine.release()


async def test_the_events_of_a_turn_tell_it_from_beginning_to_end() -> None:
    async with running_store() as d:
        d.say("chat", "one two")
        await d.settled("chat")
        assert d.types("chat") == [
            "session.created", "message.added", "turn.started", "state.changed", "token", "token", "message.added",
            "turn.finished", "state.changed",
        ]  # fmt: skip


async def test_messages_that_arrive_during_a_reply_wait_and_are_answered_in_order() -> None:
    async with running_store() as d:
        d.engine.hold()
        for word in ("one", "two", "three"):
            d.say("chat", word)
        session = d.store.get("chat")
        assert [turn.message.content for turn in session.queue] == ["two", "three"]
        assert session.history.text == "User: one\n"
        d.engine.release()
        assert await d.text("chat") == (
            "User: one\nAssistant: one\nUser: two\nAssistant: two\nUser: three\nAssistant: three\n"
        )


async def test_a_prompt_is_the_complete_history_with_the_settings_of_the_turn() -> None:
    async with running_store() as d:
        d.say("chat", "one")
        await d.settled("chat")
        d.store.get("chat").change_settings(SettingsPatch(temperature=0.0))
        d.store.submit("chat", TurnRequest(Message(role="user", content="two"), settings=SettingsPatch(max_tokens=1)))
        await d.settled("chat")
        request = d.engine.requests[-1]
        assert [message.content for message in request.messages] == ["one", "one", "two"]
        assert (request.settings.temperature, request.settings.max_tokens) == (0.0, 1)
        assert d.store.get("chat").settings.max_tokens == 512


async def test_a_turn_that_would_wait_for_long_is_refused() -> None:
    """With the time after which it would be taken; what needs no engine is taken."""
    async with running_store() as d:
        d.engine.wait = 400.0
        with pytest.raises(TooMany, match="400 seconds") as told:
            d.say("chat", "hi")
        assert told.value.retry_after == 100
        d.say("chat", "a note", generate=False)
        d.engine.wait = 10.0
        d.say("chat", "hi")
        assert (await d.settled("chat")).history.messages[-1].content == "hi"


async def test_the_reply_is_stripped() -> None:
    async with running_store(lambda _: [" \n", "hello", "\n\n"]) as d:
        d.say("chat", "hi")
        assert await d.text("chat") == "User: hi\nAssistant: hello\n"


async def test_a_failed_turn_is_told_in_the_history_and_later_turns_work() -> None:
    def script(request: GenerationRequest) -> Iterable[str | Delta | Finished]:
        if request.messages[-1].content == "fail":
            return failing("out of memory", after=["so", "far"])(request)
        return ["fine"]

    async with running_store(script) as d:
        failed = d.say("chat", "fail")
        d.say("chat", "again")
        assert await d.text("chat") == ("User: fail\nAssistant: [Error: out of memory]\nUser: again\nAssistant: fine\n")
        result = await failed.result
        assert (result.reason, result.error) == ("error", "out of memory")
        assert d.types("chat").count("turn.failed") == 1


async def test_a_defect_of_the_engine_fails_the_turn_and_tells_nothing_of_itself() -> None:
    def script(_: GenerationRequest) -> Iterable[str]:
        raise ZeroDivisionError("secret detail")

    async with running_store(script) as d:
        d.say("chat", "hi")
        assert await d.text("chat") == "User: hi\nAssistant: [Error: internal error]\n"


async def test_a_turn_that_takes_too_long_fails() -> None:
    async with running_store(limits=StoreLimits(turn_seconds=0.01)) as d:
        d.engine.hold()
        d.say("chat", "hi")
        assert "[Error: the turn took longer than 0.01 seconds]" in await d.text("chat")
        assert (await d.engine.stats()).running == 0


async def test_cancelling_keeps_the_partial_reply_and_goes_on_with_the_queue() -> None:
    async with running_store() as d:
        d.engine.hold()
        turn = d.say("chat", "one two three")
        d.say("chat", "next")
        d.engine.step(2)
        while d.store.get("chat").partial != "one two":
            await d.store.get("chat").log.broadcast.wait()
        assert d.store.cancel("chat") == (1, 0)
        d.engine.release()
        assert await d.text("chat") == (
            "User: one two three\nAssistant: one two [Cancelled]\nUser: next\nAssistant: next\n"
        )
        assert (await turn.result).reason == "cancelled"


async def test_cancelling_before_the_first_token_leaves_only_the_mark() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("chat", "one")
        assert d.store.cancel("chat") == (1, 0)
        assert d.store.cancel("chat") == (0, 0), "a second call has nothing left to cancel"
        assert await d.text("chat") == "User: one\nAssistant: [Cancelled]\n"


async def test_queued_turns_are_cancelled_when_asked_for() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("chat", "one")
        queued = d.say("chat", "two")
        assert d.store.cancel("chat", queued=True) == (1, 1)
        assert await d.text("chat") == "User: one\nAssistant: [Cancelled]\n"
        assert (await queued.result).reason == "cancelled"


async def test_messages_without_a_turn_are_only_added_in_their_place() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("chat", "one")
        d.store.submit("chat", TurnRequest(Message(role="tool", content="42"), generate=False))
        d.engine.release()
        assert await d.text("chat") == "User: one\nAssistant: one\nTool: 42\n"


async def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    async with running_store(limits=StoreLimits(queued_turns=2)) as d:
        d.engine.hold()
        for word in ("one", "two", "three"):
            d.say("chat", word)
        with pytest.raises(TooMany) as refused:
            d.say("chat", "four")
        assert refused.value.retry_after
        d.engine.release()
        assert "four" not in await d.text("chat")
        assert d.store.get("chat").history.text.count("User: ") == 3


async def test_deleting_cancels_everything_and_wakes_every_reader() -> None:
    async with running_store() as d:
        d.engine.hold()
        running, queued = d.say("chat", "one"), d.say("chat", "two")
        session = d.store.get("chat")
        readers = [asyncio.create_task(d.store.wait_settled(session)) for _ in range(3)]
        await asyncio.sleep(0)
        d.store.delete("chat")
        for reader in readers:
            with pytest.raises(Gone):
                await reader
        for turn in (running, queued):
            with pytest.raises(Gone):
                await turn.result
        assert session.key in d.engine.forgotten
        last = [event async for events in session.log.follow(session.log.last - 1) for event in events]  # type: ignore[union-attr]
        assert [event.type for event in last] == ["session.deleted"]


async def test_a_reader_that_waits_costs_one_future_and_frees_it_when_it_goes() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("chat", "one")
        session = d.store.get("chat")
        assert await d.store.wait_settled(session, timeout=0.001) is False
        assert session.changed.waiting == 0
        d.engine.release()
        assert await d.store.wait_settled(session, timeout=60) is True


async def test_settings_change_for_the_next_turn_and_say_so_once() -> None:
    async with running_store() as d:
        d.store.open("chat")
        session = d.store.get("chat")
        session.change_settings(SettingsPatch(top_k=1))
        session.change_settings(SettingsPatch(top_k=1))
        assert d.types("chat").count("settings.changed") == 1


async def test_the_version_of_a_view_changes_with_the_history_only() -> None:
    async with running_store() as d:
        d.store.open("chat")
        session = d.store.get("chat")
        empty = session.etag
        session.change_settings(SettingsPatch(top_k=1))
        assert session.etag == empty
        d.say("chat", "one")
        await d.settled("chat")
        assert session.etag != empty


async def test_the_history_of_a_busy_session_is_not_replaced() -> None:
    async with running_store() as d:
        d.engine.hold()
        d.say("chat", "one")
        with pytest.raises(Conflict, match="generating"):
            d.store.replace("chat", "User: other\n", d.store.get("chat").etag)
        d.engine.release()
        assert await d.text("chat") == "User: one\nAssistant: one\n"
