"""The write-ahead log of a file: its size, its whole frames, and whether none is missing."""

import os
import struct
from pathlib import Path

from cfs_server.journal.journal import StoreDamaged

PAGE, _WAL_MAGIC, WAL_HEADER, FRAME_HEADER = 4096, 0x377F0682, 32, 24


def size_of(path: Path) -> int:
    """Return the bytes of a file and of its write-ahead log."""
    return sum(part.stat().st_size for part in (path, wal_of(path)) if part.exists())


def wal_of(path: Path) -> Path:
    """Return the path of the write-ahead log of a file."""
    return path.with_name(f"{path.name}-wal")


def whole_frames(path: Path) -> int:
    """Return how many frames of the WAL belong to whole commits, as SQLite counts them when it opens the file.

    SQLite tells the number only when it copies them, which needs space. The format is in "WAL-mode File Format"
    (sqlite.org/walformat.html).
    """
    wal = wal_of(path)
    if not wal.exists():
        return 0
    committed = 0
    with wal.open("rb") as file:
        head = file.read(WAL_HEADER)
        if len(head) < WAL_HEADER:
            return 0
        order, salts = "<>"[head[3] & 1], head[16:24]
        page = int.from_bytes(head[8:12])
        total = _wal_checksum(order, head[:24])
        number = 0
        while len(frame := file.read(FRAME_HEADER + page)) == FRAME_HEADER + page and frame[8:16] == salts:
            total = _wal_checksum(order, frame[:8] + frame[FRAME_HEADER:], total)
            if total != struct.unpack(">2I", frame[16:24]):
                break
            number += 1
            if frame[4:8] != bytes(4):
                committed = number
    return committed


def require_whole_wal(path: Path, used: int) -> None:
    """Raise `StoreDamaged` if the WAL contains commits after the `used` frames that SQLite has accepted.

    SQLite ignores everything after a damaged frame. A power failure leaves the last commit incomplete, so damage to
    that one looks the same. Each commit before it was on the disk before the next one began.

    The last frame of a commit has its mark. Where that one is damaged, the next commit shows by a page that it writes
    again: within a commit SQLite writes a page twice only into the last frame.
    """
    wal = wal_of(path)
    if not wal.exists() or wal.stat().st_size < WAL_HEADER:
        return
    with wal.open("rb") as file:
        head = file.read(WAL_HEADER)
        magic, _, page, _, *salts = struct.unpack(">6I", head[:24])
        if magic & ~1 != _WAL_MAGIC or _wal_checksum("<>"[head[3] & 1], head[:24]) != struct.unpack(">2I", head[24:]):
            raise StoreDamaged("the header of its write-ahead log is damaged")
        file.seek(used * (FRAME_HEADER + page), os.SEEK_CUR)
        commits = 0
        written: set[int] = set()
        while len(header := file.read(FRAME_HEADER)) == FRAME_HEADER:
            page_number, marked_size, *frame_salts = struct.unpack(">4I", header[:16])
            file.seek(page, os.SEEK_CUR)
            if frame_salts != salts:
                continue
            if marked_size > 0 or page_number in written:
                commits += 1
                written.clear()
            if marked_size == 0:
                written.add(page_number)
    if commits > 1:
        raise StoreDamaged(f"its write-ahead log is damaged after frame {used}, and {commits} commits follow")


def _wal_checksum(order: str, data: bytes, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
