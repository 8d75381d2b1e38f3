"""Logical file systems: paths, grants, and handles that check every access."""

from cfs_filesystem._base import FileSystemBase, StateModule
from cfs_filesystem._builtin import BuiltinFileSystem, builtin_grant
from cfs_filesystem._disk import DiskFileSystem
from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
)
from cfs_filesystem._handle import FsHandle
from cfs_filesystem._memory import InMemoryFileSystem
from cfs_filesystem._openat import open_beneath
from cfs_filesystem._paths import validate_path, validate_prefix
from cfs_filesystem._router import RouterFileSystem
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
    "Operation",
    "Path",
    "RouterFileSystem",
    "StateModule",
    "VersionedEntryMeta",
    "builtin_grant",
    "open_beneath",
    "validate_path",
    "validate_prefix",
]
