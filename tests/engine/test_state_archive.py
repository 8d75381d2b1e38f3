"""The thread that writes state: at its rate, in order, behind all that is urgent, and never what nobody wants."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cfs_server.engine.kvcache.state_archive import MOST_PENDING, Done, StateArchive, StateWrite
from cfs_server.engine.kvcache.state_file import SLICE, StatePiece
from cfs_server.engine.kvcache.state_folder import LEAST_FREE, Folder, label_of
from tests.disks import Mount, fill, mount
from tests.engine.support import ask, running, until

__all__ = ["mount"]


class Harness:
    """An archive, and its results as they come."""

    def __init__(self, folder: Path, rate: int = 0, *, least_free: int = 0) -> None:
        self.folder = Folder(folder, "mark", "model", least_free=least_free)
        self._woken = threading.Semaphore(0)
        self.archive = StateArchive(self.folder, self._woken.release, rate)
        self._results: list[Done] = []

    def next(self) -> Done:
        """Wait for a result."""
        while not self._results:
            assert self._woken.acquire(timeout=60)
            self._results += self.archive.results()
        return self._results.pop(0)

    def write(self, name: str, size: int = 100) -> StateWrite:
        """Order a file."""
        state = np.full(size, len(name), dtype=np.uint8)
        order = StateWrite(name, "me", ("s",), 0, np.arange(5, dtype=np.int32), (StatePiece(0, 5, state),), size)
        assert self.archive.write(order)
        return order

    def files(self) -> list[str]:
        """List the files that are there, whole or not."""
        return sorted(path.name for path in self.folder.path.iterdir() if path.name != "lock")


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Harness]:
    """An archive that writes a byte a second, and has begun with a file of 4 MiB."""
    harness = Harness(tmp_path, rate=1)
    harness.write("early")
    harness.archive.drain(60)
    assert harness.next() == Done("early")
    harness.write("large", 4 * SLICE)
    while "large.part" not in harness.files():
        threading.Event().wait(0.001)
    yield harness
    harness.archive.close()


def test_a_read_does_not_wait_for_writes(slow: Harness) -> None:
    """Though the write that goes on takes a month."""
    slow.archive.read("early")
    done = slow.next()
    assert (done.name, done.problem) == ("early", "")
    assert done.head is not None
    assert "large.state" not in slow.files()
    assert slow.archive.drain(60)
    assert slow.next() == Done("large")
    assert slow.files() == ["early.state", "large.state"]


def test_state_that_waits_can_be_read(slow: Harness) -> None:
    """It is in memory."""
    order = slow.write("later")
    slow.archive.read("later")
    done = slow.next()
    assert done.head is not None
    assert (done.head.owner, done.head.start, done.head.end) == ("me", 0, 5)
    assert np.array_equal(done.pieces[0].state, order.pieces[0].state)
    assert slow.files() != ["early.state", "large.state", "later.state"]


def test_removed_state_is_never_written(slow: Harness) -> None:
    """Neither what waits nor the rest of what is being written."""
    slow.write("later")
    slow.archive.remove("later")
    slow.archive.remove("large")
    assert slow.next() == Done("large"), "its write has ended"
    assert slow.archive.drain(60)
    assert slow.files() == ["early.state"]
    assert slow.archive.pending == 0


def test_what_waits_has_a_limit(slow: Harness) -> None:
    """Beyond it the state stays where it is, and may be written later."""
    slow.write("later")
    pieces = (StatePiece(0, 5, np.zeros(8, dtype=np.uint8)),)
    assert not slow.archive.write(StateWrite("huge", "me", (), 0, np.arange(5, dtype=np.int32), pieces, MOST_PENDING))
    assert slow.archive.pending == 4 * SLICE + 100


def test_a_disk_keeps_free_space(tmp_path: Path) -> None:
    """State must not fill the disk on which sessions are."""
    harness = Harness(tmp_path, least_free=1 << 60)
    harness.write("file")
    assert harness.next() == Done("file", problem="cannot be written: no space left on device")
    assert harness.files() == []
    harness.archive.close()
    assert LEAST_FREE == 1 << 30


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, mount: Mount) -> None:
    """When there is room again, the next file is written."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=8m", "none")
    harness = Harness(disk)
    filler = fill(disk)
    harness.write("file", SLICE)
    assert harness.next() == Done("file", problem="cannot be written: no space left on device")
    assert harness.files() == []
    filler.unlink()
    harness.write("file", SLICE)
    assert harness.next() == Done("file")
    assert harness.files() == ["file.state"]
    harness.archive.close()


async def test_turns_go_on_beside_a_full_disk(tiny: Path, tmp_path: Path, mount: Mount) -> None:
    """They only have nothing there."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=1m", "none")
    fill(disk)
    async with running(tiny, disk=str(disk), flash_attention=False) as engine:
        first = await ask(engine, "word " * 100, "s", max_tokens=8)
        again = await ask(engine, "word " * 100, "s", max_tokens=8)
        assert again.text == first.text
        assert again.finished.usage.cached_tokens > 0
        await until(engine, lambda stats: not stats.gauges["disk_files"])  # each attempt has failed
    assert not list(disk.rglob("*.state"))


def test_models_have_folders_of_their_own(tmp_path: Path) -> None:
    """Also those whose files have the same name, and those whose names are no names of folders."""
    one, other = label_of(tmp_path / "a/m.gguf"), label_of(tmp_path / "b/m.gguf")
    assert one != other
    assert one.startswith("m-")
    assert label_of(Path("/x/..weird name\n" + "y" * 300 + ".gguf")).startswith("..weird_name_y")
    folders = [Folder(tmp_path, "mark", label) for label in (one, other)]
    for folder in folders:
        folder.close()
