"""From bytes of tokens to text that may be shown: whole characters, no stop string, no outer white space.

Pure: no model, no I/O. The cost of a token does not depend on how much was written before it.
"""

import codecs
from collections.abc import Iterable


class TextStream:
    """Collects the bytes of one reply and says what of it may leave.

    Held back are: an unfinished UTF-8 character, a tail that may become a stop string, and white space at the end
    (S5: a reply is stripped, so what is streamed adds up to exactly the reply).
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._begun = False
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """Take the bytes of one token and return the text that is certain now."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._strip(self._held[: min(found)], last=True)
        certain = len(self._held) - self._possible_stop()
        return self._strip(self._held[:certain], rest=self._held[certain:])

    def finish(self) -> str:
        """Return what was held back after the last token; an unfinished character is dropped."""
        if self.stopped:
            return ""
        self.stopped = True
        return self._strip(self._held, last=True)

    def _possible_stop(self) -> int:
        """Length of the longest tail that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0

    def _strip(self, text: str, *, rest: str = "", last: bool = False) -> str:
        """Drop white space before the first character, hold back (or drop) what comes after the newest one."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        shown = text.rstrip()
        self._held = "" if last else text[len(shown) :] + rest
        return shown
