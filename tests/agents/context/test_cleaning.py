"""Clean-up takes what is old or too much, and never what the conversation still needs (O7)."""

from datetime import timedelta
from pathlib import Path

import pytest

from cfs.errors import NotFound
from cfs_agents.context import CleaningPolicy, ContextFileSystem, WorkingContext, clean, clean_sessions
from tests.agents.context.support import ManualClock, add_call, assistant, item, paths_below, result, user, words


def test_what_has_expired_goes(files: ContextFileSystem, clock: ManualClock) -> None:
    """Files, line of the index and all; the history remembers that it was there."""
    old, new = item(result("old", "call_old")), item(result("new", "call_new"))
    files.offload([old])
    clock.advance(days=8)
    files.offload([new])
    size = sum((files.path / path).stat().st_size for path in paths_below(files.path) if "call_old" in path)
    assert clean(files, CleaningPolicy()) == size > 0
    assert [path for path in paths_below(files.path) if "call_old" in path] == []
    assert files.restore(new.item_id).message.content == "new"
    with pytest.raises(NotFound):
        files.restore(old.item_id)
    history = files.history()
    assert [(record.item_id, record.path is None, record.removed_because) for record in history] == [
        (old.item_id, True, "expired"),
        (new.item_id, False, None),
    ]


def test_over_the_cap_the_oldest_go_first(files: ContextFileSystem) -> None:
    """Until the rest fits; both files of an item count."""
    entries = [item(result(f"{number}" * 10_000, f"call_{number}")) for number in range(5)]
    for entry in entries:
        files.offload([entry])
    clean(files, CleaningPolicy(expire_after=None, max_bytes=50_000))
    left = [record.item_id for record in files.history() if record.path]
    assert left == [entry.item_id for entry in entries[3:]]
    on_disk = sum((files.path / path).stat().st_size for path in paths_below(files.path) if path != "index.json")
    assert on_disk == sum(record.stored for record in files.history()) <= 50_000


def test_what_is_to_be_kept_is_kept(files: ContextFileSystem, clock: ManualClock) -> None:
    """However old, and beyond the cap."""
    entries = [item(result("x" * 1000, f"call_{number}")) for number in range(4)]
    files.offload(entries)
    clock.advance(days=99)
    keep = {entries[0].item_id, entries[2].item_id}
    clean(files, CleaningPolicy(max_bytes=10), keep)
    assert {record.item_id for record in files.history() if record.path} == keep


def test_nothing_goes_without_bounds(files: ContextFileSystem, clock: ManualClock) -> None:
    """None is no bound."""
    files.offload([item(result("x"))])
    clock.advance(days=9999)
    assert clean(files, CleaningPolicy(None, None)) == 0


async def test_the_working_context_keeps_what_it_refers_to(files: ContextFileSystem, clock: ManualClock) -> None:
    """A placeholder in the prompt never leads to nothing, an item that has left the prompt may go."""
    context = WorkingContext(files)
    context.add(user("the task"))
    first, second = add_call(context, words(2500), "a"), add_call(context, words(2500), "b")
    context.add(assistant("seen"))
    await context.prepare()
    gone = item(result("an item that is in no prompt", "c"))
    files.offload([gone])
    clock.advance(days=99)
    assert await context.clean() > 0
    assert {record.item_id for record in files.history() if record.path} == {first.item_id, second.item_id}
    assert {record.item_id for record in await context.history()} == {first.item_id, second.item_id, gone.item_id}


def test_whole_sessions_go_when_they_are_old(tmp_path: Path, clock: ManualClock) -> None:
    """Not one that is open, has a name of its own, or was used lately; nor what else lies there."""
    kept = {"mine", "session_20260102_030405_notes"}
    sessions = [ContextFileSystem(tmp_path, session_id, now=clock, reserve=0) for session_id in (None, None, "mine")]
    for files in sessions:
        files.offload([item(result("x"))])
    old, used, named = sessions
    old.close()
    named.close()
    (tmp_path / "session_20260102_030405_notes").mkdir()
    clock.advance(days=8)
    with ContextFileSystem(tmp_path, now=clock, reserve=0) as young:
        young.offload([item(result("x"))])
    assert clean_sessions(tmp_path, CleaningPolicy(), clock()) == [old.session_id]
    assert {path.name for path in tmp_path.iterdir()} == kept | {used.session_id, young.session_id}
    used.close()
    assert clean_sessions(tmp_path, CleaningPolicy(None), clock()) == []
    assert clean_sessions(tmp_path, CleaningPolicy(timedelta(days=1)), clock()) == [used.session_id]
    assert clean_sessions(tmp_path / "nowhere", CleaningPolicy(), clock()) == []


def test_a_session_with_files_of_others_stays(tmp_path: Path, clock: ManualClock) -> None:
    """Its items go, what was not written here does not."""
    with ContextFileSystem(tmp_path, now=clock, reserve=0) as files:
        files.offload([item(result("x"))])
        (files.path / "notes.md").write_text("mine")
    clock.advance(days=8)
    assert clean_sessions(tmp_path, CleaningPolicy(), clock()) == []
    assert paths_below(files.path) == ["notes.md"]
