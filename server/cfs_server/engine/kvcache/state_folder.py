"""The folder of the state files.

One worker at a time uses it. No other user may access it, and each file is checked before use.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from cfs_server.engine.kvcache.state_file import BadFile, Head, Piece, read_head, read_pieces, slices

NAME = "cfs-engine-state"
"""The folder that is made inside of the one that is configured."""


_SUFFIX, _UNFINISHED, _LOCK = ".state", ".part", "lock"


class FolderRefused(Exception):
    """The folder cannot be used; the error's text gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file whose head is good."""

    name: str
    size: int
    head: Head


def new_name() -> str:
    """Make a random name for a file."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a folder, and the free space."""

    files: int
    bytes: int
    free: int


def survey(parent: Path) -> Survey:
    """Look at the folder without a change to it; raises `OSError` when nothing could be written there."""
    inside = parent / NAME
    place = next(folder for folder in (inside, parent, *parent.parents) if folder.exists())
    if not place.is_dir():
        raise NotADirectoryError(20, "this is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(13, "nothing can be written there")
    sizes = [path.lstat().st_size for path in inside.glob(f"*{_SUFFIX}")] if place == inside else []
    disk = os.statvfs(place)
    return Survey(len(sizes), sum(sizes), disk.f_bavail * disk.f_frsize)


class Folder:
    """Writes, reads and removes state files. Other users have no access: the files contain session text."""

    def __init__(self, parent: Path, fingerprint: str) -> None:
        """Make the folder and lock it; raises `FolderRefused`."""
        self.path = parent / NAME
        self.fingerprint = fingerprint
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock: int | None = os.open(self.path / _LOCK, flags, 0o600)
        except OSError as error:
            raise FolderRefused(f"{self.path}: {(error.strerror or str(error)).lower()}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise FolderRefused(f"{self.path}: another server uses this folder") from None

    def _check(self) -> None:
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise FolderRefused(f"{self.path}: this is no folder")
        if found.st_uid != os.geteuid():
            raise FolderRefused(f"{self.path}: this folder belongs to another user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            self.path.chmod(0o700)

    def close(self) -> None:
        """Release the folder for another worker."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def sweep(self) -> tuple[list[Found], int]:
        """Find all valid files, the least recently used first, and remove all other files of the engine.

        Also returns the number of removed files: incomplete, damaged, or of another model, build or setting.
        """
        found: list[tuple[int, Found]] = []
        removed = 0
        for path in self._files():
            try:
                found.append((path.stat().st_mtime_ns, self._found(path)))
            except (OSError, BadFile):
                path.unlink(missing_ok=True)
                removed += 1
        return [file for _, file in sorted(found, key=lambda entry: entry[0])], removed

    def write(self, head: Head, pieces: Sequence[Piece], name: str) -> None:
        """Write a file; it has its name when all of it is there. Raises `OSError`."""
        unfinished = self.path / (name + _UNFINISHED)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with FileIO(os.open(unfinished, flags, 0o600), "wb") as file:
                for part in (memoryview(head.encode()), *(part for piece in pieces for part in slices(piece.state))):
                    _write_all(file.fileno(), part)
            # No fsync: a file that a power cut tears is noticed by its length or its checksums.
            unfinished.rename(self.path / (name + _SUFFIX))
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> tuple[Head, tuple[Piece, ...]]:
        """Read a file and check all of it; raises `BadFile`, `OSError`."""
        path = self.path / (name + _SUFFIX)
        with self._open(path) as file:
            head = self._own(read_head(file))
            pieces = tuple(read_pieces(file, head))
        os.utime(path)
        return head, pieces

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        (self.path / (name + _SUFFIX)).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        for path in sorted(self.path.iterdir()):
            if path.name.endswith((_SUFFIX, _UNFINISHED)) and not path.is_dir():
                yield path

    def _found(self, path: Path) -> Found:
        if path.suffix != _SUFFIX:
            raise BadFile("it was never finished")
        with self._open(path) as file:
            head = self._own(read_head(file))
            size = os.fstat(file.fileno()).st_size
            if size != file.tell() + head.state_bytes:
                raise BadFile("it is torn")
        return Found(path.stem, size, head)

    def _own(self, head: Head) -> Head:
        if head.fingerprint != self.fingerprint:
            raise BadFile("it is of another model, build or setting")
        return head

    def _open(self, path: Path) -> FileIO:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            os.close(descriptor)
            raise BadFile("others may have written it")
        return FileIO(descriptor, "rb")


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]
