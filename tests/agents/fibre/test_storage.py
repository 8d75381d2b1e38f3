"""The files of a tree: replaced whole, read back, and open to one program at a time (B3, B8)."""

import json
from pathlib import Path

import pytest

from cfs.errors import Conflict, Unavailable
from cfs.wire import Message
from cfs_agents.fibre.state import MESSAGES, STATUS, SubAgentRecord, TreeFolder

SAID = [Message(role="user", content="你好"), Message(role="assistant", content="hello")]


def record(count: int) -> SubAgentRecord:
    return SubAgentRecord(session_id="main/a", agent_id="a", agent_name="a", parent_id="main", messages=count)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    folder = TreeFolder(tmp_path, "main")
    place = folder.sub("a")
    assert place.load() is None
    for count in (1, 2):
        place.save(record(count).model_dump_json(), SAID[:count])
    changed = [SAID[0], Message(role="assistant", content="hello there")]
    place.save(record(2).model_dump_json(), changed)
    assert folder.sub("a").load() == (record(2), changed)
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
    place.save(json.dumps(whole), [])
    loaded = place.load()
    assert loaded is not None
    assert loaded[0].lease is not None
    assert (loaded[0].lease.turn, loaded[0].nudges, loaded[0].report_delivered) == ("t", ["finish"], False)
    assert loaded[0].inbox[0].is_notification
    held = old["held"] | {"life": None, "traceparent": None}  # type: ignore[operator]
    assert json.loads(loaded[0].model_dump_json()) == whole | {"held": held}


def test_what_a_kill_has_left_is_swept(tmp_path: Path) -> None:
    folder = TreeFolder(tmp_path, "main")
    place = folder.sub("a")
    place.save(record(0).model_dump_json(), [])
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


def test_a_file_that_no_crash_leaves_is_told(tmp_path: Path) -> None:
    folder = TreeFolder(tmp_path, "main")
    place = folder.sub("a")
    place.save(record(0).model_dump_json(), [])
    (place.path / MESSAGES).write_text("[{]")
    with pytest.raises(Unavailable, match="sub_sessions/a"):
        folder.sub("a").load()
    folder.close()
