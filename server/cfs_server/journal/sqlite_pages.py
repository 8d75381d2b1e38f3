"""Reads the rows of a file of SQLite page by page, in the file and in its write-ahead log, damaged or not.

The format is that of SQLite's documentation. Some of the rows may be wrong: whoever takes them checks them.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cfs_server.journal.sqlite_wal import FRAME_HEADER, PAGE, WAL_HEADER

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02


_WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8}


_CONSTANTS = {0: None, 8: 0, 9: 1}


UNREADABLE = (IndexError, KeyError, ValueError, TypeError, struct.error, RecursionError)


class Pages:
    """All images of the pages of a file: those in the file, then those in its WAL."""

    def __init__(self, path: Path) -> None:
        data, log = _mapped(path), _mapped(path.with_name(f"{path.name}-wal"))
        self._size = len(data) + len(log)
        self._images: dict[int, list[memoryview]] = {}
        for number, at in enumerate(range(0, len(data), PAGE), 1):
            self._images.setdefault(number, []).append(data[at : at + PAGE])
        salts = log[WAL_HEADER + 8 : WAL_HEADER + 16]
        for at in range(WAL_HEADER, len(log), FRAME_HEADER + PAGE):
            if log[at + 8 : at + 16] == salts:
                (number,) = struct.unpack_from(">I", log, at)
                self._images.setdefault(number, []).append(log[at + FRAME_HEADER : at + FRAME_HEADER + PAGE])

    def cells(self) -> Iterator[tuple[int | None, list[Any]]]:
        """Yield the rows of all images of all pages, with their rowid if they are of a table. Some may be wrong."""
        for number, images in self._images.items():
            for image in images:
                yield from self._cells_of(bytes(image), 100 if number == 1 else 0)

    def _cells_of(self, page: bytes, at: int) -> Iterator[tuple[int | None, list[Any]]]:
        if len(page) < PAGE or page[at] not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        kind, (count,) = page[at], struct.unpack_from(">H", page, at + 3)
        pointers = at + (12 if kind == _INDEX_INTERIOR else 8)
        for cell in range(min(count, (PAGE - pointers) // 2)):
            with suppress(*UNREADABLE):
                (start,) = struct.unpack_from(">H", page, pointers + 2 * cell)
                yield from self._cell(page, kind, start + (4 if kind == _INDEX_INTERIOR else 0))

    def _cell(self, page: bytes, kind: int, at: int) -> Iterator[tuple[int | None, list[Any]]]:
        size, at = _varint(page, at)
        rowid: int | None = None
        max_local = (PAGE - 12) * 64 // 255 - 23
        if kind == _TABLE_LEAF:
            (rowid, at), max_local = _varint(page, at), PAGE - 35
        min_local = (PAGE - 12) * 32 // 255 - 23
        local = min_local + (size - min_local) % (PAGE - 4)
        if size > self._size:
            raise ValueError("the row is longer than the file")
        if size <= max_local:
            yield rowid, _values(page[at : at + size])
            return
        local = local if local <= max_local else min_local
        (overflow,) = struct.unpack_from(">I", page, at + local)
        for which in (-1, 0):  # the newest images of the other pages, then the oldest ones
            yield rowid, _values(page[at : at + local] + self._overflow(overflow, size - local, which))

    def _overflow(self, number: int, size: int, which: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            page = self._images[number][which]
            (number,) = struct.unpack_from(">I", page)
            content += page[4 : 4 + min(size - len(content), PAGE - 4)]
        return bytes(content)


def _mapped(path: Path) -> memoryview:
    if not path.exists() or not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for position in range(at, at + 8):
        value = (value << 7) | (data[position] & 0x7F)
        if data[position] < 0x80:
            return value, position + 1
    return (value << 8) | data[at + 8], at + 9


def _values(payload: bytes) -> list[Any]:
    """Return the columns of a row."""
    end, at = _varint(payload, 0)
    body, values = end, []
    while at < end:
        kind, at = _varint(payload, at)
        size = _WIDTHS.get(kind, max(kind - 12, 0) // 2)
        data, body = payload[body : body + size], body + size
        if len(data) < size:
            raise ValueError("the row is longer than its page")
        values.append(_value(kind, data))
    return values


def _value(kind: int, data: bytes) -> Any:
    if kind >= 12:
        return data.decode() if kind % 2 else data
    if kind == 7:
        return struct.unpack(">d", data)[0]
    return _CONSTANTS[kind] if kind in _CONSTANTS else int.from_bytes(data, "big", signed=True)
