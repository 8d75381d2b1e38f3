"""The names that sessions have left, because they were deleted or got another name (S2, S14).

A client that has seen one life of a session asks for it by its name. If the name has no session of this life, the
answer depends on why: it was deleted, it has another name, or this store has never had it and so has lost it. Without
such a record the first and the last would look the same.
"""

import json
from collections.abc import Callable

from cfs_server.journal.journal import Journal

SPACE = "sessions.former"
CAPACITY = 16_384
"""Number of names that a store remembers, the newest. Each takes about 300 bytes of memory."""


class FormerNames:
    """The newest names that sessions of one store have left, each with the life and the key of its session."""

    def __init__(self, journal: Journal | None, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        """Read the names that the journal has."""
        self._journal = journal
        self._clock = clock
        self._capacity = capacity
        stored = {} if journal is None else journal.kept(SPACE)
        entries = sorted((json.loads(value), name) for name, value in stored.items())
        self._keys = {name: key for (_, key), name in entries}
        """The keys of the sessions by life and name, oldest first."""

    def add(self, session_id: str, life: str, key: str) -> None:
        """Record that a session leaves its name. Goes into the same commit as the change itself."""
        name = _name(session_id, life)
        self._keys.pop(name, None)
        self._keys[name] = key
        self._store(name, json.dumps([self._clock(), key]))
        while len(self._keys) > self._capacity:
            oldest = next(iter(self._keys))
            del self._keys[oldest]
            self._store(oldest, None)

    def key_of(self, session_id: str, life: str) -> str | None:
        """Return the key of the session that had this name in this life; None if there was none."""
        return self._keys.get(_name(session_id, life))

    def _store(self, name: str, value: str | None) -> None:
        if self._journal is not None:
            self._journal.keep(SPACE, name, value)


def _name(session_id: str, life: str) -> str:
    return f"{life} {session_id}"
