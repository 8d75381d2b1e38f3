"""Sessions and scratch files as they were at one moment, and as entries of a mount.

A listing of many sessions is taken on the event loop, where it is to be short; its entries are made in a thread.
"""

from typing import NamedTuple

from cfs.wire import Settings, State
from cfs_server.dav.scratch import Scratch
from cfs_server.sessions.session import Session
from cfs_webdav.tree import Entry

MEDIA_TYPE = "text/plain; charset=utf-8"


class Row(NamedTuple):
    """A session as it was."""

    id: str
    size: int
    changed_at: float
    etag: str
    state: State
    queued: int
    settings: Settings

    def entry(self, path: str) -> Entry:
        """Describe it at a path."""
        return Entry(path, False, self.size, self.changed_at, self.etag, MEDIA_TYPE)


def row_of(session: Session) -> Row:
    """Take down how a session is now; on the event loop."""
    history = session.history
    queued = len(session.queue)
    return Row(
        session.id, history.size, history.changed_at, session.etag[1:-1], session.state, queued, session.settings
    )


def scratch_entry(path: str, file: Scratch) -> Entry:
    """Describe a scratch file."""
    return Entry(path, False, len(file.data), file.changed_at, file.etag)
