"""A context that has become too long gets shorter, and loses nothing that matters (O5)."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfs.errors import InvalidSettings, Unreachable
from cfs.wire import Message
from cfs_agents.context import (
    ContextFileSystem,
    ContextItem,
    Conversation,
    EstimatingCounter,
    SelectiveCompactionPolicy,
    WorkingContext,
)
from cfs_agents.context.offload import Offloader
from tests.agents.context.support import ScriptedSummary, assistant, call, conversation, item, result, user, words


def offloader(files: ContextFileSystem | None) -> Offloader:
    """Off-loads to these files."""
    return Offloader(files, EstimatingCounter())


def kinds(context: Conversation) -> list[str]:
    """The types of the items, in order."""
    return [entry.item_type for entry in context]


def task_of(*messages: Message, skills: int = 0) -> Conversation:
    """A conversation after its protected first message, to which a model has answered."""
    task = item(user("the task"), protected=True)
    context = Conversation((task,))
    for number in range(skills):
        context = context.with_item(item(user(words(300, f"skill{number}")), "skill_prompt"))
    for message in messages:
        context = context.with_item(item(message))
    return context.with_item(item(assistant("so far")))


async def test_a_context_below_the_threshold_stays_as_it_is(files: ContextFileSystem) -> None:
    """Nothing is written, nothing is asked."""
    context = task_of(assistant("", call()), result(words(500)))
    done = await SelectiveCompactionPolicy(5000).compact(context, offloader(files))
    assert done.context.messages() == context.messages()
    assert done.tokens_before == done.tokens_after
    assert files.history() == []


async def test_types_leave_in_order_and_the_oldest_first(files: ContextFileSystem) -> None:
    """Results with their calls, prompts of skills, words of the assistant, messages of the user."""
    turns = [
        *(user(words(300, "old")), assistant(words(300, "said"))),
        *(assistant("", call("a")), result(words(300, "one"), "a")),
        *(assistant("", call("b")), result(words(300, "two"), "b"), user(words(300, "new"))),
    ]
    context = task_of(*turns, skills=1)
    left = []
    for goal in (1900, 1600, 1200, 900, 600, 320):
        policy = SelectiveCompactionPolicy(goal, goal=goal, keep_recent=1)
        done = await policy.compact(context, offloader(files))
        large = [entry for entry in done.context if len(entry.message.content) > 500 and not entry.stands_for]
        left.append({entry.message.content.split()[0] for entry in large})
    assert left == [
        {"skill0", "old", "said", "one", "two", "new"} - gone
        for gone in (
            {"one"},
            {"one", "two"},
            {"one", "two", "skill0"},
            {"one", "two", "skill0", "said"},
            {"one", "two", "skill0", "said", "old"},
            {"one", "two", "skill0", "said", "old", "new"},
        )
    ]


async def test_what_leaves_is_on_disk_and_a_note_leads_there(files: ContextFileSystem) -> None:
    """Each message can be restored as it was; the note counts them and names the list, over several compactions."""
    context = task_of(*(m for n in range(8) for m in (assistant("", call(f"c{n}", n=n)), result(words(300), f"c{n}"))))
    policy = SelectiveCompactionPolicy(2000, goal=1200, keep_recent=2)
    done = await policy.compact(context, offloader(files))
    gone = [entry for entry in context if entry.item_id not in done.context]
    assert len(gone) == sum(done.removed.values()) >= 4
    assert [files.restore(entry.item_id).message for entry in gone] == [entry.message for entry in gone]
    note = next(entry for entry in done.context if entry.item_type == "compaction_summary")
    assert note.message.content.startswith(f"[Earlier messages of this conversation have been taken out: {len(gone)}]")
    assert files.index_path in note.message.content
    more = done.context
    for number in range(4):
        more = more.with_item(item(assistant("", call(f"d{number}")))).with_item(item(result(words(400), f"d{number}")))
    again = await policy.compact(more.with_item(item(assistant("on"))), offloader(files))
    notes = [entry for entry in again.context if entry.item_type == "compaction_summary"]
    assert len(notes) == 1
    assert notes[0].stands_for == len(files.history())


async def test_system_prompt_task_summary_recent_and_unseen_stay(files: ContextFileSystem) -> None:
    """Whatever the goal: these are what the conversation lives on."""
    summary = item(user("[Summary] so far"), "compaction_summary")
    items = [item(Message(role="system", content=words(100))), item(user(words(100)), protected=True), summary]
    context = Conversation(tuple(items))
    for name in "ab":
        context = context.with_item(item(assistant("", call(name)))).with_item(item(result(words(500), name)))
    done = await SelectiveCompactionPolicy(100, keep_recent=0).compact(context, offloader(files))
    assert kinds(done.context)[:2] == ["system_prompt", "user_message"]
    assert summary.item_id in done.context
    assert [entry.message for entry in done.context][-2:] == [entry.message for entry in context][-2:]
    assert done.context.check_integrity() == []


async def test_what_was_destroyed_is_not_written_again(files: ContextFileSystem) -> None:
    """Its content is on disk since then, and stays what it was."""
    context = WorkingContext(files)
    context.add(user())
    context.add(assistant("", call()))
    entry = context.add(result(words(500)))
    context.add(assistant("seen"))
    work = offloader(files)
    destroyed = await work.destroy(await work.counted(context.context), [entry.item_id])
    assert destroyed[entry.item_id].destroyed
    for message in (user(words(300)), assistant("ready")):
        destroyed = destroyed.with_item(item(message))
    done = await SelectiveCompactionPolicy(320, keep_recent=1).compact(destroyed, work)
    assert entry.item_id not in done.context
    assert files.restore(entry.item_id).message == entry.message


# -- the summary -------------------------------------------------------------------------------------------------------


async def test_a_model_sums_up_what_is_still_too_long(files: ContextFileSystem) -> None:
    """It gets what is left but for task and system prompt; its words stand where that was, and all of it is on disk."""
    summary = ScriptedSummary("We did this and that.")
    context = task_of(*(m for n in range(3) for m in (user(words(300, f"u{n}")), assistant(words(300, f"a{n}")))))
    policy = SelectiveCompactionPolicy(1000, summary, keep_recent=6)
    done = await policy.compact(context, offloader(files))
    assert done.summarised
    assert kinds(done.context) == ["user_message", "compaction_summary"]
    assert "We did this and that." in done.context.items[1].message.content
    assert done.tokens_after < 200
    for entry in summary.asked[0]:
        if entry.item_type != "compaction_summary":
            assert files.restore(entry.item_id).message == entry.message


@pytest.mark.parametrize(
    ("said", "because"),
    [
        (words(5000), "the summary is not smaller"),
        ("  \n", "the summary is empty"),
        (Unreachable("no server"), "the summary failed: no server"),
    ],
)
async def test_a_summary_that_does_not_help_changes_nothing(
    files: ContextFileSystem, said: str | Exception, because: str
) -> None:
    """What was there stays, and the result says why."""
    context = task_of(*(m for n in range(3) for m in (user(words(300)), assistant(words(300)))))
    policy = SelectiveCompactionPolicy(1000, ScriptedSummary(said), keep_recent=8)
    done = await policy.compact(context, offloader(files))
    assert done.context.messages() == context.messages()
    assert done.kept_because == because
    assert not done.summarised


async def test_a_cancelled_summary_cancels(files: ContextFileSystem) -> None:
    """Ctrl-C is no failed summary."""

    async def never(_: Sequence[ContextItem]) -> str:
        raise asyncio.CancelledError

    context = task_of(user(words(600)), assistant(words(600)))
    with pytest.raises(asyncio.CancelledError):
        await SelectiveCompactionPolicy(1000, never, keep_recent=8).compact(context, offloader(files))


async def test_summaries_do_not_sum_up_themselves_for_ever(files: ContextFileSystem) -> None:
    """When nothing is left but a summary, the model is not asked again."""
    context = Conversation((item(user(words(600)), protected=True),)).with_item(
        item(user("[Summary]"), "compaction_summary")
    )
    context = context.with_item(item(assistant("", call()))).with_item(item(result(words(600))))
    summary = ScriptedSummary()
    done = await SelectiveCompactionPolicy(500, summary, keep_recent=0).compact(context, offloader(files))
    assert done.kept_because == "nothing else may leave"
    assert summary.asked == []


@pytest.mark.parametrize(("threshold", "goal"), [(0, None), (10, 11), (10, 0)])
def test_a_threshold_has_to_make_sense(threshold: int, goal: int | None) -> None:
    """A goal lies below it."""
    with pytest.raises(InvalidSettings):
        SelectiveCompactionPolicy(threshold, goal=goal)


async def test_the_newest_give_way_where_nobody_sums_up(files: ContextFileSystem) -> None:
    """Only as far as the threshold needs it; those that are not asked now keep them."""
    context = task_of(*(m for n in range(4) for m in (assistant("", call(f"c{n}")), result(words(300), f"c{n}"))))
    alone = await SelectiveCompactionPolicy(900, keep_recent=9).compact(context, offloader(files))
    assert 600 < alone.tokens_after <= 900
    summary = ScriptedSummary()
    asked = await SelectiveCompactionPolicy(900, summary, keep_recent=9).compact(context, offloader(files), ask=False)
    assert asked.context.messages() == context.messages()
    assert asked.kept_because == "no model is asked for a summary"


def test_what_a_conversation_lives_on_cannot_be_put_into_the_order() -> None:
    """System prompts and summaries do not leave."""
    with pytest.raises(InvalidSettings):
        SelectiveCompactionPolicy(10, order=("system_prompt",))


# -- any conversation --------------------------------------------------------------------------------------------------

sizes = st.integers(0, 400)
steps = st.one_of(
    st.tuples(st.just("user"), sizes),
    st.tuples(st.just("skill"), sizes),
    st.tuples(st.just("assistant"), sizes),
    st.tuples(st.just("calls"), st.lists(st.tuples(st.sampled_from(["a", "b", ""]), sizes), min_size=1, max_size=3)),
)


def built(script: Sequence[tuple[str, object]]) -> Conversation:
    """A conversation of any shape, with ids that repeat."""
    context = conversation(Message(role="system", content="rules"))
    context = context.with_item(item(user("the task"), protected=True))
    for kind, detail in script:
        if isinstance(detail, list):
            context = context.with_item(item(assistant("", *(call(name, "shell", size=size) for name, size in detail))))
            for name, size in detail:
                context = context.with_item(item(result(words(size), name)))
        elif isinstance(detail, int):
            message = assistant(words(detail)) if kind == "assistant" else user(words(detail))
            context = context.with_item(item(message, "skill_prompt" if kind == "skill" else None))
    return context


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(steps, max_size=14), st.integers(1, 1500), st.integers(0, 4), st.sampled_from([None, "short", words(400)])
)
async def test_any_conversation_is_compacted_without_harm(
    script: list[tuple[str, object]], threshold: int, keep: int, said: str | None
) -> None:
    """It stays valid, never grows, loses nothing protected, and what has left is on disk as it was."""
    context = built(script)
    with tempfile.TemporaryDirectory() as root, ContextFileSystem(Path(root), durable=False) as files:
        summary = ScriptedSummary(said) if said is not None else None
        done = await SelectiveCompactionPolicy(threshold, summary, keep_recent=keep).compact(context, offloader(files))
        assert done.context.check_integrity() == []
        assert done.tokens_after <= done.tokens_before
        assert done.tokens_after == done.context.tokens
        stays = [entry for entry in context if entry.protected or entry.item_type == "system_prompt"]
        stays += [entry for entry in context if entry.item_id in context.unseen]
        assert all(done.context[entry.item_id].message == entry.message for entry in stays)
        kept = [entry.item_id for entry in done.context if entry.item_id in context]
        assert kept == [entry.item_id for entry in context if entry.item_id in done.context]
        for entry in context:
            if entry.item_id not in done.context:
                assert files.restore(entry.item_id).message == entry.message
        assert files.check_integrity() == []
