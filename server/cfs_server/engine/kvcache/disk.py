"""The state on disk of one worker: its files, their folder, and a thread that reads and writes them.

State consists of bytes that are valid only for the same model, library build and settings. A fingerprint identifies
these.
"""

import fcntl
import hashlib
import json
import os
import platform
import queue
import secrets
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs_server.engine.kvcache.radix_tree import Blob, Disk, Entry, Node, owner_of, spelled
from cfs_server.engine.llama.model import LoadedModel

# -- the format of a state file: every part is checked before it is used ----------------------------------------------
#
#     magic, length of the head (4 bytes), head (JSON), tokens (int32), digest of all that, state
#
# The head contains the fingerprint (model, build, settings), the owner, the sessions, the positions, and the length and
# checksum of each piece of state. The tokens begin at the first position. They identify the state.

MAGIC = b"CFS state 1\n"
_LENGTH = struct.Struct(">I")
_MOST = 64 << 20
SLICE = 1 << 20
"""Bytes that are written, read or summed at once; other threads run meanwhile."""

State = NDArray[np.uint8]


class BadFile(Exception):
    """The file is incomplete, damaged or foreign; the error's text gives the reason."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Saved state of the positions from `start` to `end`."""

    start: int
    end: int
    state: State


@dataclass(frozen=True, slots=True)
class Head:
    """The metadata of a file."""

    fingerprint: str
    owner: str
    sessions: tuple[str, ...]
    start: int
    end: int
    tokens: NDArray[np.int32]
    """From position 0 to `end`."""
    pieces: tuple[tuple[int, int, int, int], ...]
    """Start, end, bytes and checksum of each piece of state."""

    @property
    def state_bytes(self) -> int:
        """Bytes behind the head."""
        return sum(piece[2] for piece in self.pieces)

    def encode(self) -> bytes:
        """Write the head down."""
        facts = [self.fingerprint, self.owner, self.sessions, self.start, self.end, len(self.tokens), self.pieces]
        body = json.dumps(facts).encode()
        start = MAGIC + _LENGTH.pack(len(body)) + body + self.tokens.astype("<i4").tobytes()
        return start + hashlib.sha256(start).digest()


def describe(pieces: Sequence[Piece]) -> tuple[tuple[int, int, int, int], ...]:
    """Sum up pieces for a head."""
    return tuple((piece.start, piece.end, len(piece.state), _checksum(piece.state)) for piece in pieces)


def slices(state: State) -> Iterator[memoryview]:
    """Cut state for writing."""
    view = state.data
    for place in range(0, len(state), SLICE):
        yield view[place : place + SLICE]


def read_head(file: FileIO) -> Head:
    """Read the head of a file; raises `BadFile`."""
    try:
        return _read_head(file)
    except (ValueError, TypeError, KeyError) as error:
        raise BadFile(f"the head makes no sense: {error}") from error


def _read_head(file: FileIO) -> Head:
    start = _exactly(file, len(MAGIC) + _LENGTH.size)
    if not start.startswith(MAGIC):
        raise BadFile("it is no state file of this version")
    (length,) = _LENGTH.unpack(start[len(MAGIC) :])
    if length > _MOST:
        raise BadFile("the head is too long")
    body = _exactly(file, length)
    fingerprint, owner, sessions, begin, end, count, pieces = json.loads(body)
    if not isinstance(count, int) or not 0 < count <= _MOST // 4:
        raise BadFile("the head makes no sense")
    raw = _exactly(file, 4 * count)
    if hashlib.sha256(start + body + raw).digest() != _exactly(file, 32):
        raise BadFile("the head is damaged")
    tokens = np.frombuffer(raw, dtype="<i4").astype(np.int32)
    rows = tuple((int(left), int(right), int(size), int(check)) for left, right, size, check in pieces)
    head = Head(str(fingerprint), str(owner), tuple(map(str, sessions)), int(begin), int(end), tokens, rows)
    if not 0 <= head.start < head.end == len(tokens):
        raise BadFile("the head makes no sense")
    return head


def read_pieces(file: FileIO, head: Head) -> Iterator[Piece]:
    """Read the state behind a head; raises `BadFile`."""
    for start, end, size, check in head.pieces:
        state = np.empty(size, dtype=np.uint8)
        view = state.data
        for place in range(0, size, SLICE):
            _fill(file, view[place : place + SLICE])
        if _checksum(state) != check:
            raise BadFile("the state is damaged")
        yield Piece(start, end, state)


def _checksum(state: State) -> int:
    check = 0
    for part in slices(state):
        check = zlib.crc32(part, check)
    return check


def _exactly(file: FileIO, count: int) -> bytes:
    data = bytearray(count)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: FileIO, view: memoryview) -> None:
    while len(view):
        count = file.readinto(view)
        if not count:
            raise BadFile("it ends too early")
        view = view[count:]


# -- the folder of the state files ------------------------------------------------------------------------------------
#
# One worker at a time uses it. No other user may access it, and each file is checked before use.

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


# -- the I/O thread: writes, reads and removes state files in order, beside the engine's thread -----------------------
#
# I/O and checksums release the interpreter lock every mebibyte, so no step waits for them.

MOST_PENDING = 256 << 20
"""Bytes that may wait to be written: they are in memory until then, beyond the limit of that."""


@dataclass(frozen=True, slots=True)
class Write:
    """State to be written, and whose it is."""

    name: str
    owner: str
    sessions: tuple[str, ...]
    start: int
    tokens: NDArray[np.int32]
    pieces: Sequence[Piece]
    size: int


@dataclass(frozen=True, slots=True)
class Done:
    """The result for a file: it was written (no `head`), read, or there is a `problem`."""

    name: str
    head: Head | None = None
    pieces: tuple[Piece, ...] = ()
    problem: str = ""


_Task = Write | tuple[str, str] | None
"""A file to write; "read" or "remove" and a name; or the end."""


class Archive:
    """Takes tasks from the engine's thread; `wake` is called from this one when a result is there."""

    def __init__(self, folder: Folder, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self._folder = folder
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="state files", daemon=True)
        self.found: list[Found]
        self.found, self.refused = folder.sweep()
        self._thread.start()

    def write(self, order: Write) -> bool:
        """Write a file in time; false when too much waits already."""
        with self._lock:
            if self._pending and self._pending + order.size > MOST_PENDING:
                return False
            self._pending += order.size
        self._tasks.put(order)
        return True

    def read(self, name: str) -> None:
        """Read a file in time."""
        self._tasks.put(("read", name))

    def remove(self, name: str) -> None:
        """Remove a file in time."""
        self._tasks.put(("remove", name))

    def results(self) -> list[Done]:
        """Return the results since the last call; removals have none."""
        results = []
        while not self._done.empty():
            results.append(self._done.get())
        return results

    def close(self) -> None:
        """Finish all tasks and release the folder for another worker."""
        self._tasks.put(None)
        self._thread.join()
        self._folder.close()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            match task:
                case Write():
                    self._tell(self._write(task))
                case ("read", name):
                    self._tell(self._read(name))
                case (_, name):
                    self._remove(name)

    def _tell(self, done: Done) -> None:
        self._done.put(done)
        self.wake()

    def _write(self, order: Write) -> Done:
        try:
            head = Head(
                self._folder.fingerprint,
                order.owner,
                order.sessions,
                order.start,
                len(order.tokens),
                order.tokens,
                describe(order.pieces),
            )
            self._folder.write(head, order.pieces, order.name)
        except OSError as error:
            return Done(order.name, problem=f"cannot be written: {(error.strerror or str(error)).lower()}")
        finally:
            with self._lock:
                self._pending -= order.size
        return Done(order.name)

    def _read(self, name: str) -> Done:
        try:
            head, pieces = self._folder.read(name)
        except (OSError, BadFile) as error:
            return Done(name, problem=f"cannot be read: {error}")
        return Done(name, head, pieces)

    def _remove(self, name: str) -> None:
        try:
            self._folder.remove(name)
        except OSError:
            return  # it is found, and refused or used, when the next worker starts


# -- the disk tier, below the device and memory; used if a folder is given --------------------------------------------
#
# The state that a turn leaves in memory is written in the background. A turn whose prompt continues state that is only
# on disk waits until the state is read, while other turns run. On each hit the file must have the same owner, positions
# and tokens as the tree. A file that differs or is damaged is removed, and the state is computed again.

_HEAD_BYTES, _PIECE_BYTES = 512, 64
"""The largest size of a head without its tokens, and for each piece; the limit counts these sizes."""


class DiskTier:
    """Records the files and sends jobs to their thread; without an archive nothing is ever on disk."""

    def __init__(self, archive: Archive | None = None, limit: int = 0) -> None:
        self.books = Disk(limit)
        self.reads = self.problems = 0
        self._archive = archive
        self._named: dict[str, Entry] = {}
        self._order: list[str] = []

    @property
    def on(self) -> bool:
        """Whether there is a disk."""
        return self._archive is not None

    def gauges(self) -> dict[str, float]:
        """Return the amount of stored state, for `/metrics`."""
        if self._archive is None:
            return {}
        return {
            "disk_bytes": float(self.books.used),
            "disk_files": float(len(self.books)),
            "disk_limit_bytes": float(self.books.limit),
            "disk_reads": float(self.reads),
            "disk_refused": float(self._archive.refused + self.problems),
        }

    def found(self) -> list[Found]:
        """Add the previous worker's files, shortest prompts first, so parents precede their children."""
        if self._archive is None:
            return []
        found, self._archive.found = self._archive.found, []
        self._order = [file.name for file in found]
        return sorted(found, key=lambda file: file.head.end)

    def recover(self, file: Found, node: Node) -> None:
        """Attach a file of a previous worker to a node."""
        size = _booked(file.head.end, file.head.state_bytes, len(file.head.pieces))
        entry = Entry(file.head.start, file.head.end, size, file.name)
        self._named[entry.name] = entry
        self.books.add(entry, node)

    def put_in_order(self) -> None:
        """Count files as used when they were, after all are recovered."""
        for name in self._order:
            if name in self._named:
                self.books.touch(self._named[name])
        self._order.clear()

    def refuse(self, file: Found) -> None:
        """Remove a file that is of no use."""
        if self._archive is not None:
            self._archive.remove(file.name)

    def write(self, node: Node) -> None:
        """Have a node's state in memory written, if it is not on disk and may be."""
        blob = node.memory
        if self._archive is None or node.disk is not None or blob is None or blob.end != node.end:
            return
        if blob.start not in (0, node.start):
            return  # a run that was cut after it was saved: its upper part has the file
        tokens, size = spelled(node), _booked(node.end, blob.size, len(blob.data))
        if size > self.books.limit:
            return
        name = new_name()
        order = Write(name, owner_of(node), tuple(sorted(node.sessions)), blob.start, tokens, blob.data, size)
        if self._archive.write(order):
            entry = self._named[name] = Entry(blob.start, blob.end, size, name)
            self.books.add(entry, node)

    def free(self, node: Node) -> None:
        """Detach a node from its file; the file is removed with its last node."""
        entry = self.books.free(node)
        if entry is not None and self._archive is not None:
            del self._named[entry.name]
            self._archive.remove(entry.name)

    def fetch(self, nodes: Iterable[Node]) -> bool:
        """Request the state of some nodes that is only on disk; return whether a read is pending."""
        entries = {node.disk for node in nodes if not node.near and node.disk is not None}
        for entry in entries:
            if not entry.reading and self._archive is not None:
                entry.reading = True
                self._archive.read(entry.name)
        return bool(entries)

    def results(self) -> Iterator[tuple[Entry, Blob | None]]:
        """Yield the files that were read, with their state, and without it those that must be given up."""
        for done in self._archive.results() if self._archive is not None else ():
            entry = self._named.get(done.name)
            if entry is None:
                continue  # all its nodes are removed
            if done.head is not None:
                entry.reading = False
            blob = _blob(entry, done)
            if blob is not None:
                self.reads += 1
                self.books.touch(entry)
                yield entry, blob
            elif done.problem or done.head is not None:
                self.problems += 1
                yield entry, None

    def close(self) -> None:
        """Write all pending state and release the folder."""
        if self._archive is not None:
            self._archive.close()

    def check_integrity(self, nodes: Sequence[Node]) -> list[str]:
        """Compare the records with the nodes and with each other; every line is a violation."""
        problems = self.books.check_integrity(nodes)
        if set(self._named.values()) != set(self.books.oldest()):
            problems.append("files and their names do not agree")
        return problems


def _blob(entry: Entry, done: Done) -> Blob | None:
    """Make a copy in memory of a file that matches the records."""
    head = done.head
    if head is None or not done.pieces or not _fits(entry, head):
        return None
    size = sum(piece.state.nbytes for piece in done.pieces)
    return Blob(head.start, head.end, size, done.pieces, users=0)


def _fits(entry: Entry, head: Head) -> bool:
    node = max(entry.nodes, key=lambda each: each.end)
    tokens = spelled(node)
    same = np.array_equal(head.tokens[: len(tokens)], tokens)
    return same and (head.owner, head.start, head.end) == (owner_of(node), entry.start, entry.end)


def _booked(tokens: int, state_bytes: int, pieces: int) -> int:
    return _HEAD_BYTES + _PIECE_BYTES * pieces + 4 * tokens + state_bytes


_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


@dataclass(frozen=True, slots=True)
class Woken:
    """To the scheduler: the disk has done something."""


def open_disk(model: LoadedModel, wake: Callable[[], None], warn: Callable[[str], None]) -> DiskTier:
    """Open the configured folder, if any; log a folder that cannot be used, and continue without it."""
    options = model.options
    if not options.disk:
        return DiskTier()
    try:
        archive = Archive(Folder(Path(options.disk), fingerprint(model)), wake)
    except (FolderRefused, OSError) as error:
        warn(f"nothing is kept on disk: {error}")
        return DiskTier()
    if archive.refused:
        warn(f"{archive.refused} state files were torn, or of another model, build or setting, and are removed")
    return DiskTier(archive, options.disk_bytes)


def fingerprint(model: LoadedModel) -> str:
    """Return the fingerprint of the state: the model's file, the library and its native code, the pool's settings."""
    plan, context = model.plan, model.context
    library = Path(llama_cpp.__file__).parent / "lib"
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in library.iterdir())
    facts = (
        _file(Path(model.path)),
        (llama_cpp.__version__, files, platform.machine()),
        lib.llama_print_system_info(),
        (plan.family, plan.policy, plan.window, plan.flash_attention, plan.extra_buffers),
        (context.partial, context.window, context.cell_bytes, context.state_bytes),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _file(path: Path) -> tuple[int, int, str]:
    """Look at samples of a file that may be too large to be read as a whole; its time of change counts too."""
    found, digest = path.stat(), hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(found.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return found.st_size, found.st_mtime_ns, digest.hexdigest()
