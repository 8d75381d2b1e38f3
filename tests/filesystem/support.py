"""What the tests of the gate share."""
# ruff: noqa: ARG002  a hook need not use all that it is told

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import pytest

from cfs_filesystem import (
    OPERATIONS,
    ConflictError,
    EntryMeta,
    FileSystemBase,
    FileSystemError,
    FsHandle,
    Grant,
    GrantedOperation,
    Path,
    _moving,
    _replacing,
)


def grant(prefix: Path, *ops: GrantedOperation) -> Grant:
    """A grant of some operations, or of all."""
    return Grant(prefix=prefix, ops=set(ops) or set(OPERATIONS))


def everything(filesystem: FileSystemBase) -> FsHandle:
    """A handle that may do all everywhere."""
    return filesystem.create_handle([grant("/")])


def paths(metas: Iterable[EntryMeta]) -> list[Path]:
    """The paths of a listing."""
    return [meta["path"] for meta in metas]


def refusal(action: Callable[[], object]) -> FileSystemError | None:
    """The error that an action ends with, if it does."""
    try:
        action()
    except FileSystemError as error:
        return error
    return None


def without_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writers think that this system has neither O_TMPFILE nor renameat2, as macOS has none."""
    monkeypatch.setattr(_replacing, "_UNNAMED", None)
    monkeypatch.setattr(_moving, "_RENAMEAT2", None)


class OnlyTheFourHooks(FileSystemBase):
    """The least that a file system of one's own needs."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[Path, tuple[EntryMeta, bytes]] = {}

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        return {path: meta for path, (meta, _) in self.entries.items()}

    def _read_binary_impl(self, path: Path) -> bytes:
        return self.entries[path][1]

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        if any(path.startswith(other + "/") or other.startswith(path + "/") for other in self.entries):
            raise ConflictError(f"{path!r} is above or below another entry", path)
        meta = EntryMeta(path=path, size=len(data), updated_at=datetime.now(UTC))
        self.entries[path] = meta, data
        return meta

    def _delete_impl(self, path: Path) -> None:
        del self.entries[path]
