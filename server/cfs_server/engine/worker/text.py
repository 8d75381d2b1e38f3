"""Converts bytes of tokens to text for readers: whole characters, no stop string, no outer white space.

Pure: no model, no I/O. The cost of a token does not depend on the length of the text before it.
"""

import codecs
import re
from collections.abc import Iterable


class TextStream:
    """Collects the bytes of one reply and releases text that is safe to send.

    It holds back an unfinished UTF-8 character, a tail that may become a stop string, and white space at the end
    (S5: a reply is stripped, so the streamed pieces add up to exactly the reply).
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._beginnings = {stop[:size] for stop in self._stops for size in range(1, len(stop))}
        self._longest = max(map(len, self._beginnings), default=0)
        firsts = {re.escape(stop[0]) for stop in self._stops}
        self._suspicious = re.compile("|".join(sorted(firsts))).search if firsts else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unfinished = False
        self._held = ""
        self._begun = False
        self.settled = 0
        """Characters of the reply of which is decided whether they are shown; white space before the first is not."""
        self.stopped = False
        self.stop = ""
        """The stop string that ended the text, if one did."""

    @property
    def needed(self) -> int:
        """How many characters must be settled for everything that was fed to be."""
        return self.settled + len(self._held) + self._unfinished

    def feed(self, piece: bytes) -> str:
        """Take the bytes of one token and return the text that is certain now."""
        if self.stopped:
            return ""
        text = self._held + self._decode(piece)
        if self._suspicious is not None and self._suspicious(text):
            return self._feed_carefully(text)
        return self._show(text)

    def finish(self) -> str:
        """Return the held text after the last token; an unfinished character is dropped."""
        if self.stopped:
            return ""
        return self._end(self._held)

    def _decode(self, piece: bytes) -> str:
        if not self._unfinished and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._unfinished = bool(self._decoder.getstate()[0])
        return text

    def _feed_carefully(self, text: str) -> str:
        matches = [(position, stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        if matches:
            position, self.stop = min(matches)
            return self._end(text[:position])
        certain = len(text) - self._possible_stop(text)
        return self._show(text[:certain], text[certain:])

    def _possible_stop(self, text: str) -> int:
        """Length of the longest tail that begins a stop string."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        return next((size for size in sizes if text[-size:] in self._beginnings), 0)

    def _show(self, text: str, rest: str = "") -> str:
        """Drop white space before the first character, and hold white space after the newest one."""
        if not self._begun:
            all_of_it, text = len(text), text.lstrip()
            self.settled += all_of_it - len(text)
            self._begun = bool(text)
        visible = text.rstrip()
        self.settled += len(visible)
        self._held = text[len(visible) :] + rest
        return visible

    def _end(self, text: str) -> str:
        visible = self._show(text)
        self._held, self.stopped = "", True
        return visible
