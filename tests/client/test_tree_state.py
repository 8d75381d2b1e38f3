"""What is read from the sessions of agents: how their work ended, what runs, and how long it took."""

import json
from pathlib import Path
from typing import Any

import pytest

from cfs.state.tree_state import agent_of, outcome_of, running_call
from cfs.wire import Message, SessionDetail, Settings, ToolCall

CASES = json.loads((Path(__file__).parent.parent / "fixtures/outcomes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["about"])
def test_how_an_agent_ended(case: Any) -> None:
    """The dashboard gives the same for each case (tests/dashboard/agents.test.mjs)."""
    found = outcome_of(case["state"], [Message.model_validate(each) for each in case["messages"]])
    expected = case["outcome"]
    assert (None if found is None else {"kind": found.status, "text": found.text}) == expected
    assert found is None or found.ok == (expected["kind"] == "finished")


def asks(*names: str) -> Message:
    """A reply that calls tools; the ids are the names."""
    return Message(role="assistant", content="", tool_calls=tuple(ToolCall(id=n, name=n, arguments={}) for n in names))


def test_the_running_tool_is_the_last_call_without_a_result() -> None:
    history = [Message(role="user", content="go"), asks("a", "b"), Message(role="tool", content="", tool_call_id="b")]
    found = running_call(history)
    assert found is not None
    assert (found[0], found[1].name) == (1, "a")
    assert running_call([*history, Message(role="tool", content="", tool_call_id="a")]) is None
    assert running_call([*history, Message(role="user", content="stop")]) is None
    assert running_call([]) is None


def detail(state: str, times: tuple[float, ...], *history: Message) -> SessionDetail:
    return SessionDetail.model_validate(
        {
            "id": "main/coder",
            "state": state,
            "queued": 0,
            "messages": len(history),
            "size": 0,
            "created_at": 0.0,
            "updated_at": 0.0,
            "sub_sessions": 0,
            "event": 1,
            "etag": "x",
            "history": history,
            "times": times,
            "queue": (),
            "partial": None,
            "settings": Settings(),
        }
    )


def test_the_time_of_an_agent_is_that_of_its_turns() -> None:
    """Not the time between them; a running turn lasts until now."""
    user, said = Message(role="user", content="go"), Message(role="assistant", content="done")
    ended = agent_of(detail("idle", (10, 13, 100, 104), user, said, user, said), paused=False, now=500)
    assert (ended.seconds, ended.tool, ended.outcome and ended.outcome.text) == (7, None, "done")
    works = agent_of(detail("generating", (10, 13, 100, 102), user, said, user, asks("ls")), paused=True, now=110)
    assert (works.seconds, works.tool, works.tool_since, works.paused) == (13, "ls", 102, True)
    assert (works.name, works.depth, works.outcome) == ("coder", 1, None)
    assert agent_of(detail("idle", ()), paused=False, now=1).seconds == 0
