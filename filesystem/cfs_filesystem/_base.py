"""What every file system is: a state, a set of registered prefixes, and the hooks that a handle calls (G5)."""

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from operator import itemgetter
from typing import Any, BinaryIO

from cfs_filesystem._errors import ConflictError, InvalidArgumentError, InvalidPathError, NotFoundError
from cfs_filesystem._handle import FsHandle
from cfs_filesystem._index import entries_below
from cfs_filesystem._layout import EVERYTHING, Layout
from cfs_filesystem._paths import directories_above, validate_path, validate_prefix
from cfs_filesystem._text import decoded, lines_of, matches_of
from cfs_filesystem._types import EntryMeta, Grant, Path

_VERSION = 1


class StateModule(ABC):
    """Something whose whole state can be taken out as plain data (what JSON can hold) and put back."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state; later changes do not show in it."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a state in the place of the present one; an illegal one raises and changes nothing."""

    def serialize(self) -> bytes:
        """Return the state as bytes."""
        return json.dumps(self.state_dict(), ensure_ascii=False, separators=(",", ":")).encode()

    def restore(self, data: bytes) -> None:
        """Put the state that `serialize` returned in the place of the present one."""
        try:
            state = json.loads(data)
        except ValueError:
            raise InvalidArgumentError("these bytes are no serialized state") from None
        self.load_state_dict(state)


class FileSystemBase(Layout, StateModule):
    """A set of entries, reached by handles only.

    A subclass writes `_snapshot_impl`, `_read_binary_impl`, `_write_impl` and `_delete_impl`; the others have a
    default. Hooks get paths that are valid and allowed, use them as they are, and may be called by several threads.
    """

    match_seconds = 1.0
    """Time limit of one `read_re`, in processor time."""
    undeletable: tuple[Path, ...] = ()
    """Prefixes below which no handle deletes, moves away or replaces by a move, whatever its grants say."""

    def __init__(self, prefixes: Iterable[Path] = ("/",)) -> None:
        self.prefixes = tuple(prefixes)
        for prefix in self.prefixes:
            if not validate_prefix(prefix).endswith("/"):
                raise InvalidPathError(f"the registered prefix {prefix!r} does not end in '/'", prefix)

    def create_handle(self, grants: Iterable[Grant]) -> FsHandle:
        """Make a handle that may do just what the grants say."""
        return FsHandle(self, grants)

    # -- hooks ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        """Return all entries by path: a live mapping, not a copy, so that looking one up costs one look-up.

        `grants` are those of the handle; what none of them covers may be left out. A mapping that finds what is below
        a prefix without going through all has a method `below(prefix) -> Iterable[tuple[Path, EntryMeta]]`.
        """

    @abstractmethod
    def _read_binary_impl(self, path: Path) -> bytes:
        """Return the content; raise `NotFoundError` if the entry has gone."""

    def _open_impl(self, path: Path) -> BinaryIO:
        """Open the content for reading, seekable; raise `NotFoundError` if the entry has gone."""
        return BytesIO(self._read_binary_impl(path))

    def _read_file_impl(self, path: Path, index: int | None, line: int | None) -> str:
        """Return lines of the content; see `FsHandle.read_file`."""
        return lines_of(path, decoded(path, self._read_binary_impl(path)), index, line)

    def _read_re_impl(self, path: Path, pattern: str, overlap: int | None) -> list[str]:
        """Return what matches in the content; see `FsHandle.read_re`."""
        return matches_of(decoded(path, self._read_binary_impl(path)), pattern, overlap, self.match_seconds)

    @abstractmethod
    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        """Store the content, all of it or nothing, and return what is known of the entry now.

        Raises `ConflictError` when the entry exists and must not be overwritten, or when the path is a directory of
        another entry or the other way round.
        """

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        """Store what a source supplies as `_write_impl` does; whatever it raises leaves everything as it was."""
        return self._write_impl(path, b"".join(source), overwrite)

    @abstractmethod
    def _delete_impl(self, path: Path) -> None:
        """Take the entry away; raise `ConflictError` if somebody else did in the meantime."""

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        """Give an entry or a directory another path; see `FsHandle.move`, which has looked at both.

        By default an entry is read, written and deleted, and a directory stays where it is.
        """
        if self._directory(path + "/") is not None:
            raise ConflictError(f"{path!r} is a directory, and this file system does not move those", path)
        self._write_impl(target, self._read_binary_impl(path), overwrite)
        self._delete_impl(path)

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return every entry with its content (in base64)."""
        entries = {}
        for path, meta in sorted(entries_below(self._snapshot_impl(EVERYTHING), "/"), key=itemgetter(0)):
            with suppress(NotFoundError):  # deleted meanwhile
                content = base64.b64encode(self._read_binary_impl(path)).decode()
                entries[path] = {"data": content, "updated_at": meta["updated_at"]}
        return {"version": _VERSION, "entries": entries}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the entries those of the state: others are deleted, and times are those of the writing."""
        entries = self._entries_of(state)
        for path, _ in entries_below(self._snapshot_impl(EVERYTHING), "/"):
            if path not in entries:
                self._delete_impl(path)
        for path, (data, _) in entries.items():
            self._write_impl(path, data, True)

    def _entries_of(self, state: Mapping[str, Any]) -> dict[Path, tuple[bytes, float]]:
        """Read the contents and times out of a state; raise `InvalidArgumentError` or `InvalidPathError`."""
        try:
            if state["version"] != _VERSION:
                raise InvalidArgumentError(f"a state of version {state['version']!r} cannot be read")
            entries = {
                validate_path(path, self.prefixes): (
                    base64.b64decode(entry["data"], validate=True),
                    float(entry["updated_at"]),
                )
                for path, entry in state["entries"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise InvalidArgumentError("this is not the state of a file system") from None
        for path in entries:
            if any(directory[:-1] in entries for directory in directories_above(path)):
                raise InvalidArgumentError(f"the state has an entry above {path!r}", path)
        return entries
