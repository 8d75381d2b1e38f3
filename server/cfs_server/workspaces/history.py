"""Records each change of the workspaces in a folder as a version, and finds those that other programs made.

Before a change, what it touches is compared with its newest version: what a program changed directly becomes a version
of its own, so that nothing is overwritten that is in no version. After it, the change is recorded, and only then
acknowledged. If the process is killed in between, or the disk takes no more versions, the new state is recorded at the
next look, without its author. What a full disk cannot record is not overwritten.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path as DiskPath
from typing import TypeVar, cast

import structlog

from cfs_filesystem import DiskFileSystem, EntryMeta, NotFoundError, Path
from cfs_filesystem.versions import (
    Author,
    Content,
    Entry,
    EntryType,
    FolderHistory,
    Kind,
    SqliteVersions,
    State,
    VersionRetention,
    VersionStore,
    folders_in,
)
from cfs_filesystem.versions.codec import LARGE
from cfs_filesystem.versions.copying import new_folder, remove_folder
from cfs_filesystem.versions.lineage import merged_version, plan_merge
from cfs_filesystem.versions.merging import Merge
from cfs_filesystem.versions.restoring import restore
from cfs_server.domain.authors import author
from cfs_server.domain.ids import WORKSPACES

_log = structlog.get_logger(__name__)

T = TypeVar("T")
_BESIDE = 32 << 10
"""Contents of more bytes are encoded in another thread while they are written to the disk."""
_STRIPES = 32
_PRUNE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class ForkedWorkspace:
    """How a workspace is copied: as it is, or as it was at the time `at`.

    With `vacant` no session has the new name: an empty folder of that name makes room for the copy, with its past.
    `room` reserves bytes for it. `note` is called with the inode of the new folder and the number of the last version,
    before anything gets the new name; what it raises ends the copy.
    """

    at: float | None
    by: Author
    room: Callable[[int], AbstractContextManager[None]]
    note: Callable[[int, int], None]
    vacant: bool = False


@dataclass(frozen=True, slots=True)
class WorkspaceMerge:
    """How a workspace is merged into another one.

    `room` reserves bytes for it. `note` is called with the numbers of the last versions of target and source before
    anything is changed; what it raises ends the merge. Without a `note` nothing is changed.
    """

    by: Author
    room: Callable[[int], AbstractContextManager[None]]
    note: Callable[[int, int], None] | None


@dataclass(frozen=True, slots=True)
class MergedWorkspace:
    """A merge, the entries of the target before it, the paths that stayed as they are, and the number that it got."""

    merge: Merge
    before: Mapping[str, Entry]
    left: tuple[str, ...] = ()
    number: int | None = None


class WorkspaceHistory:
    """The versions of all workspaces in a folder."""

    def __init__(self, store: VersionStore, files: DiskFileSystem, retention: VersionRetention) -> None:
        self.store = store
        self._tree = files.tree
        self._durable = files.durable
        self._retention = retention
        self._names = set(store.workspaces())
        self._gates: dict[str, _Gate] = {}
        self._guard = threading.Lock()
        self._encoders = ThreadPoolExecutor(2, "versions")
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._maintain, name="versions", daemon=True)
        self._keeper.start()

    def may_have_versions(self, workspace: str) -> bool:
        """Return whether a workspace may have versions, without a look into the store."""
        return self.store.shared or workspace in self._names

    def close(self) -> None:
        """Flush the store, and close it."""
        self._closed.set()
        self._keeper.join()
        self._encoders.shutdown()
        self.store.close()

    def write(self, path: Path, source: Iterable[bytes], store: Callable[[Iterable[bytes]], EntryMeta]) -> EntryMeta:
        """Write a file through `store`, and record it."""
        with self._changing(path) as (workspace, name, folder):
            chunks = iter(source)
            pieces, size = [], 0
            for chunk in chunks:
                pieces.append(chunk)
                size += len(chunk)
                if size > LARGE:
                    break
            if size > LARGE:
                meta = store(chain(pieces, chunks))
                folder.sync([name], _author(), Kind.WRITE)
                return meta
            data = b"".join(pieces)
            before = self.store.at(workspace, name)
            with ExitStack() as stack:
                old = None
                if before is not None and before.type is EntryType.FILE and 0 < before.size <= LARGE:
                    old = folder.open(name)
                if old is not None:
                    stack.enter_context(old)

                def prepare() -> Content:
                    return self.store.prepare(workspace, data, before, None if old is None else old.read)

                beside = self._encoders.submit(copy_context().run, prepare) if size > _BESIDE else None
                try:
                    meta = store([data])
                finally:
                    if beside is not None:
                        beside.exception()  # it reads a file that is closed next
                content = prepare() if beside is None else beside.result()
            status = folder.status(name)
            mode = 0o644 if status is None else stat.S_IMODE(status.st_mode)
            stamp = cast("str", meta["version"])  # type: ignore[typeddict-item]
            states = folder.missing_above(name)
            if before is not None and before.type is EntryType.FOLDER:  # it was empty, or had empty ones in it
                states |= dict.fromkeys(self.store.tree_at(workspace, None, name))
            states[name] = State(EntryType.FILE, mode, content, stamp)
            self._record(workspace, Kind.WRITE, states)
            return meta

    def delete(self, path: Path, delete: Callable[[], None], kind: Kind = Kind.DELETE) -> None:
        """Delete a file or an empty folder, and record it. A workspace that is removed loses its past."""
        with self._changing(path) as (workspace, name, _):
            delete()
            if name:
                self._record(workspace, kind, {name: None})
            else:
                self.store.purge(workspace)

    def make_folder(self, path: Path, make: Callable[[], None]) -> None:
        """Create a folder, and record it."""
        with self._changing(path) as (workspace, name, folder):
            make()
            if name and (states := folder.missing_above(f"{name}/")):
                self._record(workspace, Kind.FOLDER, states)

    def remove_tree(self, path: Path, remove: Callable[[], None]) -> None:
        """Remove a folder with everything in it, and record it. A workspace that is removed loses its past."""
        workspace, name = split(path)
        if name:
            self.change_trees([path], Kind.DELETE, remove)
            return
        with self._alone(workspace):
            remove()
            self.store.purge(workspace)

    def change_trees(self, paths: list[Path], kind: Kind, change: Callable[[], T]) -> T:
        """Change everything at and below paths, the first of which is where new content comes from; record it."""
        places = [split(path) for path in paths]
        with ExitStack() as stack:
            stack.enter_context(self._alone(*(workspace for workspace, _ in places)))
            for workspace, name in places:
                self._folder(workspace).sync([name])
            trees = self._sources(*places) if len(places) == 2 else {}
            try:
                return change()
            finally:  # also what a change did that failed in the middle
                for workspace in dict.fromkeys(workspace for workspace, _ in places):
                    names = [name for other, name in places if other == workspace]
                    self._folder(workspace).sync(names, _author(), kind, trees)

    def move_workspace(self, path: Path, target: Path, move: Callable[[], None]) -> None:
        """Move a whole workspace to another name, with its past."""
        workspace, name = split(path)[0], split(target)[0]
        with self._alone(workspace, name):
            self._folder(workspace).sync()
            move()
            self.store.rename(workspace, name)

    def look(self, workspace: str) -> None:
        """Record what programs changed in a whole workspace."""
        with self._alone(workspace):
            self._folder(workspace).sync()

    def rewind(self, workspace: str, entries: Mapping[str, Entry | None], by: Author) -> list[str]:
        """Put entries of the past back into a workspace, by path; see `FolderHistory.restore`."""
        with self._alone(workspace):
            return self._folder(workspace).restore(entries, by, durable=self._durable)

    def fork(self, workspace: str, copy: str, operation: ForkedWorkspace) -> bool:
        """Copy a workspace to a new name, with its past. Returns False if there is nothing to copy.

        The copy is visible when it is complete. Raises `FileExistsError` if there are files, or versions, of the
        name, and `NotFoundError` if versions of that time are no longer kept.
        """
        with ExitStack() as stack:
            stack.enter_context(self._alone(workspace, copy))
            source, store = self._folder(workspace), self.store
            status = source.status("")
            if status is None:
                return False
            source.sync()
            number = store.last(workspace)
            then = None if operation.at is None else store.tree_at(workspace, store.number_at(workspace, operation.at))
            present = [] if then is not None else list(source.present())
            if not (then or present):
                return False
            if not self._is_free(copy, vacant=operation.vacant):
                raise FileExistsError(copy)
            size = (
                sum(status.st_size for _, status in present if stat.S_ISREG(status.st_mode))
                if then is None
                else sum(entry.size for entry in then.values())
            )
            stack.enter_context(operation.room(size))
            mode = stat.S_IMODE(status.st_mode)
            with new_folder(self._tree, copy, mode, durable=self._durable) as (hidden, inode):
                if then is None:
                    sources = source.copy(present, hidden, [copy], durable=self._durable)
                else:
                    restore(hidden, [copy], store, workspace, then, durable=self._durable)
                    sources = then
                operation.note(inode, number)
                store.fork(workspace, copy)
                FolderHistory(store, copy, hidden, [copy]).sync([""], operation.by, Kind.FORK, sources)
            return True

    def _is_free(self, name: str, *, vacant: bool) -> bool:
        """Return whether a copy can get a name. The empty folder of a deleted session is removed, with its past."""
        if vacant and self._folder(name).status("") is not None:
            with suppress(OSError), self._tree.parent([name]) as (directory, last):
                os.rmdir(last, dir_fd=directory)
                self.store.purge(name)
        return self._folder(name).status("") is None and not self.store.last(name)

    def undo_fork(self, copy: str, folder: int, number: int, operation: str) -> bool:
        """Remove a copy that `fork` has made, or has begun to make. Returns False if somebody has changed it since.

        `folder` and `number` are what it has noted.
        """
        with self._alone(copy):
            status = self._folder(copy).status("")
            newest = self.store.changes(copy, limit=1)
            mine = not newest or newest[0].number <= number or newest[0].author.call == operation
            if not mine:
                return False
            if status is not None and status.st_ino == folder:  # not one that a program has made under this name
                remove_folder(self._tree, copy)
            elif status is not None and self.store.shared:  # another server has made it, with its past
                return False
            self.store.purge(copy)
            return True

    def merge(self, target: str, source: str, operation: WorkspaceMerge) -> MergedWorkspace:
        """Merge what a workspace has changed into another one, since the one was copied from the other or merged.

        Raises `NotFoundError` if they have nothing in common, and `OSError` if the disk refuses.
        """
        with self._alone(target, source):
            for workspace in (target, source):
                if self._folder(workspace).status("") is None:
                    raise NotFoundError(f"there is no workspace {workspace!r}", WORKSPACES + workspace)
                self._folder(workspace).sync()
            numbers = (self.store.last(target), self.store.last(source))
            merge, before = plan_merge(self.store, target, source, numbers)
            if operation.note is None or not merge.entries:
                return MergedWorkspace(merge, before)
            with operation.room(sum(entry.size for entry in merge.entries.values() if entry is not None)):
                operation.note(*numbers)
                return self._merge(target, source, numbers, operation.by, merge, before)

    def finish_merge(self, target: str, source: str, numbers: tuple[int, int], by: Author) -> MergedWorkspace:
        """Carry out a merge that was interrupted, of the versions that `merge` has noted."""
        with self._alone(target, source):
            return self._merge(target, source, numbers, by, *plan_merge(self.store, target, source, numbers))

    def _merge(
        self,
        target: str,
        source: str,
        numbers: tuple[int, int],
        by: Author,
        merge: Merge,
        before: Mapping[str, Entry],
    ) -> MergedWorkspace:
        author = replace(by, call=merged_version(self.store, source, numbers[1]))
        left = self._folder(target).merge(merge, before, source, author, durable=self._durable)
        return MergedWorkspace(merge, before, tuple(left), self.store.last(target))

    @contextmanager
    def _alone(self, *workspaces: str) -> Iterator[None]:
        """Let only this block change workspaces, in all programs that share the store."""
        with ExitStack() as stack:
            for workspace in sorted(set(workspaces)):
                stack.enter_context(self._gate(workspace).exclusive())
            stack.enter_context(self.store.changing(workspaces))
            yield

    def forget(self, workspace: str) -> None:
        """Delete the past of a workspace. Its files stay."""
        with self._alone(workspace):
            self.store.purge(workspace)

    def prune(self) -> None:
        """Forget what is older or more than the settings allow, unless another program does."""
        try:
            workspaces = self.store.workspaces() if self.store.claim_pruning(_PRUNE_SECONDS / 2) else ()
        except OSError as error:
            _log.error("versions.not_pruned", reason=error.strerror)
            return
        for workspace in workspaces:
            try:
                self.store.prune(workspace, self._retention)
            except OSError as error:
                _log.error("versions.not_pruned", workspace=workspace, reason=error.strerror)

    def trim(self, scopes: Iterable[Path], size: int) -> None:
        """Forget the oldest changes of the workspaces that prefixes cover until they take at most `size` bytes.

        The newest version of each file stays, whatever it takes.
        """
        scopes = tuple(scopes)
        covered = [name for name in self.store.workspaces() if f"{WORKSPACES}{name}/".startswith(scopes)]
        usage = {name: self.store.usage(name) for name in covered}
        excess = sum(usage.values()) - size
        for name in sorted(covered, key=lambda name: -usage[name]):
            if excess <= 0:
                break
            self.store.prune(name, VersionRetention(size=max(0, usage[name] - excess)))
            excess -= usage[name] - self.store.usage(name)

    def _sources(self, source: tuple[str, str], target: tuple[str, str]) -> dict[str, Entry]:
        """Return the entries that a move or copy within a workspace brings, by their new paths."""
        if source[0] != target[0]:
            return {}
        tree = self.store.tree_at(source[0], None, source[1])
        return {target[1] + path.removeprefix(source[1]): entry for path, entry in tree.items()}

    def _record(self, workspace: str, kind: Kind, states: Mapping[str, State | None]) -> None:
        """Record a change that is on the disk. If the store is full, the next look at the folder does it.

        Raises `OSError` where another program may have changed it meanwhile: only what is recorded is acknowledged.
        """
        try:
            self.store.record(workspace, _author(), kind, states)
        except OSError as error:
            if self.store.shared:
                raise
            _log.error("versions.not_recorded", workspace=workspace, paths=len(states), reason=error.strerror)

    @contextmanager
    def _changing(self, path: Path) -> Iterator[tuple[str, str, FolderHistory]]:
        """Let one change of a path happen at a time. What programs changed there before is recorded first."""
        workspace, name = split(path)
        folder = self._folder(workspace)
        if not self.store.last(workspace):  # a workspace that is older than its versions: they begin with all of it
            with self._alone(workspace):
                folder.sync()
        with self._gate(workspace).shared(name), self.store.changing([workspace], name):
            if name and not folder.is_current(name):
                folder.sync([name])
            yield workspace, name, folder

    def _folder(self, workspace: str) -> FolderHistory:
        return FolderHistory(self.store, workspace, self._tree, [workspace])

    def _gate(self, workspace: str) -> "_Gate":
        with self._guard:
            self._names.add(workspace)
            return self._gates.setdefault(workspace, _Gate())

    def _maintain(self) -> None:
        """Flush commits to the disk every second, and prune at the start and every hour."""
        seconds = 0
        while True:
            if seconds % _PRUNE_SECONDS == 0:
                self.prune()
            if self._closed.wait(1):
                return
            seconds += 1
            self.store.checkpoint()


class _Gate:
    """Lets many changes of single paths happen at a time, one for each path, or one change of everything."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._shared = 0
        self._exclusive = 0
        self._paths = [threading.Lock() for _ in range(_STRIPES)]

    @contextmanager
    def shared(self, path: str) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._exclusive)
            self._shared += 1
        try:
            with self._paths[hash(path) % _STRIPES]:
                yield
        finally:
            with self._condition:
                self._shared -= 1
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._exclusive)
            self._exclusive += 1  # before the others have left, so that no new ones come
            self._condition.wait_for(lambda: not self._shared)
        try:
            yield
        finally:
            with self._condition:
                self._exclusive -= 1
                self._condition.notify_all()


def back_up(files: DiskFileSystem, history: WorkspaceHistory | None, target: DiskPath) -> dict[str, int]:
    """Write the versions of the workspaces in a folder to a new file; see `Workspaces.backup`.

    Without a history each workspace gets its first version in that file.
    """
    folders = folders_in(files.tree)
    if history is None:
        with closing(SqliteVersions(target)) as store:
            for name in folders:
                FolderHistory(store, name, files.tree, [name]).sync()
    else:
        for name in sorted({*folders, *history.store.workspaces()}):
            history.look(name)
        history.store.backup(target)
    return folders


def split(path: Path) -> tuple[str, str]:
    """Return the workspace of a path, and the path in it."""
    workspace, _, name = path.removeprefix(WORKSPACES).partition("/")
    return workspace, name


def _author() -> Author:
    current = author.get()
    return Author("local") if current is None else Author(current.principal, current.agent or "", current.call or "")
