"""The three-prefix layout and its three handles (G6)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cfs_filesystem import (
    OPERATIONS,
    READ_OPERATIONS,
    AccessDeniedError,
    BuiltinFileSystem,
    DiskFileSystem,
    InvalidPathError,
    Operation,
    RouterFileSystem,
    builtin_grant,
)
from cfs_filesystem.testing import invoke
from tests.filesystem.support import everything, paths

PREFIXES = ["/internal/", "/userinput/", "/workspace/"]


@pytest.fixture
def builtin() -> BuiltinFileSystem:
    builtin = BuiltinFileSystem()
    for prefix in PREFIXES:
        everything(builtin).write(prefix + "a", "x")
    return builtin


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_handle_works_below_its_own_prefix_only(
    builtin: BuiltinFileSystem, prefix: str, operation: Operation
) -> None:
    handles = {
        "/internal/": builtin.create_internal_handle,
        "/userinput/": builtin.create_userinput_handle,
        "/workspace/": builtin.create_workspace_handle,
    }
    for server, create in handles.items():
        readable = operation in READ_OPERATIONS | {"list", "file"}
        if server == prefix and (readable or server == "/workspace/" or (server, operation) == ("/internal/", "write")):
            invoke(create(), operation, prefix + "a")
            everything(builtin).write(prefix + "a", "x")
        else:
            with pytest.raises(AccessDeniedError):
                invoke(create(), operation, prefix + "a")


def test_what_is_internal_cannot_be_deleted(builtin: BuiltinFileSystem) -> None:
    """Whatever the grants, and by no way around: a move takes the old name away, or the entry at the new one (G6)."""
    inside = everything(RouterFileSystem(dict.fromkeys(PREFIXES, builtin)))
    everything(builtin).make_directory("/internal/empty")
    handles = [everything(builtin), builtin.create_handle([builtin_grant("/internal/", OPERATIONS)]), inside]
    for handle in [*handles, *(handle.narrow([builtin_grant("/internal/")]) for handle in handles)]:
        handle.write("/internal/plan", "one")
        handle.write("/internal/plan", "two")
        attempts: list[Callable[[], None]] = [
            partial(handle.delete, "/internal/plan"),
            partial(handle.delete, "/internal/none"),
            partial(handle.remove_directory, "/internal/empty"),
            partial(handle.move, "/internal/plan", "/internal/new"),
            partial(handle.move, "/internal/empty", "/internal/new"),
            partial(handle.move, "/internal/a", "/internal/plan", overwrite=True),
            partial(handle.move, "/internal/plan", "/workspace/plan"),
        ]
        for attempt in attempts:
            with pytest.raises(AccessDeniedError):
                attempt()
        assert handle.read_file("/internal/plan") == "two"
        assert not handle.allows("delete", "/internal/plan")
    assert '- below "/internal/": never delete' in everything(builtin).describe_grants()


def test_the_framework_asks_for_writing_user_input_by_name(builtin: BuiltinFileSystem) -> None:
    builtin.create_handle([builtin_grant("/userinput/", ["write"])]).write("/userinput/question", "why?")
    assert builtin.create_userinput_handle().read_file("/userinput/question") == "why?"


def test_grants_of_the_layout_can_be_combined_and_narrowed(builtin: BuiltinFileSystem) -> None:
    agent = builtin.create_handle([builtin_grant("/userinput/"), builtin.builtin_grant("/workspace/")])
    assert paths(agent.list()) == ["/userinput/a", "/workspace/a"]
    child = agent.narrow([builtin_grant("/workspace/child/"), builtin_grant("/userinput/", {"read"})])
    child.write("/workspace/child/notes", "mine")
    with pytest.raises(AccessDeniedError):
        child.read_file("/workspace/a")


@pytest.mark.parametrize("prefix", ["/", "/internal", "/workspaces/", "/etc/", "workspace/"])
def test_a_grant_of_the_layout_is_within_it(prefix: str) -> None:
    with pytest.raises(InvalidPathError):
        builtin_grant(prefix)


def test_nothing_else_is_a_path(builtin: BuiltinFileSystem) -> None:
    for path in ("/internal", "/workspaces/a", "/etc/passwd"):
        with pytest.raises(InvalidPathError):
            everything(builtin).write(path, "x")


def test_a_part_of_it_may_be_on_disk(tmp_path: Path) -> None:
    builtin = BuiltinFileSystem(workspace=DiskFileSystem(tmp_path, prefix="/workspace/"))
    builtin.create_workspace_handle().write("/workspace/src/main.py", "print()")
    builtin.create_internal_handle().write("/internal/plan", "secret")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")] == ["src/main.py"]
