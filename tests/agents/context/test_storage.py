"""Items on disk: the layout, the files, and that nothing is ever half there (O1)."""

import gzip
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfs.errors import Conflict, InvalidIdentifier, NotFound
from cfs.wire import Message, ToolCall
from cfs_agents.context import CleaningPolicy, ContextFileSystem, ContextItem, clean
from tests.agents.context.support import assistant, call, item, paths_below, read_as_tool, result, user

HERE = Path(__file__).parent


def stored(files: ContextFileSystem, *items: ContextItem) -> None:
    """Off-load items; the disk must have taken them."""
    offloaded = files.offload(items)
    assert offloaded.refused is None
    assert set(offloaded.records) == {entry.item_id for entry in items}


def test_the_layout(files: ContextFileSystem) -> None:
    """A folder for each type, results by tool and call; beside each JSON a text; and the index."""
    items = [
        item(result("a", "call_7", "read_file")),
        item(user("b")),
        item(assistant("c")),
        item(user("d"), "skill_prompt"),
    ]
    stored(files, *items)
    ids = [entry.item_id for entry in items]
    assert re.fullmatch(r"session_20260102_030405_[a-z0-9]{6}", files.session_id)
    assert paths_below(files.root / files.session_id) == sorted(
        [
            "index.json",
            *("tool_result/read_file/call_7.json", "tool_result/read_file/call_7.txt"),
            *(f"user_message/{ids[1]}.json", f"user_message/{ids[1]}.txt"),
            *(f"assistant_message/{ids[2]}.json", f"assistant_message/{ids[2]}.txt"),
            *(f"skill_prompt/{ids[3]}.json", f"skill_prompt/{ids[3]}.txt"),
        ]
    )


def test_the_default_root_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`~/.agent/context`, made for its owner alone when it is first needed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with ContextFileSystem() as files:
        assert files.root == tmp_path / ".agent/context"
        assert not (tmp_path / ".agent").exists()
        stored(files, item(user()))
        assert stat.S_IMODE((tmp_path / ".agent").stat().st_mode) == 0o700


def test_a_file_says_what_it_holds(files: ContextFileSystem) -> None:
    """The members that the format names, in a JSON that any program reads."""
    entry = item(result("one\ntwo\n", "call_7", "read_file"))
    offloaded = files.offload([entry], {entry.item_id: "read_file: one"})
    document = json.loads((files.path / "tool_result/read_file/call_7.json").read_text())
    assert document["schema_version"] == "1.0"
    assert document["item_id"] == entry.item_id
    assert document["item_type"] == "tool_result"
    assert document["content"] == "one\ntwo\n"
    assert document["metadata"]["tool_call_id"] == "call_7"
    assert document["metadata"]["summary"] == "read_file: one"
    assert document["metadata"]["tool_name"] == "read_file"
    record = offloaded.records[entry.item_id]
    assert document["offloaded_at"] == record.offloaded_at == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    assert type(document["offloaded_at"]) is int
    assert type(json.loads((files.path / "index.json").read_text())["items"][0]["offloaded_at"]) is int
    stored(files, other := item(user("no tool")))
    assert "tool_name" not in json.loads((files.path / f"user_message/{other.item_id}.json").read_text())["metadata"]


def in_the_earlier_format(folder: Path) -> None:
    """Write the times of a folder in ISO 8601, without the name of the tool: as the versions until 0.2 did."""

    def earlier(values: dict[str, Any], metadata: dict[str, Any]) -> None:
        time = datetime.fromtimestamp(values["offloaded_at"], UTC).replace(microsecond=metadata.pop("microsecond"))
        values["offloaded_at"] = time.isoformat()
        metadata.pop("tool_name", None)

    for path in folder.rglob("*.json"):
        document = json.loads(path.read_text())
        if path.name == "index.json":
            for line in document["items"]:
                earlier(line, line)
        else:
            earlier(document, document["metadata"])
        path.write_text(json.dumps(document))


@pytest.mark.parametrize("index", [True, False])
def test_a_folder_of_an_earlier_version_is_opened(files: ContextFileSystem, *, index: bool) -> None:
    """With its items in their order, also if the index is lost; what is off-loaded now comes behind them."""
    entries = [item(result(str(number), f"call_{9 - number}")) for number in range(5)]
    stored(files, *entries)
    before = files.history()
    files.close()
    in_the_earlier_format(files.path)
    assert "T03:04:05" in json.loads((files.path / "tool_result/shell/call_9.json").read_text())["offloaded_at"]
    if not index:
        (files.path / "index.json").unlink()
    assert [replace(record, stored=0) for record in files.history()] == [replace(record, stored=0) for record in before]
    assert [record.item_id for record in before] == [entry.item_id for entry in entries]
    assert files.check_integrity() == []
    assert [files.restore(entry.item_id).message.content for entry in entries] == ["0", "1", "2", "3", "4"]
    stored(files, new := item(user("later")))
    assert files.history()[-1].item_id == new.item_id
    files.close()
    assert [record.item_id for record in files.history()] == [entry.item_id for entry in [*entries, new]]


def test_nobody_else_may_look(files: ContextFileSystem) -> None:
    """Folders 0700, files 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        stored(files, item(result("x")))
    finally:
        os.umask(before)
    for path in [files.root, files.path, *files.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


CONTENTS = [
    "",
    "one line",
    "many\nlines\n" * 500,
    "x" * 300_000,
    "é中🙂\r\n\x00\x1b[0m",
    "half \ud800 of one",
    '"\\{}\n',
]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_what_was_off_loaded_is_restored(files: ContextFileSystem, content: str) -> None:
    """Every message with all its parts: enormous lines, control characters, even half characters."""
    message = Message(role="assistant", content=content, thinking="hm", tool_calls=(call("c", "shell", a=[1, None]),))
    for entry in (item(message), item(result(content))):
        stored(files, entry)
        restored = files.restore(entry.item_id)
        assert restored.message == entry.message
        assert not restored.redacted


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=40), st.text(max_size=20), st.text(max_size=40))
def test_ids_of_any_kind_find_their_file(tmp_path: Path, call_id: str, tool: str, content: str) -> None:
    """Whatever a model calls its calls, and however often, each result comes back as its own."""
    with ContextFileSystem(tmp_path, durable=False) as files:
        entries = [item(result(content + str(number), call_id, tool)) for number in range(3)]
        stored(files, *entries)
        assert [files.restore(entry.item_id).message.content for entry in entries] == [
            content + str(number) for number in range(3)
        ]
        assert files.check_integrity() == []


@pytest.mark.parametrize("call_id", ["x" * 400, "../../../escape", "a/b\0c", "", ".", "中文", "CON", "call_1"])
def test_odd_ids_stay_inside(files: ContextFileSystem, call_id: str) -> None:
    """Longer than a file name, with separators, NUL, dots or nothing at all: below the folder, and readable."""
    entry = item(result("the result", call_id, "../tool"))
    stored(files, entry)
    assert sorted(path.name for path in files.root.iterdir()) == [files.session_id]
    record = files.history()[0]
    assert read_as_tool(files, files.path_of(record)) == "the result"


def test_ids_that_repeat_or_differ_in_case_only(files: ContextFileSystem) -> None:
    """The first has the plain name; none takes the place of another, on disks too that fold case."""
    entries = [item(result(str(number), call_id)) for number, call_id in enumerate(["call_a", "call_a", "CALL_A"])]
    stored(files, *entries)
    names = [path.removesuffix(".json") for path in paths_below(files.path / "tool_result") if path.endswith(".json")]
    assert "shell/call_a" in names
    assert len({name.lower() for name in names}) == 3
    assert [files.restore(entry.item_id).message.content for entry in entries] == ["0", "1", "2"]


def test_an_item_off_loaded_twice_is_there_once(files: ContextFileSystem) -> None:
    """Also after a start anew; what has changed meanwhile takes the old one's place."""
    entry = item(result("first"))
    stored(files, entry)
    before = paths_below(files.path)
    stored(files, entry, entry)
    files.close()
    stored(files, entry)
    assert paths_below(files.path) == before
    stored(files, entry.with_content("second"))
    assert files.restore(entry.item_id).message.content == "second"
    assert len(files.history()) == 1
    assert len(paths_below(files.path)) == len(before)


def test_a_placeholder_is_not_stored_over_its_content(files: ContextFileSystem) -> None:
    """An item that is on disk already has nothing of its own to write."""
    entry = item(result("the content"))
    stored(files, entry)
    gone = ContextItem.load(entry.with_content("[Content offloaded]").dump() | {"offloaded": True, "offload_path": "x"})
    assert files.offload([gone]).contents == {}
    assert files.restore(entry.item_id).message.content == "the content"


def test_secrets_do_not_reach_the_disk(files: ContextFileSystem) -> None:
    """Not in the JSON, the text, the index or the summary; what comes back says that something is missing."""
    login = ToolCall(id="c", name="login", arguments={"password": "hunter2"})
    entry = item(assistant("password=hunter2 it is", login))
    files.offload([entry], {entry.item_id: "password=hunter2"})
    everything = b"".join(path.read_bytes() for path in files.path.rglob("*") if path.is_file())
    assert b"hunter2" not in everything
    restored = files.restore(entry.item_id)
    assert restored.redacted
    assert restored.record.redactions == {"password": 2}
    assert restored.message.content == "password=[redacted: password] it is"
    assert restored.message.tool_calls[0].arguments == {"password": "[redacted: password]"}
    assert entry.message.content == "password=hunter2 it is"


def test_large_files_are_compressed_and_stay_readable(files: ContextFileSystem) -> None:
    """At a clean-up the JSON becomes `.json.gz`; the text beside it is what tools read."""
    entry = item(result("the same line again\n" * 50_000))
    stored(files, entry, item(result("a short one", "call_2")))
    assert clean(files, CleaningPolicy()) > 900_000
    assert clean(files, CleaningPolicy()) == 0
    assert files.check_integrity() == []
    assert "tool_result/shell/call_1.json" not in paths_below(files.path)
    packed = files.path / "tool_result/shell/call_1.json.gz"
    assert json.loads(gzip.decompress(packed.read_bytes()))["content"] == entry.message.content
    assert packed.stat().st_size < 100_000
    assert read_as_tool(files, files.path_of(files.history()[0])) == entry.message.content
    files.close()
    assert files.restore(entry.item_id).message == entry.message


@pytest.mark.parametrize("known", ["call_1.json", "call_1.json.gz"])
def test_a_compression_that_was_broken_off_leaves_one_file(files: ContextFileSystem, known: str) -> None:
    """Whether it was killed before the index or after it: the next one to open the session has the item, once."""
    entry = item(result("the same line again\n" * 50_000))
    stored(files, entry)
    plain = files.path / "tool_result/shell/call_1.json"
    data = plain.read_bytes()
    if known == "call_1.json":
        (files.path / "tool_result/shell/call_1.json.gz").write_bytes(gzip.compress(data))
    else:
        files.compress()
        plain.write_bytes(data)
    files.close()
    assert files.restore(entry.item_id).message == entry.message
    assert files.check_integrity() == []
    assert [path for path in paths_below(files.path) if "json" in path] == ["index.json", f"tool_result/shell/{known}"]


def test_what_cannot_be_compressed_is_not(files: ContextFileSystem) -> None:
    """A sample tells, before time is spent on the rest."""
    chaos = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FFF), k=150_000)))
    stored(files, item(result(chaos, "call_2")))
    assert files.compress() == 0
    assert "tool_result/shell/call_2.json" in paths_below(files.path)


def test_the_model_reads_by_lines_with_the_path_that_it_was_told(tmp_path: Path) -> None:
    """A root that tools see under another name is named so; the grant is for this session and for reading only."""
    with ContextFileSystem(tmp_path, shown_as="/context/", reserve=0) as files:
        stored(files, item(result("one\ntwo\nthree\n")))
        path = files.path_of(files.history()[0])
        assert path == f"/context/{files.session_id}/tool_result/shell/call_1.txt"
        reader, grant = files.reader()
        assert reader.create_handle([grant]).read_file(path, index=1, line=1) == "two\n"
        assert grant == {"prefix": f"/context/{files.session_id}/", "ops": {"list", "file", "read"}}
        assert json.loads(reader.create_handle([grant]).read_file(files.index_path))["items"]


def test_a_session_is_open_once(files: ContextFileSystem) -> None:
    """A second object is told; when the first one lets go, it finds everything."""
    entry = item(result("x"))
    stored(files, entry)
    with ContextFileSystem(files.root, files.session_id) as second:
        with pytest.raises(Conflict, match="in use"):
            second.offload([entry])
        with pytest.raises(Conflict, match="in use"):
            second.history()
        files.close()
        assert second.restore(entry.item_id).message.content == "x"


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """A session of which nothing was off-loaded leaves no trace, and what is not there cannot be restored."""
    with ContextFileSystem(tmp_path / "context") as files:
        assert files.history() == []
        with pytest.raises(NotFound, match="item_x"):
            files.restore("item_x")
    assert list(tmp_path.iterdir()) == []


def test_a_session_with_a_bad_id_is_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidIdentifier):
        ContextFileSystem(tmp_path, "../elsewhere")


def test_many_threads_off_load_at_once(files: ContextFileSystem) -> None:
    """Each finds its own item afterwards."""
    entries = [item(result(str(number))) for number in range(24)]
    threads = [threading.Thread(target=files.offload, args=([entry],)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(files.restore(entry.item_id).message.content) for entry in entries) == list(range(24))


# -- what a crash leaves -----------------------------------------------------------------------------------------------


def damaged(files: ContextFileSystem, damage: Callable[[Path], object]) -> ContextFileSystem:
    """Close a session, do something to its folder, and open it anew."""
    files.close()
    damage(files.path)
    return ContextFileSystem(files.root, files.session_id)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_an_index_that_was_cut_off_is_made_again(files: ContextFileSystem, share: float) -> None:
    """From the files, with all that it said."""
    stored(files, *(item(result(str(number), f"call_{number}")) for number in range(5)), item(user("x" * 300_000)))
    before = files.history()

    def cut(folder: Path) -> None:
        data = (folder / "index.json").read_bytes()
        (folder / "index.json").write_bytes(data[: int(len(data) * share)])

    with damaged(files, cut) as again:
        assert again.history() == before
        assert again.check_integrity() == []
        assert json.loads((again.path / "index.json").read_text())["items"]


RUBBISH = [
    *(b"[]", b"{}", b"\xff", b'{"schema_version": "9", "items": [], "removed": []}'),
    *(
        b'{"schema_version": "1.0", "items": %s, "removed": []}' % items
        for items in (b"7", b"[7]", b"[[]]", b'[{"a": 1}]')
    ),
]


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_an_index_that_is_something_else_is_made_again(files: ContextFileSystem, rubbish: bytes) -> None:
    """Of another shape, or no JSON at all."""
    stored(files, item(result("x")))
    before = files.history()
    with damaged(files, lambda folder: (folder / "index.json").write_bytes(rubbish)) as again:
        assert again.history() == before


def test_a_file_that_no_index_names_is_taken_in(files: ContextFileSystem) -> None:
    """As a kill between the file and the index leaves it."""
    first, second = item(result("1", "call_1")), item(result("2", "call_2"))
    stored(files, first)
    index = (files.path / "index.json").read_bytes()
    stored(files, second)
    with damaged(files, lambda folder: (folder / "index.json").write_bytes(index)) as again:
        assert again.restore(second.item_id).message.content == "2"
        assert again.check_integrity() == []


def test_a_record_whose_file_is_gone_is_dropped(files: ContextFileSystem) -> None:
    """The index does not lead to nothing, however the file was removed; nor does a damaged file stay in it unread."""
    first, second = item(result("1", "call_1")), item(result("2", "call_2"))
    stored(files, first, second)
    with damaged(files, lambda folder: (folder / "tool_result/shell/call_1.json").unlink()) as again:
        assert [record.item_id for record in again.history()] == [second.item_id]
        with pytest.raises(NotFound):
            again.restore(first.item_id)
        (again.path / "tool_result/shell/call_1.txt").unlink()


@pytest.mark.parametrize("left", ["", "tw"])
def test_a_text_that_is_missing_or_cut_off_is_made_again(files: ContextFileSystem, left: str) -> None:
    """Only the JSON is waited for when an item is written; the text follows from it."""
    stored(files, item(result("one\ntwo\n")))
    text = files.path / "tool_result/shell/call_1.txt"
    with damaged(files, lambda _: text.write_text(left) if left else text.unlink()) as again:
        assert again.history()
        assert text.read_text() == "one\ntwo\n"


def test_files_of_others_are_left_alone(files: ContextFileSystem) -> None:
    """What was not written here is neither read as an item nor removed."""

    def plant(folder: Path) -> None:
        (folder / "notes.json").write_text('{"mine": true}')
        (folder / "tool_result/shell/link.json").symlink_to("/etc/hostname")

    stored(files, item(result("x")))
    with damaged(files, plant) as again:
        assert len(again.history()) == 1
        (again.path / "tool_result/shell/link.json").unlink()
        (again.path / "notes.json").unlink()


def test_a_writer_that_ends_before_any_of_its_steps_leaves_a_true_index(tmp_path: Path) -> None:
    """Each write and each removal in turn is the one that does not happen any more."""
    command = [sys.executable, str(HERE / "stopped_offloader.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["wrong"] == []
    assert seen["status"] == 0
    assert seen["steps"] > 15


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_at_any_moment_leaves_a_true_index(tmp_path: Path, kills: int) -> None:
    """A program off-loads, replaces and cleans up until it is killed; all that it had acknowledged is there."""
    command = [sys.executable, str(HERE / "killed_offloader.py"), str(tmp_path), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["violations"] == []
    assert seen["lost"] == []
    assert seen["unreadable"] == []
    assert seen["kills"] == kills
    assert seen["acknowledged"] > kills


@pytest.mark.parametrize("elsewhere", ["../../outside.json", "/outside.json", "no/such.json"])
def test_an_index_cannot_lead_elsewhere(files: ContextFileSystem, elsewhere: str) -> None:
    """A forged path in it is not followed; the item is found where it is."""
    entry = item(result("x"))
    stored(files, entry)
    (files.root.parent / "outside.json").write_text("nobody may read or write this")

    def mislead(folder: Path) -> None:
        index = (folder / "index.json").read_text()
        (folder / "index.json").write_text(index.replace("tool_result/shell/call_1.json", elsewhere))

    with damaged(files, mislead) as again:
        assert again.restore(entry.item_id).message == entry.message
        assert again.check_integrity() == []
    assert (files.root.parent / "outside.json").read_text() == "nobody may read or write this"
    assert not (files.root.parent / "outside.txt").exists()


@pytest.mark.parametrize("swapped", [".cfs", ".cfs/offloaded", ".cfs/offloaded/one"])
def test_no_link_that_commands_have_made_is_followed(tmp_path: Path, swapped: str) -> None:
    """Below the directory that is trusted: the link is put aside, and nothing appears elsewhere."""
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    (outside / "one").mkdir(parents=True)
    (outside / "offloaded/one").mkdir(parents=True)
    (workspace / swapped).parent.mkdir(parents=True)
    (workspace / swapped).symlink_to(outside)
    before = paths_below(outside)
    with ContextFileSystem(workspace / ".cfs/offloaded", "one", trusted=workspace) as files:
        stored(files, item(user("b")))
        files.discard()
    assert paths_below(outside) == before
    assert (workspace / f"{swapped}.aside-1").readlink() == outside


def test_folder_that_a_command_has_taken_away_is_made_again(tmp_path: Path) -> None:
    """What was in it is gone; the next one is off-loaded as if nothing had been."""
    with ContextFileSystem(tmp_path / ".cfs/offloaded", "one", trusted=tmp_path) as files:
        stored(files, item(user("a")))
        shutil.rmtree(tmp_path / ".cfs")
        for text in "bc":
            files.offload([item(user(text))])
        stored(files, item(user("d")))
        assert [record.summary for record in files.history()]
