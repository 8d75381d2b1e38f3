"""A simulated disk that loses what was not synchronised.

`power_recorder.c` logs what a process writes below a directory. `Disk` replays a part of this log and knows at each
point which bytes and which names are certain to survive a power failure. Of all others any may survive: a file system
may write the sectors of a file in any order, and the changes of a directory in theirs.
"""

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

_HEADER = struct.Struct("<cQqII")
_SECTOR = 512

Survivors = Literal["none", "some", "all"]
"""What survives of that which was not synchronised."""


class Operation(NamedTuple):
    """A record of the log. `end` is the size of the log behind it."""

    kind: str
    inode: int
    offset: int
    path: str
    data: bytes
    end: int


def compiler() -> str | None:
    """Return the C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


@cache
def recorder() -> Path:
    """Compile the recorder, once for each version of it. Raises `FileNotFoundError` without a compiler."""
    program = compiler()
    if program is None:
        raise FileNotFoundError("there is no C compiler")
    source = Path(__file__).with_name("power_recorder.c")
    library = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cfs-bench" / "power_recorder.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        new = library.with_suffix(f".{os.getpid()}")
        subprocess.run([program, "-shared", "-fPIC", "-O1", "-o", str(new), str(source), "-ldl"], check=True)
        new.replace(library)
    return library


def recording(root: Path, log: Path) -> dict[str, str]:
    """The environment of a program whose writes below `root` are recorded."""
    root.mkdir(parents=True, exist_ok=True)
    return {"LD_PRELOAD": str(recorder()), "POWER_ROOT": str(root), "POWER_LOG": str(log)}


def read_log(log: bytes) -> Iterator[Operation]:
    """Yield the complete records of a log."""
    at = 0
    while at + _HEADER.size <= len(log):
        kind, inode, offset, path, data = _HEADER.unpack_from(log, at)
        middle, end = at + _HEADER.size + path, at + _HEADER.size + path + data
        if end > len(log):
            return
        yield Operation(kind.decode(), inode, offset, log[middle - path : middle].decode(), log[middle:end], end)
        at = end


@dataclass(eq=False)
class _File:
    """The content that is certain, and the writes and truncations since then."""

    inode: int
    certain: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def content(self, survivors: Survivors, draw: random.Random) -> bytes:
        """Return what is there after a power failure."""
        content = bytearray(self.certain)
        for offset, data in self.pending:
            if survivors == "none":
                break
            for start, piece in _sectors(offset, data):
                if survivors == "all" or draw.random() < 0.5:
                    _change(content, start, piece)
        return bytes(content)

    def sync(self) -> None:
        for offset, data in self.pending:
            _change(self.certain, offset, data)
        self.pending.clear()


def _sectors(offset: int, data: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    if data is None:
        yield offset, None
        return
    at = 0
    while at < len(data):
        size = _SECTOR - (offset + at) % _SECTOR
        yield offset + at, data[at : at + size]
        at += size


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write data at an offset; None cuts or fills the file to this size."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


@dataclass(eq=False)
class _Directory:
    """The names that are certain, and the changes since then in order. A change is a name and what has it then."""

    certain: dict[str, "_Node"] = field(default_factory=dict)
    now: dict[str, "_Node"] = field(default_factory=dict)
    pending: list[list[tuple[str, "_Node | None"]]] = field(default_factory=list)
    """Each is a list of changes that are made together."""

    def change(self, *changes: tuple[str, "_Node | None"]) -> None:
        """Change names, all of them or none."""
        self.pending.append(list(changes))
        _apply(self.now, changes)

    def sync(self) -> None:
        self.certain = dict(self.now)
        self.pending.clear()

    def names(self, survivors: Survivors, draw: random.Random) -> dict[str, "_Node"]:
        """Return the names after a power failure: a file system writes these changes in their order."""
        names = dict(self.certain)
        kept = {"none": 0, "some": draw.randint(0, len(self.pending)), "all": len(self.pending)}[survivors]
        for changes in self.pending[:kept]:
            _apply(names, changes)
        return names


_Node = _File | _Directory


def _apply(names: dict[str, _Node], changes: Sequence[tuple[str, "_Node | None"]]) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """The files below a directory, as a part of the log leaves them."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self._top = _Directory()
        self._files: dict[int, _File] = {}
        self._flushed_ahead: set[str] = set()
        """Directories that a thread flushed while another one gave them this name: the log has the flush first."""

    def replay(self, operations: Sequence[Operation]) -> None:
        """Do what a process did."""
        for operation in operations:
            self._do(operation)

    def _do(self, operation: Operation) -> None:
        match operation.kind:
            case "O":
                self._open(operation)
            case "W":
                self._files[operation.inode].pending.append((operation.offset, operation.data))
            case "T":
                self._files[operation.inode].pending.append((operation.offset, None))
            case "S" if operation.inode in self._files:
                self._files[operation.inode].sync()
            case "M":
                self._directory(operation.path)
            case "D":
                self._flush(operation.path)
            case "L" if operation.inode in self._files:
                folder, name = self._place(operation.path)
                folder.change((name, self._files[operation.inode]))
            case "R":
                self._rename(*self._place(operation.path), *self._place(operation.data.decode()))
                if operation.data.decode() in self._flushed_ahead:
                    self._flush(operation.data.decode())
            case "U":
                folder, name = self._place(operation.path)
                folder.change((name, None))

    def _flush(self, path: str) -> None:
        self._flushed_ahead.discard(path)
        if path != self._root:
            above, name = self._place(path)
            if not isinstance(above.now.get(name), _Directory):
                self._flushed_ahead.add(path)
                return
        self._directory(path).sync()

    def _open(self, operation: Operation) -> None:
        folder, name = self._place(operation.path)
        known = folder.now.get(name)
        if not isinstance(known, _File) or known.inode != operation.inode:
            known = self._files[operation.inode] = _File(operation.inode)
            if not name.endswith(" (deleted)"):  # the kernel's mark of a file without a name
                folder.change((name, known))
        if operation.offset == 0:
            known.pending.append((0, None))

    def _rename(self, source: _Directory, old: str, target: _Directory, new: str) -> None:
        node = source.now.get(old)
        if node is None:
            return
        if source is target:
            source.change((old, None), (new, node))
        else:
            target.change((new, node))
            source.change((old, None))

    def _directory(self, path: str) -> _Directory:
        """Return a directory, which was made if it is new."""
        found = self._top
        for name in Path(os.path.relpath(path, self._root)).parts:
            below = found.now.get(name)
            if not isinstance(below, _Directory):
                below = _Directory()
                found.change((name, below))
            found = below
        return found

    def _place(self, path: str) -> tuple[_Directory, str]:
        folder, _, name = path.rpartition("/")
        return self._directory(folder), name

    def cut(self, folder: Path, survivors: Survivors, draw: random.Random) -> None:
        """Cut the power, and write what is there afterwards to another folder."""
        self._write(self._top, folder, survivors, draw)

    def _write(self, directory: _Directory, folder: Path, survivors: Survivors, draw: random.Random) -> None:
        folder.mkdir(exist_ok=True)
        for name, node in directory.names(survivors, draw).items():
            if isinstance(node, _Directory):
                self._write(node, folder / name, survivors, draw)
            else:
                (folder / name).write_bytes(node.content(survivors, draw))
