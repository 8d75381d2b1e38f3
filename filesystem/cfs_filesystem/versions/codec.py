"""How contents are encoded: zstd, with an earlier version as dictionary, and content-defined chunks of large files.

What two versions have in common at their beginning and end is not compressed again: with 1 MB of text in which one line
changes, zstd alone takes 2.6 ms and 176 bytes with the previous version as a raw dictionary.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import zstandard
from fastcdc import fastcdc

from cfs_filesystem.versions.model import DamagedVersionError, Entry

LARGE = 8 << 20
"""Contents of more bytes are stored in chunks."""
STRIDE = 64
"""Versions between two keys. A key is encoded against the key before it, other versions against the version before."""
FULL = STRIDE * STRIDE
"""Versions between two that need no other one. So at most 126 versions are decoded to read one."""

_LEVEL = 3
_BUFFER = 32 << 20
_CHUNK, _MAX_CHUNK = 64 << 10, 512 << 10
_NEAR = 4 << 10
_HEAD = struct.Struct(">II")
"""The lengths of the common beginning and of the common end."""
_WINDOW = range(zstandard.WINDOWLOG_MIN, 28)


class Basis(NamedTuple):
    """What a content is encoded against: the id of a stored content, the step after that, and its bytes."""

    id: int | None = None
    step: int = 0
    dictionary: bytes | None = None


def basis_after(content: int, step: int, data: bytes, key: Callable[[], tuple[int, bytes] | None]) -> Basis:
    """Choose what the content that follows another one, with this id, step and bytes, is encoded against.

    `key` finds the id and the bytes of the last key; None if it was removed. It is called once in `STRIDE` versions.
    """
    following = step + 1
    if following % STRIDE:
        return Basis(content, following, data)
    if following % FULL == 0 or (last := key()) is None:
        return Basis()
    return Basis(last[0], following, last[1])


def encode(content: bytes, base: bytes | None = None) -> bytes:
    """Compress a content. With the content of a base, only what is between their common beginning and end is."""
    if not base:
        return zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    beginning = _common(content, base)
    end = _common_end(content[beginning:], base[beginning:])
    middle = content[beginning : len(content) - end]
    head = _HEAD.pack(beginning, end)
    if not middle:
        return head
    dictionary = _dictionary(base, beginning, end, len(middle))
    window = min(max((len(middle) + len(dictionary)).bit_length(), _WINDOW.start), _WINDOW.stop - 1)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(middle), dict_size=len(dictionary), window_log=window
    )
    raw = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return head + zstandard.ZstdCompressor(compression_params=parameters, dict_data=raw).compress(middle)


def decode(encoded: bytes, size: int, base: bytes | None = None) -> bytes:
    """Return a content of `size` bytes. Raises `ValueError` or `zstandard.ZstdError` if the bytes are damaged."""
    if base is None:
        return zstandard.ZstdDecompressor().decompress(encoded, max_output_size=size)
    if len(encoded) < _HEAD.size:
        raise ValueError("it is too short")
    beginning, end = _HEAD.unpack_from(encoded)
    length = size - beginning - end
    middle = b""
    if length > 0:
        dictionary = _dictionary(base, beginning, end, length)
        raw = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        decompressor = zstandard.ZstdDecompressor(dict_data=raw, max_window_size=1 << _WINDOW.stop)
        middle = decompressor.decompress(encoded[_HEAD.size :], max_output_size=length)
    return base[:beginning] + middle + base[len(base) - end :]


def decode_chain(chain: Iterable[tuple[int, bytes]]) -> bytes:
    """Decode a content: the last of a chain of sizes and encoded bytes, each of which is the dictionary of the next.

    Raises `DamagedVersionError`.
    """
    content: bytes | None = None
    for size, data in chain:
        try:
            content = decode(data, size, content)
        except (ValueError, zstandard.ZstdError) as error:
            raise DamagedVersionError(f"a stored version is damaged: {error}") from None
    return content or b""


def verified(content: BinaryIO, entry: Entry) -> BinaryIO:
    """Return the content of an entry, at its beginning. Closes it and raises `DamagedVersionError` if it is another."""
    if hashlib.file_digest(cast("Any", content), "sha256").hexdigest() != entry.digest:
        content.close()
        raise DamagedVersionError(f"the content of {entry.path!r} at {entry.number} is damaged")
    content.seek(0)
    return content


def _dictionary(base: bytes, beginning: int, end: int, length: int) -> bytes:
    """Return what of a base is the dictionary of `length` bytes: what is near, or all if they are many."""
    if length > _NEAR:
        return base
    return base[max(0, beginning - _NEAR) : len(base) - max(0, end - _NEAR)][: 4 * _NEAR]


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the common beginning, by comparing halves, which is faster than comparing bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def chunks(beginning: bytes, source: BinaryIO) -> Iterator[bytes]:
    """Cut a beginning and the stream after it where their content says, so that an insertion changes few chunks."""
    buffer = beginning
    while True:
        piece = source.read(_BUFFER)
        buffer += piece
        if not buffer:
            return
        cuts = [chunk.length for chunk in fastcdc(buffer, avg_size=_CHUNK, max_size=_MAX_CHUNK)]
        start = 0
        for length in cuts[:-1] if piece else cuts:  # the end of the buffer has cut the last one
            yield buffer[start : start + length]
            start += length
        buffer = buffer[start:]
        if not piece:
            return
