"""Logical file systems: paths, grants, and handles that check every access."""

from cfs_filesystem._base import FileSystemBase, StateModule
from cfs_filesystem._builtin import BuiltinFileSystem, builtin_grant
from cfs_filesystem._descriptors import open_beneath
from cfs_filesystem._directory_tree import Walk
from cfs_filesystem._disk import DiskFileSystem
from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    VersionError,
)
from cfs_filesystem._handle import FsHandle
from cfs_filesystem._memory import InMemoryFileSystem
from cfs_filesystem._object_stores import open_store
from cfs_filesystem._objects import ObjectFileSystem, ObjectStore, StoredObject
from cfs_filesystem._paths import validate_path, validate_prefix
from cfs_filesystem._removing import remove_empty
from cfs_filesystem._router import RouterFileSystem
from cfs_filesystem._temporary import FOLDER_IDENTITY
from cfs_filesystem._types import (
    OPERATIONS,
    READ_OPERATIONS,
    DirectoryMeta,
    EntryMeta,
    Grant,
    GrantedOperation,
    Operation,
    Path,
    VersionedEntryMeta,
)

__all__ = [
    "FOLDER_IDENTITY",
    "OPERATIONS",
    "READ_OPERATIONS",
    "AccessDeniedError",
    "BuiltinFileSystem",
    "ConflictError",
    "DirectoryMeta",
    "DiskFileSystem",
    "EntryMeta",
    "FileSystemBase",
    "FileSystemError",
    "FsHandle",
    "Grant",
    "GrantedOperation",
    "InMemoryFileSystem",
    "InvalidArgumentError",
    "InvalidPathError",
    "NotFoundError",
    "ObjectFileSystem",
    "ObjectStore",
    "Operation",
    "Path",
    "RouterFileSystem",
    "StateModule",
    "StoredObject",
    "VersionError",
    "VersionedEntryMeta",
    "Walk",
    "builtin_grant",
    "open_beneath",
    "open_store",
    "remove_empty",
    "validate_path",
    "validate_prefix",
]
