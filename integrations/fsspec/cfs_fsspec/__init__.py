"""The file system `cfs://` of fsspec: transcripts of sessions to read, and workspaces to read and write."""

from cfs_fsspec.files import FileChangedError
from cfs_fsspec.filesystem import CFSFileSystem

__all__ = ["CFSFileSystem", "FileChangedError"]
