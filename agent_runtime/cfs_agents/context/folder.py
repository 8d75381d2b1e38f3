"""The folder of a session: locked, and with room for its index."""

import errno
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cfs.errors import Conflict, StorageFull, Unavailable
from cfs_agents.base.folders import open_own_folder, put_aside, try_lock
from cfs_agents.context.documents import (
    Unreadable,
)
from cfs_agents.context.index import INDEX, Index, decoded, rebuilt
from cfs_filesystem import DiskFileSystem, FileSystemError, Grant, open_beneath, remove_empty

_EVERYTHING = Grant(prefix="/", ops={"list", "file", "read", "write", "delete"})
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SLACK = 65_536


class ItemFolder:
    """Creates a folder if it is missing, locks it, and rebuilds its index from its files.

    Others (an agent's commands) may change what lies between `trusted` and the folder at any time: each step is opened
    without following links, and the folder is used by its descriptor only. `handle` waits for the disk if `durable`;
    `hasty` does not, for files that can be made again or that `settle` waits for. Raises `Conflict` if another object
    has the folder open, and `Unavailable` or `StorageFull` if the disk refuses.
    """

    def __init__(self, path: Path, trusted: Path, *, durable: bool, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self.descriptor = -1
        self._trusted = trusted
        self._parts = path.relative_to(trusted).parts
        self._disks: list[DiskFileSystem] = []
        self._durable = durable
        with translated_errors(path):
            self._lock()
            try:
                self._disks = [DiskFileSystem(self.descriptor, durable=wait, private=True) for wait in (durable, False)]
                self.handle, self.hasty = (disk.create_handle([_EVERYTHING]) for disk in self._disks)
                self.index = self._rebuild()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Unlock the folder."""
        for disk in self._disks:
            disk.close()
        self._release()

    def save(self, *, wait: bool = True) -> None:
        """Write the index. After additions there is no need to wait for the disk: the files say the same."""
        (self.handle if wait else self.hasty).write(f"/{INDEX}", self.index.encoded(self.path.name))

    def settle(self, path: str) -> None:
        """Wait until the disk has a new file (fsync of the file and its directories).

        The file gets its name before its content is on the disk, so that one transaction of the disk takes both. That
        takes half the time of waiting twice, and is safe because the file is not read before the index names it.
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
        """Remove the folder with its directories; raises `OSError` if a file is left in one of them."""
        above = open_beneath(self._trusted, self._parts[:-1])
        try:
            remove_empty(above, self._parts[-1])
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
            descriptor = self.descriptor = open_own_folder(self._trusted, self._parts, mode=0o700)
            self._release = weakref.finalize(self, os.close, descriptor)
            if not try_lock(descriptor):
                self._release()
                raise Conflict(f"the context {self.path.name!r} is in use by another agent")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return
            self._release()  # the folder was removed meanwhile: create it again

    def _rebuild(self) -> Index:
        """Build the index from the files, so that it is correct after any crash; writes it if it has changed."""
        stored = self._known()
        self.index = rebuilt(self.handle, stored, self._put_aside)
        if lost := [record for record in stored if record.item_id not in self.index.records]:
            names = ", ".join(self._put_aside(record.path or "") for record in lost)
            self._warn(f"off-loaded results in {self.path} are missing or damaged, and lost: {names}")
        if [*self.index] != [*stored]:
            with suppress(OSError):  # a full disk: the next process builds the same index
                self.save()
        return self.index

    def _known(self) -> Index:
        """Read the stored index. One that is damaged is replaced; what is no file of the runtime is put aside."""
        problem = f"{INDEX} in {self.path} is damaged: it is made again from the files of the items"
        try:
            os.close(os.open(INDEX, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.descriptor))
            return decoded(self.handle.read_binary(f"/{INDEX}"))
        except FileNotFoundError:
            return Index()
        except Unreadable:
            self._warn(problem)
        except (FileSystemError, OSError):
            self._warn(f"{problem}, and kept as {self._put_aside(INDEX)}")
        return Index()

    def _put_aside(self, path: str) -> str:
        """Rename a file that cannot be used; return the path that it has now."""
        *folders, name = path.split("/")
        with suppress(OSError):
            folder = open_beneath(self.descriptor, folders)
            try:
                return "/".join([*folders, put_aside(folder, name)])
            finally:
                os.close(folder)
        return path


def _wait_for(name: str, directory: int) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise failures of the disk as `StorageFull` or `Unavailable`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the disk of {path} is full: nothing more is off-loaded until there is room") from None
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from None
    except FileSystemError as error:
        raise Unavailable(f"{path} cannot be written: {error}") from None


def _make_private(folder: Path) -> None:
    """Create a folder, and missing ones above it, for its owner only."""
    for missing in [*(parent for parent in reversed(folder.parents) if not parent.exists()), folder]:
        missing.mkdir(mode=0o700, exist_ok=True)
