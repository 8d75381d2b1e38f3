"""Versions of the files of workspaces: what was at a path at a time, and who changed it.

A store knows no sessions and no HTTP. Its API is `VersionStore`; `SqliteVersions` keeps a store in a file or in memory.
docs/versions.md describes what is kept.
"""

from cfs_filesystem.versions.folder import FolderHistory
from cfs_filesystem.versions.folder_tree import FolderTree, FolderTrees, folders_in
from cfs_filesystem.versions.model import (
    OUTSIDE,
    Author,
    Change,
    Content,
    DamagedVersionError,
    Entry,
    EntryType,
    Kind,
    State,
    VersionRetention,
    VersionsUnavailableError,
)
from cfs_filesystem.versions.object_tree import ObjectTree, ObjectTrees
from cfs_filesystem.versions.past import PastFileSystem
from cfs_filesystem.versions.sqlite import SqliteVersions
from cfs_filesystem.versions.store import VersionStore
from cfs_filesystem.versions.tree import TreeStatus, VersionedTree, VersionedTrees

__all__ = [
    "OUTSIDE",
    "Author",
    "Change",
    "Content",
    "DamagedVersionError",
    "Entry",
    "EntryType",
    "FolderHistory",
    "FolderTree",
    "FolderTrees",
    "Kind",
    "ObjectTree",
    "ObjectTrees",
    "PastFileSystem",
    "SqliteVersions",
    "State",
    "TreeStatus",
    "VersionRetention",
    "VersionStore",
    "VersionedTree",
    "VersionedTrees",
    "VersionsUnavailableError",
    "folders_in",
]
