"""Recognises files that a program writes only to rename them over another one (W1, W2).

The reasons are those of `cfs_fuse.new_files`: no name tells such a file from a new session, but a PUT of a new file
that is moved over an existing session at once does. Used on the event loop only.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from cfs_server.sessions.session import Session

RENAME_WAIT_SECONDS = 0.5
"""How long the first turn of a new session waits for a rename. Who reads the session ends the wait."""
_NEW_SECONDS = 10.0
"""How long after its last PUT a file can be a temporary one, even if its turn has begun."""
_CAP_BYTES = 64 << 20
_CAP_FILES = 1_024


@dataclass(slots=True)
class NewFile:
    """A session that a PUT or a LOCK has created, with the last body that was sent.

    `turns` are those of its bodies. After the last one, the history had this `version` and this many `messages`.
    """

    written_at: float
    body: bytes = b""
    turns: set[str] = field(default_factory=set)
    messages: int = 0
    version: int = 0


class NewFiles:
    """The new files of one principal's programs by the keys of their sessions: the newest ones, limited in size."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rename_wait: float = RENAME_WAIT_SECONDS) -> None:
        self._clock = clock
        self._rename_wait = rename_wait
        self._files: OrderedDict[str, NewFile] = OrderedDict()

    def delay(self, session: Session | None) -> float:
        """Return for how many seconds the turn of a body has to wait: only the first turn of a new file does."""
        if session is None:
            return self._rename_wait
        file = self._files.get(session.key)
        if file is None:
            return 0.0
        waits = not session.history if not file.body else self._is_temporary(session) and not _has_begun(file, session)
        return self._rename_wait if waits else 0.0

    def written(self, session: Session, body: bytes, *, created: bool) -> None:
        """Note the body of a PUT that was carried out, or of a new empty file."""
        now = self._clock()
        if created:
            self._files[session.key] = NewFile(now)
        if (file := self._files.get(session.key)) is None:
            return
        file.written_at, file.body = now, body
        if session.queue:
            file.turns.add(session.queue[-1].id)
        file.messages, file.version = len(session.history), session.history.version
        while self._is_full or now - next(iter(self._files.values())).written_at > _NEW_SECONDS:
            self._files.popitem(last=False)

    def body(self, session: Session) -> bytes | None:
        """Return the body of a session that can be the temporary file of a program; None for any other session.

        Its history must be loaded.
        """
        return self._files[session.key].body if self._is_temporary(session) else None

    def forget(self, session: Session) -> None:
        """Treat a session as an ordinary one from now on: it was read."""
        self._files.pop(session.key, None)

    def _is_temporary(self, session: Session) -> bool:
        """Return whether the session holds nothing but the body of a program, and perhaps a reply to it."""
        file = self._files.get(session.key)
        if file is None or not file.body or self._clock() - file.written_at > _NEW_SECONDS:
            return False
        foreign = {turn.id for turn in session.queue} - file.turns
        edited = session.history.size_at(file.version) is None
        later = session.history.messages[file.messages :]
        return not (foreign or edited or any(message.role == "user" for message in later))

    @property
    def _is_full(self) -> bool:
        return len(self._files) > _CAP_FILES or sum(len(file.body) for file in self._files.values()) > _CAP_BYTES


def _has_begun(file: NewFile, session: Session) -> bool:
    return not file.turns <= {turn.id for turn in session.queue}
