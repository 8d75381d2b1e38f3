"""The folder of the state files of a model.

One worker at a time uses it. No other user may access it, and each file is checked before use.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from cfs_server.engine.kvcache.state_file import BadFile, StateHeader, StatePiece, read_head, read_pieces, slices

NAME = "cfs-engine-state"
"""The folder that is made inside of the one that is configured."""


_SUFFIX, _UNFINISHED, _LOCK = ".state", ".part", "lock"


LEAST_FREE = 1 << 30
"""Bytes of the disk that state leaves free: sessions are written to the same one."""


_LOCK_SECONDS = 0.05
_LABEL_CHARACTERS = 48


class FolderRefused(Exception):
    """The folder cannot be used; the error's text gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A file whose head is good."""

    name: str
    size: int
    head: StateHeader


def new_name() -> str:
    """Make a random name for a file."""
    return secrets.token_hex(16)


def label_of(model: Path) -> str:
    """Name the folder of a model: after its file, and different for files of one name."""
    path = model.absolute()
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem)[:_LABEL_CHARACTERS]
    return f"{readable}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a folder, and the free space."""

    files: int
    bytes: int
    free: int


def survey(parent: Path) -> Survey:
    """Look at the folder without a change to it; raises `OSError` when nothing could be written there."""
    inside = parent / NAME
    existing = next(folder for folder in (inside, parent, *parent.parents) if folder.exists())
    if not existing.is_dir():
        raise NotADirectoryError(20, "this is no folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(13, "nothing can be written there")
    sizes = [path.lstat().st_size for path in inside.rglob(f"*{_SUFFIX}")] if existing == inside else []
    disk = os.statvfs(existing)
    return Survey(len(sizes), sum(sizes), disk.f_bavail * disk.f_frsize)


class Folder:
    """Writes, reads and removes state files. Other users have no access: the files contain session text."""

    def __init__(
        self, parent: Path, fingerprint: str, label: str = "", *, patience: float = 0.0, least_free: int = 0
    ) -> None:
        """Make the folder and lock it; raises `FolderRefused`.

        A worker that was killed may hold the lock until it has ended: for `patience` seconds this waits. `least_free`
        bytes of the disk stay free.
        """
        self.path = parent / NAME / label
        self.fingerprint = fingerprint
        self._least_free = least_free
        try:
            for folder in dict.fromkeys((parent / NAME, self.path)):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check(folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock: int | None = os.open(self.path / _LOCK, flags, 0o600)
        except OSError as error:
            raise FolderRefused(f"{self.path}: {(error.strerror or str(error)).lower()}") from error
        if not _locked(self._lock, patience):
            self.close()
            raise FolderRefused(f"{self.path}: another server uses this folder")
        if label:
            _remove_state(parent / NAME)  # earlier versions had no folders of models

    def close(self) -> None:
        """Release the folder for another worker."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def sweep(self) -> tuple[list[SavedState], int]:
        """Find all valid files, the least recently used first, and remove all other files of the engine.

        Also returns the number of removed files: incomplete, damaged, or of another model, build or setting.
        """
        files: list[tuple[int, SavedState]] = []
        removed = 0
        for path in self._files():
            try:
                files.append((path.stat().st_mtime_ns, self._read_file(path)))
            except (OSError, BadFile):
                path.unlink(missing_ok=True)
                removed += 1
        return [file for _, file in sorted(files, key=lambda entry: entry[0])], removed

    def write(
        self,
        head: StateHeader,
        pieces: Sequence[StatePiece],
        name: str,
        wrote: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        """Write a file; it has its name when all of it is there. Raises `OSError`, and what `wrote` raises.

        `wrote` is called after each part, with the number of its bytes.
        """
        disk = os.statvfs(self.path)
        if disk.f_bavail * disk.f_frsize < self._least_free + head.state_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        unfinished = self.path / (name + _UNFINISHED)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with FileIO(os.open(unfinished, flags, 0o600), "wb") as file:
                for part in (memoryview(head.encode()), *(part for piece in pieces for part in slices(piece.state))):
                    _write_all(file.fileno(), part)
                    wrote(len(part))
            # No fsync: a file that a power cut tears is noticed by its length or its checksums.
            unfinished.rename(self.path / (name + _SUFFIX))
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> tuple[StateHeader, tuple[StatePiece, ...]]:
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

    def _read_file(self, path: Path) -> SavedState:
        if path.suffix != _SUFFIX:
            raise BadFile("it was never finished")
        with self._open(path) as file:
            head = self._own(read_head(file))
            size = os.fstat(file.fileno()).st_size
            if size != file.tell() + head.state_bytes:
                raise BadFile("it is torn")
        return SavedState(path.stem, size, head)

    def _own(self, head: StateHeader) -> StateHeader:
        if head.fingerprint != self.fingerprint:
            raise BadFile("it is of another model, build or setting")
        return head

    def _open(self, path: Path) -> FileIO:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
            os.close(descriptor)
            raise BadFile("others may have written it")
        return FileIO(descriptor, "rb")


def _check(folder: Path) -> None:
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise FolderRefused(f"{folder}: this is no folder")
    if state.st_uid != os.geteuid():
        raise FolderRefused(f"{folder}: this folder belongs to another user")
    if stat.S_IMODE(state.st_mode) & 0o077:
        folder.chmod(0o700)


def _locked(descriptor: int, patience: float) -> bool:
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOCK_SECONDS)
        else:
            return True


def _remove_state(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.endswith((_SUFFIX, _UNFINISHED)):
            with contextlib.suppress(OSError):
                path.unlink()


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]
