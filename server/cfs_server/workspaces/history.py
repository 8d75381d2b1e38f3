"""Records each change of workspaces as a version, and finds those that other programs made.

Before a change, what it touches is compared with its newest version: what a program changed directly becomes a version
of its own, so that nothing is overwritten that is in no version. In a bucket, the change names the version that it
replaces, and begins again if it is another one. After it, the change is recorded, and only then acknowledged. If the
process is killed in between, or the disk takes no more versions, the new state is recorded at the next look, without
its author. What a full disk cannot record is not overwritten.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path as DiskPath
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import BinaryIO, TypeVar, cast

import structlog

from cfs_filesystem import ConflictError, DiskFileSystem, EntryMeta, NotFoundError, Path, VersionError
from cfs_filesystem.versions import (
    Author,
    Content,
    DamagedVersionError,
    Entry,
    EntryType,
    FolderHistory,
    FolderTree,
    Kind,
    SqliteVersions,
    State,
    TreeStatus,
    VersionedTrees,
    VersionRetention,
    VersionStore,
    folders_in,
)
from cfs_filesystem.versions.codec import LARGE
from cfs_filesystem.versions.folder import ATTEMPTS
from cfs_filesystem.versions.lineage import changes_since, merged_version, plan_merge
from cfs_filesystem.versions.merging import Merge
from cfs_server.domain.authors import author
from cfs_server.domain.ids import WORKSPACES
from cfs_server.domain.past import Moment

_log = structlog.get_logger(__name__)

T = TypeVar("T")
_BESIDE = 32 << 10
"""Contents of more bytes are encoded in another thread while they are written to the disk."""
_CHUNK = 1 << 20
_STRIPES = 32
_PRUNE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class ForkedWorkspace:
    """How a workspace is copied: as it is, or as it was `at` a moment.

    With `vacant` no session has the new name: an empty folder of that name makes room for the copy, with its past.
    `room` reserves bytes for it. `note` is called with the mark of the new workspace (`VersionedTrees.new`) and the
    number of the last version, before anything gets the new name; what it raises ends the copy.
    """

    at: Moment | None
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
    """The versions of all workspaces of a server."""

    def __init__(self, store: VersionStore, trees: VersionedTrees, retention: VersionRetention) -> None:
        self.store = store
        self._trees = trees
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

    def is_there(self, workspace: str) -> bool:
        """Return whether there is a workspace; see `FolderHistory.status`."""
        return self._folder(workspace).status() is not None

    def close(self) -> None:
        """Flush the store, and close it."""
        self._closed.set()
        self._keeper.join()
        self._encoders.shutdown()
        self.store.close()

    def write(
        self,
        path: Path,
        source: Iterable[bytes],
        store: Callable[[Iterable[bytes], str | None], EntryMeta],
        expected: str | None = None,
    ) -> EntryMeta:
        """Write a file through `store`, and record it.

        `expected` is the version that the file must have: an empty text if there must be none, None if it does not
        matter. `store` gets such a condition, too. Raises `ConflictError`.
        """
        with self._changing(path) as (workspace, name, folder):
            chunks = iter(source)
            pieces, size = [], 0
            for chunk in chunks:
                pieces.append(chunk)
                size += len(chunk)
                if size > LARGE:
                    return self._write_large(path, folder, chain(pieces, chunks), store, expected)
            data = b"".join(pieces)
            before = self.store.at(workspace, name)
            with ExitStack() as stack:
                previous = self._previous(stack, workspace, folder, before)

                def prepare() -> Content:
                    return self.store.prepare(workspace, data, before, previous)

                beside = self._encoders.submit(copy_context().run, prepare) if size > _BESIDE else None
                try:
                    meta = self._compared(path, folder, expected, lambda seen: store([data], seen))
                finally:
                    if beside is not None:
                        beside.exception()  # it reads a file that is closed next
                content = prepare() if beside is None else beside.result()
            self._written(path, folder, meta, before, content)
            return meta

    def _previous(
        self, stack: ExitStack, workspace: str, folder: FolderHistory, before: Entry | None
    ) -> Callable[[], bytes] | None:
        """Return what reads the content that is replaced, if it can be the dictionary of the new one."""
        if before is None or before.type is not EntryType.FILE or not 0 < before.size <= LARGE:
            return None
        old = folder.open_before(before.path)
        return partial(self._read, workspace, before) if old is None else stack.enter_context(old).read

    def _read(self, workspace: str, entry: Entry) -> bytes:
        """Return the content of a version; nothing, which is no dictionary for another one, if it is damaged."""
        try:
            return self.store.read(workspace, entry)
        except DamagedVersionError:
            return b""

    def _write_large(
        self,
        path: Path,
        folder: FolderHistory,
        chunks: Iterable[bytes],
        store: Callable[[Iterable[bytes], str | None], EntryMeta],
        expected: str | None,
    ) -> EntryMeta:
        """Write a file that does not fit into memory. One that goes to a bucket is not read from there again."""
        workspace, name = split(path)
        if not folder.compares:
            meta = store(chunks, expected)
            folder.sync([name], _author(), Kind.WRITE)
            return meta
        with TemporaryFile() as file:
            file.writelines(chunks)
            meta = self._compared(path, folder, expected, lambda seen: store(_pieces(file), seen))
            file.seek(0)
            before = self.store.at(workspace, name)
            with self.store.holding():
                content = self.store.keep(workspace, file, before)
                self._written(path, folder, meta, before, content)
        return meta

    def _compared(
        self, path: Path, folder: FolderHistory, expected: str | None, change: Callable[[str | None], T]
    ) -> T:
        """Change one file on a condition. Where the folder compares, this is the newest version.

        If a program has changed the file meanwhile, this is recorded, and the change begins again.
        """
        if not folder.compares:
            return change(expected)
        name, attempts = split(path)[1], 0
        while True:
            seen = folder.recorded_stamp(name)
            if expected == "" and seen:
                raise ConflictError(f"{path!r} exists", path)
            if expected and expected != seen:
                raise VersionError(f"{path!r} does not have the version {expected!r}", path)
            try:
                return change(seen)
            except ConflictError:
                attempts += 1
                if attempts == ATTEMPTS or folder.is_current(name):
                    raise
                folder.sync([name])

    def _written(
        self, path: Path, folder: FolderHistory, meta: EntryMeta, before: Entry | None, content: Content
    ) -> None:
        """Record that a file was written."""
        workspace, name = split(path)
        stamp = cast("str", meta["version"])  # type: ignore[typeddict-item]
        states: dict[str, State | None] = {}
        if before is not None and before.type is EntryType.FOLDER:  # it was empty, or had empty ones in it
            states |= dict.fromkeys(self.store.tree_at(workspace, None, name))
        states[name] = State(EntryType.FILE, folder.mode(name), content, stamp)
        self._record(workspace, Kind.WRITE, states, folder.above_written(name))

    def delete(self, path: Path, delete: Callable[[str | None], None], expected: str | None = None) -> None:
        """Delete a file through `delete`, and record it. `expected` is the version that it must have.

        Raises `ConflictError`.
        """

        if not split(path)[1]:  # a file beside the workspaces, which only another program can have stored
            delete(expected)
            return
        with self._removing(path) as (workspace, name, folder):

            def delete_seen(seen: str | None) -> None:
                if seen == "":
                    raise ConflictError(f"{path!r} was deleted by another caller", path)
                try:
                    delete(seen)
                except ConflictError:
                    if seen is None or expected is not None or not folder.is_absent(name):
                        raise  # or else it is gone, as it was to be: perhaps the store's first answer was lost

            self._compared(path, folder, expected, delete_seen)
            self._record(workspace, Kind.DELETE, {name: None, **folder.gone_above(name)})

    def remove_folder(self, path: Path, remove: Callable[[], None]) -> None:
        """Remove an empty folder, and record it. A workspace that is removed loses its past."""
        with self._changing(path) as (workspace, name, folder):
            remove()
            if name:
                self._record(workspace, Kind.DELETE, {name: None, **folder.gone_above(name)})
            else:
                self.store.purge(workspace)

    def keep(self, stamps: Mapping[str, str]) -> None:
        """Record what programs have changed of files that are about to be replaced, by `WORKSPACE/PATH`.

        Call it in a block in which only this program changes these workspaces.
        """
        changed: dict[str, list[str]] = {}
        for workspace in {path.partition("/")[0] for path in stamps}:
            recorded = self.store.tree_at(workspace)
            for path, stamp in stamps.items():
                holder, _, name = path.partition("/")
                if holder == workspace and (name not in recorded or recorded[name].stamp != stamp):
                    changed.setdefault(workspace, []).append(name)
        for workspace, names in changed.items():
            self._folder(workspace).sync(names)

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
            numbers = self._looked_at(places)
            trees = self._sources(*places) if len(places) == 2 else {}
            attempts = 1
            try:
                while True:
                    try:
                        return change()
                    except ConflictError:
                        before, numbers = numbers, self._looked_at(places)
                        if numbers == before or attempts == ATTEMPTS or not self._compares(places):
                            raise
                        attempts += 1  # a program has changed something meanwhile, which is recorded now
            finally:  # also what a change did that failed in the middle
                for workspace in dict.fromkeys(workspace for workspace, _ in places):
                    names = [name for other, name in places if other == workspace]
                    self._folder(workspace).sync(names, _author(), kind, trees)

    def _compares(self, places: Iterable[tuple[str, str]]) -> bool:
        return all(self._folder(workspace).compares for workspace, _ in places)

    def _looked_at(self, places: Iterable[tuple[str, str]]) -> list[int]:
        """Record what programs changed at and below paths of workspaces. Return the last numbers of these."""
        for workspace, name in places:
            self._folder(workspace).sync([name])
        return [self.store.last(workspace) for workspace, _ in places]

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
            return self._folder(workspace).restore(entries, by)

    def fork(self, workspace: str, copy: str, operation: ForkedWorkspace) -> bool:
        """Copy a workspace to a new name, with its past. Returns False if there is nothing to copy.

        On a disk the copy is visible when it is complete. Raises `FileExistsError` if there are files, or versions, of
        the name, and `NotFoundError` if versions of that time are no longer kept.
        """
        with ExitStack() as stack:
            stack.enter_context(self._alone(workspace, copy))
            source, store = self._folder(workspace), self.store
            status = source.status()
            if status is None:
                return False
            source.sync()
            number = store.last(workspace)
            then = None
            if (at := operation.at) is not None:
                then = store.tree_at(workspace, store.number_at(workspace, at.at, at.order))
            present = [] if then is not None else list(source.present())
            if not (then or present):
                return False
            if not self._is_free(copy, vacant=operation.vacant):
                raise FileExistsError(copy)
            size = (
                sum(status.size for _, status in present if status.type is EntryType.FILE)
                if then is None
                else sum(entry.size for entry in then.values())
            )
            stack.enter_context(operation.room(size))
            with self._trees.new(copy, status.mode) as (new, mark):
                operation.note(mark, number)
                store.fork(workspace, copy)
                if then is None:
                    sources = source.copy(present, new)
                else:
                    new.restore(then, partial(store.open, workspace), {})
                    sources = then
                FolderHistory(store, copy, new).sync([""], operation.by, Kind.FORK, sources)
            return True

    def _is_free(self, name: str, *, vacant: bool) -> bool:
        """Return whether a copy can get a name. The empty folder of a deleted session is removed, with its past."""
        if vacant and self._trees.vacate(name):
            self.store.purge(name)
        return self._folder(name).status() is None and not self.store.last(name)

    def undo_fork(self, copy: str, mark: int, number: int, operation: str) -> bool:
        """Remove a copy that `fork` has made, or has begun to make. Returns False if somebody has changed it since.

        `mark` and `number` are what it has noted.
        """
        with self._alone(copy):
            newest = self.store.changes(copy, limit=1)
            mine = not newest or newest[0].number <= number or newest[0].author.call == operation
            if not mine:
                return False
            # A server that shares the store may have made another one, with its past.
            if not self._trees.remove(copy, mark, self._is_in_versions_of(copy)) and self.store.shared:
                return False
            self.store.purge(copy)
            return True

    def _is_in_versions_of(self, workspace: str) -> Callable[[str, TreeStatus], bool]:
        """Return what says of a file whether its content is in a version, or of a name of which none is kept."""
        folder, store = self._folder(workspace), self.store
        entries = chain(
            store.tree_at(workspace, store.oldest(workspace)).values(),
            *(change.entries.values() for change in changes_since(store, workspace, 0)),
        )
        digests = {entry.digest for entry in entries if entry is not None}
        return lambda path, _: folder.is_skipped(path) or folder.digest(path) in digests

    def merge(self, target: str, source: str, operation: WorkspaceMerge) -> MergedWorkspace:
        """Merge what a workspace has changed into another one, since the one was copied from the other or merged.

        Raises `NotFoundError` if they have nothing in common, and `OSError` if the disk refuses.
        """
        with self._alone(target, source):
            for workspace in (target, source):
                if self._folder(workspace).status() is None:
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
        left = self._folder(target).merge(merge, before, source, author)
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

    def backup(self, target: DiskPath, workspaces: Iterable[str] = ()) -> None:
        """Write the versions to a new file, with what programs have changed, also in further workspaces.

        Raises `OSError`.
        """
        for name in sorted({*workspaces, *self.store.workspaces()}):
            self.look(name)
        self.store.backup(target)

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

    def _record(
        self,
        workspace: str,
        kind: Kind,
        states: Mapping[str, State | None],
        above: Mapping[str, State] = MappingProxyType({}),
    ) -> None:
        """Record a change that is on the disk. It ends the block of `_changing`.

        If the store is full, the next look at the folder does it. Raises `OSError` where another program may have
        changed it meanwhile: only what is recorded is acknowledged.
        """
        try:
            self.store.record(workspace, _author(), kind, states, above, ends=True)
        except OSError as error:
            if self.store.shared:
                raise
            _log.error("versions.not_recorded", workspace=workspace, paths=len(states), reason=error.strerror)

    @contextmanager
    def _changing(self, path: Path) -> Iterator[tuple[str, str, FolderHistory]]:
        """Let one change of a path happen at a time. What programs changed there before is recorded first."""
        workspace, name = split(path)
        folder = self._folder(workspace)
        for began in (False, True):
            with self._gate(workspace).shared(name), self.store.changing([workspace], name):
                if began or self.store.last(workspace):
                    if name and not folder.is_current(name):
                        folder.sync([name])
                    yield workspace, name, folder
                    return
            with self._alone(workspace):  # it is older than its versions: they begin with all of it
                folder.sync()

    @contextmanager
    def _removing(self, path: Path) -> Iterator[tuple[str, str, FolderHistory]]:
        """Let one removal of a file happen. Where folders end with their last file, only this changes the workspace."""
        workspace, name = split(path)
        folder = self._folder(workspace)
        if not folder.compares or "/" not in name:
            with self._changing(path) as found:
                yield found
            return
        with self._alone(workspace):
            if not self.store.last(workspace):
                folder.sync()
            elif not folder.is_current(name):
                folder.sync([name])
            yield workspace, name, folder

    def _folder(self, workspace: str) -> FolderHistory:
        return FolderHistory(self.store, workspace, self._trees.tree(workspace))

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
                FolderHistory(store, name, FolderTree(files.tree, [name])).sync()
    else:
        history.backup(target, folders)
    return folders


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Return the content of a file from its start, in pieces."""
    file.seek(0)
    return iter(partial(file.read, _CHUNK), b"")


def split(path: Path) -> tuple[str, str]:
    """Return the workspace of a path, and the path in it."""
    workspace, _, name = path.removeprefix(WORKSPACES).partition("/")
    return workspace, name


def _author() -> Author:
    current = author.get()
    return Author("local") if current is None else Author(current.principal, current.agent or "", current.call or "")
