"""A disk that takes no more: said before it happens, and nothing is lost (A7, O1)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs.errors import StorageFull, Unavailable
from cfs_agents.context import ContextFileSystem, OffloadPolicy, SelectiveCompactionPolicy, WorkingContext
from tests.agents.context.support import ScriptedSummary, add_call, assistant, item, result, user, words


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("making a small disk needs root and mount")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_it_is_said_before_the_disk_is_full(tmp_path: Path) -> None:
    """What is to stay free does: the item is refused with both numbers, and nothing is written."""
    with ContextFileSystem(tmp_path, reserve=1 << 60) as files:
        offloaded = files.offload([item(result("x"))])
        assert isinstance(offloaded.refused, StorageFull)
        assert f"{1 << 60:,} are kept free" in offloaded.refused.detail
        assert offloaded.records == {}
        assert files.history() == []
        assert not any(path.is_file() for path in files.path.rglob("*"))


def test_a_disk_that_becomes_full_keeps_what_it_has(small_disk: Path) -> None:
    """Without a reserve the disk itself refuses: what was off-loaded before is whole, what was not is told."""
    incompressible = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000))) * 3
    with ContextFileSystem(small_disk, reserve=-(1 << 30)) as files:
        entries = [item(result(f"{number}{incompressible}", f"call_{number}")) for number in range(20)]
        outcomes = [files.offload([entry]) for entry in entries]
        refused = [outcome.refused for outcome in outcomes if outcome.refused is not None]
        kept = [entry for entry, outcome in zip(entries, outcomes, strict=True) if outcome.records]
        assert kept
        assert refused
        assert {type(error) for error in refused} == {StorageFull}
        assert all(files.restore(entry.item_id).message == entry.message for entry in kept)
        assert files.check_integrity() == []
        assert len(files.history()) == len(kept)
        files.close()
        assert len(files.history()) == len(kept)


async def test_the_conversation_goes_on_with_a_full_disk(small_disk: Path) -> None:
    """Items stay in the context, one warning says why, and when there is room again they go."""
    with ContextFileSystem(small_disk, reserve=0) as files:
        context = WorkingContext(files, offload=OffloadPolicy(threshold=500))
        filler = small_disk / "filler"
        context.add(user())
        first = add_call(context, words(1000))
        context.add(assistant("next"))
        await context.prepare()
        filler.write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
        second = add_call(context, words(1000), "call_2")
        context.add(assistant("next"))
        for _ in range(3):
            messages = await context.prepare()
        assert context.context[first.item_id].offloaded
        assert second.message in messages
        assert len(context.warnings) == 1
        assert "nothing more is off-loaded" in context.warnings[0]
        filler.unlink()
        await context.prepare()
        assert context.context[second.item_id].offloaded
        assert len(context.warnings) == 1


async def test_a_full_disk_takes_nothing_from_a_context_that_is_too_long(tmp_path: Path) -> None:
    """Neither by compaction nor by a summary nor by an ephemeral tool: what cannot be kept elsewhere stays."""
    with ContextFileSystem(tmp_path, reserve=1 << 60) as files:
        summary = ScriptedSummary("short")
        context = WorkingContext(files, compaction=SelectiveCompactionPolicy(1000, summary, keep_recent=1))
        context.add(user())
        for number in range(6):
            add_call(context, words(400), f"call_{number}")
        context.add(assistant("ready"))
        before = [entry.message for entry in context.context]
        assert await context.prepare() == before
        assert summary.asked == []
        assert context.last_compaction is not None
        assert context.last_compaction.kept_because == "what it would replace cannot be off-loaded"
        assert len(context.warnings) == 1


def test_a_root_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A file where the root should be is no reason to fail."""
    (tmp_path / "taken").write_text("a file")
    with ContextFileSystem(tmp_path / "taken") as files:
        offloaded = files.offload([item(result("x"))])
        assert isinstance(offloaded.refused, Unavailable)
        assert "cannot be written" in offloaded.refused.detail
