"""The context that an agent works with: one call before each call of the model (O2-O5, A1)."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from cfs.errors import Conflict, InvalidParameters, NotFound
from cfs.wire import Message
from cfs_agents.context import (
    ContextFileSystem,
    ContextItem,
    EphemeralPolicy,
    OffloadPolicy,
    SelectiveCompactionPolicy,
    WorkingContext,
)
from tests.agents.context.support import ScriptedSummary, add_call, assistant, call, read_as_tool, result, user, words


async def test_a_large_result_becomes_a_placeholder_once_it_was_seen(files: ContextFileSystem) -> None:
    """In full for the call that asked for it; then three lines, with a path by which the model's tool reads it."""
    context = WorkingContext(files)
    context.add(user("the task"))
    entry = add_call(context, words(3000))
    assert (await context.prepare())[-1] == entry.message
    context.add(assistant("I see"))
    context.add(user("go on"))
    shown = (await context.prepare())[2]
    lines = shown.content.splitlines()
    path = lines[1].removeprefix("Path: ")
    assert lines[0] == "[Content offloaded]"
    assert lines[2] == "Use Read tool to view details."
    assert read_as_tool(files, path) == entry.message.content
    assert (shown.role, shown.tool_call_id, shown.name) == ("tool", "call_1", "shell")
    now = context.context[entry.item_id]
    assert now.offloaded
    assert now.offload_path == path
    assert context.usage.offloaded == 1
    assert (shown.offloaded, shown.offload_path) == (True, path)
    assert [message.offloaded for message in await context.prepare()] == [False, False, True, False, False]
    assert shown.model_dump().keys() == entry.message.model_dump().keys(), "no server is to see it"
    again = WorkingContext(files)
    again.load(json.loads(json.dumps(context.dump())))
    assert (await again.prepare())[2] == shown
    await again.restore(entry.item_id)
    assert [message.offload_path for message in await again.prepare()] == [None] * 5


async def test_a_small_result_and_the_task_stay(files: ContextFileSystem) -> None:
    """Below the threshold nothing goes; the first message of a task not at any size."""
    context = WorkingContext(files)
    context.add(user(words(5000)))
    add_call(context, words(1500))
    context.add(assistant("done"))
    context.add(user(words(5000)), task=True)
    context.add(assistant("well"))
    later = context.add(user(words(5000)))
    context.add(assistant("well"))
    await context.prepare()
    assert [entry.item_id for entry in context.context if entry.offloaded] == [later.item_id]


async def test_off_loading_can_be_switched_off(files: ContextFileSystem) -> None:
    """Then nothing is written at all."""
    context = WorkingContext(files, offload=OffloadPolicy(enabled=False), ephemeral=EphemeralPolicy({"shot": 0}))
    context.add(user())
    add_call(context, words(3000))
    add_call(context, words(3000), name="shot")
    context.add(assistant("I see"))
    await context.prepare()
    assert [entry.offloaded for entry in context.context] == [False] * 6
    assert [entry.destroyed for entry in context.context] == [False] * 4 + [True, False]
    assert not files.root.exists()


async def test_old_outputs_of_an_ephemeral_tool_are_destroyed(files: ContextFileSystem) -> None:
    """Before every call; the content is on disk, the structure stays, and it happens once."""
    context = WorkingContext(files, ephemeral=EphemeralPolicy({"shot": 2}))
    context.add(user())
    entries = []
    for number in range(5):
        entries.append(add_call(context, f"picture {number} " * 100, f"c{number}", "shot"))
        await context.prepare()
        await context.prepare()
    flags = [(context.context[entry.item_id].destroyed, context.context[entry.item_id].offloaded) for entry in entries]
    assert flags == [(True, True)] * 3 + [(False, False)] * 2
    assert context.context.check_integrity() == []
    assert [files.restore(entry.item_id).message for entry in entries[:3]] == [entry.message for entry in entries[:3]]
    first = context.context[entries[0].item_id].message
    assert first.content.startswith("[Content offloaded]\nPath: ")
    assert "picture 0 picture 0 picture 0 picture 0 picture 0 picture 0" in first.content
    assert len(first.content) < 500
    assert len(files.history()) == 3


async def test_without_a_disk_old_outputs_leave_a_note(files: ContextFileSystem) -> None:
    """Shorter than what was there."""
    context = WorkingContext(ephemeral=EphemeralPolicy({"shot": 1}))
    context.add(user())
    add_call(context, words(300), "a", "shot")
    add_call(context, "tiny", "b", "shot")
    add_call(context, "last", "c", "shot")
    context.add(assistant("ready"))
    shown = await context.prepare()
    assert [message.content for message in shown if message.role == "tool"] == [
        "[Output removed: newer outputs of the same tool follow]",
        "[removed]",
        "last",
    ]
    with pytest.raises(NotFound):
        await context.restore(context.context.items[2].item_id)


async def test_secrets_are_there_for_the_turn_and_not_on_disk(files: ContextFileSystem) -> None:
    """The model sees what the tool said; placeholder, file and what is restored do not have it, and say so."""
    context = WorkingContext(files)
    context.add(user())
    secret = "PASSWORD=hunter2\n"  # noqa: S105
    entry = add_call(context, secret + words(3000))
    assert secret in (await context.prepare())[-1].content
    context.add(assistant("I see"))
    placeholder = (await context.prepare())[2].content
    assert "hunter2" not in placeholder
    assert "Secrets were taken out: 1 × password" in placeholder
    restored = await context.restore(entry.item_id)
    assert restored.redacted
    assert restored.message.content.startswith("PASSWORD=[redacted: password]\n")


async def test_what_is_restored_returns_to_its_place_and_stays(files: ContextFileSystem) -> None:
    """Also what was destroyed; the next preparation does not take it out again."""
    context = WorkingContext(files, ephemeral=EphemeralPolicy({"shot": 0}))
    context.add(user())
    large, shot = add_call(context, words(3000)), add_call(context, words(300), "c", "shot")
    context.add(assistant("seen"))
    await context.prepare()
    assert context.usage.offloaded == 2
    for entry in (large, shot):
        await context.restore(entry.item_id)
    messages = await context.prepare()
    assert large.message in messages
    assert shot.message in messages
    assert context.usage.offloaded == context.usage.destroyed == 0


async def test_a_question_cannot_be_asked_while_calls_wait() -> None:
    """After a kill in the middle of a call, the calls are closed with a reason."""
    context = WorkingContext()
    context.add(user())
    context.add(assistant("", call("a"), call("b", "browse")))
    context.add(result("x", "a"))
    with pytest.raises(Conflict, match="browse"):
        await context.prepare()
    assert context.close_calls("the agent was ended") == 1
    assert (await context.prepare())[-1].content == "[No result: the agent was ended]"


async def test_what_no_model_could_take_at_once_is_shown_in_part(files: ContextFileSystem) -> None:
    """A single result that is longer than half of what fits goes before it was seen, with a preview."""
    context = WorkingContext(files, compaction=SelectiveCompactionPolicy(4000))
    context.add(user())
    entry = add_call(context, "a" * 200_000)
    shown = (await context.prepare())[-1].content
    assert shown.startswith("[Content offloaded]")
    assert context.usage.tokens < 1000
    assert entry.item_id in {record.item_id for record in await context.history()}


async def test_messages_may_come_while_a_context_is_made_ready(files: ContextFileSystem) -> None:
    """What a user says while a model sums up is in the prompt, after the summary."""
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def slowly(_: Sequence[ContextItem]) -> str:
        asked.set()
        await go_on.wait()
        return "the summary"

    context = WorkingContext(files, compaction=SelectiveCompactionPolicy(1000, slowly, keep_recent=9))
    context.add(user("the task"))
    for number in range(3):
        context.add(assistant(words(300)))
        context.add(user(f"{number} {words(300)}"))
    context.add(assistant("ready"))
    preparing = asyncio.create_task(context.prepare())
    await asked.wait()
    context.add(user("steer"))
    go_on.set()
    messages = await preparing
    assert [message.content[:8] for message in messages] == ["the task", "[Summary", "steer"]


async def test_a_summary_that_did_not_help_is_not_asked_for_each_time(files: ContextFileSystem) -> None:
    """Only when the context has grown by a tenth since."""
    summary = ScriptedSummary(*[words(5000)] * 5)
    context = WorkingContext(files, compaction=SelectiveCompactionPolicy(1000, summary, keep_recent=99))
    context.add(user())
    context.add(assistant(words(1500)))
    context.add(user("and"))
    for _ in range(3):
        await context.prepare()
    assert len(summary.asked) == 1
    context.add(assistant(words(400)))
    context.add(user("and"))
    await context.prepare()
    assert len(summary.asked) == 2


async def test_a_model_that_says_too_long_gets_less(files: ContextFileSystem) -> None:
    """Without a threshold of its own, too."""
    context = WorkingContext(files)
    context.add(user("the task"))
    for number in range(10):
        add_call(context, words(300), f"c{number}")
    context.add(assistant("ready"))
    done = await context.shorten(1500)
    assert done.tokens_after <= 1500 < done.tokens_before
    assert context.context == done.context
    assert (await context.prepare())[0].content == "the task"


async def test_what_was_put_back_leaves_when_the_model_cannot_take_it(files: ContextFileSystem) -> None:
    """Not before: a compaction has other things to take out."""
    context = WorkingContext(files, compaction=SelectiveCompactionPolicy(4000, keep_recent=0))
    context.add(user("the task"))
    entry = add_call(context, words(2500), "large")
    context.add(assistant("seen"))
    await context.prepare()
    await context.restore(entry.item_id)
    for number in range(5):
        add_call(context, words(600), f"c{number}")
        await context.prepare()
    assert entry.item_id in context.context
    context.add(assistant("ready"))
    await context.shorten(1000)
    assert entry.item_id not in context.context


async def test_the_state_survives_a_kill(files: ContextFileSystem) -> None:
    """As JSON and back: the same prompt, the same usage, and the same items on disk."""
    context = WorkingContext(files, ephemeral=EphemeralPolicy({"shot": 1}))
    context.add(Message(role="system", content="rules"))
    context.add(user("the task"))
    for number in range(4):
        add_call(context, words(2500), f"c{number}", "shell" if number % 2 else "shot")
    context.add(Message(role="assistant", content="ready", thinking="hm"))
    before = await context.prepare()
    state = json.loads(json.dumps(context.dump()))
    files.close()
    with ContextFileSystem(files.root, state["session_id"]) as opened:
        again = WorkingContext(opened, ephemeral=EphemeralPolicy({"shot": 1}))
        again.load(state)
        assert again.context == context.context
        assert await again.prepare() == before
        assert again.usage == context.usage
        assert again.dump() == context.dump()


async def test_a_kill_between_the_disk_and_the_state_does_no_harm(files: ContextFileSystem) -> None:
    """The older state has the content still; it is off-loaded again, to the same file."""
    context = WorkingContext(files)
    context.add(user())
    entry = add_call(context, words(3000))
    context.add(assistant("seen"))
    older = json.loads(json.dumps(context.dump()))
    await context.prepare()
    again = WorkingContext(files)
    again.load(older)
    await again.prepare()
    assert again.context == context.context
    assert [record.item_id for record in files.history()] == [entry.item_id]


@pytest.mark.parametrize(
    "change",
    [{"schema_version": "9"}, {"session_id": "session_other"}],
)
async def test_a_state_of_something_else_is_refused(files: ContextFileSystem, change: dict[str, str]) -> None:
    """Of another version, or another session."""
    context = WorkingContext(files)
    with pytest.raises(InvalidParameters):
        context.load(context.dump() | change)


async def test_a_state_that_does_not_hold_together_is_refused() -> None:
    """A result without its call."""
    context = WorkingContext()
    context.add(user())
    add_call(context, "x")
    state = context.dump()
    del state["items"][1]
    with pytest.raises(InvalidParameters, match="without a call"):
        context.load(state)


# -- a long conversation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summarise", [True, False])
async def test_two_hundred_turns_stay_under_the_threshold(tmp_path: Path, *, summarise: bool) -> None:
    """Large results, ids that repeat, ephemeral tools: always valid, never too long, and everything is found again."""

    async def sum_up(_: Sequence[ContextItem]) -> str:
        return "what was done so far"

    chance = random.Random(5)
    limit = 12_000
    with ContextFileSystem(tmp_path, durable=False, reserve=0) as files:
        compaction = SelectiveCompactionPolicy(limit, sum_up if summarise else None)
        context = WorkingContext(files, ephemeral=EphemeralPolicy({"shot": 2}), compaction=compaction)
        context.add(Message(role="system", content="the rules"))
        task = context.add(user("the task: " + words(500)))
        said: dict[str, Message] = {}
        for turn in range(200):
            tools = [chance.choice(["shell", "read", "shot"]) for _ in range(chance.randrange(1, 4))]
            context.add(assistant(f"step {turn}", *(call(f"call_{n}", tool, n=turn) for n, tool in enumerate(tools))))
            for number, tool in enumerate(tools):
                entry = context.add(result(words(chance.randrange(10, 3000), f"w{turn}"), f"call_{number}", tool))
                said[entry.item_id] = entry.message
            messages = await context.prepare()
            assert context.usage.tokens <= limit
            assert context.context.check_integrity() == []
            assert messages[:2] == [Message(role="system", content="the rules"), task.message]
        assert context.warnings == []
        assert files.check_integrity() == []
        gone = [item_id for item_id in said if item_id not in context.context or context.context[item_id].offloaded]
        assert len(gone) > 300
        records = {record.item_id: record for record in files.history()}
        reader, grant = files.reader()
        handle = reader.create_handle([grant])
        for item_id in gone:
            assert handle.read_file(files.path_of(records[item_id])) == said[item_id].content
        for entry in context.context:
            if entry.offloaded:
                assert entry.offload_path is not None
                assert f"Path: {entry.offload_path}\n" in entry.message.content
                assert handle.read_file(entry.offload_path) == said[entry.item_id].content
