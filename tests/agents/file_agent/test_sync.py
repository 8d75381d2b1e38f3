"""The context window is the model's own to write (A4)."""

from pathlib import Path

import pytest

from cfs.errors import Unavailable
from cfs_agents.base.events import CallFinished, ContextUpdated
from cfs_agents.main.testing import calls, raises, says, together
from cfs_agents.tree.directory import AgentRoot, default
from cfs_agents.tree.sync import WINDOW_BYTES
from tests.agents.file_agent.support import WINDOW, agent, events_of, history, operations, texts


async def test_a_sync_replaces_window_and_conversation(tmp_path: Path) -> None:
    """The next prompt has the new window and nothing of the old conversation; the old window is in the history."""
    made, model = agent(
        tmp_path,
        calls("write_file", path="two.txt", content="the old conversation"),
        calls("sync_context", new_context_content=WINDOW),
        says("Three."),
    )
    async with made:
        events = await events_of(made, "Count to three, please.")
    assert [event for event in events if isinstance(event, ContextUpdated)] == [ContextUpdated(10, 1)]
    system, message = model.asked[2].messages
    assert WINDOW.strip() in system.content
    assert default("/context_window_main.md", "en").strip() not in system.content
    assert (message.role, "Go on with the current task" in message.content) == ("user", True)
    for old in ("the old conversation", "Count to three, please."):
        assert old not in texts(model.asked[2].messages)
    (archived,) = history(tmp_path)
    assert archived.read_text() == default("/context_window_main.md", "en")


@pytest.mark.parametrize("end", ["", "\n\n\n", "\r\nwin\r\n", " \u2028\u0085 \x00 漢字 😀"])
async def test_the_window_is_the_models_text_byte_for_byte(tmp_path: Path, end: str) -> None:
    """Nothing is trimmed, completed or translated."""
    window = f"\n# Current Task\r\n  x  {end}"
    made, _ = agent(tmp_path, calls("sync_context", new_context_content=window), says("Done."))
    async with made:
        await made.run("Sync.")
    assert (tmp_path / "context_window_main.md").read_bytes() == window.encode()


async def test_every_window_is_archived_under_a_name_of_its_own(tmp_path: Path) -> None:
    """The history, sorted by name, is all windows in their order; nothing is lost."""
    windows = [f"# Current Task\nnumber {number}\n" for number in range(5)]
    script = [calls("sync_context", new_context_content=window) for window in windows]
    made, _ = agent(tmp_path, *script, says("Done."))
    async with made:
        await made.run("Sync five times.")
    contents = [path.read_text() for path in history(tmp_path)]
    assert contents == [default("/context_window_main.md", "en"), *windows[:4]]
    assert (tmp_path / "context_window_main.md").read_text() == windows[4]
    assert len(operations(tmp_path, "sync_context")) == 5


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ("", "is empty"),
        (" \n\t\n", "is empty"),
        ("# Notes\nno task", "has no heading '# Current Task'"),
        ("The Current Task is this", "has no heading '# Current Task'"),
        ("# Current Task\n" + "word " * 5_000, "tokens, and 4,000 are the most"),
        ("# Current Task\n" + "x" * WINDOW_BYTES, "bytes, and 65,536 are the most"),
    ],
)
async def test_a_window_that_is_none_is_refused_with_a_reason(tmp_path: Path, window: str, reason: str) -> None:
    """The model reads why, window and history stay as they are, and so does the conversation."""
    made, model = agent(tmp_path, calls("sync_context", new_context_content=window), says("I see."))
    async with made:
        await made.run("Sync nonsense.")
    told = model.asked[1].last.content
    assert told.startswith("Error: the new context window")
    assert reason in told
    assert "Sync nonsense." in texts(model.asked[1].messages)
    assert (tmp_path / "context_window_main.md").read_text() == default("/context_window_main.md", "en")
    assert history(tmp_path) == []


async def test_calls_after_a_sync_are_told_as_not_run(tmp_path: Path) -> None:
    """Their results would be lost with the conversation, so they are not run, and the model learns which."""
    made, model = agent(
        tmp_path,
        together(
            calls("write_file", path="before", content=""),
            calls("sync_context", new_context_content=WINDOW),
            calls("write_file", path="after", content=""),
        ),
        says("Three."),
    )
    async with made:
        events = await events_of(made, "Go.")
    assert [event.call.name for event in events if isinstance(event, CallFinished)] == ["write_file", "sync_context"]
    assert [path.name for path in (tmp_path / "workspace").iterdir() if path.is_file()] == ["before"]
    assert "not run: write_file" in model.asked[1].last.content


async def test_the_chinese_heading_is_one_too(tmp_path: Path) -> None:
    """A window may be in Chinese."""
    made, model = agent(
        tmp_path, calls("sync_context", new_context_content="# 当前任务\n数到三\n"), says("三。"), language="zh"
    )
    async with made:
        await made.run("数到三")
    assert "请继续当前任务" in model.asked[1].last.content


async def test_a_window_that_is_edited_by_hand_counts_from_the_next_task_on(tmp_path: Path) -> None:
    """The file is the state: a change of it changes what the agent has in mind."""
    made, model = agent(tmp_path, says("Hello."), says("Hello, Ada."))
    async with made:
        await made.run("Hello.")
        (tmp_path / "context_window_main.md").write_text("# Current Task\nGreet Ada.\n")
        await made.run("Hello again.")
    assert "Greet Ada." in model.asked[1].messages[0].content


async def test_a_window_that_was_removed_is_its_default_again(tmp_path: Path) -> None:
    """Also in the middle of a task, and a sync archives that."""
    made, _ = agent(
        tmp_path,
        calls("execute_command", command="rm ../context_window_main.md ../guideline.md"),
        calls("sync_context", new_context_content=WINDOW),
        says("Done."),
    )
    async with made:
        assert (await made.run("Break things.")).ok
    assert history(tmp_path)[0].read_text() == default("/context_window_main.md", "en")
    assert (tmp_path / "context_window_main.md").read_text() == WINDOW


async def test_a_failure_after_a_sync_resumes_from_the_window(tmp_path: Path) -> None:
    """What a new process begins with is the window, and the word to go on."""
    made, _ = agent(tmp_path, calls("sync_context", new_context_content=WINDOW), raises(Unavailable("no engine")))
    async with made:
        assert not (await made.run("Count.")).ok
    again, model = agent(tmp_path, says("Three."))
    async with again:
        assert (await again.resume()).text == "Three."
    assert WINDOW.strip() in model.asked[0].messages[0].content
    assert "Go on with the current task" in model.asked[0].last.content


def test_a_window_no_model_can_have_in_mind_is_told(tmp_path: Path) -> None:
    """A huge file in its place is an error with a reason, not a prompt."""
    root = AgentRoot(tmp_path)
    (tmp_path / "context_window_main.md").write_bytes(b"x" * (5 << 20))
    with pytest.raises(Unavailable, match="more than any model can read"):
        root.window()
    root.close()
