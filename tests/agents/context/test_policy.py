"""Which items go to disk by themselves (O3), and whose old outputs go (O4)."""

import dataclasses

import pytest

from cfs.errors import InvalidSettings
from cfs.wire import Message
from cfs_agents.context import ContextItem, Conversation, EphemeralPolicy, ItemType, OffloadPolicy
from tests.agents.context.support import assistant, call, conversation, item, result, user, words

LARGE = words(2500)
DEFAULTS: dict[ItemType, bool] = {
    "tool_result": True,
    "user_message": True,
    "skill_prompt": True,
    "assistant_message": False,
    "compaction_summary": False,
    "system_prompt": False,
}


def of_type(item_type: ItemType, content: str = LARGE) -> ContextItem:
    """An item of a type."""
    role = {"tool_result": "tool", "assistant_message": "assistant", "system_prompt": "system"}.get(item_type, "user")
    state = {"role": role, "content": content, "tool_call_id": "call_1" if role == "tool" else None}
    return item(Message.model_validate(state), item_type)


def seen(*items: ContextItem) -> Conversation:
    """A context in which a model has answered to everything."""
    return Conversation(items).with_item(item(assistant("ready")))


@pytest.mark.parametrize(("item_type", "goes"), DEFAULTS.items())
def test_the_types_that_go(item_type: ItemType, goes: bool) -> None:
    """Results, messages of the user and prompts of skills do; others do not unless asked."""
    entry = of_type(item_type)
    context = (
        seen(entry)
        if item_type != "tool_result"
        else conversation(user(), assistant("", call()), result(LARGE), assistant(""))
    )
    chosen = OffloadPolicy().choose(context)
    assert len(chosen) == int(goes)


@pytest.mark.parametrize(("tokens", "goes"), [(2000, False), (2001, True)])
def test_only_what_is_above_two_thousand_tokens_goes(tokens: int, goes: bool) -> None:
    """As counted, not as guessed."""
    entry = dataclasses.replace(of_type("user_message", "short"), tokens=tokens, seen=True)
    assert (OffloadPolicy().choose(Conversation((entry,))) == [entry.item_id]) == goes


def test_a_summary_never_goes() -> None:
    """A caller who asks for that has misunderstood something."""
    with pytest.raises(InvalidSettings, match="compaction_summary"):
        OffloadPolicy(type_enabled={"compaction_summary": True})


def test_each_type_can_be_switched() -> None:
    """A type that is not named keeps its default."""
    policy = OffloadPolicy(type_enabled={"assistant_message": True, "user_message": False})
    assert policy.choose(seen(of_type("user_message"))) == []
    large = seen(of_type("assistant_message"))
    assert policy.choose(large) == [large.items[0].item_id]
    assert policy.type_enabled == {**DEFAULTS, "assistant_message": True, "user_message": False}
    assert OffloadPolicy().type_enabled == DEFAULTS


@pytest.mark.parametrize("flag", ["protected", "pinned", "offloaded", "destroyed"])
def test_what_never_goes(flag: str) -> None:
    """The first message of a task, what was put back, and what has no content of its own any more."""
    entry = ContextItem.load(of_type("user_message").dump() | {flag: True, "seen": True})
    assert OffloadPolicy().choose(Conversation((entry,))) == []


def test_nothing_goes_where_it_is_switched_off() -> None:
    """`offload_enabled=False`."""
    assert OffloadPolicy(enabled=False).choose(seen(of_type("user_message"))) == []


def test_what_no_model_has_seen_stays() -> None:
    """A result goes after the model has read it, or reading it back would never end."""
    context = conversation(user(), assistant("", call()), result(LARGE))
    assert OffloadPolicy().choose(context) == []
    answered = context.with_item(item(assistant("I see")))
    assert OffloadPolicy().choose(answered) == [context.items[2].item_id]


def test_what_no_model_could_read_at_once_goes_before_it_is_seen() -> None:
    """The largest first, until the rest fits."""
    calls = [call(name, "shell") for name in "abc"]
    results = [result(words(size), name) for size, name in zip((3000, 9000, 4000), "abc", strict=True)]
    context = conversation(user(), assistant("", *calls), *results)
    assert OffloadPolicy(unseen_budget=8000).choose(context) == [context.items[3].item_id]
    assert OffloadPolicy(unseen_budget=3500).choose(context) == [context.items[3].item_id, context.items[4].item_id]


# -- ephemeral tools ---------------------------------------------------------------------------------------------------


def outputs(*tools: str) -> Conversation:
    """A conversation in which tools were called one after the other, and the model has answered at last."""
    context = conversation(user())
    for number, tool in enumerate(tools):
        context = context.with_item(item(assistant("", call(f"c{number}", tool))))
        context = context.with_item(item(result(f"output {number}", f"c{number}", tool)))
    return context.with_item(item(assistant("ready")))


def contents(context: Conversation, chosen: list[str]) -> list[str]:
    """What the chosen items hold."""
    return [context[item_id].message.content for item_id in chosen]


def test_the_newest_outputs_of_a_tool_stay() -> None:
    """Each tool by its own number; a tool without one keeps all."""
    context = outputs("shot", "shell", "shot", "read", "shot", "shot", "read", "shell")
    policy = EphemeralPolicy({"shot": 3, "read": 1})
    assert contents(context, policy.stale(context)) == ["output 0", "output 3"]


def test_one_number_for_all_ephemeral_tools() -> None:
    """`ephemeral_keep_recent` overrides what the tools say, also with more; other tools stay as they are."""
    context = outputs("shot", "shell", "shot", "read", "shot", "read", "shell")
    assert contents(context, EphemeralPolicy({"shot": 3, "read": 3}, keep_recent=1).stale(context)) == [
        "output 0",
        "output 2",
        "output 3",
    ]
    assert EphemeralPolicy({"shot": 1, "read": 1}, keep_recent=5).stale(context) == []


def test_what_was_destroyed_is_not_destroyed_again() -> None:
    """Nor is what was put back."""
    context = outputs("shot", "shot", "shot")
    first, second = (entry for entry in context if entry.message.content in ("output 0", "output 1"))
    context = context.replacing([dataclasses.replace(first, destroyed=True), dataclasses.replace(second, pinned=True)])
    assert EphemeralPolicy({"shot": 1}).stale(context) == []


def test_an_output_that_no_model_has_seen_is_not_old() -> None:
    """Two at once of a tool that keeps one are both shown once."""
    context = conversation(
        user(), assistant("", call("a", "shot"), call("b", "shot")), result("1", "a", "shot"), result("2", "b", "shot")
    )
    policy = EphemeralPolicy({"shot": 1})
    assert policy.stale(context) == []
    assert contents(context, policy.stale(context.with_item(item(assistant("seen"))))) == ["1"]


def test_numbers_below_zero_are_refused() -> None:
    """Of a tool, or of all."""
    for wrong in ({"keep": {"shot": -1}}, {"keep_recent": -1}):
        with pytest.raises(InvalidSettings, match="-1"):
            EphemeralPolicy(**wrong)
