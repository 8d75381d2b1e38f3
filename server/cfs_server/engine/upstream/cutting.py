"""Ends a reply where the request says so, whatever the upstream does: at a stop string, after one call. Pure: no I/O.

Servers refuse `stop`, take four strings at most, or ignore it, and some make several calls where one was allowed.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from cfs_server.engine.contract.interface import Delta


class ReplyCutter:
    """Passes a reply on, up to its end. It holds back text that may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str], *, single_call: bool = False) -> None:
        self._stops = tuple(filter(None, stops))
        self._search = re.compile("|".join(map(re.escape, self._stops))).search if self._stops else None
        self._longest = max(map(len, self._stops), default=0)
        self._single_call = single_call
        self._held = ""
        self.stop = ""
        """The stop string that ended the reply."""

    @property
    def over(self) -> bool:
        """Whether the reply is at its end, so that nothing more of it is read."""
        return bool(self.stop)

    def feed(self, delta: Delta) -> Delta | None:
        """Take a piece; return what is certain to be part of the reply."""
        if self.over:
            return None
        if self._single_call and delta.calls:
            delta = replace(delta, calls=tuple(call for call in delta.calls if call.index == 0))
        if self._search is not None and (delta.text or (self._held and delta.calls)):
            text = self._certain(self._held + delta.text, last=bool(delta.calls))
            delta = replace(delta, text=text, calls=() if self.stop else delta.calls)
        return delta if delta.text or delta.thinking or delta.calls else None

    def rest(self) -> Delta | None:
        """Return the held text at the end of the input."""
        text = self._certain(self._held, last=True) if self._held else ""
        return Delta(text, 0) if text else None

    def _certain(self, text: str, *, last: bool) -> str:
        """Return the text up to a stop string, or to what may become one. Nothing depends on where pieces end."""
        assert self._search is not None  # noqa: S101 - there are stop strings
        certain = len(text) if last else len(text) - self._possible_stop(text)
        match = self._search(text)
        if match is not None and match.start() <= certain:
            self.stop, self._held = match[0], ""
            return text[: match.start()]
        self._held = text[certain:]
        return text[:certain]

    def _possible_stop(self, text: str) -> int:
        """Length of the longest tail that begins a stop string."""
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)
