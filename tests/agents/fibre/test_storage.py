"""The files of a tree: replaced whole, read back, and open to one program at a time (B3, B8)."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cfs.errors import Conflict
from cfs.wire import Message
from cfs_agents.base.disk import AppendedFile
from cfs_agents.tree import session_folder
from cfs_agents.tree.folder import TreeFolder
from cfs_agents.tree.record import SubAgentRecord
from cfs_agents.tree.session_folder import MESSAGES, STATUS, STEPS, StoredState

SAID = [Message(role="user", content="你好"), Message(role="assistant", content="hello")]


def record(count: int) -> SubAgentRecord:
    return SubAgentRecord(session_id="main/a", agent_id="a", agent_name="a", parent_id="main", messages=count)


def stored(count: int) -> dict[str, Any]:
    return record(count).model_dump(mode="json")


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    folder = TreeFolder(tmp_path, "main")
    place = folder.sub("a")
    assert place.load() is None
    for count in (1, 2):
        place.save(stored(count), SAID[:count])
    changed = [SAID[0], Message(role="assistant", content="hello there")]
    place.save(stored(2), changed)
    assert folder.sub("a").load() == StoredState(stored(2), changed)
    assert folder.subs() == ["a"]
    assert (place.path / "agent_workspace").resolve() == folder.workspace.resolve()
    assert json.loads((place.path / MESSAGES).read_text(encoding="utf-8"))[0] == {"role": "user", "content": "你好"}
    folder.close()


def test_files_of_earlier_versions_are_read_and_written_by_their_names(tmp_path: Path) -> None:
    """The attributes of a record have been renamed; the fields of `session_status.json` have not."""
    old = {"held": {"turn": "t", "claim": "c", "content": "go"}, "asked": ["finish"], "heard": False}
    news = {"id": "a:1", "sender": "a", "content": "done", "notice": True}
    whole = record(0).model_dump(mode="json") | old | {"inbox": [news]}
    place = TreeFolder(tmp_path, "main").sub("a")
    place.save(whole, [])
    state = place.load()
    assert state is not None
    loaded = SubAgentRecord.model_validate(state.status)
    assert loaded.lease is not None
    assert (loaded.lease.turn, loaded.nudges, loaded.report_delivered) == ("t", ["finish"], False)
    assert loaded.inbox[0].is_notification
    held = old["held"] | {"life": None, "traceparent": None}  # type: ignore[operator]
    assert loaded.model_dump(mode="json") == whole | {"held": held}


def test_steps_are_appended_until_the_task_rests(tmp_path: Path) -> None:
    """A step takes as many bytes as have changed. Each prefix of the steps is a state, and a torn line is none."""
    folder = TreeFolder(tmp_path, "main")
    place = folder.sub("a")
    items = [{"item_id": str(number), "at": number} for number in range(40)]
    said = [Message(role="user", content=f"{number} {'x' * 200}") for number in range(40)]
    sizes, states = [], []
    for count in range(1, 41):
        state = stored(count) | {"items": items[:count]}
        place.save(state, said[:count])
        sizes.append((place.path / STEPS).stat().st_size)
        states.append(StoredState(state, said[:count]))
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) < 500, "bytes of a step do not grow with the conversation"
    whole = (place.path / STEPS).read_bytes()
    lines = whole.splitlines(keepends=True)
    assert json.loads(lines[0]) == {"generation": 1}, "an empty file is a damaged one"
    for count in range(1, len(lines)):
        for torn in (b"", lines[count][:-3]):
            (place.path / STEPS).write_bytes(b"".join(lines[:count]) + torn)
            assert folder.sub("a").load() == replace(states[count - 1], torn=bool(torn))
    (place.path / STEPS).write_bytes(whole)
    assert folder.sub("a").load() == states[-1]
    shorter = stored(1) | {"items": [{"item_id": "note"}]}
    place.save(shorter, said[:1])
    assert folder.sub("a").load() == StoredState(shorter, said[:1])
    place.save(shorter, said[:1], rest=True)
    assert json.loads((place.path / STEPS).read_bytes()) == {"generation": 2}
    (place.path / STEPS).write_bytes(whole)  # as if the kill had come before the steps were cleared
    assert folder.sub("a").load() == StoredState(shorter, said[:1])
    folder.close()


class Killed(BaseException):
    """Stands for the end of the process: nothing handles it."""


@pytest.mark.parametrize("first", [True, False])
def test_a_kill_at_any_moment_of_a_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Of the first save, before which there is nothing, and of one at the end of a task, whose steps are stored."""
    left, count = 0, 0 if first else 1

    def killed_before(name: str, owner: Any) -> None:
        real = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, step)

    for name, owner in (("_replace", session_folder), ("append", AppendedFile), ("restart", AppendedFile)):
        killed_before(name, owner)
    states = []
    for moment in range(1, 10):
        folder, left = TreeFolder(tmp_path / str(moment), "main"), 0
        if not first:
            folder.sub("a").save(stored(count), SAID[:count])
        left = moment
        try:
            folder.sub("a").save(stored(count), SAID[:count], rest=True)
        except Killed:
            states.append(folder.sub("a").load())
        folder.close()
    whole = StoredState(stored(count), SAID[:count])
    assert len(states) >= 3
    assert all(state == whole or (first and state is None) for state in states), states


def test_what_a_kill_has_left_is_swept(tmp_path: Path) -> None:
    folder = TreeFolder(tmp_path, "main")
    place = folder.sub("a")
    place.save(stored(0), [])
    left = place.path / f"{STATUS}.new"
    left.write_text("half")
    assert folder.sub("a").load() is not None
    assert not left.exists()
    folder.close()


def test_one_program_at_a_time(tmp_path: Path) -> None:
    folder = TreeFolder(tmp_path, "main")
    with pytest.raises(Conflict):
        TreeFolder(tmp_path, "main")
    TreeFolder(tmp_path, "other").close()
    folder.close()
    TreeFolder(tmp_path, "main").close()


def test_of_damaged_messages_the_beginning_is_kept(tmp_path: Path) -> None:
    """It is said once, and the damaged file is put aside."""
    warnings: list[str] = []
    folder = TreeFolder(tmp_path, "main", warnings.append)
    place = folder.sub("a")
    place.save(stored(2), SAID)
    whole = (place.path / MESSAGES).read_text(encoding="utf-8")
    (place.path / MESSAGES).write_text(whole[:-8], encoding="utf-8")
    state = folder.sub("a").load()
    assert state is not None
    assert (state.messages, state.losses) == (SAID[:1], (MESSAGES,))
    assert state.status == stored(0), "it counts no messages that are lost"
    (warning,) = warnings
    assert "messages.json in" in warning
    assert "after its first 1 messages" in warning
    assert (place.path / f"{MESSAGES}.aside-1").read_text(encoding="utf-8") == whole[:-8]
    folder.close()
