"""The kernel's requests, one method each: paths become places, errors become numbers, and nothing else happens here."""

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from cfs.ids import is_scratch, name_below
from cfs.transports.disk import PREFIX
from cfs_fuse import xattrs
from cfs_fuse.answering import accepting, answering, refusing
from cfs_fuse.attributes import Attributes, filesystem
from cfs_fuse.control import ControlHandle, EventsHandle, LiveHandle, StatusHandle, status
from cfs_fuse.entries import Entry
from cfs_fuse.handles import Handle, Parts, ScratchHandle, SessionHandle
from cfs_fuse.naming import Naming
from cfs_fuse.places import (
    ControlDirectory,
    ControlPlace,
    Families,
    Family,
    Place,
    Root,
    ScratchPlace,
    SessionPlace,
    place_of,
)
from cfs_fuse.scratch import MODE

NOMINAL_BYTES = 1 << 30
RENAME_NOREPLACE = 1

_CONTROL: dict[str, Callable[[Parts, Entry], ControlHandle]] = {
    "live": LiveHandle,
    "status": StatusHandle,
    "events": EventsHandle,
}


class Operations:
    """What libfuse calls, in threads of its own; handles are numbers that it keeps for us."""

    use_ns = True
    flag_nopath = True  # so an open file needs no path: it may have been removed or renamed,
    flag_nullpath_ok = True  # and a blocked reader holds no lock on it

    def __init__(self, parts: Parts, ready: Callable[[], None]) -> None:
        self._parts = parts
        self._naming = Naming(parts)
        self._ready = ready
        self._handles: dict[int, Handle] = {}
        self._directories: dict[int, Place] = {}
        self._numbers = itertools.count(1)

    def init(self, _path: str) -> None:
        """The kernel has answered."""
        self._ready()

    # -- looking --------------------------------------------------------------------------------------------------

    @answering
    def getattr(self, path: str | None, fi: Any = None) -> Attributes:
        """Describe a file or a directory."""
        if fi is not None and (handle := self._handles.get(fi.fh)) is not None:
            return handle.attributes()
        parts, place = self._parts, place_of(_given(path))
        match place:
            case SessionPlace(name):
                entry = parts.cache.get(name)
                return parts.look.file(entry.size, entry.changed_at)
            case Root() | ControlDirectory() | Families():
                return parts.look.directory(parts.cache.changed_at)
            case Family(root):
                parts.cache.get(root)
                return parts.look.directory(parts.cache.changed_at)
            case ControlPlace("status", name):
                entry = parts.cache.get(name)
                return parts.look.file(len(status(parts.cache, entry)), entry.changed_at)
            case ControlPlace(_, name):
                return parts.look.file(0, parts.cache.get(name).changed_at)
            case ScratchPlace(name):
                file = parts.scratch.get(name)
                return parts.look.file(len(file.data), file.changed_at, mode=MODE)

    @answering
    def opendir(self, path: str) -> int:
        """Remember which directory it is: the kernel does not say it again."""
        number = next(self._numbers)
        self._directories[number] = place_of(path)
        return number

    @answering
    def readdir(self, _path: str | None, number: int) -> Iterator[tuple[str, int, int]]:
        """List a directory; control directories can be opened and are not shown."""
        cache, look = self._parts.cache, self._parts.look
        directories, files = [".", ".."], []
        match self._directories[number]:
            case Root():
                files = [name for name in cache.roots() if not is_scratch(name)] + self._parts.scratch.names()
            case ControlDirectory():
                files = cache.roots()
            case Families():
                directories += cache.parents()
            case Family(root):
                files = [name_below(root, member) for member in cache.family(root)]
        kinds = ((directories, look.directory_type), (files, look.file_type))
        return ((name, mode, 0) for names, mode in kinds for name in names)

    def releasedir(self, _path: str | None, number: int) -> int:
        """Forget a directory."""
        self._directories.pop(number, None)
        return 0

    @answering
    def statfs(self, _path: str) -> dict[str, int]:
        """Say how much there is."""
        return filesystem(*self._parts.cache.totals(), NOMINAL_BYTES)

    # -- open files -----------------------------------------------------------------------------------------------

    @answering
    def create(self, path: str, _mode: int, fi: Any) -> int:
        """Open a file that may have to be made."""
        place = place_of(path)
        if isinstance(place, SessionPlace) and self._parts.cache.find(place.id) is None:
            fi.fh = self._keep(
                SessionHandle(self._parts, self._naming.make(place.id, exclusive=bool(fi.flags & os.O_EXCL)), fi.flags)
            )
            return 0
        return self._open(place, fi, fi.flags | os.O_CREAT)

    @answering
    def open(self, path: str, fi: Any) -> int:
        """Open a file; whoever may not write to it is told here, as many programs look away from `close`."""
        return self._open(place_of(path), fi, fi.flags)

    def _open(self, place: Place, fi: Any, flags: int) -> int:
        parts = self._parts
        match place:
            case SessionPlace(name):
                entry = parts.cache.get(name)
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    parts.require_writable(entry)
                elif not flags & os.O_NONBLOCK:
                    parts.settle(entry)
                handle: Handle = SessionHandle(parts, entry, flags)
            case ControlPlace(kind, name):
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    raise OSError(errno.EACCES, "control files can only be read")
                handle = _CONTROL[kind](parts, parts.cache.get(name))
            case ScratchPlace(name):
                handle = ScratchHandle(parts, parts.scratch.open(name, flags), flags)
            case _:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        fi.fh = self._keep(handle)
        return 0

    @answering
    def read(self, _path: str | None, size: int, offset: int, fi: Any) -> bytes | memoryview:
        """Read; the flags are those of this moment, which `fcntl` may have changed since the file was opened."""
        return self._handles[fi.fh].read(size, offset, blocking=not fi.flags & os.O_NONBLOCK)

    @answering
    def write(self, _path: str | None, data: bytes, offset: int, fi: Any) -> int:
        """Write."""
        self._handles[fi.fh].write(data, offset)
        return len(data)

    @answering
    def flush(self, _path: str | None, fi: Any) -> int:
        """Somebody closes a descriptor of the file."""
        self._handles[fi.fh].commit()
        return 0

    @answering
    def fsync(self, _path: str | None, _data_only: int, fi: Any) -> int:
        """Somebody wants to be sure."""
        self._handles[fi.fh].commit()
        return 0

    @answering
    def release(self, _path: str | None, fi: Any) -> int:
        """The last descriptor is closed."""
        if (handle := self._handles.pop(fi.fh, None)) is not None:
            handle.close()
        return 0

    # -- names ----------------------------------------------------------------------------------------------------

    @answering
    def mknod(self, path: str, mode: int, _device: int) -> int:
        """Make a file without opening it."""
        place = place_of(path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EOPNOTSUPP, "there are only sessions here")
        if isinstance(place, SessionPlace):
            self._naming.make(place.id, exclusive=True)
        elif isinstance(place, ScratchPlace):
            self._parts.scratch.open(place.name, os.O_CREAT | os.O_EXCL)
        else:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return 0

    @answering
    def unlink(self, path: str) -> int:
        """Delete a session with its sub-sessions; whoever waits for it is told."""
        match place_of(path):
            case SessionPlace(name):
                self._naming.delete(self._parts.cache.get(name))
            case ScratchPlace(name):
                self._parts.scratch.remove(name)
            case _:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return 0

    @answering
    def rename(self, old: str, new: str, flags: int) -> int:
        """Rename a session or a temporary file; over a live session it is judged as a body that is written to it."""
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        replacing = not flags & RENAME_NOREPLACE
        match place_of(old), place_of(new):
            case ScratchPlace(name), ScratchPlace(target):
                self._parts.scratch.rename(name, target)
            case SessionPlace(name), SessionPlace(target):
                self._naming.rename(self._parts.cache.get(name), target, replacing=replacing)
            case ScratchPlace(name), SessionPlace(target):
                self._naming.publish(name, target, replacing=replacing)
            case _:
                raise OSError(errno.EPERM, "a session cannot become a temporary file or a control file")
        return 0

    def truncate(self, path: str | None, size: int, fi: Any) -> int:
        """Cut a temporary file; a session stays as it is (S3)."""
        if fi is not None and (handle := self._handles.get(fi.fh)) is not None:
            handle.truncate(size)
        elif path is not None and isinstance(place := place_of(path), ScratchPlace):
            self._parts.scratch.truncate(self._parts.scratch.get(place.name), size)
        return 0

    chmod = chown = utimens = accepting
    mkdir = refusing(errno.EPERM)
    rmdir = refusing(errno.EPERM)
    link = refusing(errno.EOPNOTSUPP)
    symlink = refusing(errno.EOPNOTSUPP)
    fallocate = refusing(errno.EOPNOTSUPP)

    # -- settings -------------------------------------------------------------------------------------------------

    @answering
    def listxattr(self, path: str) -> list[str]:
        """List the settings of a session."""
        place = place_of(path)
        return xattrs.list_of(self._parts, self._parts.cache.get(place.id)) if isinstance(place, SessionPlace) else []

    @answering
    def getxattr(self, path: str, name: str) -> bytes:
        """Read a setting; the kernel and `ls` ask for a lot of others, too."""
        if name.startswith("system."):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        place = place_of(path) if name.startswith(PREFIX) else None
        if not isinstance(place, SessionPlace):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return xattrs.read(self._parts, self._parts.cache.get(place.id), name)

    @answering
    def setxattr(self, path: str, name: str, value: bytes, _options: int) -> int:
        """Change a setting."""
        place = place_of(path)
        if not isinstance(place, SessionPlace):
            raise OSError(errno.EOPNOTSUPP, "only sessions have settings")
        xattrs.write(self._parts, self._parts.cache.get(place.id), name, value)
        return 0

    @answering
    def removexattr(self, path: str, name: str) -> int:
        """Put a setting back to its default."""
        if name.startswith("system."):  # how the kernel sets an access list that says no more than the mode
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        place = place_of(path)
        if not isinstance(place, SessionPlace):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        xattrs.remove(self._parts, self._parts.cache.get(place.id), name)
        return 0

    # -- within ---------------------------------------------------------------------------------------------------

    def _keep(self, handle: Handle) -> int:
        number = next(self._numbers)
        self._handles[number] = handle
        return number


def _given(path: str | None) -> str:
    if path is None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return path
