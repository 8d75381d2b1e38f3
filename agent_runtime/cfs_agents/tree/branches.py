"""The branches of a tree: copies of its files, in which isolated agents work until they report.

A copy is the folder `agent_workspace` in the folder of its agent. `versions.db` in the folder of the tree has the past
of the shared files and of all copies, as far as merges need it. Folders in `PRIVATE` are copied, and not merged.
Methods block, and may be called by several threads.
"""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cfs_agents.base.disk import disk_errors, sync_folder
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.tools.ignored import IgnoredFiles, agents_disk
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.folder import TreeFolder
from cfs_agents.tree.session_folder import WORKSPACE_FOLDER
from cfs_filesystem import DiskFileSystem, FsHandle
from cfs_filesystem.versions import Author, FolderHistory, FolderTree, Kind, SqliteVersions
from cfs_filesystem.versions.copying import new_folder, remove_folder
from cfs_filesystem.versions.folder import SKIPPED
from cfs_filesystem.versions.lineage import merged_version, plan_merge
from cfs_filesystem.versions.merging import path_beside

VERSIONS = "versions.db"
"""The file of the versions, in the folder of the tree."""

PRIVATE = SKIPPED | {".cfs"}
"""Names of folders whose changes stay in a copy: programs make them again, or the agent has them for itself."""

Conflict: TypeAlias = tuple[str, tuple[str, ...]]
"""A path that both sides have changed, and the paths of what both have."""


@dataclass(frozen=True, slots=True)
class BranchFiles:
    """The files that an agent works on: all that are shared, or a copy. `name` is the agent that they belong to."""

    name: str
    path: Path
    ledger: ChangeLog


class Branches:
    """The copies of the files of one tree."""

    def __init__(self, folder: TreeFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._store: SqliteVersions | None = None
        self._disks: dict[Path, DiskFileSystem] = {}

    def close(self) -> None:
        """Close the versions, and the folders of the copies."""
        for disk in self._disks.values():
            disk.close()
        if self._store is not None:
            self._store.close()

    def path_of(self, agent_id: str) -> Path:
        """Return the folder of an agent's copy."""
        return self._folder.sub(agent_id).path / WORKSPACE_FOLDER

    def exists(self, agent_id: str) -> bool:
        """Return whether the copy of an agent is there."""
        return self.path_of(agent_id).is_dir()

    def handle(self, agent_id: str, parent: FsHandle) -> FsHandle:
        """Return a handle on the copy of an agent, with the rights of its parent."""
        return parent.on(self._disk(self.path_of(agent_id)))

    def make(self, source: BranchFiles, agent_id: str) -> None:
        """Copy files for a new agent, as they are. Raises `StorageFull` and `DiskError`."""
        folder = self.path_of(agent_id).parent
        with self._open(folder) as store:
            original = self._history(store, source.name, source.path)
            original.sync()
            if not store.last(source.name):  # no files yet: both sides need a version in common
                store.record(source.name, Author(), Kind.OUTSIDE, {})
            folder.mkdir(parents=True, exist_ok=True)
            with closing(DiskFileSystem(folder)) as disk:
                tree = disk.tree
                if os.path.lexists(folder / WORKSPACE_FOLDER):  # of a spawn that a kill has interrupted
                    remove_folder(tree, WORKSPACE_FOLDER)
                present, mode = list(original.present()), stat.S_IMODE(source.path.stat().st_mode)
                with new_folder(tree, WORKSPACE_FOLDER, mode, durable=True) as (hidden, _):
                    new = FolderTree(hidden, [WORKSPACE_FOLDER], durable=True)
                    entries = original.copy(present, new)
                    store.fork(source.name, agent_id)
                    copy = FolderHistory(store, agent_id, new, PRIVATE)
                    copy.sync([""], Author(agent=agent_id), Kind.FORK, entries)
            store.checkpoint()
            sync_folder(folder.parent)

    def begin_merge(self, target: BranchFiles, agent_id: str) -> tuple[int, int]:
        """Record the files of both sides; return the numbers of their versions, from which `merge` starts."""
        with self._open(target.path) as store:
            self._history(store, target.name, target.path).sync()
            self._history(store, agent_id, self.path_of(agent_id)).sync()
            store.checkpoint()
            return store.last(target.name), store.last(agent_id)

    def merge(self, target: BranchFiles, agent_id: str, numbers: tuple[int, int]) -> list[Conflict]:
        """Merge what an agent has changed in its copy into the files of `target`. Done again, it changes nothing.

        Meanwhile no tool writes the files that the merge changes. The ledger of the target has them as changes by the
        agent. Return the conflicts. Raises `StorageFull` and `DiskError`.
        """
        with self._open(target.path) as store, ExitStack() as reserved:
            merge, before = plan_merge(store, target.name, agent_id, numbers)
            for path in merge.entries:
                reserved.enter_context(target.ledger.writing(agent_id, path))
                target.ledger.begins(agent_id, path)
            history = self._history(store, target.name, target.path)
            by = Author(agent=target.name, call=merged_version(store, agent_id, numbers[1]))
            left = history.merge(merge, before, agent_id, by)
            conflicts = [(conflict.path, conflict.files) for conflict in merge.conflicts]
            return [*conflicts, *((path, (path, path_beside(path, agent_id))) for path in left)]

    def _history(self, store: SqliteVersions, name: str, path: Path) -> FolderHistory:
        return FolderHistory(store, name, FolderTree(self._disk(path).tree, durable=True), PRIVATE)

    def _disk(self, path: Path) -> DiskFileSystem:
        if path not in self._disks:
            ignored = None if self._folder.ignored is None else IgnoredFiles(path)
            self._disks[path] = agents_disk(path, f"{WORKSPACE}/", ignored)
        return self._disks[path]

    @contextmanager
    def _open(self, path: Path) -> Iterator[SqliteVersions]:
        """Yield the store, for one thread at a time. Errors in the block are those of the disk of `path`."""
        with self._lock, disk_errors(path):
            if self._store is None:
                self._store = SqliteVersions(self._folder.path / VERSIONS)
            yield self._store
