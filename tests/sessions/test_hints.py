"""The engine hears what each session does until its next turn (E3)."""

from collections.abc import AsyncIterator

import pytest

from cfs.wire import Message, SettingsPatch, ToolCall, Usage
from cfs_server.engine.contract.interface import Hint
from cfs_server.sessions.hints import Workload, hint_for
from tests.sessions.support import StoreHarness, running_store

CALL = Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name="run", arguments={}),))
RESULT = Message(role="tool", content="42", tool_call_id="1")


@pytest.mark.parametrize(
    ("now", "last", "hint"),
    [
        (Workload(), None, "user_turn"),
        (Workload(), "user_turn", "user_turn"),
        (Workload(), "waiting_for_children", "children_done"),
        (Workload(), "children_done", "children_done"),
        (Workload(children_at_work=True), "user_turn", "waiting_for_children"),
        (Workload(at_work=True, children_at_work=True, calls_tool=True), None, "waiting_for_children"),
        (Workload(at_work=True, calls_tool=True), None, "tool_call"),
        (Workload(at_work=True), "tool_call", None),
        (Workload(at_work=True, answering=True, children_at_work=True), "waiting_for_children", None),
    ],
)
def test_the_hint_follows_from_the_workload(now: Workload, last: Hint | None, hint: Hint | None) -> None:
    """While the model computes there is none."""
    assert hint_for(now, last) == hint


@pytest.fixture
async def d() -> AsyncIterator[StoreHarness]:
    """A store whose engine is held still."""
    async with running_store() as opened:
        opened.engine.hold()
        yield opened
        opened.engine.release()


def heard(d: StoreHarness, session_id: str) -> list[str]:
    """What the engine was told of a session."""
    key = d.store.get(session_id).key
    return [hint for told, hint in d.engine.hints if told == key]


async def idle(d: StoreHarness, session_id: str) -> None:
    """Wait for the end of a session's own turns."""
    session = d.store.get(session_id)
    while not session.idle:
        await session.changed.wait()


async def test_a_finished_turn_leaves_the_session_to_its_user(d: StoreHarness) -> None:
    """Once, when the last of the turns that wait is over."""
    d.say("chat", "one")
    d.say("chat", "two")
    assert heard(d, "chat") == []
    d.engine.release()
    await d.settled("chat")
    assert heard(d, "chat") == ["user_turn"]
    d.say("chat", "again")
    await d.settled("chat")
    assert heard(d, "chat") == ["user_turn", "user_turn"], "the turn in between has changed what the engine expects"


async def test_a_session_waits_for_its_children_and_then_resumes(d: StoreHarness) -> None:
    """At any depth; the last child that finishes says that its parents will go on soon."""
    d.say("main", "delegate")
    d.say("main/a", "work")
    d.say("main/a/deep", "work")
    d.say("main/b", "work")
    assert heard(d, "main") == [], "its own turn runs"
    for busy in ("main", "main/b", "main/a", "main/a/deep"):
        d.store.cancel(busy)
        await idle(d, busy)
        if busy != "main/a/deep":
            assert heard(d, "main") == ["waiting_for_children"]
    assert heard(d, "main") == ["waiting_for_children", "children_done"]
    assert heard(d, "main/a") == ["waiting_for_children", "children_done"]
    assert heard(d, "main/b") == ["user_turn"]


async def test_a_child_that_is_deleted_or_moved_away_is_waited_for_no_more(d: StoreHarness) -> None:
    """And its new parent waits for it."""
    d.store.open("main")
    d.say("main/a", "work")
    d.say("main/b", "work")
    d.store.delete("main/a")
    assert heard(d, "main") == ["waiting_for_children"]
    d.store.rename("main/b", "other/b")
    assert heard(d, "main") == ["waiting_for_children", "children_done"]
    assert heard(d, "other") == ["waiting_for_children"]


async def test_an_agent_that_called_a_tool_comes_back_soon(d: StoreHarness) -> None:
    """From the call to its result, each time; an agent that thinks is asking the model itself."""
    d.store.create("a", SettingsPatch(driver="agent"))
    d.say("a", "build it")
    session = d.store.get("a")
    turn = session.claim(60)
    assert turn is not None
    assert turn.lease is not None
    secret = turn.lease.secret

    def update(*messages: Message, text: str = "") -> None:
        session.update(turn.id, secret, text=text, messages=messages, lease_seconds=60)

    update(text="let me see")
    assert heard(d, "a") == []
    update(CALL)
    update(text="still waiting")
    assert heard(d, "a") == ["tool_call"]
    update(RESULT)
    update(CALL)
    assert heard(d, "a") == ["tool_call", "tool_call"]
    d.say("a/helper", "help")
    assert heard(d, "a")[2:] == ["waiting_for_children"]
    d.store.delete("a/helper")
    assert heard(d, "a")[3:] == ["tool_call"]
    session.finish(turn.id, secret, reply="done", error=None, usage=Usage())
    assert heard(d, "a")[4:] == ["user_turn"]


async def test_a_message_that_wants_no_answer_in_the_middle_of_work_says_nothing(d: StoreHarness) -> None:
    """Between two turns of one queue a session is not idle for a moment."""
    d.store.open("main")
    d.say("main/a", "one")
    d.say("main/a", "two", generate=False)
    d.say("main/a", "three")
    d.engine.release()
    await d.settled("main")
    assert heard(d, "main") == ["waiting_for_children", "children_done"]
