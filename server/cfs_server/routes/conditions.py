"""ETags and the requests that depend on them (H3; RFC 9110, 13)."""

import hashlib
import re
from email.utils import formatdate

from cfs.api import LIFE
from cfs.errors import Gone, PreconditionFailed
from cfs_server.sessions.gate import SessionGate
from cfs_server.sessions.session import Session

_TAGS = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def view_etag(session: Session, sessions: SessionGate) -> str:
    """Name the present version of everything that the JSON of a session shows.

    Every change of a session is an event of its log, but for a new or a deleted child: so their number is in it too.
    """
    return f'"{session.nonce}-e{session.log.last}.{len(sessions.children(session))}"'


def content_etag(content: bytes) -> str:
    """Name a listing by what it shows; a count of changes would tell of sessions that the caller may not see."""
    return f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def session_headers(session: Session, etag: str) -> dict[str, str]:
    """Headers of every representation of a session."""
    return {
        "ETag": etag,
        "Last-Modified": http_date(session.updated_at),
        LIFE: session.nonce,
        "X-CFS-State": session.state,
        "Cache-Control": "no-cache",
        "Vary": "Accept",
    }


def require_life(life: str | None, session_id: str, sessions: SessionGate) -> None:
    """Raise `Gone` unless a session is the one that the caller has seen, which it names by its nonce (`X-CFS-Life`).

    Whoever may do nothing there learns nothing by this: the request is refused for that.
    """
    if life is None:
        return
    sessions.require_any(session_id)
    session = sessions.known(session_id)
    if session is None or session.nonce != life.strip():
        raise Gone(
            f"session {session_id!r} is not there any more as you knew it: it was deleted, or the server has restarted"
            " without it"
        )


def http_date(seconds: float) -> str:
    """Write a time as HTTP does."""
    return formatdate(seconds, usegmt=True)


def unchanged(if_none_match: str | None, etag: str) -> bool:
    """Whether the client has this version already (weak comparison)."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in {tag for _, tag in _TAGS.findall(if_none_match)}


def matches(if_match: str, *etags: str) -> bool:
    """Whether the client means one of these versions (strong comparison)."""
    return if_match.strip() == "*" or not set(strong_tags(if_match)).isdisjoint(etags)


def strong_tags(header: str) -> list[str]:
    """Read the ETags that a header names, quoted; weak ones name no version (RFC 9110, 13.1.1)."""
    return [tag for weak, tag in _TAGS.findall(header) if not weak]


def require_match(if_match: str | None, session: Session, sessions: SessionGate) -> None:
    """Raise `PreconditionFailed` unless an `If-Match` that was sent names the session's text or its JSON as it is."""
    text, view = session.etag, view_etag(session, sessions)
    if if_match is not None and not matches(if_match, text, view):
        raise PreconditionFailed(f"session {session.id!r} has changed: its transcript is {text} now, its JSON {view}")


def require_match_of(if_match: str | None, session_id: str, sessions: SessionGate) -> None:
    """Do the same for a session to write to that may not exist: then no version matches."""
    if if_match is None:
        return
    session = sessions.find(session_id, "write")
    if session is None:
        raise PreconditionFailed(f"there is no session {session_id!r}, so no ETag matches")
    require_match(if_match, session, sessions)
