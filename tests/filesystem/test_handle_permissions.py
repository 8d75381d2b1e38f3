"""What a handle may do: grants, their change, handing on, and the order of checks (G2, G3, G5, G7)."""
# ruff: noqa: ARG002  a witness need not use what it is told

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import product

import pytest

from cfs_filesystem import (
    OPERATIONS,
    READ_OPERATIONS,
    AccessDeniedError,
    ConflictError,
    EntryMeta,
    FileSystemBase,
    FsHandle,
    Grant,
    GrantedOperation,
    InMemoryFileSystem,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    Operation,
    Path,
)
from cfs_filesystem._paths import covers
from cfs_filesystem.testing import invoke
from tests.filesystem.support import everything, grant, paths

ALL_OPERATIONS = sorted(OPERATIONS)


@pytest.fixture
def memory() -> InMemoryFileSystem:
    """Entries below, at and beside `/a`."""
    memory = InMemoryFileSystem()
    for path in ("/a/x", "/a/y/z", "/ab", "/b/x"):
        everything(memory).write(path, "x")
    return memory


@pytest.mark.parametrize("operation", ALL_OPERATIONS)
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize(
    ("prefix", "path", "covered"),
    [
        ("/a", "/a/x", True),
        ("/a/", "/a/x", True),
        ("/a", "/a/y/z", True),
        ("/a/x", "/a/x", True),
        ("/", "/ab", True),
        ("/a", "/ab", False),
        ("/a/", "/ab", False),
        ("/a", "/b/x", False),
        ("/a/x/", "/a/x", False),
        ("/a/xy", "/a/x", False),
        ("/a/x/y", "/a/x", False),
        ("/A", "/a/x", False),
        ("/a ", "/a/x", False),
    ],
)
def test_denials(
    memory: InMemoryFileSystem, operation: Operation, granted: bool, prefix: Path, path: Path, covered: bool
) -> None:
    ops = {operation} if granted else OPERATIONS - {operation}
    handle = memory.create_handle([Grant(prefix=prefix, ops=ops)])
    if operation == "list" and granted and not covered and prefix.startswith(path + "/"):
        assert handle.list(path) == [], "what is asked for holds something granted, but nothing that is listed"
    elif granted and covered:
        invoke(handle, operation, path)
    else:
        with pytest.raises(AccessDeniedError):
            invoke(handle, operation, path)
        assert memory._contents[path] == b"x"


@pytest.mark.parametrize("operation", ALL_OPERATIONS)
def test_a_denial_does_not_tell_whether_the_entry_exists(memory: InMemoryFileSystem, operation: Operation) -> None:
    handle = memory.create_handle([grant("/a")])
    said = []
    for path in ("/b/x", "/b/-"):
        with pytest.raises(AccessDeniedError) as caught:
            invoke(handle, operation, path)
        said.append(caught.value.detail.replace(path, "PATH"))
    assert said[0] == said[1]


def test_without_grants_nothing_is_allowed(memory: InMemoryFileSystem) -> None:
    handle = memory.create_handle([])
    for operation in ALL_OPERATIONS:
        with pytest.raises(AccessDeniedError):
            invoke(handle, operation, "/a/x")
    with pytest.raises(AccessDeniedError):
        handle.list()


@pytest.mark.parametrize("operation", ALL_OPERATIONS)
def test_a_grant_revoked_between_two_operations(memory: InMemoryFileSystem, operation: Operation) -> None:
    handle = memory.create_handle([grant("/a")])
    invoke(handle, operation, "/a/x")
    handle.grants = [Grant(prefix="/a", ops=OPERATIONS - {operation})]
    everything(memory).write("/a/x", "x")
    with pytest.raises(AccessDeniedError):
        invoke(handle, operation, "/a/x")
    handle.grants = [grant("/a", operation)]
    invoke(handle, operation, "/a/x")


def test_grants_changed_in_place_count_at_once(memory: InMemoryFileSystem) -> None:
    handle = memory.create_handle([grant("/a", "file")])
    with pytest.raises(AccessDeniedError):
        handle.read_file("/a/x")
    handle.grants.append(grant("/a/x", "read"))
    assert handle.read_file("/a/x") == "x"
    handle.grants.clear()
    with pytest.raises(AccessDeniedError):
        handle.file("/a/x")


def test_grants_are_copied_from_what_was_given(memory: InMemoryFileSystem) -> None:
    given = [grant("/a", "file")]
    handle, other = memory.create_handle(given), memory.create_handle(given)
    given.append(grant("/"))
    handle.grants.append(grant("/b"))
    assert other.grants == [{"prefix": "/a", "ops": {"file"}}]


@pytest.mark.parametrize("prefix", ["", "a", "//", "/a//", "/../", "/a*"])
def test_a_prefix_that_is_none_never_covers_anything(memory: InMemoryFileSystem, prefix: Path) -> None:
    with pytest.raises(InvalidPathError):
        memory.create_handle([grant(prefix)])
    handle = memory.create_handle([])
    handle.grants.append(grant(prefix))
    for operation in OPERATIONS - {"list"}:
        with pytest.raises(AccessDeniedError):
            invoke(handle, operation, "/a/x")


@pytest.mark.parametrize("ops", ["write", {"append"}, None, {1}, 7, {"READ"}])
def test_operations_that_do_not_exist_are_refused(memory: InMemoryFileSystem, ops: object) -> None:
    with pytest.raises(InvalidArgumentError):
        memory.create_handle([{"prefix": "/a", "ops": ops}])  # type: ignore[typeddict-item]


@pytest.mark.parametrize("given", [None, {}, {"prefix": "/a"}, {"ops": {"file"}}, "/a"])
def test_what_is_no_grant_is_refused(memory: InMemoryFileSystem, given: object) -> None:
    with pytest.raises(InvalidArgumentError):
        memory.create_handle([given])  # type: ignore[list-item]


def test_operations_may_come_as_a_list(memory: InMemoryFileSystem) -> None:
    """As they do from JSON and TOML."""
    handle = memory.create_handle([{"prefix": "/a", "ops": ["file", "read"]}])  # type: ignore[typeddict-item]
    assert handle.grants == [{"prefix": "/a", "ops": {"file", "read"}}]
    assert handle.read_file("/a/x") == "x"


PREFIXES = ["/", "/a", "/a/", "/a/x", "/a/x/", "/ab", "/b/"]


@pytest.mark.parametrize(("above", "below"), list(product(PREFIXES, PREFIXES)))
def test_narrowing_refuses_each_pair_that_is_wider(above: Path, below: Path) -> None:
    """For every pair of prefixes and every operation: just what the parent may do can be handed on."""
    inside = below == above or below.startswith(above if above.endswith("/") else above + "/")
    for operation, other in product(ALL_OPERATIONS, ALL_OPERATIONS):
        parent = InMemoryFileSystem().create_handle([grant(above, operation)])
        if inside and operation == other:
            assert parent.narrow([grant(below, other)]).grants == [grant(below, other)]
        else:
            with pytest.raises(AccessDeniedError, match="more than"):
                parent.narrow([grant(below, other)])
            with pytest.raises(AccessDeniedError, match="more than"):
                parent.narrow([grant(below, operation, other)])


def test_read_is_narrowed_as_the_three_that_it_stands_for() -> None:
    memory = InMemoryFileSystem()
    three = Grant(prefix="/a", ops=READ_OPERATIONS)
    memory.create_handle([three]).narrow([grant("/a", "read")])
    memory.create_handle([grant("/a", "read")]).narrow([three])
    with pytest.raises(AccessDeniedError):
        memory.create_handle([grant("/a", "read_file", "read_re")]).narrow([grant("/a", "read")])


def test_a_pair_may_be_covered_by_different_grants_of_the_parent() -> None:
    parent = InMemoryFileSystem().create_handle([grant("/a", "file"), grant("/a/x", "write")])
    parent.narrow([grant("/a/x", "file", "write")])
    with pytest.raises(AccessDeniedError):
        parent.narrow([grant("/a", "file", "write")])


def test_a_child_cannot_widen_itself(memory: InMemoryFileSystem) -> None:
    child = memory.create_handle([grant("/a", "file", "list")]).narrow([grant("/a/x", "file")])
    with pytest.raises(AccessDeniedError):
        child.grants = [grant("/a", "write")]
    child.grants = [grant("/a/y", "file")]
    child.grants.append(grant("/"))  # in place: not checked, and of no use
    assert child.file("/a/y/z")["size"] == 1
    assert paths(child.list()) == ["/a/x", "/a/y/z"]
    for operation in OPERATIONS - {"file", "list"}:
        with pytest.raises(AccessDeniedError):
            invoke(child, operation, "/a/x")
    with pytest.raises(AccessDeniedError):
        child.file("/b/x")
    with pytest.raises(AccessDeniedError):
        child.narrow([grant("/b", "file")])


def test_what_is_taken_from_a_parent_is_taken_from_its_children(memory: InMemoryFileSystem) -> None:
    parent = memory.create_handle([grant("/")])
    child = parent.narrow([grant("/a", "file", "list"), grant("/b", "file", "list")])
    grandchild = child.narrow([grant("/a/x", "file"), grant("/b", "list")])
    assert paths(grandchild.list()) == ["/b/x"]
    parent.grants = [grant("/a")]
    assert paths(child.list()) == ["/a/x", "/a/y/z"]
    assert grandchild.file("/a/x")
    for denied in (lambda: grandchild.list(), lambda: child.file("/b/x"), lambda: grandchild.list("/b")):
        with pytest.raises(AccessDeniedError):
            denied()
    child.grants = []
    with pytest.raises(AccessDeniedError):
        grandchild.file("/a/x")


_NAMES: list[GrantedOperation] = [*ALL_OPERATIONS, "read"]


def _random_prefix(chance: random.Random) -> Path:
    parts = chance.choices(["a", "b", "ab"], k=chance.randint(0, 3))
    return "/" + "".join(part + "/" for part in parts) if chance.random() < 0.5 or not parts else "/" + "/".join(parts)


def _random_grants(chance: random.Random) -> list[Grant]:
    return [
        Grant(prefix=_random_prefix(chance), ops=set(chance.sample(_NAMES, chance.randint(0, 4))))
        for _ in range(chance.randint(0, 3))
    ]


def _allows(grants: Sequence[Grant], operation: Operation, path: Path) -> bool:
    """The model: a grant is a set of (components, operation), and nothing is shared with the code under test."""
    wanted = path.strip("/").split("/") if path != "/" else []
    for each in grants:
        parts = each["prefix"].strip("/").split("/") if each["prefix"] != "/" else []
        strictly = each["prefix"].endswith("/")
        inside = wanted[: len(parts)] == parts
        at = len(wanted) == len(parts) and not (path.endswith("/"))
        names = set(each["ops"])
        if "read" in names:
            names |= {"read_binary", "read_file", "read_re"}
        if inside and not (strictly and at) and operation in names:
            return True
    return False


def _outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except AccessDeniedError:
        return "denied"
    except (NotFoundError, ConflictError):
        return "passed"
    return "passed"


def test_ten_thousand_random_questions_against_a_model() -> None:
    """Grants, narrowed grants, path, operation: nothing passes that the model forbids, and nothing else is denied."""
    chance = random.Random(20)
    memory = InMemoryFileSystem()
    for path in ("/a/a/a", "/a/b", "/b", "/ab/a"):
        everything(memory).write(path, "x")
    seen = dict.fromkeys(["passed", "denied", "narrowed", "refused"], 0)
    for _ in range(10_000):
        grants, fewer = _random_grants(chance), _random_grants(chance)
        operation = chance.choice(ALL_OPERATIONS)
        path = "/" + "/".join(chance.choices(["a", "b", "ab"], k=chance.randint(1, 4)))
        handle: FsHandle = memory.create_handle(grants)
        if chance.random() < 0.7:
            may = all(
                _allows(grants, each, one["prefix"])
                for one in fewer
                for each in ALL_OPERATIONS
                if _allows([one], each, one["prefix"])
            )
            try:
                handle = handle.narrow(fewer)
            except AccessDeniedError:
                assert not may, (grants, fewer)
                seen["refused"] += 1
            else:
                assert may, (grants, fewer)
                seen["narrowed"] += 1
                grants = fewer
        assert handle.allows(operation, path) == _allows(grants, operation, path)
        assert handle.allows(operation, path) == any(covers(scope, path) for scope in handle.scopes(operation))
        if operation == "list":
            listed = set(paths(handle.list())) if any(_allows([g], "list", g["prefix"]) for g in grants) else set()
            assert listed == {each for each in memory._contents if _allows(grants, "list", each)}
            continue
        outcome = _outcome(partial(invoke, handle, operation, path))
        assert outcome == ("passed" if _allows(grants, operation, path) else "denied"), (grants, operation, path)
        seen[outcome] += 1
    assert min(seen.values()) > 300, seen
    memory.check_integrity()


def test_rights_can_be_asked_for_without_doing_anything(memory: InMemoryFileSystem) -> None:
    """What is offered beside the operations is judged by the same grants, and the path comes first here too."""
    handle = memory.create_handle([grant("/a", "file", "list"), grant("/a/b", "write"), grant("/a/", "list")])
    handle.require("file", "/a/none")
    with pytest.raises(AccessDeniedError):
        handle.require("write", "/a")
    assert handle.scopes("list") == ["/a"]
    assert handle.scopes("list", "/a/b/") == ["/a/b/"]
    assert handle.scopes("write", "/a") == ["/a/b"]
    assert handle.scopes("delete") == []
    for ask in (handle.allows, handle.require):
        with pytest.raises(InvalidPathError):
            ask("file", "/a/../b")
    with pytest.raises(InvalidPathError):
        handle.scopes("list", "a")
    handle.grants = []
    assert not handle.allows("file", "/a/none"), "a right that is taken is gone at once"


def test_the_scopes_of_many_grants_are_found_without_comparing_them(
    memory: InMemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand grants are checked once each, by themselves."""
    handle = memory.create_handle([grant(f"/a/{number}", "list") for number in range(1000)])
    handle.grants.extend([grant("/a/7/x", "list"), grant("/b", "file")])
    handle.grants.append(Grant(prefix="/c", ops="list"))  # type: ignore[typeddict-item]  # invalid, and of no use
    checks: list[str] = []

    def counted(prefix: str, other: str) -> bool:
        checks.append(other)
        return covers(prefix, other)

    monkeypatch.setattr("cfs_filesystem._grants.covers", counted)
    assert handle.scopes("list") == sorted(f"/a/{number}" for number in range(1000))
    assert len(checks) < 2000
    assert handle.narrow([grant("/a/7/x", "list")]).scopes("list") == ["/a/7/x"]


class Witness(FileSystemBase):
    """Writes down what is asked of it; has one entry, `/here`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.meta = EntryMeta(path="/here", size=1, updated_at=datetime.now(UTC))

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        self.seen.append("refresh")
        return {"/here": self.meta}

    def _read_binary_impl(self, path: Path) -> bytes:
        self.seen.append("implementation")
        return b"x"

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        self.seen.append("implementation")
        return self.meta

    def _delete_impl(self, path: Path) -> None:
        self.seen.append("implementation")


def _seen(action: Callable[[FsHandle], object], error: type[Exception] | None, *ops: GrantedOperation) -> list[str]:
    """What the file system was asked when an action ended as told, by a handle with these operations."""
    witness = Witness()
    handle = witness.create_handle([Grant(prefix="/", ops=set(ops))])
    if error is None:
        action(handle)
    else:
        with pytest.raises(error):
            action(handle)
    return witness.seen


@pytest.mark.parametrize("operation", ALL_OPERATIONS)
def test_order_path_grants_refresh_existence_implementation(operation: Operation) -> None:
    """Each check is reached only when those before it have passed."""
    assert _seen(lambda handle: invoke(handle, operation, "/here/../*"), InvalidPathError) == []
    assert _seen(lambda handle: invoke(handle, operation, "/absent"), AccessDeniedError) == []
    missing = NotFoundError if operation not in ("list", "write") else None
    seen = _seen(lambda handle: invoke(handle, operation, "/absent"), missing, operation)
    assert seen == (["refresh", "implementation"] if operation == "write" else ["refresh"])
    seen = _seen(lambda handle: invoke(handle, operation, "/here"), None, operation)
    assert seen == (["refresh"] if operation in ("list", "file") else ["refresh", "implementation"])


def test_arguments_are_looked_at_after_rights_and_existence() -> None:
    """A caller without rights learns only that; then whether the entry exists; then what is wrong with the rest."""
    wrong: list[tuple[Operation, Callable[..., object]]] = [
        ("read_file", lambda handle, path: handle.read_file(path, -1)),
        ("read_file", lambda handle, path: handle.read_file(path, 0, 0)),
        ("read_re", lambda handle, path: handle.read_re(path, "x", -1)),
        ("read_re", lambda handle, path: handle.read_re(path, b"x")),
    ]
    for operation, action in wrong:
        there, absent = partial(action, path="/here"), partial(action, path="/-")
        assert _seen(there, AccessDeniedError) == []
        assert _seen(absent, NotFoundError, operation) == ["refresh"]
        assert _seen(there, InvalidArgumentError, operation) == ["refresh"]


def test_writing_over_an_entry_is_refused_before_the_data_is_looked_at() -> None:
    def action(handle: FsHandle) -> object:
        return handle.write("/here", None, overwrite=False)  # type: ignore[arg-type]

    assert _seen(action, ConflictError, "write") == ["refresh"]
    assert _seen(action, AccessDeniedError, "read") == []


def test_each_operation_looks_afresh(memory: InMemoryFileSystem) -> None:
    """Nothing is remembered: what another handle did a moment ago is seen."""
    one, other = everything(memory), everything(memory)
    assert one.file("/a/x")["size"] == 1
    other.write("/a/x", "longer")
    assert one.file("/a/x")["size"] == 6
    other.delete("/a/x")
    with pytest.raises(NotFoundError):
        one.file("/a/x")
    other.write("/a/new", "x")
    assert "/a/new" in paths(one.list())


def test_grants_in_words() -> None:
    handle = InMemoryFileSystem().create_handle(
        [
            grant("/workspace/"),
            grant("/userinput/", "list", "read"),
            grant("/workspace/", "list"),
            grant('/a "b"', "file"),
        ]
    )
    assert handle.describe_grants() == (
        "Files you may use, by absolute path; everything else is refused:\n"
        '- "/a \\"b\\"" and below: file\n'
        '- below "/userinput/": list, read (read_binary, read_file, read_re)\n'
        '- below "/workspace/": list, file, read (read_binary, read_file, read_re), write, delete'
    )
    assert InMemoryFileSystem().create_handle([]).describe_grants() == "You have no access to any file."
    assert (
        InMemoryFileSystem().create_handle([Grant(prefix="/", ops=set())]).describe_grants().startswith("You have no")
    )


def test_words_say_what_is_left_after_a_parents_loss() -> None:
    parent = InMemoryFileSystem().create_handle([grant("/a"), grant("/b")])
    child = parent.narrow([grant("/a/x", "file", "write"), grant("/b", "file")])
    parent.grants = [grant("/a", "file")]
    assert child.describe_grants().splitlines()[1:] == ['- "/a/x" and below: file']
