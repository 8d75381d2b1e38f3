"""Files that editors and desktops make for themselves: kept in the bridge, never on the server, up to a cap."""

import errno
import os
import stat
import threading
import time
from dataclasses import dataclass, field

CAP_BYTES = 64 << 20
CAP_FILES = 1_024

MODE = stat.S_IFREG | 0o600
"""Whatever mode was asked for: vim then sees that a new file cannot look like a session, and saves in place instead of
renaming the session away and writing a new one."""


@dataclass(eq=False, slots=True)
class Scratch:
    """One such file."""

    data: bytearray = field(default_factory=bytearray)
    changed_at: float = field(default_factory=time.time)


class ScratchFiles:
    """All of them by name; a full cap is ENOSPC."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Scratch] = {}

    def names(self) -> list[str]:
        """List the names."""
        with self._lock:
            return list(self._files)

    def get(self, name: str) -> Scratch:
        """Return a file; raises `OSError` (ENOENT)."""
        found = self._files.get(name)
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def open(self, name: str, flags: int) -> Scratch:
        """Return a file, made if it is to be; raises `OSError` (ENOENT, EEXIST, ENOSPC)."""
        with self._lock:
            found = self._files.get(name)
            if found is not None and flags & os.O_CREAT and flags & os.O_EXCL:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            if found is None:
                if not flags & os.O_CREAT:
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                if len(self._files) >= CAP_FILES:
                    raise OSError(errno.ENOSPC, "too many temporary files in this mount")
                found = self._files[name] = Scratch()
        if flags & os.O_TRUNC:
            self.truncate(found, 0)
        return found

    def write(self, file: Scratch, data: bytes, offset: int) -> None:
        """Write as a disk would; raises `OSError` (ENOSPC)."""
        with self._lock:
            gap = b"\0" * (offset - len(file.data))
            self._grow(max(0, offset + len(data) - len(file.data)))
            file.data[offset : offset + len(data)] = data if not gap else b""
            if gap:
                file.data += gap + data
            file.changed_at = time.time()

    def truncate(self, file: Scratch, size: int) -> None:
        """Cut or fill with zeros; raises `OSError` (ENOSPC)."""
        with self._lock:
            self._grow(size - len(file.data))
            del file.data[size:]
            file.data += b"\0" * (size - len(file.data))
            file.changed_at = time.time()

    def remove(self, name: str) -> None:
        """Forget a file; whoever has it open keeps it. Raises `OSError` (ENOENT)."""
        self.get(name)
        with self._lock:
            self._files.pop(name, None)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name, over what is there; raises `OSError` (ENOENT)."""
        file = self.get(name)
        with self._lock:
            self._files.pop(name, None)
            self._files[new] = file

    def _grow(self, more: int) -> None:
        if more > 0 and more + sum(len(file.data) for file in self._files.values()) > CAP_BYTES:
            raise OSError(errno.ENOSPC, "too many bytes of temporary files in this mount")
