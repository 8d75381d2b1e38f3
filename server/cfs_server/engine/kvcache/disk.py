"""The disk tier of the cache, below the device and memory; used if a folder is given.

State consists of bytes that are valid only for the same model, library build and settings. A fingerprint identifies
these.
"""

import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as lib

from cfs_server.engine.kvcache.radix_tree import Blob, DiskUsage, Node, StateFile, owner_of, spelled
from cfs_server.engine.kvcache.state_archive import Done, StateArchive, StateWrite
from cfs_server.engine.kvcache.state_file import StateHeader
from cfs_server.engine.kvcache.state_folder import LEAST_FREE, Folder, FolderRefused, SavedState, label_of, new_name
from cfs_server.engine.llama.model import LoadedModel

# The state that a turn leaves in memory is written in the background. A turn whose prompt continues state that is only
# on disk waits until the state is read, while other turns run. On each hit the file must have the same owner, positions
# and tokens as the tree. A file that differs or is damaged is removed, and the state is computed again.

_HEAD_BYTES, _PIECE_BYTES = 512, 64
"""The largest size of a head without its tokens, and for each piece; the limit counts these sizes."""


class DiskTier:
    """Records the files and sends jobs to their thread; without an archive nothing is ever on disk."""

    def __init__(self, archive: StateArchive | None = None, limit: int = 0) -> None:
        self.books = DiskUsage(limit)
        self.reads = self.problems = 0
        self._archive = archive
        self._named: dict[str, StateFile] = {}
        self._order: list[str] = []
        self._due: dict[Node, None] = {}
        """Nodes that wait until others are written."""
        self._has_results = False

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
            "disk_pending_bytes": float(self._archive.pending),
            "disk_limit_bytes": float(self.books.limit),
            "disk_reads": float(self.reads),
            "disk_refused": float(self._archive.refused + self.problems),
        }

    def found(self) -> list[SavedState]:
        """Add the previous worker's files, ordered by their first position, so parents precede their children.

        The file of a parent may end behind that of its child: its run was cut after it was written.
        """
        if self._archive is None:
            return []
        files, self._archive.found = self._archive.found, []
        self._order = [file.name for file in files]
        return sorted(files, key=lambda file: (file.head.start, file.head.end))

    def recover(self, file: SavedState, node: Node) -> None:
        """Attach a file of a previous worker to a node."""
        size = _booked(file.head.end, file.head.state_bytes, len(file.head.pieces))
        entry = StateFile(file.head.start, file.head.end, size, file.name, written=True)
        self._named[entry.name] = entry
        self.books.add(entry, node)

    def put_in_order(self) -> None:
        """Count files as used when they were, after all are recovered."""
        for name in self._order:
            if name in self._named:
                self.books.touch(self._named[name])
        self._order.clear()

    def refuse(self, file: SavedState) -> None:
        """Remove a file that is of no use."""
        if self._archive is not None:
            self._archive.remove(file.name)

    def write(self, node: Node, blob: Blob | None) -> None:
        """Have a node's state written, if it is not on disk and may be."""
        if self._archive is None or node.disk is not None or blob is None or blob.end != node.end:
            return
        if blob.start not in (0, node.start):
            return  # a run that was cut after it was saved: its upper part has the file
        tokens, size = spelled(node), _booked(node.end, blob.size, len(blob.data))
        if size > self.books.limit:
            return
        name = new_name()
        order = StateWrite(name, owner_of(node), tuple(sorted(node.sessions)), blob.start, tokens, blob.data, size)
        if self._archive.write(order):
            entry = self._named[name] = StateFile(blob.start, blob.end, size, name)
            self.books.add(entry, node)
        else:
            self._due[node] = None

    def take_due(self) -> list[Node]:
        """Return the nodes that could not be written, if there were results since the last call."""
        if not self._has_results:
            return []
        due, self._due, self._has_results = list(self._due), {}, False
        return due

    def free(self, node: Node) -> None:
        """Detach a node from its file; the file is removed with its last node."""
        self._due.pop(node, None)
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

    def results(self) -> Iterator[tuple[StateFile, Blob | None]]:
        """Yield the files that were read, with their state, and without it those that must be given up."""
        for result in self._archive.results() if self._archive is not None else ():
            self._has_results = True
            entry = self._named.get(result.name)
            if entry is None:
                continue  # all its nodes are removed
            entry.written |= result.head is None and not result.problem
            if result.head is not None:
                entry.reading = False
            blob = _blob(entry, result)
            if blob is not None:
                self.reads += 1
                self.books.touch(entry)
                yield entry, blob
            elif result.problem or result.head is not None:
                self.problems += 1
                yield entry, None

    def drain(self, seconds: float) -> bool:
        """Write all pending state at once; false if that takes longer. Called from any thread."""
        return self._archive is None or self._archive.drain(seconds)

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


def _blob(entry: StateFile, done: Done) -> Blob | None:
    """Make a copy in memory of a file that matches the records."""
    head = done.head
    if head is None or not done.pieces or not _fits(entry, head):
        return None
    size = sum(piece.state.nbytes for piece in done.pieces)
    return Blob(head.start, head.end, size, done.pieces, users=0)


def _fits(entry: StateFile, head: StateHeader) -> bool:
    node = max(entry.nodes, key=lambda item: item.end)
    tokens = spelled(node)
    same = np.array_equal(head.tokens[: len(tokens)], tokens)
    return same and (head.owner, head.start, head.end) == (owner_of(node), entry.start, entry.end)


def _booked(tokens: int, state_bytes: int, pieces: int) -> int:
    return _HEAD_BYTES + _PIECE_BYTES * pieces + 4 * tokens + state_bytes


_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16
_PATIENCE_SECONDS = 5.0
"""A worker whose server was killed may take this long to end."""


@dataclass(frozen=True, slots=True)
class DiskProgress:
    """To the scheduler: the disk has done something."""


def open_disk(model: LoadedModel, wake: Callable[[], None], warn: Callable[[str], None]) -> DiskTier:
    """Open the configured folder, if any; log a folder that cannot be used, and continue without it."""
    options = model.options
    if not options.disk:
        return DiskTier()
    try:
        folder = Folder(
            Path(options.disk),
            fingerprint(model),
            label_of(Path(model.path)),
            patience=_PATIENCE_SECONDS,
            least_free=LEAST_FREE,
        )
        archive = StateArchive(folder, wake, options.disk_rate)
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
        (plan.family, plan.policy, plan.window, plan.flash_attention, plan.extra_buffers, plan.kv_type),
        (context.partial, context.window, context.cell_bytes, context.state_bytes),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _file(path: Path) -> tuple[int, int, str]:
    """Look at samples of a file that may be too large to be read as a whole; its time of change counts too."""
    state, digest = path.stat(), hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(state.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return state.st_size, state.st_mtime_ns, digest.hexdigest()
