"""Access to logical files for one caller, with versions. Slow operations run in threads (G3, H3)."""

import asyncio
import builtins
import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from io import BytesIO
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Generic, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from cfs.errors import (
    CfsError,
    Conflict,
    Forbidden,
    InvalidParameters,
    InvalidPath,
    NotFound,
    PreconditionFailed,
    StorageFull,
    TooLarge,
    Unavailable,
    Unsupported,
)
from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    EntryMeta,
    FileSystemError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    Operation,
    Path,
    VersionError,
)
from cfs_filesystem.versions import Change, Entry, EntryType, PastFileSystem, VersionsUnavailableError
from cfs_server.domain.ids import SESSIONS, WORKSPACES, id_of
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.workspaces.history import WorkspaceHistory, split
from cfs_server.workspaces.workspaces import WorkspaceUsage

# Large bodies are received into a temporary file before they are used.

_IN_MEMORY = 1 << 20
_TOGETHER = 1 << 20
"""Bytes that are written to disk at once, in a thread."""


async def received(receive: Receive) -> tuple[BinaryIO, int]:
    """Receive a body. Return it as a file at position 0, and its size in bytes. Small bodies stay in memory.

    Raises `ClientDisconnect` if the client disconnects before the end of the body.
    """
    file = cast("BinaryIO", SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 - the caller closes it
    try:
        size = await _fill(file, receive)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file, size


async def _fill(file: BinaryIO, receive: Receive) -> int:
    size, waiting = 0, bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        waiting += message.get("body", b"")
        more = message.get("more_body", False)
        if len(waiting) >= _TOGETHER or not more:
            size += len(waiting)
            if size > _IN_MEMORY:
                await asyncio.to_thread(file.write, waiting)
                waiting = bytearray()
            else:
                file.write(waiting)
                waiting.clear()
    return size


_T = TypeVar("_T")
_ERRORS: dict[type[FileSystemError], type[CfsError]] = {
    InvalidPathError: InvalidPath,
    InvalidArgumentError: InvalidParameters,
    AccessDeniedError: Forbidden,
    NotFoundError: NotFound,
    VersionError: PreconditionFailed,
    ConflictError: Conflict,
}
_FULL = {errno.ENOSPC: StorageFull, errno.EDQUOT: StorageFull, errno.EFBIG: TooLarge}
"""Errors of a disk that accepts no more data."""
_CHUNK_BYTES = 1 << 20
_LIGHT_BYTES = 128 << 10
_ATTEMPTS = 10
"""Maximum number of attempts to read an entry that changes all the time."""
_LOCKS = [threading.Lock() for _ in range(64)]
"""Locks for comparing and replacing a version. The path determines the lock."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on an entry, or None for none, that must be true before a change (RFC 9110, 13.1)."""

    holds: Callable[[EntryMeta | None], bool]
    said: str
    """The header, for the error message."""


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A stored entry, and whether it is known to be new."""

    meta: EntryMeta
    new: bool


@dataclass(frozen=True, slots=True)
class Read(Generic[_T]):
    """The result of a read and the entry it belongs to; None if the entry is unknown or the caller may not see it."""

    found: _T
    meta: EntryMeta | None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A page of changes, whether there are older ones, and the oldest and the last number that can be read.

    `targets` has the targets of links that the caller may read, by their digest.
    """

    changes: tuple[Change, ...]
    more: bool
    oldest: int
    last: int
    targets: Mapping[str, bytes]


class Files:
    """File operations of one caller. All methods raise errors of `cfs.errors`."""

    def __init__(
        self,
        authorization: Authorization,
        usage: WorkspaceUsage,
        limit: int | None,
        searches: CapacityLimiter | None = None,
        sessions: AuthorizedSessions | None = None,
    ) -> None:
        self._authorization = authorization
        self._handle = authorization.handle
        self._usage = usage
        self._limit = limit
        self._searches = searches
        self._sessions = sessions

    def at(self, moment: int | datetime | None) -> "Files":
        """Return the files of workspaces as they were after a change, or at a time; None means now.

        Raises `Unsupported` if no versions are kept.
        """
        if moment is None:
            return self
        past = copy(self)
        past._handle = self._handle.on(PastFileSystem(self.history.store, WORKSPACES, moment))  # noqa: SLF001
        return past

    @property
    def history(self) -> WorkspaceHistory:
        """The versions of all workspaces. Raises `Unsupported` if none are kept."""
        if self._usage.history is None:
            raise Unsupported(f"versions of files are not kept here: {self._usage.versions_absent} (docs/versions.md)")
        return self._usage.history

    async def changes(self, path: Path, before: int | None, limit: int) -> ChangePage:
        """Return the changes of a workspace, or at and below a path in it, the newest first.

        Each has only the paths for which the caller has the right `file`; changes without any are left out. What
        programs changed directly is recorded first.
        """
        return await to_thread.run_sync(
            self._translate_errors, "file", path, partial(self._changes, path, before, limit)
        )

    def _changes(self, path: Path, before: int | None, limit: int) -> ChangePage:
        if not self._handle.scopes("file", path):
            self._handle.require("file", path)
        workspace, name = split(path.removesuffix("/"))
        if not workspace:
            raise InvalidArgumentError(f"name a workspace, as in {WORKSPACES}NAME", path)
        self.history.look(workspace)
        store, collected = self.history.store, list[Change]()
        with store.holding():
            while len(collected) <= limit:
                page = store.changes(workspace, name, before, limit + 1)
                for change in page:
                    entries = {
                        path: entry for path, entry in change.entries.items() if self._may("file", workspace, path)
                    }
                    if entries:
                        collected.append(replace(change, entries=entries))
                if len(page) <= limit:
                    break
                before = page[-1].number
            changes = tuple(collected[:limit])
            targets = {
                entry.digest: store.read(workspace, entry)
                for change in changes
                for path, entry in change.entries.items()
                if entry is not None and entry.type is EntryType.LINK and self._may("read_binary", workspace, path)
            }
        return ChangePage(changes, len(collected) > limit, store.oldest(workspace), store.last(workspace), targets)

    async def paths_with_versions(self, path: Path) -> dict[str, Entry]:
        """Return the newest entry of each path at and below `path` that has a version, also of what was deleted since.

        The keys are paths in the workspace. Only those for which the caller has the right `file`.
        """
        return await to_thread.run_sync(
            self._translate_errors, "file", path, partial(self._paths_with_versions, *split(path))
        )

    def _paths_with_versions(self, workspace: str, below: str) -> dict[str, Entry]:
        entries = self.history.store.paths(workspace, below)
        return {path: entry for path, entry in entries.items() if self._may("file", workspace, path)}

    def _may(self, operation: Operation, workspace: str, name: str) -> bool:
        try:
            return self._handle.allows(operation, f"{WORKSPACES}{workspace}/{name}")
        except InvalidPathError:  # no path that could be granted: it needs the right to all of the workspace
            whole = f"{WORKSPACES}{workspace}/"
            return self._handle.scopes(operation, whole) == [whole]

    def may_rewind(self, workspace: str) -> bool:
        """Return whether the caller may read, write and delete all of a workspace."""
        return all(self.may_use_all(workspace, operation) for operation in ("read_binary", "write", "delete"))

    def may_use_all(self, workspace: str, operation: Operation) -> bool:
        """Return whether the caller has a right to all of a workspace."""
        whole = f"{WORKSPACES}{workspace}/"
        return self._handle.scopes(operation, whole) == [whole]

    def require_merge(self, target: str, source: str) -> None:
        """Check the rights to merge a workspace into another one. Raises `NotGranted` or `Forbidden`."""
        reading: tuple[Operation, ...] = ("read_binary",)
        for workspace, operations in ((source, reading), (target, (*reading, "write", "delete"))):
            path = WORKSPACES + workspace
            for operation in operations:
                if not self.may_use_all(workspace, operation):
                    if not self.may_see_some(workspace):
                        self._translate_errors(operation, path, partial(self._handle.require, operation, path))
                    raise Forbidden(f"a merge takes the right {operation!r} to all of {path}")

    def may_see_some(self, workspace: str) -> bool:
        """Return whether the caller may see that there are files in a workspace, or some of them."""
        return bool(self._handle.scopes("file", f"{WORKSPACES}{workspace}/"))

    def room(self, size: int) -> AbstractContextManager[None]:
        """Reserve space for new files while they are made. Raises `StorageFull`."""
        return self._usage.room_for_new(size, self._limit)

    async def forget(self, path: Path) -> None:
        """Delete the past of a workspace. Its files stay. Needs the right to delete all of it."""
        await to_thread.run_sync(self._translate_errors, "delete", path, partial(self._forget, path))

    def _forget(self, path: Path) -> None:
        self._handle.require("delete", path)
        workspace, name = split(path.removesuffix("/"))
        if name or not workspace:
            raise InvalidArgumentError(f"the past is deleted of a whole workspace: {WORKSPACES}NAME", path)
        self.history.forget(workspace)

    async def list(self, prefix: Path | None) -> list[EntryMeta]:
        """Return the metadata of all entries at and below a prefix that the caller may list. It may be empty."""
        if prefix is None and not self._handle.scopes("list"):
            return []
        return await self._threaded("list", prefix or "/", lambda: self._handle.list(prefix))

    async def file(self, path: Path) -> EntryMeta:
        """Return the metadata of one entry."""
        return await self._run("file", path, lambda: self._handle.file(path))

    async def open(self, path: Path) -> Read[BinaryIO]:
        """Open the content for reading. The caller closes it."""
        return await self._run("read_binary", path, partial(self._open, path))

    async def read_file(self, path: Path, index: int | None, line: int | None) -> Read[str]:
        """Return lines of the text. See `FsHandle.read_file`."""
        read = partial(self._handle.read_file, path, index, line)
        return await self._threaded("read_file", path, lambda: self._read("read_file", path, read))

    async def read_re(self, path: Path, pattern: str, overlap: int | None) -> Read[builtins.list[str]]:
        """Return the matches of a pattern in the text. See `FsHandle.read_re`."""
        read = partial(self._handle.read_re, path, pattern, overlap)
        return await self._threaded("read_re", path, lambda: self._read("read_re", path, read))

    async def write(self, path: Path, body: BinaryIO, *, overwrite: bool, condition: Condition | None) -> WrittenEntry:
        """Store the content if the condition is true; otherwise raise `PreconditionFailed`."""
        return await self._run("write", path, partial(self._write, path, body, overwrite, condition))

    async def delete(self, path: Path, condition: Condition | None) -> None:
        """Delete the entry if the condition is true; otherwise raise `PreconditionFailed`."""
        await self._run("delete", path, partial(self._delete, path, condition))

    def _read(self, operation: Operation, path: Path, read: Callable[[], _T]) -> Read[_T]:
        """Read an entry and return its metadata too, if its version is the same before and after the read."""
        self._handle.require(operation, path)
        before = self._current_entry(path)
        for _ in range(_ATTEMPTS):
            content = read()
            after = self._current_entry(path)
            if before is None or after == before:
                return Read(content, before)
            before = after
        return Read(content, None)

    def _open(self, path: Path) -> Read[BinaryIO]:
        """Open an entry and return its metadata too, as `_read` does."""
        self._handle.require("read_binary", path)
        before = self._current_entry(path)
        for _ in range(_ATTEMPTS):
            content = self._handle.open(path)
            try:
                after = self._current_entry(path)
            except BaseException:
                content.close()
                raise
            if before is None or after == before:
                return Read(_light(content), before)
            content.close()
            before = after
        return Read(_light(self._handle.open(path)), None)

    def _current_entry(self, path: Path) -> EntryMeta | None:
        return self._handle.file(path) if self._handle.allows("file", path) else None

    def _write(self, path: Path, body: BinaryIO, overwrite: bool, condition: Condition | None) -> WrittenEntry:
        self._handle.require("write", path)
        self._require(path, condition)
        new = self._handle.allows("file", path) and self._etag(path) is None
        if not path.startswith(WORKSPACES):
            return WrittenEntry(self._handle.write(path, body.read(), overwrite=overwrite), new)
        with self._usage.room(path, body.seek(0, SEEK_END), self._limit):
            return WrittenEntry(self._replace(path, body, overwrite, condition), new)

    def _replace(self, path: Path, body: BinaryIO, overwrite: bool, condition: Condition | None) -> EntryMeta:
        """Store the body. If another server changes the entry after the condition was checked, check it again."""
        for _ in range(_ATTEMPTS):
            version = self._require(path, condition)
            body.seek(0)
            chunks = iter(partial(body.read, _CHUNK_BYTES), b"")
            only_new = not overwrite or (condition is not None and version is None)
            try:
                return self._handle.write_from(path, chunks, overwrite=not only_new, version=version)
            except ConflictError as error:
                if condition is None or self._version(path) == version:
                    raise
                changed = error
        raise changed

    def _delete(self, path: Path, condition: Condition | None) -> None:
        self._handle.require("delete", path)
        for _ in range(_ATTEMPTS):
            version = self._require(path, condition)
            try:
                return self._handle.delete(path, version=version)
            except (NotFoundError, VersionError) as error:
                if condition is None:
                    raise
                changed = error
        raise changed

    def _require(self, path: Path, condition: Condition | None) -> str | None:
        """Raise unless the condition is true. Return the version for which it is; None if it does not matter."""
        if condition is None:
            return None
        self._authorization.require("file", path, f"file {path!r}")
        meta = self._meta(path)
        etag = etag_of(meta)
        if not condition.holds(meta):
            now = f"its version is {etag}" if etag else "there is no such entry"
            raise PreconditionFailed(f"{condition.said} does not hold for {path!r}: {now}")
        return etag and etag[1:-1]

    def _version(self, path: Path) -> str | None:
        etag = self._etag(path)
        return etag and etag[1:-1]

    def _etag(self, path: Path) -> str | None:
        return etag_of(self._meta(path))

    def _meta(self, path: Path) -> EntryMeta | None:
        try:
            return self._handle.file(path)
        except NotFoundError:
            return None

    async def _run(self, operation: Operation, path: Path, action: Callable[[], _T]) -> _T:
        """Run an action in a thread if it uses the disk or may read a long text.

        Other actions use sessions in memory. They run on the loop, where no other task can interrupt them.
        """
        if path.startswith(SESSIONS) and operation != "read_binary":
            async with self._loaded(path) if operation == "write" else nullcontext():
                return self._translate_errors(operation, path, action)

        def by_itself() -> _T:
            with alone(path):
                return action()

        return await self._threaded(operation, path, by_itself if operation in ("write", "delete") else action)

    def _loaded(self, path: Path) -> AbstractAsyncContextManager[None]:
        """Keep the messages of a session in memory during a block."""
        if self._sessions is not None:
            with suppress(InvalidPathError):
                return self._sessions.loaded(id_of(path))
        return nullcontext()

    async def _threaded(self, operation: Operation, path: Path, action: Callable[[], _T]) -> _T:
        limiter = self._searches if operation == "read_re" else None
        return await to_thread.run_sync(self._translate_errors, operation, path, action, limiter=limiter)

    def _translate_errors(self, operation: Operation, path: Path, action: Callable[[], _T]) -> _T:
        """Run an action and convert its file system errors to errors of the API."""
        try:
            with stored(path):
                return action()
        except FileSystemError as error:
            if isinstance(error, AccessDeniedError):
                error.operation, error.path = operation, path  # the requested operation and path, not the internal ones
            raise problem_of(self._authorization, error) from None


def problem_of(authorization: Authorization, error: FileSystemError) -> CfsError:
    """Convert an error of a file system to the error that all interfaces show. A denial is logged."""
    if isinstance(error, AccessDeniedError) and error.operation is not None and error.path is not None:
        return authorization.denial(error.operation, error.path, f"file {error.path!r}")
    kind = next(_ERRORS[error_class] for error_class in type(error).__mro__ if error_class in _ERRORS)
    return kind(error.detail)


def alone(path: Path) -> AbstractContextManager[bool]:
    """Lock an entry while its version is compared and then replaced. The lock cannot be nested."""
    return _LOCKS[hash(path) % len(_LOCKS)]


@contextmanager
def stored(path: Path) -> Iterator[None]:
    """Convert errors of a full disk to `StorageFull` or `TooLarge`, and of lost versions to `Unavailable`."""
    try:
        yield
    except VersionsUnavailableError as error:  # without a time to repeat it: the file may have been changed
        raise Unavailable(f"versions of {path!r} cannot be recorded or read: {error.strerror}") from None
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _FULL[error.errno](f"the server cannot store {path!r}: {error.strerror}") from None


def _light(content: BinaryIO) -> BinaryIO:
    """Read a small content into memory, so that later reads need no thread."""
    data = content.read(_LIGHT_BYTES + 1)
    if len(data) > _LIGHT_BYTES:
        content.seek(0)
        return content
    content.close()
    return BytesIO(data)


def etag_of(meta: EntryMeta | None) -> str | None:
    """Return the ETag of an entry in quotes; None if it has no version."""
    version = None if meta is None else meta.get("version")
    return None if version is None else f'"{version}"'
