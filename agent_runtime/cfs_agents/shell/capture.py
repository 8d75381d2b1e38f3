"""The part of an output that is kept in memory: its beginning and its end."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapturedText:
    """An output as text. `left_out` bytes are missing in the middle; `binary` is true if some bytes were not text."""

    text: str
    left_out: int
    binary: bool


class Capture:
    """Keeps about `keep` bytes of an output: two thirds from its beginning, one third from its end."""

    def __init__(self, keep: int) -> None:
        self.total = 0
        self._most_head = keep - keep // 3
        self._most_tail = keep // 3
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def left_out(self) -> int:
        """Number of bytes that are not kept."""
        return self.total - len(self._head) - len(self._tail)

    def overflows(self, more: int) -> bool:
        """Whether `more` bytes would be too many to keep all."""
        return self.total + more > self._most_head + self._most_tail

    def feed(self, data: bytes) -> None:
        """Add the next bytes."""
        self.total += len(data)
        room = self._most_head - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._most_tail :] if self._most_tail else b""
        if self.overflows(0):
            del self._tail[: max(0, len(self._tail) - self._most_tail)]

    def held(self) -> bytes:
        """Return the kept bytes."""
        return bytes(self._head + self._tail)

    def shown(self) -> CapturedText:
        """Return the output as text, cut at ends of lines if possible; bytes that are not UTF-8 are replaced."""
        if not self.left_out:
            return _decoded(self.held(), b"", 0)
        head, tail = bytes(self._head), bytes(self._tail)
        end, begin = head.rfind(b"\n") + 1, tail.find(b"\n") + 1
        head = head[:end] if end > len(head) // 2 else _whole_characters(head)
        if not 0 < begin <= len(tail) // 2:
            begin = next((at for at in range(min(4, len(tail))) if tail[at] & 0xC0 != 0x80), 0)
        tail = tail[begin:]
        return _decoded(head, tail, self.total - len(head) - len(tail))


def _decoded(head: bytes, tail: bytes, left_out: int) -> CapturedText:
    texts = [piece.decode("utf-8", "replace") for piece in (head, tail)]
    binary = b"\0" in head + tail or any(
        text.encode() != piece for text, piece in zip(texts, (head, tail), strict=True)
    )
    if not left_out:
        return CapturedText(texts[0], 0, binary)
    first = texts[0] if texts[0].endswith("\n") else texts[0] + "\n"
    return CapturedText(f"{first}[... {left_out:,} bytes left out ...]\n{texts[1]}", left_out, binary)


def _whole_characters(data: bytes) -> bytes:
    """Remove an incomplete character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            return data
    return data
