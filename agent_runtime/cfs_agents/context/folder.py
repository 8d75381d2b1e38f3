"""A session's folder, opened: nobody else has it, and its index is true."""

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cfs.errors import Conflict, StorageFull, Unavailable
from cfs_agents.context.index import INDEX, Index, decoded, recovered
from cfs_agents.context.records import Unreadable
from cfs_filesystem import DiskFileSystem, FileSystemError, Grant, open_beneath

_EVERYTHING = Grant(prefix="/", ops={"list", "file", "read", "write", "delete"})
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SLACK = 65_536


class Folder:
    """Makes a folder if need be, locks it, and reads its index or makes it anew from the files.

    What lies between `trusted` and the folder may be changed by others (an agent's commands) at any time: it is opened
    step by step and never through a link, and the folder itself is used by its descriptor only.
    `handle` writes what must survive a crash of the machine (if `durable`), `hasty` what can be made again, or what is
    waited for by `settle` afterwards. Raises
    `Conflict` if somebody else has it open, `Unavailable` or `StorageFull` if the disk does not let us.
    """

    def __init__(self, path: Path, trusted: Path, *, durable: bool) -> None:
        self.path = path
        self.descriptor = -1
        self._trusted = trusted
        self._parts = path.relative_to(trusted).parts
        self._disks: list[DiskFileSystem] = []
        self._durable = durable
        with in_our_words(path):
            self._lock()
            try:
                self._disks = [DiskFileSystem(self.descriptor, durable=wait, private=True) for wait in (durable, False)]
                self.handle, self.hasty = (disk.create_handle([_EVERYTHING]) for disk in self._disks)
                self.index = self._true_index()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Let others have the folder."""
        for disk in self._disks:
            disk.close()
        self._release()

    def save(self, *, wait: bool = True) -> None:
        """Write the index. Who has only put items in need not wait for the disk: their files say the same."""
        (self.handle if wait else self.hasty).write(f"/{INDEX}", self.index.encoded(self.path.name))

    def settle(self, path: str) -> None:
        """Wait until the disk has a new file, which nobody looks for before the index names it.

        The file has its name before the disk has its content, so that one transaction of the disk takes both; the wait
        for its directories then finds them there already. That takes half the time of waiting before and after.
        """
        if self._durable:
            *folders, name = Path(path).parts
            for depth in range(len(folders), -1, -1):
                folder = open_beneath(self.descriptor, folders[:depth])
                try:
                    if depth == len(folders):
                        _wait_for(name, folder)
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def remove(self) -> None:
        """Remove the folder with the directories in it; raises `OSError` if there is a file in one of them."""
        for _, folders, _, here in os.fwalk(".", topdown=False, dir_fd=self.descriptor):
            for name in folders:
                os.rmdir(name, dir_fd=here)
        above = open_beneath(self._trusted, self._parts[:-1])
        try:
            os.rmdir(self._parts[-1], dir_fd=above)
        finally:
            os.close(above)

    def require_space(self, size: int, reserve: int) -> None:
        """Raise `StorageFull` if so many bytes more would leave less than the reserve free."""
        status = os.statvfs(self.descriptor)
        free = status.f_bavail * status.f_frsize
        if free < size + _SLACK + reserve:
            raise StorageFull(
                f"the disk of {self.path} has {free:,} bytes left, of which {reserve:,} are kept free:"
                " nothing more is off-loaded until there is room"
            )

    def _lock(self) -> None:
        while True:
            _make_private(self._trusted)
            descriptor = self.descriptor = open_beneath(self._trusted, self._parts, make=True, mode=0o700)
            self._release = weakref.finalize(self, os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._release()
                raise Conflict(f"the context {self.path.name!r} is in use by somebody else") from None
            except OSError:  # a disk without locks lets everybody in
                return
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return
            self._release()  # somebody has removed the folder in between: it is to be made again

    def _true_index(self) -> Index:
        known = None
        with suppress(Unreadable, FileSystemError):
            known = decoded(self.handle.read_binary(f"/{INDEX}"))
        self.index, differs = recovered(known, self.handle)
        if differs and self.index.records:
            with suppress(OSError):  # a disk that is full now: the next one to open it finds the same
                self.save()
        return self.index


def _wait_for(name: str, directory: int) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def in_our_words(path: Path) -> Iterator[None]:
    """Raise what a failure of the disk means: `StorageFull`, or `Unavailable` for any other."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the disk of {path} is full: nothing more is off-loaded until there is room") from None
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from None
    except FileSystemError as error:
        raise Unavailable(f"{path} cannot be written: {error}") from None


def _make_private(folder: Path) -> None:
    """Make a folder, and what is missing above it, for its owner alone."""
    for missing in [*(parent for parent in reversed(folder.parents) if not parent.exists()), folder]:
        missing.mkdir(mode=0o700, exist_ok=True)
