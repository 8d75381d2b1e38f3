"""libfuse, and the little of it that its Python binding does not offer: the one module that imports it."""

import ctypes
import os
from typing import Any

os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # with libfuse2 O_TRUNC is a call of its own, without the handle

import mfusepy

VERSION: tuple[int, int] = (mfusepy.fuse_version_major, mfusepy.fuse_version_minor)

THREADS = 640 if VERSION >= (3, 12) else 10
"""Threads that serve requests, made as they are needed: a reader who waits has one. Before 3.12 libfuse has ten."""

_library = mfusepy._libfuse  # noqa: SLF001 - nothing else in the binding gives access to it
_library.fuse_interrupted.restype = ctypes.c_int
_library.fuse_get_session.restype = ctypes.c_void_p
_library.fuse_get_session.argtypes = [ctypes.c_void_p]
_library.fuse_session_exited.restype = ctypes.c_int
_library.fuse_session_exited.argtypes = [ctypes.c_void_p]


class Requests:
    """Answers questions about the request that this thread serves; to be asked in its handler only."""

    def interrupted(self) -> bool:
        """Whether the caller got a signal."""
        return bool(_library.fuse_interrupted())

    def unmounting(self) -> bool:
        """Whether the mount is being taken down."""
        fuse = _library.fuse_get_context().contents.fuse
        return bool(_library.fuse_session_exited(_library.fuse_get_session(fuse)))


class Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """The binding, with what it leaves out: handles of truncations, flags of renames; and less work per look."""

    def read(self, _path: bytes | None, buffer: Any, size: int, offset: int, fip: Any) -> int:
        """Copy what is read to where the kernel takes it from, once."""
        found = self.operations.read(None, size, offset, fip.contents)
        target = (ctypes.c_char * len(found)).from_address(ctypes.addressof(buffer.contents))
        memoryview(target).cast("B")[:] = found
        return len(found)

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        """Hand on the handle: a path there is only without one."""
        handle = fip.contents if fip else None
        self.operations.truncate(None if path is None else path.decode("utf-8", "surrogateescape"), length, handle)
        return 0

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        """Hand on the flags."""
        self.operations.rename(*(name.decode("utf-8", "surrogateescape") for name in (old, new)), flags)
        return 0
