"""ETags and conditional requests (H3; RFC 9110, 13)."""

import hashlib
import re
from email.utils import formatdate, parsedate_to_datetime

from cfs.api import LIFE
from cfs.errors import PreconditionFailed
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

_TAGS = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def view_etag(session: Session, sessions: AuthorizedSessions) -> str:
    """Return the ETag of everything that the JSON of a session shows.

    Each change of a session is an event of its log, except a new or deleted child. The ETag therefore contains the
    number of children too.
    """
    return f'"{session.nonce}-e{session.log.last}.{len(sessions.children(session))}"'


def content_etag(content: bytes) -> str:
    """Return the ETag of a listing, from its content. A count of changes would reveal hidden sessions."""
    return f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def session_headers(session: Session, etag: str) -> dict[str, str]:
    """Return the headers of every representation of a session."""
    return {
        "ETag": etag,
        "Last-Modified": http_date(session.updated_at),
        LIFE: session.nonce,
        "X-CFS-State": session.state,
        "Cache-Control": "no-cache",
        "Vary": "Accept",
    }


def http_date(seconds: float) -> str:
    """Format a time as an HTTP date."""
    return formatdate(seconds, usegmt=True)


def seconds_of(date: str | None) -> float | None:
    """Parse an HTTP date; None for no date, or one that is not valid, which is ignored (RFC 9110, 13.1.4)."""
    if date is None:
        return None
    try:
        parsed = parsedate_to_datetime(date)
        return None if parsed.tzinfo is None else parsed.timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def unchanged(if_none_match: str | None, etag: str) -> bool:
    """Return whether the client already has this version (weak comparison)."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in {tag for _, tag in _TAGS.findall(if_none_match)}


def matches(if_match: str, *etags: str) -> bool:
    """Return whether `If-Match` contains one of these ETags (strong comparison)."""
    return if_match.strip() == "*" or not set(strong_tags(if_match)).isdisjoint(etags)


def strong_tags(header: str) -> list[str]:
    """Return the strong ETags of a header, quoted. Weak ones are ignored (RFC 9110, 13.1.1)."""
    return [tag for weak, tag in _TAGS.findall(header) if not weak]


def require_match(if_match: str | None, session: Session, sessions: AuthorizedSessions) -> None:
    """Raise `PreconditionFailed` if `If-Match` is sent without the current ETag of the text or of the JSON."""
    text, view = session.etag, view_etag(session, sessions)
    if if_match is not None and not matches(if_match, text, view):
        raise PreconditionFailed(f"session {session.id!r} has changed: its transcript is {text} now, its JSON {view}")


def require_match_of(if_match: str, session_id: str, sessions: AuthorizedSessions) -> None:
    """Do the same for a session to write to. If it does not exist, no ETag matches."""
    session = sessions.find(session_id, "write")
    if session is None:
        raise PreconditionFailed(f"there is no session {session_id!r}, so no ETag matches")
    require_match(if_match, session, sessions)
