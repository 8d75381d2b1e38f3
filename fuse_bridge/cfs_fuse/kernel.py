"""Wraps libfuse and adds what its Python binding lacks. Only this module imports the binding."""

import ctypes
import os
from typing import Any

os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # with libfuse2 O_TRUNC is a separate call, without the handle

import mfusepy

VERSION: tuple[int, int] = (mfusepy.fuse_version_major, mfusepy.fuse_version_minor)

THREADS = 640 if VERSION >= (3, 12) else 10
"""Maximum threads that serve requests. A blocked reader occupies one. Before 3.12 libfuse has ten."""

_library = mfusepy._libfuse  # noqa: SLF001 - the binding has no public access to it
_library.fuse_interrupted.restype = ctypes.c_int
_library.fuse_get_session.restype = ctypes.c_void_p
_library.fuse_get_session.argtypes = [ctypes.c_void_p]
_library.fuse_session_exited.restype = ctypes.c_int
_library.fuse_session_exited.argtypes = [ctypes.c_void_p]


class CurrentRequest:
    """The request that this thread is serving; usable only within its handler."""

    def interrupted(self) -> bool:
        """Whether the caller got a signal."""
        return bool(_library.fuse_interrupted())

    def unmounting(self) -> bool:
        """Whether the mount is being taken down."""
        fuse = _library.fuse_get_context().contents.fuse
        return bool(_library.fuse_session_exited(_library.fuse_get_session(fuse)))


class Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """The binding, extended by file handles of truncations and flags of renames, and with a faster `getattr`."""

    def read(self, _path: bytes | None, buffer: Any, size: int, offset: int, fip: Any) -> int:
        """Copy the read bytes into the kernel's buffer without an intermediate copy."""
        result = self.operations.read(None, size, offset, fip.contents)
        target = (ctypes.c_char * len(result)).from_address(ctypes.addressof(buffer.contents))
        memoryview(target).cast("B")[:] = result
        return len(result)

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        """Pass on the file handle; the path is given only without one."""
        handle = fip.contents if fip else None
        self.operations.truncate(None if path is None else path.decode("utf-8", "surrogateescape"), length, handle)
        return 0

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        """Pass on the flags."""
        self.operations.rename(*(name.decode("utf-8", "surrogateescape") for name in (old, new)), flags)
        return 0
