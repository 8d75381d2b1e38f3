"""Contents that come and go in pieces: never held together, never half there, asked for once (G3, G6)."""

import errno
import gc
import os
import resource
import shutil
import stat
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    DiskFileSystem,
    FileSystemError,
    InMemoryFileSystem,
    InvalidPathError,
    NotFoundError,
)
from tests.filesystem.place import Place
from tests.filesystem.support import everything, grant, paths, without_unnamed_files

CHUNK = bytes(range(256)) * 1024
MEGABYTE = 4
"""How many chunks make one."""

unnamed_or_not = pytest.mark.parametrize("unnamed", [True, False])


def chunks(count: int, meanwhile: Callable[[], object] | None = None) -> Iterator[bytes]:
    """Supply chunks that differ; do something when half of them have gone."""
    for number in range(count):
        if meanwhile is not None and number == count // 2:
            meanwhile()
        yield number.to_bytes(8, "big") + CHUNK[8:]


def whole(count: int) -> bytes:
    """What these chunks are together."""
    return b"".join(chunks(count))


def test_64_megabytes_come_and_go_in_flat_memory(place: Place) -> None:
    count = 64 * MEGABYTE
    tracemalloc.start()
    try:
        assert place.handle.write_from("/deep/down/large", chunks(count))["size"] == 64 << 20
        seen = 0
        with place.handle.open("/deep/down/large") as stream:
            while piece := stream.read(len(CHUNK)):
                assert int.from_bytes(piece[:8], "big") == seen
                seen += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == count
    assert peak < 4 << 20


def test_a_second_try_is_flat_as_well(place: Place) -> None:
    """The content is read back from the file of the first in pieces."""
    (place.root / "a").mkdir()
    tracemalloc.start()
    try:
        place.handle.write_from("/a/large", chunks(16 * MEGABYTE, (place.root / "a").rmdir))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert place.handle.file("/a/large")["size"] == 16 << 20


@unnamed_or_not
def test_a_directory_that_is_removed_meanwhile_costs_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """Each chunk is there once and in order, also when the unfinished file has been removed with its directory."""
    if not unnamed:
        without_unnamed_files(monkeypatch)
    for directory in ("a", "a/b"):
        (place.root / "a" / "b").mkdir(parents=True)
        place.handle.write_from("/a/b/c", chunks(8, partial(shutil.rmtree, place.root / directory)))
        assert place.handle.read_binary("/a/b/c") == whole(8)
        shutil.rmtree(place.root / "a")


@unnamed_or_not
def test_a_directory_that_somebody_else_makes_meanwhile_is_shared(
    place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """The directories of a new file are put in place when it is finished; if they are there by then, so is the rest."""
    if not unnamed:
        without_unnamed_files(monkeypatch)
    other = partial(place.handle.write, "/a/b/other", "x")
    place.handle.write_from("/a/b/c", chunks(8, other))
    assert place.handle.read_binary("/a/b/c") == whole(8)
    assert paths(place.handle.list()) == ["/a/b/c", "/a/b/other"]


@unnamed_or_not
def test_many_streams_into_one_new_directory(place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    if not unnamed:
        without_unnamed_files(monkeypatch)
    ready = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: place.handle.write_from(f"/a/b/{number}", chunks(4, ready.wait)), range(6)))
    assert [place.handle.read_binary(path) == whole(4) for path in paths(place.handle.list())] == [True] * 6


def test_streams_survive_somebody_who_tidies_up(place: Place) -> None:
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            for directory in (place.root / "a" / "b", place.root / "a"):
                try:
                    directory.rmdir()
                except OSError:
                    continue

    with ThreadPoolExecutor(1) as pool:
        tidying = pool.submit(tidy)
        try:
            for number in range(200):
                text = str(number).encode()
                place.handle.write_from("/a/b/c", iter([text, b"-", text]))
                assert place.handle.read_binary("/a/b/c") == text + b"-" + text
                place.handle.delete("/a/b/c")
        finally:
            stop.set()
        tidying.result()


def test_a_source_that_is_a_file_is_left_open(place: Place) -> None:
    """It is the caller's, also when something went wrong half-way."""
    (place.root / "source").write_bytes(b"one\ntwo\nthree\n")
    with (place.root / "source").open("rb") as source:
        place.handle.write_from("/copy", source)
        assert not source.closed
        source.seek(0)
        with_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, with_limit[1]))
        try:
            with pytest.raises(OSError, match="/copy"):
                place.handle.write_from("/copy", source)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, with_limit)
        gc.collect()
        assert not source.closed
    assert place.handle.read_binary("/copy") == b"one\ntwo\nthree\n"


@unnamed_or_not
def test_nobody_sees_a_stream_before_it_has_ended(place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    """Neither its file nor its directory, in no listing and by no name."""
    if not unnamed:
        without_unnamed_files(monkeypatch)
    place.handle.write("/old", "before")

    def look() -> None:
        assert paths(place.handle.list()) == ["/old"]
        assert paths(place.handle.scan("/")) == ["/old"]
        assert place.handle.read_file("/old") == "before"
        assert not place.handle.is_directory("/new")

    place.handle.write_from("/new/file", chunks(4, look))
    place.handle.write_from("/new/file", chunks(2, lambda: place.handle.read_binary("/new/file") == whole(4)))
    place.handle.delete("/new/file")
    place.handle.write_from("/old", chunks(4, lambda: place.handle.read_file("/old")))
    assert place.handle.read_binary("/old") == whole(4)


@unnamed_or_not
@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "source"), OSError(errno.ENOTEMPTY, "source"), ValueError()])
def test_a_source_that_fails_is_asked_once_and_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool, error: Exception
) -> None:
    """Also when its error looks like that of a directory which was removed; an empty directory stays, too."""
    if not unnamed:
        without_unnamed_files(monkeypatch)
    place.handle.make_directory("/empty")
    place.handle.write("/old", "before")
    asked = []

    def source() -> Iterator[bytes]:
        asked.append(1)
        yield b"half"
        raise error

    for number, path in enumerate(["/old", "/new", "/empty", "/empty/new", "/deep/down/new"]):
        with pytest.raises(type(error)) as caught:
            place.handle.write_from(path, source())
        assert caught.value is error
        assert len(asked) == number + 1
    assert sorted(path.name for path in place.root.rglob("*")) == ["empty", "old"]
    assert place.handle.read_file("/old") == "before"


@unnamed_or_not
def test_a_full_disk_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    if not unnamed:
        without_unnamed_files(monkeypatch)
    place.handle.write("/a/report", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="/a/report") as caught:
            place.handle.write_from("/a/report", chunks(8 * MEGABYTE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == "/a/report"
    assert str(place.root) not in str(caught.value)
    assert place.handle.read_file("/a/report") == "old"


def test_what_cannot_be_stored_is_refused_before_the_source_is_read(place: Place) -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("the source was read")
        yield b""

    place.handle.write("/a/x", "x")
    (place.root / "link").symlink_to(place.outside)
    os.mkfifo(place.root / "pipe")
    refusals: list[tuple[str, type[FileSystemError]]] = [
        ("/a", ConflictError),
        ("/a/x/y", ConflictError),
        ("/pipe", ConflictError),
        ("/link", InvalidPathError),
        ("/link/new", InvalidPathError),
        ("/../x", InvalidPathError),
    ]
    for path, kind in refusals:
        with pytest.raises(kind):
            place.handle.write_from(path, never())
    with pytest.raises(AccessDeniedError):
        place.disk.create_handle([grant("/a", "read")]).write_from("/a/x", never())


@unnamed_or_not
def test_what_comes_to_be_meanwhile_counts_at_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """A file that must not be overwritten, a directory, permissions: as they are when the last chunk has come."""
    if not unnamed:
        without_unnamed_files(monkeypatch)
    with pytest.raises(ConflictError):
        place.handle.write_from("/a", chunks(4, lambda: place.handle.write("/a", "mine")), overwrite=False)
    assert place.handle.read_file("/a") == "mine"
    with pytest.raises(ConflictError):
        place.handle.write_from("/d", chunks(4, lambda: place.handle.write("/d/x", "mine")))
    assert place.handle.read_file("/d/x") == "mine"
    place.handle.write_from("/a", chunks(4, lambda: (place.root / "a").chmod(0o750)))
    assert stat.S_IMODE((place.root / "a").stat().st_mode) == 0o750
    with pytest.raises(InvalidPathError):
        place.handle.write_from("/link", chunks(4, lambda: (place.root / "link").symlink_to(place.outside / "secret")))


def test_opening_is_as_safe_as_reading(place: Place) -> None:
    place.handle.write("/d/x", "x")
    (place.root / "link").symlink_to(place.outside / "secret")
    (place.root / "way").symlink_to(place.outside)
    (place.root / "hard").hardlink_to(place.outside / "secret")
    os.mkfifo(place.root / "pipe")
    for path in ("/link", "/way/secret", "/hard"):
        for action in (place.handle.open, place.disk._open_impl):
            with pytest.raises(InvalidPathError, match="link"):
                action(path)
    for path in ("/d", "/pipe", "/none"):
        for action in (place.handle.open, place.disk._open_impl):
            with pytest.raises(NotFoundError):
                action(path)


def test_a_stream_stays_readable_when_the_file_system_is_closed(place: Place) -> None:
    place.handle.write("/a", "x")
    with place.handle.open("/a") as stream:
        place.disk.close()
        assert str(place.root) not in repr(stream)
        assert stream.read() == b"x"
    with pytest.raises(OSError, match="descriptor"):
        place.handle.open("/a")
    with pytest.raises(OSError, match="descriptor"):
        place.handle.write_from("/a", [b"y"])


def test_no_descriptor_is_left_open(place: Place) -> None:
    """Whether it goes well or not, and after a second try."""
    (place.root / "link").symlink_to(place.outside)
    gc.collect()
    before = len(list(Path("/dev/fd").iterdir()))

    def failing() -> Iterator[bytes]:
        yield b"x"
        raise ValueError

    for _ in range(20):
        (place.root / "a").mkdir()
        place.handle.write_from("/a/b", chunks(4, (place.root / "a").rmdir))
        place.handle.open("/a/b").close()
        for path in ("/link", "/a", "/none", "/a/b/c"):
            with pytest.raises(FileSystemError):
                place.handle.open(path)
            with pytest.raises((FileSystemError, ValueError)):
                place.handle.write_from(path, failing())
        shutil.rmtree(place.root / "a")
    gc.collect()
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_durable_stream_is_on_the_disk_before_it_has_a_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    handle = everything(DiskFileSystem(place.root, durable=True))
    handle.write_from("/a", [b"x"])
    assert synced == [(place.root / "a").stat().st_ino, place.root.stat().st_ino]
    synced.clear()
    place.handle.write_from("/b", [b"x"])
    assert synced == []


def test_a_folder_is_flushed_beside_other_work_and_before_that_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    going_on, root = threading.Event(), place.root.stat().st_ino

    def fsync(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        assert inode != root or going_on.wait(60)
        synced.append(inode)

    monkeypatch.setattr(os, "fsync", fsync)
    with closing(DiskFileSystem(place.root, durable=True)) as disk:
        with disk.flushing_beside():
            everything(disk).write_from("/a", [b"x"])
            assert synced == [(place.root / "a").stat().st_ino]
            going_on.set()
        assert synced == [(place.root / "a").stat().st_ino, root]
        everything(disk).write_from("/b", [b"x"])
        assert synced[2:] == [(place.root / "b").stat().st_ino, root]


def test_a_folder_that_cannot_be_flushed_beside_other_work_is_an_error_at_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == place.root.stat().st_ino:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    done = []
    with closing(DiskFileSystem(place.root, durable=True)) as disk:
        with pytest.raises(OSError, match="Input/output"), disk.flushing_beside():
            done.append(everything(disk).write_from("/a", [b"x"]))
        assert [meta["size"] for meta in done] == [1]


def test_memory_hands_out_a_copy() -> None:
    """Who writes into what was opened changes only that."""
    handle = everything(InMemoryFileSystem())
    handle.write("/a", "before")
    with handle.open("/a") as stream:
        stream.write(b"AFTER!")
    assert handle.read_file("/a") == "before"
