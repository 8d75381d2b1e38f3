"""What a handle may do with directories: below, at, beside and above a grant, and handed on (G3, G7)."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from cfs_filesystem import (
    OPERATIONS,
    AccessDeniedError,
    ConflictError,
    EntryMeta,
    FsHandle,
    Grant,
    InMemoryFileSystem,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    Operation,
    Path,
)
from tests.filesystem.support import everything, grant, paths

CALLS: dict[str, tuple[set[Operation], Callable[[FsHandle, Path], object]]] = {
    "open": ({"read_binary"}, lambda handle, path: handle.open(path)),
    "write_from": ({"write"}, lambda handle, path: handle.write_from(path, [b"x"])),
    "scan": ({"list"}, lambda handle, path: handle.scan(path)),
    "make_directory": ({"write"}, lambda handle, path: handle.make_directory(path)),
    "remove_directory": ({"delete"}, lambda handle, path: handle.remove_directory(path)),
    "move from": ({"read_binary", "delete"}, lambda handle, path: handle.move(path, "/free/moved")),
    "move to": ({"write"}, lambda handle, path: handle.move("/free/x", path)),
}
FREE = grant("/free")


@pytest.fixture
def memory() -> InMemoryFileSystem:
    """Entries below, at and beside `/a`, an empty directory there, and a place where all is granted."""
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for path in ("/a/x", "/a/y/z", "/ab", "/b/x", "/free/x"):
        handle.write(path, "x")
    handle.make_directory("/a/d")
    return memory


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("prefix", "path", "covered"),
    [
        ("/a", "/a/x", True),
        ("/a/", "/a/x", True),
        ("/a", "/a/d", True),
        ("/a/d", "/a/d", True),
        ("/", "/a/d", True),
        ("/a", "/a/y/none", True),
        ("/a/", "/a", False),
        ("/a/d/", "/a/d", False),
        ("/a", "/ab", False),
        ("/a/d/e", "/a/d", False),
        ("/a", "/b/none", False),
        ("/A", "/a/x", False),
    ],
)
def test_denials(memory: InMemoryFileSystem, call: str, prefix: Path, path: Path, covered: bool) -> None:
    """With all rights but one, and with all of them: the answer is a denial, or anything else."""
    needed, act = CALLS[call]
    for missing in (*needed, None):
        ops = OPERATIONS - {missing}
        handle = memory.create_handle([Grant(prefix=prefix, ops=ops), FREE])
        may = missing is None and (covered or (call == "scan" and prefix.startswith(path + "/")))
        before = memory.state_dict()
        try:
            act(handle, path)
        except AccessDeniedError:
            assert not may
            assert memory.state_dict() == before
        except (NotFoundError, ConflictError):
            assert may
        else:
            assert may
            memory.load_state_dict(before)


def test_the_order_of_checks() -> None:
    """Path, grants, a fresh look, existence, arguments: the first that fails is the answer, and no hook is asked."""

    class Witness(InMemoryFileSystem):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
            self.seen.append("refresh")
            return super()._snapshot_impl(grants)

        def __getattribute__(self, name: str) -> Any:
            if name.endswith("_impl") and name not in ("_snapshot_impl", "_directory_impl"):
                object.__getattribute__(self, "seen").append(name)
            return super().__getattribute__(name)

    witness = Witness()
    everything(witness).write("/a", "x")
    nobody, somebody = witness.create_handle([]), everything(witness)

    def asked(handle: FsHandle, act: Callable[[FsHandle], object], error: type[Exception]) -> list[str]:
        witness.seen.clear()
        with pytest.raises(error):
            act(handle)
        return list(witness.seen)

    for _, act in CALLS.values():
        assert asked(nobody, lambda handle, act=act: act(handle, "/../a"), InvalidPathError) == []  # type: ignore[misc]
        assert asked(nobody, lambda handle, act=act: act(handle, "/a"), AccessDeniedError) == []  # type: ignore[misc]
    refused: list[tuple[Callable[[FsHandle], object], type[Exception]]] = [
        (lambda handle: handle.open("/none"), NotFoundError),
        (lambda handle: handle.write_from("/a", "text", overwrite=False), ConflictError),  # type: ignore[arg-type]
        (lambda handle: handle.write_from("/a", "text"), InvalidArgumentError),  # type: ignore[arg-type]
        (lambda handle: handle.make_directory("/a"), ConflictError),
        (lambda handle: handle.make_directory("/none/d"), ConflictError),
        (lambda handle: handle.remove_directory("/a"), NotFoundError),
        (lambda handle: handle.move("/none", "/none/deep"), NotFoundError),
        (lambda handle: handle.move("/a", "/a"), ConflictError),
        (lambda handle: handle.move("/a", "/none/a"), ConflictError),
    ]
    for call, error in refused:
        assert [name for name in asked(somebody, call, error) if name != "_write_from_impl"] == ["refresh"]


def test_a_denial_does_not_tell_whether_a_directory_exists(memory: InMemoryFileSystem) -> None:
    handle = memory.create_handle([FREE])
    for _, act in CALLS.values():
        said = []
        for path in ("/a/d", "/a/-"):
            with pytest.raises(AccessDeniedError) as caught:
                act(handle, path)
            said.append(caught.value.detail.replace(path, "PATH"))
        assert said[0] == said[1]
    assert not handle.is_directory("/a/d")


def test_a_narrowed_handle_sees_and_does_less(memory: InMemoryFileSystem) -> None:
    parent = memory.create_handle([grant("/a"), grant("/b", "list"), FREE])
    child = parent.narrow([grant("/a/y"), grant("/a/d", "list", "file")])
    assert paths(parent.scan("/")) == ["/a", "/b", "/free"]
    assert paths(child.scan("/")) == ["/a"]
    assert paths(child.scan("/a")) == ["/a/d", "/a/y"]
    assert child.is_directory("/a")
    assert not child.is_directory("/b")
    for _, act in CALLS.values():
        with pytest.raises(AccessDeniedError):
            act(child, "/a/x")
    child.make_directory("/a/y/new")
    child.move("/a/y/z", "/a/y/new/z")
    with pytest.raises(AccessDeniedError):
        child.remove_directory("/a/d")
    child.grants.append(grant("/"))  # in place: not checked, and of no use
    assert paths(child.scan("/")) == ["/a", "/b", "/free"]
    with pytest.raises(AccessDeniedError):
        child.make_directory("/b/new")


def test_what_is_taken_from_a_parent_is_taken_from_its_children(memory: InMemoryFileSystem) -> None:
    parent = memory.create_handle([grant("/")])
    child = parent.narrow([grant("/a"), grant("/b")])
    assert paths(child.scan("/")) == ["/a", "/b"]
    parent.grants = [grant("/a/y")]
    assert paths(child.scan("/")) == ["/a"]
    assert paths(child.scan("/a")) == ["/a/y"]
    for _, act in CALLS.values():
        with pytest.raises(AccessDeniedError):
            act(child, "/b/x")
    parent.grants = []
    for directory in ("/", "/a", "/a/y"):
        assert not child.is_directory(directory)
        with pytest.raises(AccessDeniedError):
            child.scan(directory)


@pytest.mark.parametrize("prefix", ["", "a", "//", "/a//", "/../", "/a*"])
def test_a_prefix_that_is_none_never_shows_anything(memory: InMemoryFileSystem, prefix: Path) -> None:
    handle = memory.create_handle([])
    handle.grants.append(grant(prefix))
    for directory in ("/a", "/a/y", "/a/d"):
        assert not handle.is_directory(directory)
        with pytest.raises((AccessDeniedError, NotFoundError)):
            handle.scan(directory)
    with suppress(AccessDeniedError):
        assert handle.scan("/") == []


_ENTRIES = ["/a/a/a", "/a/b", "/b", "/ab/a"]
_MADE = ["/a/ab", "/ab/b", "/ab/b/a"]
_DIRECTORIES = {"/", "/a", "/a/a", "/ab", *_MADE}


def _covered(grants: Sequence[Grant], path: Path, operation: Operation, *, inside: bool = False) -> bool:
    """The model: components are compared, and nothing is shared with the code under test."""
    wanted = [part for part in path.split("/") if part]
    for each in grants:
        parts = [part for part in each["prefix"].split("/") if part]
        strictly = each["prefix"].endswith("/") and bool(parts)
        fits = wanted[: len(parts)] == parts
        if fits and operation in each["ops"] and not (strictly and len(parts) == len(wanted) and not inside):
            return True
    return False


def _visible(grants: Sequence[Grant], directory: Path) -> dict[Path, bool]:
    """The paths directly in a directory that lead to what may be listed; whether each is shown as a directory."""
    inside = directory.rstrip("/") + "/"
    shown: dict[Path, bool] = {}
    for path in (*_ENTRIES, *_DIRECTORIES):
        # an existing directory is seen as itself, or from what is granted inside of it
        listed = _covered(grants, path, "list") or (
            path in _DIRECTORIES and _covered(grants, path, "list", inside=True)
        )
        if path.startswith(inside) and path != inside and listed:
            child = inside + path[len(inside) :].split("/")[0]
            shown[child] = child in _DIRECTORIES
    return shown


def _random_place(chance: random.Random) -> Path:
    return "/" + "/".join(chance.choices(["a", "b", "ab"], k=chance.choice([0, 1, 1, 2, 2, 3])))


def test_thousands_of_random_scans_against_a_model() -> None:
    """Nothing is shown that the model does not show, and everything that it does; `is_directory` agrees."""
    chance = random.Random(21)
    memory = InMemoryFileSystem()
    for path in _ENTRIES:
        everything(memory).write(path, "x")
    for path in _MADE:
        everything(memory).make_directory(path)
    seen = dict.fromkeys(["shown", "nothing", "absent", "denied"], 0)
    for _ in range(4_000):
        grants = [
            Grant(
                prefix=_random_place(chance).rstrip("/") + chance.choice(["", "/"]) or "/",
                ops=set(chance.sample(["list", "file", "write"], chance.randint(1, 2))),
            )
            for _ in range(chance.randint(0, 3))
        ]
        handle = memory.create_handle(grants)
        directory = _random_place(chance)
        inside = directory.rstrip("/") + "/"
        at_all = _covered(grants, directory, "list", inside=True) or any(
            "list" in each["ops"] and each["prefix"].startswith(inside) for each in grants
        )
        expected = _visible(grants, directory)
        whole = directory in _DIRECTORIES and _covered(grants, directory, "list", inside=True)
        there = directory == "/" or whole or bool(expected)
        try:
            found = {meta["path"]: bool(meta.get("directory")) for meta in handle.scan(directory)}
        except AccessDeniedError:
            assert not at_all, (grants, directory)
            seen["denied"] += 1
            known = directory in _DIRECTORIES and _covered(grants, directory, "file")
        except NotFoundError:
            assert at_all and not there, (grants, directory)  # noqa: PT018
            seen["absent"] += 1
            known = directory in _DIRECTORIES and _covered(grants, directory, "file")
        else:
            assert at_all and there, (grants, directory)  # noqa: PT018
            assert found == expected, (grants, directory)
            seen["shown" if found else "nothing"] += 1
            known = True
        assert handle.is_directory(directory) is known, (grants, directory)
    assert min(seen.values()) > 50, seen
