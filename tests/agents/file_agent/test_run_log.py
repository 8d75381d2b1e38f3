"""The journal: what it holds after a crash at any byte, and what it says of what cannot be read (A1)."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cfs.errors import StorageFull, Unavailable
from cfs.wire import Message, ToolCall
from cfs_agents.base.events import Finished, Warned
from cfs_agents.base.free_space import FreeSpace
from cfs_agents.context import ContextItem, Conversation, ConversationChange
from cfs_agents.main.testing import calls, says
from cfs_agents.tree.operations import Operation
from cfs_agents.tree.run_log import RunLog, RunState
from tests.agents.file_agent.support import agent, events_of

USER = ContextItem.of(Message(role="user", content="Do it.\n\u2028漢字"), protected=True)
CALL = ToolCall(id="call_1", name="write_file", arguments={"path": "a", "content": "\ud800"})
ASSISTANT = ContextItem.of(Message(role="assistant", content="", tool_calls=(CALL,)))
RESULT = ContextItem.of(Message(role="tool", content="done", tool_call_id="call_1", name="write_file"))
DONE = Operation("0.5", "write_file", {"path": "a"}, "done", success=True)


def told(path: Path) -> RunState:
    journal = RunLog(path)
    try:
        return journal.read()
    finally:
        journal.close()


def write_all(path: Path) -> list[int]:
    """Write a task down, and return the sizes of the file after each step."""
    journal = RunLog(path)
    journal.read()
    sizes = [0]
    steps: list[Callable[[], None]] = [
        lambda: journal.item(USER, {}),
        lambda: journal.item(ASSISTANT, {}),
        lambda: journal.intents([CALL]),
        lambda: journal.result(RESULT, DONE),
        lambda: journal.end(Finished("answered")),
    ]
    for step in steps:
        step()
        sizes.append(path.stat().st_size)
    journal.close()
    return sizes


def test_what_is_written_is_told(tmp_path: Path) -> None:
    """Messages with all that is known of them, the last operation, and how it ended."""
    write_all(tmp_path / "journal")
    story = told(tmp_path / "journal")
    assert [item.message for item in story.context] == [USER.message, ASSISTANT.message, RESULT.message]
    assert story.context.items[0] == ContextItem(USER.item_id, "user_message", USER.message, protected=True, seen=True)
    assert (story.last, story.end, story.begun, story.unfinished) == (DONE, Finished("answered"), set(), False)


def test_a_crash_at_any_byte_leaves_whole_steps(tmp_path: Path) -> None:
    """Of a file that ends anywhere, the steps that were complete are told, and the next one can be written."""
    sizes = write_all(tmp_path / "journal")
    data = (tmp_path / "journal").read_bytes()
    items, begun = [0, 1, 2, 2, 3, 3], [0, 0, 0, 1, 0, 0]
    for size in range(len(data) + 1):
        path = tmp_path / "cut"
        path.write_bytes(data[:size])
        story = told(path)
        steps = sum(size >= each for each in sizes[1:])
        torn = steps == 2 and size > sizes[2]  # what is lost may have been the line that the call began
        assert (len(story.context), len(story.begun)) == (items[steps], begun[steps] or torn), size
        assert (story.end is not None) == (steps == 5)
    path.write_bytes(data[:-3])
    journal = RunLog(path)
    journal.read()
    journal.end(Finished("rounds", "ten"))
    journal.close()
    assert told(path).end == Finished("rounds", "ten")


def test_an_intent_without_a_result_is_told(tmp_path: Path) -> None:
    """That is the call that may or may not have happened."""
    sizes = write_all(tmp_path / "journal")
    os.truncate(tmp_path / "journal", sizes[3])
    story = told(tmp_path / "journal")
    assert story.begun == {CALL.id}
    assert story.unfinished
    assert story.context.open_calls == (CALL,)


def test_a_change_of_the_conversation_is_told(tmp_path: Path) -> None:
    """What left, what was put in its place, and what is another under its id."""
    note = ContextItem.of(Message(role="user", content="[Two have gone]"), "compaction_summary")
    before = Conversation((USER, ASSISTANT, RESULT))
    after = Conversation((note, USER.with_content("shorter")))
    journal = RunLog(tmp_path / "journal")
    journal.read()
    for item in before:
        journal.item(item, {})
    journal.change(ConversationChange.between(before, after))
    journal.close()
    assert [item.message for item in told(tmp_path / "journal").context] == [item.message for item in after]
    assert not ConversationChange.between(before, Conversation(before.items))


def test_a_restart_is_a_new_generation(tmp_path: Path) -> None:
    """One message is left, and places are not those of the journal before."""
    path = tmp_path / "journal"
    write_all(path)
    journal = RunLog(path)
    journal.read()
    before = journal.position()
    journal.restart(USER)
    assert (before, journal.position()) == ("0.7", "1.3")
    journal.item(ASSISTANT, {"call_1": "no JSON"})
    journal.close()
    story = told(path)
    assert (len(story.context), story.generation, story.broken) == (2, 1, {"call_1": "no JSON"})
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]


@pytest.mark.parametrize(
    "line", ["no JSON\n", '{"kind": "dance"}\n', "[]\n", '"text"\n', '{"kind": "item", "item": 5}\n']
)
def test_of_a_damaged_journal_what_is_before_the_damage_is_kept(tmp_path: Path, line: str) -> None:
    """It is said once, the damaged file is put aside, and calls without a result may have happened."""
    path, warnings = tmp_path / "journal", list[str]()
    sizes = write_all(path)
    data = path.read_bytes()
    path.write_bytes(data[: sizes[2]] + f"{line}\n".encode() + data[sizes[2] :])
    journal = RunLog(path, warnings.append)
    state = journal.read()
    journal.close()
    assert [item.message for item in state.context] == [USER.message, ASSISTANT.message]
    assert (state.begun, state.unfinished) == ({CALL.id}, True)
    (warning,) = warnings
    assert warning.startswith(f"journal in {tmp_path} cannot be read from line 4 on (")
    assert (tmp_path / "journal.aside-1").read_bytes() == data[: sizes[2]] + f"{line}\n".encode() + data[sizes[2] :]
    again = RunLog(path, warnings.append)
    assert again.read() == state
    again.close()
    assert len(warnings) == 1


def test_a_journal_of_a_later_version_is_an_error(tmp_path: Path) -> None:
    """It is not damaged: nothing of it may be lost."""
    path = tmp_path / "journal"
    path.write_text('{"kind": "head", "version": 9, "generation": 1}\n')
    with pytest.raises(Unavailable, match="of version 9"):
        told(path)


def test_what_others_do_to_a_journal_that_is_open_loses_nothing(tmp_path: Path) -> None:
    path, warnings = tmp_path / "journal", list[str]()
    journal = RunLog(path, warnings.append)
    journal.read()
    journal.item(USER, {})
    path.write_bytes(path.read_bytes()[:40])
    journal.item(ASSISTANT, {})
    path.unlink()
    journal.intents([CALL])
    path.rename(tmp_path / "moved")
    path.symlink_to("moved")
    journal.result(RESULT, DONE)
    journal.close()
    assert len(told(path).context) == 3
    assert len(warnings) == 3


def test_only_its_owner_can_read_a_journal(tmp_path: Path) -> None:
    """A conversation holds what it holds, secrets too; also after a restart."""
    journal = RunLog(tmp_path / "journal")
    journal.read()
    journal.restart(USER)
    journal.close()
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


async def test_a_call_that_could_not_be_read_is_not_run_after_a_kill(tmp_path: Path) -> None:
    """What is wrong with its arguments is in the journal with the message, so no other start runs it."""
    journal = RunLog(tmp_path / "journal.jsonl")
    journal.read()
    journal.item(USER, {})
    journal.item(ASSISTANT, {"call_1": "the arguments are cut off"})
    journal.close()
    made, model = agent(tmp_path, says("I see."))
    async with made:
        assert (await made.resume()).failed_call.startswith("write_file: Error: the arguments are cut off")
    assert model.asked[0].last.content.startswith("Error: the arguments are cut off. The right form of ")
    assert not (tmp_path / "workspace/a").exists()


async def test_an_answer_before_the_kill_is_the_answer(tmp_path: Path) -> None:
    """When only the end was not written, the model is not asked again."""
    journal = RunLog(tmp_path / "journal.jsonl")
    journal.read()
    journal.item(USER, {})
    journal.item(ContextItem.of(Message(role="assistant", content="It is done.")), {})
    journal.close()
    made, model = agent(tmp_path)
    async with made:
        assert (await made.resume()).text == "It is done."
    assert model.asked == []


# -- a disk that is full ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("making a small disk needs root and mount")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


async def test_a_disk_is_said_to_be_full_before_it_is(small_disk: Path) -> None:
    """First a warning, then no further round; with room again the task goes on, and nothing was lost."""
    made, model = agent(
        small_disk,
        calls("execute_command", command="head -c 5000000 /dev/zero > large"),
        calls("execute_command", command="rm -f large"),
        says("Removed."),
    )
    async with made:
        events = await events_of(made, "Fill the disk.")
        outcome = made.outcome
        assert (outcome.reason, type(outcome.error)) == ("failed", StorageFull)
        assert "bytes left, and 4,194,304 are needed" in outcome.detail
        (warning,) = made.warnings
        assert "is nearly full" in warning
        assert Warned(warning) in events
        assert len(model.asked) == 1
        (small_disk / "workspace/large").unlink()
        assert (await made.resume()).ok


def test_a_full_disk_takes_a_line_whole_or_not_at_all(small_disk: Path) -> None:
    """What did not fit is not there, and what fits afterwards is."""
    journal = RunLog(small_disk / "journal")
    journal.read()
    journal.item(USER, {})
    filled = subprocess.run(["dd", "if=/dev/zero", f"of={small_disk / 'filler'}"], capture_output=True, check=False)
    assert b"No space left" in filled.stderr
    large = ContextItem.of(Message(role="assistant", content="x" * 100_000))
    with pytest.raises(StorageFull, match="make room, then resume"):
        journal.item(large, {})
    (small_disk / "filler").unlink()
    journal.item(ASSISTANT, {})
    journal.close()
    assert len(told(small_disk / "journal").context) == 2


def test_the_warning_comes_once_until_there_is_room_again(tmp_path: Path) -> None:
    """A bound above what any disk has: always low, told once."""
    disk = FreeSpace(tmp_path, warn_below=1 << 60, stop_below=0)
    assert disk.check() is not None
    assert disk.check() is None


def test_the_lines_are_json_that_people_can_read(tmp_path: Path) -> None:
    """Each line says of which kind it is, and the first is the head."""
    write_all(tmp_path / "journal")
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "journal").read_bytes().splitlines()]
    assert kinds == ["head", "item", "item", "intent", "result", "end"]
