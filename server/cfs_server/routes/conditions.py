"""ETags and the requests that depend on them (H3; RFC 9110, 13)."""

import re
from email.utils import formatdate

from cfs.errors import NotFound, PreconditionFailed
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore

_TAGS = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def view_etag(session: Session, store: SessionStore) -> str:
    """Name the present version of everything that the JSON of a session shows.

    Every change of a session is an event of its log, but for a new or a deleted child: so their number is in it too.
    """
    return f'"{session.nonce}-e{session.log.last}.{len(store.children(session))}"'


def store_etag(store: SessionStore) -> str:
    """Name the present version of everything that any listing shows."""
    return f'"{store.bus.log.nonce}-{store.bus.log.last}"'


def session_headers(session: Session, etag: str) -> dict[str, str]:
    """Headers of every representation of a session."""
    return {
        "ETag": etag,
        "Last-Modified": formatdate(session.updated_at, usegmt=True),
        "X-CFS-State": session.state,
        "Cache-Control": "no-cache",
        "Vary": "Accept",
    }


def unchanged(if_none_match: str | None, etag: str) -> bool:
    """Whether the client has this version already (weak comparison)."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in {tag for _, tag in _TAGS.findall(if_none_match)}


def matches(if_match: str, *etags: str) -> bool:
    """Whether the client means one of these versions (strong comparison)."""
    return if_match.strip() == "*" or not {tag for weak, tag in _TAGS.findall(if_match) if not weak}.isdisjoint(etags)


def require_match(if_match: str | None, session: Session, store: SessionStore) -> None:
    """Raise `PreconditionFailed` unless an `If-Match` that was sent names the session's text or its JSON as it is."""
    text, view = session.etag, view_etag(session, store)
    if if_match is not None and not matches(if_match, text, view):
        raise PreconditionFailed(f"session {session.id!r} has changed: its transcript is {text} now, its JSON {view}")


def require_match_of(if_match: str | None, session_id: str, store: SessionStore) -> None:
    """Do the same for a session that may not exist: then no version matches."""
    if if_match is None:
        return
    try:
        session = store.get(session_id)
    except NotFound:
        raise PreconditionFailed(f"there is no session {session_id!r}, so no ETag matches") from None
    require_match(if_match, session, store)
