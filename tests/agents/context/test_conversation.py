"""A context is a conversation that any chat API takes: calls and their results belong together (O2)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.errors import Conflict, InvalidParameters
from cfs.wire import Message, ToolCall
from cfs_agents.context import ContextItem, Conversation
from tests.agents.context.support import assistant, call, conversation, item, result, user


def test_messages_come_back_as_they_were_added() -> None:
    """Order, roles, calls and thinking are kept."""
    messages = [
        Message(role="system", content="be brief"),
        user(),
        Message(role="assistant", content="", tool_calls=(call(),), thinking="hm"),
        result("done"),
        assistant("ready"),
    ]
    assert conversation(*messages).messages() == messages


def test_no_request_while_a_call_waits() -> None:
    """A prompt that ends in a call is not valid; the error names the call."""
    context = conversation(user(), assistant("", call("a", "shell"), call("b", "browse")), result("x", "a"))
    with pytest.raises(Conflict, match="browse"):
        context.messages()
    assert [open_call.id for open_call in context.open_calls] == ["b"]


def test_nothing_comes_between_a_call_and_its_result() -> None:
    """A message of a user has to wait until all calls are answered."""
    context = conversation(user(), assistant("", call()))
    with pytest.raises(Conflict, match="wait for their results"):
        context.with_item(item(user("and now?")))


@pytest.mark.parametrize("call_id", ["other", ""])
def test_a_result_answers_an_open_call(call_id: str) -> None:
    """One that no call asked for is refused, also a second one."""
    with pytest.raises(InvalidParameters, match="no call"):
        conversation(user(), assistant("", call())).with_item(item(result("x", call_id)))
    with pytest.raises(InvalidParameters, match="no call"):
        conversation(user(), assistant("", call()), result("x")).with_item(item(result("again")))


def test_ids_that_repeat_are_matched_in_order() -> None:
    """Some models call every call `call_1`, or give no id at all."""
    messages = [user(), *[assistant("", call(n=1), call(n=2)), result("one"), result("two")] * 2]
    context = conversation(*messages)
    assert context.check_integrity() == []
    answered = [context.call_of(entry) for entry in context if entry.item_type == "tool_result"]
    assert [entry.arguments["n"] for entry in answered if entry] == [1, 2, 1, 2]
    assert conversation(user(), assistant("", call("")), result("x", "")).check_integrity() == []


def test_calls_and_results_leave_together() -> None:
    """Half of a unit cannot be taken out."""
    context = conversation(user(), assistant("", call()), result("x"), assistant("ready"))
    for alone in (1, 2):
        with pytest.raises(InvalidParameters, match="together"):
            context.without({context.items[alone].item_id})
    both = {entry.item_id for entry in context.items[1:3]}
    assert [message.role for message in context.without(both).messages()] == ["user", "assistant"]


def test_what_no_model_has_answered_is_unseen() -> None:
    """The results of the last calls with these calls, and new messages of a user."""
    context = conversation(user(), assistant("", call()), result("x"))
    assert [entry.item_id in context.unseen for entry in context] == [False, True, True]
    context = context.with_item(item(assistant("ready")))
    assert context.unseen == frozenset()
    context = context.with_item(item(user("more")))
    assert context.unseen == {context.items[-1].item_id}


@pytest.mark.parametrize("place", [1, 2])
def test_integrity_tells_of_orphans(place: int) -> None:
    """A result without its call, and a call without its result, are told."""
    whole = conversation(user(), assistant("", call()), result("x"), assistant("ready"))
    broken = Conversation(tuple(entry for number, entry in enumerate(whole) if number != place))
    assert whole.check_integrity() == []
    assert len(broken.check_integrity()) == 1


def test_integrity_tells_of_two_items_with_one_id_and_of_a_touched_task() -> None:
    """Ids are unique; what is protected is as it was."""
    entry = item(user(), protected=True)
    assert len(Conversation((entry, entry)).check_integrity()) == 1
    touched = ContextItem(**{name: getattr(entry, name) for name in entry.__slots__} | {"destroyed": True})
    assert len(Conversation((touched,)).check_integrity()) == 1


def test_a_role_has_its_types() -> None:
    """A skill's prompt can come as a user's message, a tool's result as nothing else."""
    assert item(user("skill"), "skill_prompt").item_type == "skill_prompt"
    with pytest.raises(InvalidParameters, match="tool_result"):
        item(user(), "tool_result")


texts = st.text(max_size=20)
plain = st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2))
calls = st.builds(ToolCall, id=texts, name=texts, arguments=st.dictionaries(texts, plain, max_size=2))
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system"]),
    content=texts,
    thinking=st.none() | texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
)


@given(st.lists(st.builds(item, messages), max_size=5), st.data())
def test_a_dump_is_json_and_makes_the_same_context(items: list[ContextItem], data: Any) -> None:
    """Whatever is in the messages, half characters too."""
    context = Conversation(tuple(items))
    assert Conversation.load(json.loads(json.dumps(context.dump()))) == context
