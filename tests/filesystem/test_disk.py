"""A directory of the disk: nothing outside is ever touched, and nothing is ever half written (G6)."""

import gc
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from cfs_filesystem import (
    OPERATIONS,
    ConflictError,
    DiskFileSystem,
    EntryMeta,
    FileSystemError,
    FsHandle,
    InvalidPathError,
    NotFoundError,
    Operation,
    _replacing,
)
from cfs_filesystem._temporary import TEMPORARY
from cfs_filesystem.testing import invoke
from tests.filesystem.hostile_paths import LITERAL, REFUSED
from tests.filesystem.place import SECRET, Place
from tests.filesystem.support import everything, grant, paths, refusal, without_unnamed_files

HERE = Path(__file__).parent
NEEDS_THE_ENTRY = sorted(OPERATIONS - {"list", "write"})


@pytest.fixture
def handle(place: Place) -> FsHandle:
    return place.handle


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("target", ["../outside/secret", "../outside", "inside", "nowhere", ".", "link", "/dev/zero"])
def test_a_symbolic_link_is_refused_wherever_it_leads(place: Place, operation: Operation, target: str) -> None:
    place.handle.write("/inside", "x")
    (place.root / "link").symlink_to(target)
    before = paths(place.handle.list())
    if operation == "list":
        assert place.handle.list("/link") == []
    else:
        with pytest.raises(InvalidPathError, match="link"):
            invoke(place.handle, operation, "/link")
    assert (place.root / "link").is_symlink()
    assert paths(place.handle.list()) == before == ["/inside"]


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_symbolic_link_in_the_middle_is_refused(place: Place, operation: Operation) -> None:
    (place.root / "a" / "b").mkdir(parents=True)
    (place.root / "a" / "b" / "link").symlink_to(place.outside)
    (place.root / "a" / "up").symlink_to("..")
    for path in ("/a/b/link/secret", "/a/b/link/new", "/a/up/outside/secret"):
        if operation == "list":
            assert place.handle.list(path) == place.handle.list(path + "/") == []
        else:
            with pytest.raises(InvalidPathError, match="link"):
                invoke(place.handle, operation, path)
    assert place.handle.list() == []


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_hard_link_is_refused(place: Place, operation: Operation) -> None:
    (place.root / "link").hardlink_to(place.outside / "secret")
    if operation == "list":
        assert place.handle.list() == place.handle.list("/link") == []
    else:
        with pytest.raises(InvalidPathError, match="hard link"):
            invoke(place.handle, operation, "/link")


def test_hard_links_can_be_allowed_and_are_never_written_through(place: Place) -> None:
    handle = everything(DiskFileSystem(place.root, hard_links=True))
    (place.root / "link").hardlink_to(place.outside / "secret")
    assert handle.read_file("/link") == SECRET
    assert paths(handle.list()) == ["/link"]
    handle.write("/link", "mine")
    assert handle.read_file("/link") == place.handle.read_file("/link") == "mine"


def test_the_root_itself_may_be_a_link_and_may_be_moved(tmp_path: Path) -> None:
    """The root is the word of the user who runs the server, and is opened once."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    handle = everything(DiskFileSystem(tmp_path / "link"))
    (tmp_path / "real").rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    handle.write("/a", "x")
    assert (tmp_path / "moved" / "a").read_text() == "x"


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)


def _make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("needs the right to make devices")


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)  # a socket's path must be short
        server.bind(path.name)
        os.fchdir(here)
        os.close(here)


@pytest.mark.parametrize("make", [_make_pipe, _make_device, _make_socket, Path.mkdir])
def test_what_is_no_file_is_not_there_and_never_blocks(place: Place, make: Callable[[Path], None]) -> None:
    make(place.root / "thing")
    for operation in NEEDS_THE_ENTRY:
        with pytest.raises(NotFoundError):
            invoke(place.handle, operation, "/thing")
    with pytest.raises(NotFoundError):  # also for one who wins the race with the check
        place.disk._read_binary_impl("/thing")
    assert place.handle.list() == []
    if make is not Path.mkdir:
        for path in ("/thing", "/thing/below"):
            with pytest.raises(ConflictError):
                place.handle.write(path, "x")
    assert (place.root / "thing").exists()


def test_names_that_are_no_paths_are_not_listed(place: Place) -> None:
    for name in (b"a*", b"a?", b"a\\b", b"\xff\xfe", b"a\nb", b"\x7f", "a\u2215b".encode(), TEMPORARY.encode()):
        (Path(os.fsdecode(os.fsencode(place.root) + b"/" + name))).write_text("x")
        directory = Path(os.fsdecode(os.fsencode(place.root) + b"/d" + name))
        directory.mkdir()
        (directory / "below").write_text("x")
    place.handle.write("/legal", "x")
    assert [path for path in paths(place.handle.list()) if not path.startswith("/d" + TEMPORARY)] == ["/legal"]
    (place.root / TEMPORARY).unlink()
    (place.root / ("d" + TEMPORARY) / "below").unlink()
    (place.root / ("d" + TEMPORARY)).rmdir()


@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"list"}))
def test_names_of_unfinished_files_are_ours(handle: FsHandle, operation: Operation) -> None:
    for path in (f"/{TEMPORARY}0123", f"/{TEMPORARY}/a", f"/a/{TEMPORARY}x"):
        with pytest.raises(InvalidPathError, match="unfinished"):
            invoke(handle, operation, path)


@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"list"}))
def test_hostile_paths_touch_nothing(place: Place, operation: Operation) -> None:
    for hostile in REFUSED:
        with pytest.raises(InvalidPathError):
            invoke(place.handle, operation, hostile.path)
    assert list(place.root.iterdir()) == []


def test_literal_paths_are_files_of_just_that_name(place: Place) -> None:
    """Written, listed, read and deleted below the root, byte for byte as named."""
    for path in LITERAL:
        for operation in NEEDS_THE_ENTRY:
            with pytest.raises(NotFoundError):
                invoke(place.handle, operation, path)
        place.handle.write(path, path)
        files = [file for file in os.walk(os.fsencode(place.root)) if file[2]]
        assert len(files) == 1
        assert files[0][0] + b"/" + files[0][2][0] == os.fsencode(place.root) + path.encode()
        assert paths(place.handle.list()) == [path]
        assert place.handle.read_file(path) == path
        place.handle.delete(path)


def test_a_directory_swapped_for_a_link_while_it_is_used(place: Place) -> None:
    """However often a name is exchanged between check and use: it is the inside or an error, never the outside."""
    (place.root / "door").mkdir()
    (place.root / "door" / "secret").write_text("inside")
    (place.root / "leaf").write_text("inside")
    program = [sys.executable, str(HERE / "swapping_attacker.py"), str(place.root), str(place.outside)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.read(1) == b"x"
            seen: Counter[str] = Counter()

            def streamed(path: str) -> str:
                with place.disk._open_impl(path) as stream:
                    return stream.read().decode()

            actions: list[tuple[str, Callable[[], object]]] = [
                ("read", lambda: place.handle.read_file("/door/secret")),
                ("leaf", lambda: place.handle.read_file("/leaf")),
                ("raw", lambda: place.disk._read_binary_impl("/door/secret").decode()),
                ("raw leaf", lambda: place.disk._read_binary_impl("/leaf").decode()),
                ("write", lambda: place.disk._write_impl("/door/secret", b"inside", True)["path"]),
                ("new", lambda: place.disk._write_impl("/door/new", b"inside", True)["path"]),
                ("delete", lambda: place.disk._delete_impl("/door/new")),
                ("size", lambda: place.handle.file("/door/secret")["size"]),
                ("list", lambda: {meta["size"] for meta in place.handle.list()} - {0, 6}),
                ("open", lambda: streamed("/door/secret")),
                ("stream", lambda: place.disk._write_from_impl("/door/new", [b"in", b"side"], True)["path"]),
                ("scan", lambda: {meta["size"] for meta in place.disk._scan_impl("/door/")} - {0, 6}),
                ("make", lambda: place.disk._make_directory_impl("/door/made")),
                ("move", lambda: place.disk._move_impl("/door/new", "/door/moved", False)),
                ("move out", lambda: place.disk._move_impl("/door/moved", "/out", True)),
                ("move in", lambda: place.disk._move_impl("/out", "/door/new", True)),
                ("move all", lambda: place.disk._move_impl("/door/made", "/door/other", False)),
                ("remove", lambda: place.disk._remove_directory_impl("/door/other")),
            ]
            rounds = 0
            while (
                rounds < 400
                or seen["refused"] < 20
                or min(seen[f"{name} ok"] for name in ("read", "write", "scan", "move", "move all")) < 20
            ):
                rounds += 1
                for name, action in actions:
                    try:
                        result = action()
                    except InvalidPathError:
                        seen["refused"] += 1
                    except (NotFoundError, ConflictError):
                        seen["absent"] += 1
                    else:
                        seen[f"{name} ok"] += 1
                        assert result in ("inside", "/door/secret", "/door/new", None, 6, set()), (name, result)
        finally:
            attacker.kill()
    assert (place.outside / "secret").read_text() == SECRET


@pytest.mark.parametrize("kind", ["unnamed", "named", "streamed"])
def test_killed_writers_leave_the_old_or_the_new_content(tmp_path: Path, kind: str) -> None:
    """Killed at 200 random moments: never a mixture, never a leftover in a listing, and nothing piles up."""
    kills = 200 if kind == "unnamed" else 60
    program = [sys.executable, str(HERE / "killed_writers.py"), str(tmp_path / "root"), str(kills), kind]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["mixtures"] == []
    assert seen["letters"] > 1, "the writers wrote"
    assert seen["listed"] == ["/reports/today.txt"]
    assert seen["most"] <= 1, "each start removes what the last kill left"
    assert seen["left"] == ["today.txt"]


def test_the_file_of_a_living_writer_is_not_swept_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    without_unnamed_files(monkeypatch)
    with place.disk._tree.parent(["a"]) as (directory, _):
        unfinished = _replacing._unfinished(directory)
        with unfinished as (_, temporary):
            assert place.temporaries() == [temporary]
            DiskFileSystem(place.root).close()
            assert place.temporaries() == [temporary]
            assert place.handle.list() == []
    assert place.temporaries() == [temporary], "closed without a name of its own, as by a kill"
    DiskFileSystem(place.root).close()


@pytest.mark.parametrize("unnamed", [True, False])
def test_of_many_that_create_a_file_one_does(place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    if not unnamed:
        without_unnamed_files(monkeypatch)
    for attempt in range(10):
        ready = threading.Barrier(6)

        def create(number: int, path: str = f"/d/{attempt}", ready: threading.Barrier = ready) -> bool:
            ready.wait()
            try:
                place.disk._write_impl(path, str(number).encode(), False)
            except ConflictError:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            created = list(pool.map(create, range(6)))
        assert created.count(True) == 1
        assert place.handle.read_file(f"/d/{attempt}") == str(created.index(True))


def test_a_write_survives_the_removal_of_its_directory(place: Place) -> None:
    """A program that tidies up empty directories makes no write fail."""
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
            for number in range(300):
                place.handle.write("/a/b/c", str(number))
                assert place.handle.read_file("/a/b/c") == str(number)
                place.handle.delete("/a/b/c")
        finally:
            stop.set()
        tidying.result()


def test_an_empty_directory_gives_way_to_a_file_and_a_full_one_does_not(place: Place) -> None:
    (place.root / "a" / "b" / "c").mkdir(parents=True)
    place.handle.write("/a", "x")
    assert place.handle.read_file("/a") == "x"
    (place.root / "b" / "c").mkdir(parents=True)
    (place.root / "b" / "c" / "not*listed").write_text("x")
    with pytest.raises(ConflictError, match="directory"):
        place.handle.write("/b", "x")
    assert (place.root / "b" / "c" / "not*listed").exists()


def test_permissions_are_kept_and_new_files_follow_the_umask(place: Place) -> None:
    (place.root / "run.sh").write_text("#!/bin/sh\n")
    (place.root / "run.sh").chmod(0o750)
    place.handle.write("/run.sh", "#!/bin/sh\necho\n")
    assert stat.S_IMODE((place.root / "run.sh").stat().st_mode) == 0o750
    before = os.umask(0o027)
    try:
        place.handle.write("/new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((place.root / "new").stat().st_mode) == 0o640


def test_what_is_made_can_be_its_owners_alone(tmp_path: Path) -> None:
    """With `private` no other user may look into a directory or read a file, whatever the umask allows."""
    root = tmp_path / "root"
    before = os.umask(0)
    try:
        disk = DiskFileSystem(root, private=True, durable=True)
        handle = everything(disk)
        handle.write("/a/b/c", "x")
        handle.make_directory("/a/d")
        handle.write("/a/d", "in the place of an empty directory")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert modes == {"root": 0o700, "a": 0o700, "b": 0o700, "c": 0o600, "d": 0o600}


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_failing_disk_changes_nothing_and_its_error_names_the_logical_path(
    place: Place, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """A limit on the size of files stands in for a full disk."""
    if not unnamed:
        without_unnamed_files(monkeypatch)
    place.handle.write("/a/report", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="/a/report") as caught:
            place.handle.write("/a/report", b"x" * (3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == "/a/report"
    assert str(place.root) not in str(caught.value)
    assert place.handle.read_file("/a/report") == "old"


def test_no_error_shows_where_the_root_is(place: Place) -> None:
    place.handle.write("/a/b", "x")
    os.mkfifo(place.root / "pipe")
    (place.root / "link").symlink_to(place.outside)
    (place.root / "hard").hardlink_to(place.outside / "secret")
    said = 0
    wanted = [hostile.path for hostile in REFUSED[::5]] + [
        "/a",
        "/a/b/c",
        "/pipe",
        "/link",
        "/link/x",
        "/hard",
        "/none",
    ]
    for handle in (place.handle, place.disk.create_handle([grant("/a", "list")])):
        for path in wanted:
            for operation in OPERATIONS:
                error = refusal(partial(invoke, handle, operation, path))
                if error is not None:
                    said += 1
                    shown = f"{error} {error!r} {error.args} {vars(error)} {error.__cause__} {error.__context__!r}"
                    assert str(place.root.parent) not in shown
                    assert error.__cause__ is None
                    assert error.__suppress_context__ or error.__context__ is None
    assert said > 200
    assert str(place.root) not in repr(place.disk) + repr(place.handle)


def test_no_descriptor_is_left_open(place: Place) -> None:
    """After many operations that succeed and fail, and after many file systems."""
    (place.root / "link").symlink_to(place.outside)
    gc.collect()
    before = len(list(Path("/dev/fd").iterdir()))
    for number in range(50):
        disk = DiskFileSystem(place.root)
        handle = everything(disk)
        for operation in sorted(OPERATIONS):
            for path in ("/a/b/c", "/link/x", "/a", "/none/x"):
                try:
                    invoke(handle, operation, path)
                except FileSystemError:
                    continue
        if number % 2:
            disk.close()
        del disk, handle
    gc.collect()
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_closed_file_system_touches_nothing(place: Place) -> None:
    place.handle.write("/a", "x")
    place.disk.close()
    place.disk.close()
    other = os.open(place.outside, os.O_RDONLY)  # likely gets the number that the root had
    try:
        for path in ("/secret", "/a"):
            for operation in sorted(OPERATIONS):
                with pytest.raises(OSError, match="descriptor"):
                    invoke(place.handle, operation, path)
        for hook in (place.disk._read_binary_impl, place.disk._delete_impl):
            with pytest.raises(OSError, match="descriptor"):
                hook("/secret")
        assert list(place.disk.entries("/")) == []
    finally:
        os.close(other)


def test_a_single_look_does_not_walk_the_tree(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(prefix: str) -> None:
        raise AssertionError(f"walked through {prefix}")

    monkeypatch.setattr(place.disk, "entries", walk)
    place.handle.write("/a/b", "x")
    for operation in sorted(OPERATIONS - {"list", "delete"}):
        invoke(place.handle, operation, "/a/b")
    place.handle.delete("/a/b")


def test_a_listing_reads_only_the_directory_that_was_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/a/x", "/a/y/z", "/ab", "/b/x"):
        place.handle.write(path, "x")
    walked: list[str] = []
    original = place.disk._walk

    def walk(start: Sequence[str]) -> Iterator[tuple[str, EntryMeta]]:
        walked.append("/".join(start))
        return original(start)

    monkeypatch.setattr(place.disk, "_walk", walk)
    assert paths(place.handle.list("/a")) == ["/a/x", "/a/y/z"]
    assert paths(place.disk.create_handle([grant("/a/y/"), grant("/b")]).list()) == ["/a/y/z", "/b/x"]
    assert walked == ["a", "a/y", "b"]


def test_a_deep_tree(place: Place) -> None:
    """Few descriptors at a time, however deep."""
    path = "/d" * 128
    place.handle.write(path, "deep")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        assert paths(place.handle.list()) == [path]
        assert place.handle.read_file(path) == "deep"
        DiskFileSystem(place.root).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    index = place.disk._snapshot_impl([])
    assert (list(index), len(index)) == ([path], 1)
