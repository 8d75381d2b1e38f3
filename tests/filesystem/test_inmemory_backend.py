"""Entries in memory: one truth under many threads, and no copies of the index (G6)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cfs_filesystem import ConflictError, FileSystemError, InMemoryFileSystem, InvalidPathError, NotFoundError
from tests.filesystem.support import everything, paths


def test_a_single_look_does_not_copy_the_index() -> None:
    """Among 10,000 entries: the snapshot is the same live mapping each time, and shows what comes later."""
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for number in range(10_000):
        memory._write_impl(f"/d{number % 100}/e{number}", b"x", True)
    before = memory._snapshot_impl(())
    handle.file("/d7/e7")
    handle.write("/new", "x")
    assert "/new" in before
    assert before == memory._snapshot_impl(())
    with pytest.raises(TypeError):
        before["/x"] = handle.file("/new")  # type: ignore[index]
    assert len(handle.list()) == 10_001
    assert len(handle.list("/d7/")) == 100
    memory.check_integrity()


def test_a_reader_keeps_what_it_was_given() -> None:
    handle = everything(InMemoryFileSystem())
    handle.write("/a", "old")
    before = handle.file("/a")
    handle.write("/a", "newer")
    assert before["size"] == 3
    assert handle.file("/a")["size"] == 5


def _all(count: int, action: Callable[[int], object]) -> list[str]:
    """Do something in many threads at once; the names of the errors, or what was returned."""
    ready = threading.Barrier(count)

    def work(number: int) -> str:
        ready.wait()
        try:
            return str(action(number))
        except FileSystemError as error:
            return type(error).__name__

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_of_many_that_create_an_entry_one_does() -> None:
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for attempt in range(20):

        def create(number: int, path: str = f"/{attempt}") -> int:
            handle.write(path, str(number), overwrite=False)
            return number

        done = _all(8, create)
        assert sorted(done)[1:] == ["ConflictError"] * 7
        assert handle.read_file(f"/{attempt}") == min(done)


def test_of_many_that_delete_an_entry_one_does() -> None:
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for attempt in range(20):
        handle.write(f"/a/{attempt}", "x")

        def delete(_: int, path: str = f"/a/{attempt}") -> str:
            handle.delete(path)
            return "deleted"

        done = _all(8, delete)
        assert done.count("deleted") == 1
        assert set(done) <= {"deleted", "ConflictError", "NotFoundError"}
    handle.write("/a", "the directory has gone with its last entry")
    memory.check_integrity()


def test_a_delete_that_lost_a_race_is_a_conflict() -> None:
    memory = InMemoryFileSystem()
    with pytest.raises(ConflictError, match="another caller"):
        memory._delete_impl("/gone")
    with pytest.raises(NotFoundError):
        memory._read_binary_impl("/gone")


def test_listing_while_others_write() -> None:
    """A listing is of whole entries, each with its true path and size, at any moment."""
    memory = InMemoryFileSystem()
    handle = everything(memory)
    stop = threading.Event()

    def write(name: str) -> None:
        number = 0
        while not stop.is_set():
            handle.write(f"/{name}/{number % 50}", "x" * (number % 7))
            if number % 3 == 0:
                handle.delete(f"/{name}/{number % 50}")
            number += 1

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, name) for name in "ab"]
        for _ in range(200):
            metas = handle.list()
            assert paths(metas) == sorted(paths(metas))
            assert all(meta["size"] < 7 for meta in metas)
        stop.set()
        for writer in writers:
            writer.result()
    memory.check_integrity()


def test_listing_and_scanning_while_others_move_directories() -> None:
    """Each entry is seen at a path that it had, and none is lost; readers do not wait."""
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for number in range(20):
        handle.write(f"/a/{number}/x", str(number))
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set():
            handle.move("/a", "/b")
            handle.make_directory("/a")
            handle.remove_directory("/a")
            handle.move("/b", "/a")

    with ThreadPoolExecutor(1) as pool:
        mover = pool.submit(move)
        try:
            for _ in range(200):
                assert {path[:3] for path in paths(handle.list())} <= {"/a/", "/b/"}
                assert set(paths(handle.scan("/"))) <= {"/a", "/b"}
        finally:
            stop.set()
        mover.result()
    assert len(handle.list("/a/")) == 20
    memory.check_integrity()


def test_of_many_that_move_or_make_one_path_one_does() -> None:
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for attempt in range(20):
        for number in range(4):
            handle.write(f"/{attempt}/s{number}", str(number))

        def take(number: int, attempt: int = attempt) -> int:
            if number < 4:
                handle.move(f"/{attempt}/s{number}", f"/{attempt}/t")
            else:
                handle.make_directory(f"/{attempt}/t")
            return number

        assert sorted(_all(6, take))[1:] == ["ConflictError"] * 5
    memory.check_integrity()


def test_a_move_that_makes_a_path_too_long_changes_nothing() -> None:
    memory = InMemoryFileSystem()
    handle = everything(memory)
    long = "/".join(["x" * 200] * 19)
    handle.write(f"/a/{long}", "x")
    handle.make_directory("/" + "y" * 255)
    with pytest.raises(InvalidPathError, match="too long"):
        handle.move("/a", "/" + "y" * 255 + "/" + "z" * 255)
    assert paths(handle.list()) == [f"/a/{long}"]
    memory.check_integrity()


def test_a_moved_entry_keeps_its_time_and_gets_a_version() -> None:
    handle = everything(InMemoryFileSystem())
    before = handle.write("/a", "x")
    handle.move("/a", "/b")
    after = handle.file("/b")
    assert after["updated_at"] == before["updated_at"]
    assert after.get("version") != before.get("version")


_PATHS = st.sampled_from(["/a", "/b", "/a/a", "/a/b", "/a/a/a", "/b/c/d", "/a/a/b", "/b/c"])


class AgainstADictionary(RuleBasedStateMachine):
    """Any sequence of operations does what it does to a dictionary of path and content."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = InMemoryFileSystem()
        self.handle = everything(self.memory)
        self.model: dict[str, str] = {}

        self.made: set[str] = set()

    def _blocked(self, path: str) -> bool:
        return any(path.startswith(other + "/") or other.startswith(path + "/") for other in self.model)

    def _is_directory(self, path: str) -> bool:
        return path in self.made or any(other.startswith(path + "/") for other in {*self.model, *self.made})

    def _has_parent(self, path: str) -> bool:
        parent = path.rpartition("/")[0]
        return not parent or self._is_directory(parent)

    @rule(path=_PATHS, text=st.text(max_size=3), overwrite=st.booleans())
    def write(self, path: str, text: str, overwrite: bool) -> None:
        if self._blocked(path) or (path in self.model and not overwrite):
            with pytest.raises(ConflictError):
                self.handle.write(path, text, overwrite=overwrite)
        else:
            assert self.handle.write(path, text, overwrite=overwrite)["size"] == len(text.encode())
            self.model[path] = text
            self.made = {each for each in self.made if each != path and not each.startswith(path + "/")}

    @rule(path=_PATHS)
    def make_directory(self, path: str) -> None:
        if path in self.model or self._is_directory(path) or not self._has_parent(path):
            with pytest.raises(ConflictError):
                self.handle.make_directory(path)
        else:
            self.handle.make_directory(path)
            self.made.add(path)

    @rule(path=_PATHS)
    def remove_directory(self, path: str) -> None:
        if not self._is_directory(path):
            with pytest.raises(NotFoundError):
                self.handle.remove_directory(path)
        elif any(other.startswith(path + "/") for other in {*self.model, *self.made}):
            with pytest.raises(ConflictError):
                self.handle.remove_directory(path)
        else:
            self.handle.remove_directory(path)
            self.made.remove(path)

    @rule(path=_PATHS, new=_PATHS, overwrite=st.booleans())
    def move(self, path: str, new: str, overwrite: bool) -> None:
        if path not in self.model and not self._is_directory(path):
            with pytest.raises(NotFoundError):
                self.handle.move(path, new, overwrite=overwrite)
        elif (
            f"{new}/".startswith(f"{path}/")
            or not self._has_parent(new)
            or self._is_directory(new)
            or (new in self.model and not (overwrite and path in self.model))
        ):
            with pytest.raises(ConflictError):
                self.handle.move(path, new, overwrite=overwrite)
        else:
            self.handle.move(path, new, overwrite=overwrite)
            there = {each: new + each.removeprefix(path) for each in {*self.model, *self.made}}
            moved = {each for each in there if f"{each}/".startswith(f"{path}/")}
            content = {there[each]: self.model.pop(each) for each in moved & self.model.keys()}
            self.model.update(content)
            self.made = {there[each] if each in moved else each for each in self.made}

    @rule(path=_PATHS)
    def delete(self, path: str) -> None:
        if path in self.model:
            self.handle.delete(path)
            del self.model[path]
        else:
            with pytest.raises(NotFoundError):
                self.handle.delete(path)

    @rule()
    def restore(self) -> None:
        other = InMemoryFileSystem()
        other.restore(self.memory.serialize())
        self.memory, self.handle = other, everything(other)

    @invariant()
    def same_directories(self) -> None:
        """A walk from the root finds each entry and each directory, once."""
        waiting, entries, directories = ["/"], [], set()
        while waiting:
            for meta in self.handle.scan(waiting.pop()):
                if meta.get("directory"):
                    waiting.append(meta["path"])
                    directories.add(meta["path"])
                else:
                    entries.append(meta["path"])
        assert sorted(entries) == sorted(self.model)
        above = {path[:at] for path in {*self.model, *self.made} for at in range(1, len(path)) if path[at] == "/"}
        assert directories == above | self.made

    @invariant()
    def same(self) -> None:
        self.memory.check_integrity()
        assert {path: self.handle.read_file(path) for path in paths(self.handle.list())} == self.model


TestAgainstADictionary = AgainstADictionary.TestCase
TestAgainstADictionary.settings = settings(stateful_step_count=25)
