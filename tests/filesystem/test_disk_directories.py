"""Directories of the disk: what is shown of them, and that making, moving and removing harms nothing (G6)."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    DiskFileSystem,
    FileSystemError,
    InvalidPathError,
    NotFoundError,
    RouterFileSystem,
    _moving,
)
from cfs_filesystem._temporary import TEMPORARY
from tests.filesystem.hostile_paths import LITERAL, REFUSED
from tests.filesystem.place import SECRET, Place
from tests.filesystem.support import everything, grant, paths, refusal, without_unnamed_files


def calls(place: Place, path: str) -> dict[str, Callable[[], object]]:
    """Everything that can be done with the path of a directory."""
    handle = place.handle
    return {
        "scan": lambda: handle.scan(path),
        "make": lambda: handle.make_directory(path),
        "remove": lambda: handle.remove_directory(path),
        "move": lambda: handle.move(path, "/moved"),
        "move there": lambda: handle.move("/inside", path),
        "move over": lambda: handle.move("/inside", path, overwrite=True),
        "move directory there": lambda: handle.move("/directory", path),
    }


def hooks(place: Place, path: str) -> dict[str, Callable[[], object]]:
    """The same for one who wins the race with the handle's checks."""
    disk = place.disk
    return {
        "scan": lambda: disk._scan_impl(path + "/"),
        "look": lambda: disk._directory_impl(path + "/"),
        "make": lambda: disk._make_directory_impl(path),
        "remove": lambda: disk._remove_directory_impl(path),
        "move": lambda: disk._move_impl(path, "/moved", False),
        "move there": lambda: disk._move_impl("/inside", path, False),
        "move over": lambda: disk._move_impl("/inside", path, True),
        "move directory there": lambda: disk._move_impl("/directory", path, False),
    }


def inside(place: Place) -> None:
    """Let there be a file and a directory to be moved."""
    place.handle.write("/inside", "x")
    place.handle.write("/directory/x", "x")


def test_a_scan_shows_files_and_directories_and_nothing_else(place: Place) -> None:
    """Empty ones too; no link, pipe, second name, unfinished file, or name that is no path."""
    inside(place)
    (place.root / "empty").mkdir()
    (place.root / "link").symlink_to(place.outside)
    (place.root / "dangling").symlink_to("nowhere")
    (place.root / "hard").hardlink_to(place.outside / "secret")
    os.mkfifo(place.root / "pipe")
    (place.root / "a*b").write_text("x")
    (place.root / "a\\b").mkdir()
    Path(os.fsdecode(os.fsencode(place.root) + b"/\xff")).mkdir()
    unfinished = [place.root / (TEMPORARY + "file"), place.root / (TEMPORARY + "directory")]
    unfinished[0].touch()
    unfinished[1].mkdir()
    found = place.handle.scan("/")
    assert [(meta["path"], meta.get("directory")) for meta in found] == [
        ("/directory", True),
        ("/empty", True),
        ("/inside", None),
    ]
    assert found[0]["updated_at"] == datetime.fromtimestamp((place.root / "directory").stat().st_mtime, UTC)
    assert found[2] == place.handle.file("/inside")
    assert place.handle.scan("/empty") == []
    for path in unfinished:
        with pytest.raises(InvalidPathError, match="unfinished"):
            place.handle.scan(f"/{path.name}")
        assert not place.handle.is_directory(f"/{path.name}")
    unfinished[0].unlink()
    unfinished[1].rmdir()


def test_a_scan_looks_at_one_level_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 files further down cost nothing, for a listing, for a single directory, and for a narrow grant."""
    for number in range(100):
        (place.root / "d" / f"{number}").mkdir(parents=True)
        for other in range(100):
            (place.root / "d" / f"{number}" / f"{other}").touch()
    looked: list[str] = []
    original = place.disk._is_legal

    def is_legal(parts: Sequence[str]) -> bool:
        looked.append("/".join(parts))
        return original(parts)

    monkeypatch.setattr(place.disk, "_is_legal", is_legal)
    monkeypatch.setattr(place.disk._tree, "walk", None)
    assert paths(place.handle.scan("/")) == ["/d"]
    assert looked == ["d"]
    assert len(place.handle.scan("/d")) == 100
    assert len(looked) == 101
    narrow = place.disk.create_handle([grant("/d/7/7"), grant("/d/8/"), grant("/d/none/x")])
    assert paths(narrow.scan("/d")) == ["/d/7", "/d/8"]
    assert narrow.is_directory("/d/7")
    assert place.handle.is_directory("/d/9")
    place.handle.make_directory("/d/new")
    place.handle.move("/d/new", "/d/newer")
    place.handle.remove_directory("/d/newer")
    assert len(looked) == 101


def test_literal_names_are_directories_of_just_that_name(place: Place) -> None:
    for path in LITERAL:
        parts = path.split("/")[1:]
        for depth in range(1, len(parts) + 1):
            place.handle.make_directory("/" + "/".join(parts[:depth]))
        assert (place.root / Path(*parts)).is_dir()
        assert place.handle.is_directory(path)
        for depth in range(len(parts), 0, -1):
            place.handle.remove_directory("/" + "/".join(parts[:depth]))
        assert list(place.root.iterdir()) == []


def test_hostile_paths_touch_nothing(place: Place) -> None:
    inside(place)
    before = sorted(place.root.rglob("*"))
    for hostile in REFUSED:
        for name, action in calls(place, hostile.path).items():
            if name == "scan" and hostile.path == "/":
                continue
            with pytest.raises(InvalidPathError):
                action()
        if hostile.path != "/":
            with pytest.raises(InvalidPathError):
                place.handle.is_directory(hostile.path)
    assert sorted(place.root.rglob("*")) == before


@pytest.mark.parametrize("target", ["../outside", "directory", "nowhere", ".", "../outside/secret"])
def test_a_link_is_refused_wherever_it_leads_and_stands(place: Place, target: str) -> None:
    """As the path itself or on the way to it, also when it comes to be after the handle has looked."""
    inside(place)
    (place.root / "link").symlink_to(target)
    before = sorted(place.root.rglob("*"))
    for path in ("/link", "/link/x", "/link/secret"):
        assert not place.handle.is_directory(path)
        for name, action in calls(place, path).items():
            assert isinstance(refusal(action), InvalidPathError), (name, path)
        for name, action in hooks(place, path).items():
            assert isinstance(refusal(action), InvalidPathError | ConflictError), (name, path)
    assert sorted(place.root.rglob("*")) == before
    assert (place.root / "link").is_symlink()


def test_a_second_name_of_a_file_is_neither_moved_nor_replaced(place: Place) -> None:
    inside(place)
    (place.root / "hard").hardlink_to(place.outside / "secret")
    actions: list[Callable[[], object]] = [
        lambda: place.handle.move("/hard", "/moved"),
        lambda: place.handle.move("/inside", "/hard", overwrite=True),
        lambda: place.disk._move_impl("/hard", "/moved", True),
        lambda: place.disk._move_impl("/inside", "/hard", True),
    ]
    for action in actions:
        with pytest.raises(InvalidPathError, match="hard link"):
            action()
    handle = everything(DiskFileSystem(place.root, hard_links=True))
    handle.move("/hard", "/moved")
    (place.root / "both").hardlink_to(place.root / "moved")
    handle.move("/moved", "/both", overwrite=True)
    assert paths(handle.scan("/")) == ["/both", "/directory", "/inside"]
    assert handle.read_file("/both") == SECRET


def test_a_directory_is_moved_with_what_is_not_shown_of_it(place: Place) -> None:
    """Links stay links, and nothing is followed."""
    inside(place)
    (place.root / "directory" / "link").symlink_to(place.outside)
    os.mkfifo(place.root / "directory" / "pipe")
    place.handle.move("/directory", "/moved")
    assert sorted(path.name for path in (place.root / "moved").iterdir()) == ["link", "pipe", "x"]
    assert (place.root / "moved" / "link").is_symlink()
    assert paths(place.handle.scan("/moved")) == ["/moved/x"]


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_what_is_no_file_is_not_moved_as_one(place: Place, kind: str) -> None:
    inside(place)
    thing = place.root / "thing"
    if kind == "pipe":
        os.mkfifo(thing)
    elif kind == "link":
        thing.symlink_to("inside")
    else:
        thing.mkdir()
    for overwrite in (True, False):
        with pytest.raises((ConflictError, InvalidPathError)):
            place.disk._move_impl("/inside", "/thing", overwrite)
    if kind != "directory":
        with pytest.raises((ConflictError, InvalidPathError)):
            place.disk._move_impl("/thing", "/moved", True)
        with pytest.raises((ConflictError, InvalidPathError)):
            place.disk._move_impl("/directory", "/thing", False)
    assert thing.exists()
    assert (place.root / "inside").read_text() == "x"


def _full_of(place: Place, kind: str) -> None:
    path = place.root / "d" / "thing"
    (place.root / "d").mkdir()
    match kind:
        case "link":
            path.symlink_to(place.outside)
        case "pipe":
            os.mkfifo(path)
        case "hard link":
            path.hardlink_to(place.outside / "secret")
        case "no path":
            (place.root / "d" / "a*").touch()
        case "directory":
            path.mkdir()


@pytest.mark.parametrize("kind", ["link", "pipe", "hard link", "no path", "directory"])
def test_a_directory_with_anything_in_it_is_not_removed(place: Place, kind: str) -> None:
    """Be it shown or not: another program put it there."""
    _full_of(place, kind)
    for action in (place.handle.remove_directory, place.disk._remove_directory_impl):
        with pytest.raises(ConflictError, match="not empty"):
            action("/d")
    assert len(list((place.root / "d").iterdir())) == 1


def test_what_a_killed_writer_left_does_not_hold_a_directory(place: Place) -> None:
    """And what a living one is at does."""
    (place.root / "d").mkdir()
    (place.root / "d" / (TEMPORARY + "file")).write_text("half")
    (place.root / "d" / (TEMPORARY + "directory")).mkdir()
    (place.root / "d" / (TEMPORARY + "directory") / "x").write_text("half")
    assert place.handle.scan("/d") == []
    place.handle.remove_directory("/d")
    assert not (place.root / "d").exists()


def test_a_directory_that_somebody_writes_into_is_not_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    without_unnamed_files(monkeypatch)
    place.handle.make_directory("/d")
    seen = []

    def source() -> Iterator[bytes]:
        yield b"x"
        seen.append(refusal(partial(place.handle.remove_directory, "/d")))
        yield b"y"

    place.handle.write_from("/d/e", source())
    assert isinstance(seen[0], ConflictError)
    assert place.handle.read_file("/d/e") == "xy"


def test_a_removal_or_a_move_that_lost_a_race_is_a_conflict(place: Place) -> None:
    late: list[Callable[[], object]] = [
        lambda: place.disk._remove_directory_impl("/gone"),
        lambda: place.disk._move_impl("/gone", "/there", False),
        lambda: place.disk._move_impl("/gone", "/there", True),
        lambda: place.disk._move_impl("/gone/below", "/there", True),
    ]
    for action in late:
        with pytest.raises(ConflictError):
            action()
    inside(place)
    (place.root / "empty").mkdir()
    wrong: list[Callable[[], object]] = [
        lambda: place.disk._remove_directory_impl("/inside"),
        lambda: place.disk._move_impl("/inside", "/gone/there", True),
        lambda: place.disk._move_impl("/inside", "/inside/there", True),
        lambda: place.disk._move_impl("/directory", "/empty", False),
        lambda: place.disk._make_directory_impl("/inside"),
        lambda: place.disk._make_directory_impl("/directory"),
    ]
    for action in wrong:
        with pytest.raises(ConflictError):
            action()
    with pytest.raises(NotFoundError):
        place.disk._scan_impl("/gone/")
    assert sorted(path.name for path in place.root.rglob("*")) == ["directory", "empty", "inside", "x"]


def _at_once(actions: Sequence[Callable[[], object]]) -> list[bool]:
    """Do things in as many threads; tell which went well."""
    ready = threading.Barrier(len(actions))

    def work(action: Callable[[], object]) -> bool:
        ready.wait()
        try:
            action()
        except (ConflictError, NotFoundError, InvalidPathError):
            return False
        return True

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(work, actions))


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_of_many_that_move_one_thing_one_does(place: Place, kind: str) -> None:
    """It has one path afterwards, and it is whole."""
    for attempt in range(40):
        path = f"/s{attempt}"
        place.handle.write(path if kind == "file" else path + "/x", "content")
        moves = [partial(place.disk._move_impl, path, f"/t{attempt}-{number}", False) for number in range(4)]
        moved = _at_once(moves)
        assert moved.count(True) == 1
        target = f"/t{attempt}-{moved.index(True)}"
        assert paths(place.handle.scan("/"))[-1] == target
        assert place.handle.read_file(target if kind == "file" else target + "/x") == "content"
        shutil.rmtree(place.root / target[1:]) if kind == "directory" else place.handle.delete(target)
    assert list(place.root.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_of_many_that_move_to_one_path_one_does(place: Place, kind: str) -> None:
    """Nothing is lost."""
    for attempt in range(40):
        for number in range(4):
            place.handle.write(f"/s{number}" if kind == "file" else f"/s{number}/x", str(number))
        moved = _at_once([partial(place.disk._move_impl, f"/s{number}", "/t", False) for number in range(4)])
        assert moved.count(True) == 1, attempt
        texts = [place.handle.read_file(path) for path in paths(place.handle.list())]
        assert sorted(texts) == ["0", "1", "2", "3"]
        assert place.handle.read_file("/t" if kind == "file" else "/t/x") == str(moved.index(True))
        for path in list(place.root.iterdir()):
            shutil.rmtree(path) if kind == "directory" else path.unlink()


def test_what_is_written_while_it_is_moved_is_not_lost(place: Place) -> None:
    """The last content that was written is at the old path or has been moved, whatever came in between."""
    stop = threading.Event()

    def move() -> int:
        count = 0
        while not stop.is_set():
            try:
                place.disk._move_impl("/s", f"/t{count}", False)
            except FileSystemError:
                continue
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        try:
            for number in range(500):
                while isinstance(refusal(partial(place.handle.write, "/s", str(number))), InvalidPathError):
                    pass  # the mover was held up for long between its two steps
        finally:
            stop.set()
        assert moving.result() > 0
    texts = [int(place.handle.read_file(path)) for path in paths(place.handle.list())]
    assert max(texts) == 499
    assert len(set(texts)) == len(texts)
    assert {path.stat().st_nlink for path in place.root.iterdir()} == {1}


@pytest.mark.parametrize("third", [False, True])
def test_a_file_that_came_to_the_old_path_in_the_middle_of_a_move_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch, third: bool
) -> None:
    """A program writes between the two steps, and another one before that file, which was put aside, is back."""
    without_unnamed_files(monkeypatch)
    place.handle.write("/s", "moved")
    link, writers = os.link, ["second", "third"] if third else ["second"]

    def interrupted(*arguments: Any, **options: Any) -> None:
        if arguments[1] == "s":  # what was put aside goes back
            late()
        link(*arguments, **options)
        if arguments[0] == "s":
            late()

    def late() -> None:
        if writers:
            (place.root / "new").write_text(writers.pop(0))
            (place.root / "new").rename(place.root / "s")

    monkeypatch.setattr(os, "link", interrupted)
    place.handle.move("/s", "/t")
    assert place.handle.read_file("/t") == "moved"
    assert place.handle.read_file("/s") == ("third" if third else "second")
    assert sorted(path.name for path in place.root.iterdir()) == ["s", "t"]


def test_making_and_removing_while_others_write(place: Place) -> None:
    """Whatever comes first: no write fails or is lost."""
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            for action in (place.handle.remove_directory, place.handle.make_directory):
                refusal(partial(action, "/d"))

    with ThreadPoolExecutor(1) as pool:
        tidying = pool.submit(tidy)
        try:
            for number in range(300):
                place.handle.write_from("/d/x", [str(number).encode()])
                assert place.handle.read_file("/d/x") == str(number)
                place.handle.delete("/d/x")
        finally:
            stop.set()
        tidying.result()


def test_what_is_durable_is_on_the_disk_when_it_returns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each directory in which a name came or went."""
    handle = everything(DiskFileSystem(place.root, durable=True))
    for name in ("/a", "/b"):
        handle.make_directory(name)
    handle.write("/a/x", "x")
    root, a, b = (path.stat().st_ino for path in (place.root, place.root / "a", place.root / "b"))
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    changes: list[tuple[Callable[[], object], set[int]]] = [
        (lambda: handle.make_directory("/a/d"), {a}),
        (lambda: handle.move("/a/d", "/b/d"), {a, b}),
        (lambda: handle.move("/a/x", "/b/x"), {a, b}),
        (lambda: handle.move("/b/x", "/x", overwrite=True), {root, b}),
        (lambda: handle.remove_directory("/b/d"), {b}),
        (lambda: handle.delete("/x"), {root}),
    ]
    for change, expected in changes:
        synced.clear()
        change()
        assert synced == expected
    synced.clear()
    place.handle.make_directory("/c")
    place.handle.move("/c", "/d")
    place.handle.remove_directory("/d")
    assert synced == set()


def test_no_error_shows_where_the_root_is_and_no_descriptor_is_left(place: Place) -> None:
    inside(place)
    (place.root / "link").symlink_to(place.outside)
    os.mkfifo(place.root / "pipe")
    before = len(list(Path("/dev/fd").iterdir()))
    said = 0
    for path in ("/inside", "/directory", "/link", "/link/x", "/pipe", "/none/x", "/inside/x", "/directory/x/y"):
        for action in [*calls(place, path).values(), *hooks(place, path).values()]:
            error = refusal(action)
            if error is not None:
                said += 1
                assert str(place.root.parent) not in f"{error} {error!r} {vars(error)} {error.__context__!r}"
                assert error.__cause__ is None
            if not (place.root / "inside").exists() or not (place.root / "directory").exists():
                for left in ("moved", "none", "inside", "directory"):
                    shutil.rmtree(place.root / left, ignore_errors=True)
                    (place.root / left).unlink(missing_ok=True)
                inside(place)
    assert said > 60
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_closed_file_system_does_nothing(place: Place) -> None:
    inside(place)
    place.disk.close()
    for action in [*calls(place, "/directory").values(), *hooks(place, "/directory").values()]:
        with pytest.raises(OSError, match="descriptor"):
            action()
    with pytest.raises(OSError, match="descriptor"):
        place.handle.is_directory("/directory")


def test_what_the_operating_system_does_not_allow_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    inside(place)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no", "/srv/of/the/disk")

    monkeypatch.setattr(_moving, "_RENAMEAT2", None)
    for name in ("mkdir", "rmdir", "rename", "link"):
        monkeypatch.setattr(os, name, refuse)
    actions: list[Callable[[], object]] = [
        lambda: place.handle.make_directory("/new"),
        lambda: place.handle.remove_directory("/directory"),
        lambda: place.handle.move("/inside", "/moved"),
        lambda: place.handle.move("/inside", "/moved", overwrite=True),
        lambda: place.handle.move("/directory", "/moved"),
    ]
    for action in actions:
        with pytest.raises(AccessDeniedError):
            action()


def test_a_mount_of_a_disk_is_a_directory_before_anything_is_in_it(place: Place) -> None:
    """Although the disk has none there: the first thing that is made in it brings it along."""
    disk = DiskFileSystem(place.root)
    handle = everything(RouterFileSystem({"/deep/down/": disk}))
    assert handle.is_directory("/deep")
    assert handle.is_directory("/deep/down")
    assert paths(handle.scan("/deep")) == ["/deep/down"]
    assert handle.scan("/deep/down/") == handle.scan("/deep/down") == []
    handle.make_directory("/deep/down/new")
    assert (place.root / "deep" / "down" / "new").is_dir()
