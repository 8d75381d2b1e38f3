"""Transcripts that were read lately, kept true by the events, so that a reader who waited needs no call (F3)."""

import threading
from collections import OrderedDict

from cfs_fuse.cache import Cache
from cfs_fuse.entries import Entry
from cfs_fuse.server import Server

CAP_BYTES = 256 << 20
_LOCKS = 64


class Transcripts:
    """Gives the text of sessions; keeps `CAP_BYTES` of those that were read last."""

    def __init__(self, server: Server, cache: Cache) -> None:
        self._server = server
        self._cache = cache
        self._kept: OrderedDict[Entry, None] = OrderedDict()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def begin(self, entry: Entry) -> None:
        """Keep the text of a session that was just made here: it is empty, and events bring what comes."""
        with self._cache.lock:
            if entry.size == 0 and entry.text is None and not entry.gone:
                entry.text = [b""]
                self._keep(entry)

    def get(self, entry: Entry) -> bytes:
        """Return the transcript as it is now; a hundred readers who ask at once make one call."""
        if (kept := self._look(entry)) is not None:
            return kept
        with self._locks[hash(entry) % _LOCKS]:
            if (kept := self._look(entry)) is not None:
                return kept
            version = entry.version
            text = self._server.text(entry.id).data
            with self._cache.lock:
                if entry.version == version and entry.size == len(text) and not entry.gone:
                    entry.text = [text]
                    self._keep(entry)
            return text

    def _look(self, entry: Entry) -> bytes | None:
        with self._cache.lock:
            if entry.text is None:
                return None
            if len(entry.text) != 1:
                entry.text = [b"".join(entry.text)]
            self._keep(entry)
            return entry.text[0]

    def _keep(self, entry: Entry) -> None:
        self._kept[entry] = None
        self._kept.move_to_end(entry)
        while len(self._kept) > 1 and sum(each.size for each in self._kept) > CAP_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            oldest.text = None
