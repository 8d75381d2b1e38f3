"""Sessions that an agent answers (S10)."""

import pytest

from cfs.errors import Conflict, Forbidden, NotFound
from cfs.wire import Message, SettingsPatch, Usage
from cfs_server.domain.turns import Turn
from cfs_server.engine.contract.interface import Delta
from tests.sessions.support import StoreHarness, running_store

AGENT = SettingsPatch(driver="agent")


def claim(d: StoreHarness, lease: float = 60) -> Turn:
    turn = d.store.get("a").claim(lease)
    assert turn is not None
    assert turn.lease is not None
    return turn


def secret(turn: Turn) -> str:
    assert turn.lease is not None
    return turn.lease.secret


def update(d: StoreHarness, turn: Turn, text: str = "", *messages: Message, lease: float = 60) -> None:
    d.store.get("a").update(turn.id, secret(turn), text=text, messages=messages, lease_seconds=lease)


def finish(d: StoreHarness, turn: Turn, reply: str | None = None, error: str | None = None) -> None:
    d.store.get("a").finish(turn.id, secret(turn), reply=reply, error=error, usage=Usage())


async def test_the_server_announces_but_does_not_answer() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "build it")
        session = d.store.get("a")
        assert (session.state, d.engine.requests) == ("waiting_for_agent", [])
        event = session.log.since(session.log.last - 1)[0]  # type: ignore[index]
        assert event.data["detail"] == "no agent attached"


async def test_an_agent_claims_streams_calls_tools_and_finishes() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "build it")
        turn = claim(d)
        assert turn.message.content == "build it"
        assert d.store.get("a").claim(60) is None, "one turn at a time"
        update(d, turn, "work")
        update(d, turn, "ing", Message(role="assistant", content="call"), Message(role="tool", content="42"))
        assert d.store.get("a").partial == "working"
        finish(d, turn)
        assert await d.text("a") == "User: build it\nAssistant: call\nTool: 42\nAssistant: working\n"
        assert (await turn.result).reason == "stop"


async def test_a_cancelled_turn_has_each_text_once() -> None:
    """What was streamed is a part of the message that holds it, and no reply besides."""
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "build it")
        turn = claim(d)
        update(d, turn, "I lo")
        update(d, turn, "", Message(role="assistant", content="I look."), Message(role="tool", content="42"))
        update(d, turn, "It is")
        d.store.get("a").cancel(queued=False)
        assert await d.text("a") == "User: build it\nAssistant: I look.\nTool: 42\nAssistant: It is [Cancelled]\n"


async def test_an_agent_may_give_its_reply_whole_or_fail() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "one")
        d.say("a", "two")
        finish(d, claim(d), reply="done")
        finish(d, claim(d), error="no idea")
        assert await d.text("a") == "User: one\nAssistant: done\nUser: two\nAssistant: [Error: no idea]\n"


async def test_when_the_lease_ends_the_message_waits_for_the_next_agent() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "one")
        session = d.store.get("a")
        dead = claim(d, lease=0.01)
        held = secret(dead)
        session.add(dead, Delta("half a rep", 1))
        while session.state != "waiting_for_agent":
            await session.changed.wait()
        turn = claim(d)
        assert turn.id == dead.id
        with pytest.raises(Forbidden):
            session.finish(dead.id, held, reply="late", error=None, usage=Usage())
        finish(d, turn, reply="answered")
        assert await d.text("a") == "User: one\nAssistant: answered\n"


async def test_each_call_renews_the_lease() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "one")
        turn = claim(d, lease=60)
        first, timer = turn.lease, turn.timer
        assert first is not None
        assert timer is not None
        update(d, turn, lease=120)
        assert turn.lease is not None
        assert timer.cancelled()
        assert turn.lease.secret == first.secret
        assert turn.lease.expires_at > first.expires_at + 30
        finish(d, turn, reply="still mine")
        assert turn.timer is not None
        assert turn.timer.cancelled()


async def test_only_the_holder_may_touch_a_turn() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "one")
        turn = claim(d)
        session = d.store.get("a")
        with pytest.raises(Forbidden):
            session.finish(turn.id, "guess", reply="x", error=None, usage=Usage())
        with pytest.raises(NotFound):
            session.finish("other", secret(turn), reply="x", error=None, usage=Usage())
        finish(d, turn, reply="ok")


async def test_a_cancelled_agent_learns_of_it_at_its_next_call() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "one")
        turn = claim(d)
        held = secret(turn)
        update(d, turn, "so far")
        assert d.store.cancel("a") == (1, 0)
        assert await d.text("a") == "User: one\nAssistant: so far [Cancelled]\n"
        with pytest.raises(NotFound, match="cancelled"):
            d.store.get("a").update(turn.id, held, text="x", messages=(), lease_seconds=1)


async def test_handing_a_session_back_to_the_model_answers_what_waits() -> None:
    async with running_store() as d:
        d.store.create("a", AGENT)
        d.say("a", "one")
        d.store.get("a").change_settings(SettingsPatch(driver="model"))
        assert await d.text("a") == "User: one\nAssistant: one\n"
        with pytest.raises(Conflict, match="driver=agent"):
            d.store.get("a").claim(60)
