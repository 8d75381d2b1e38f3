"""What must hold of an entry before it is replaced (RFC 9110, 13.1)."""

import re

from cfs_webdav.tree import Conditions

_TAGS = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


class PreconditionFailed(Exception):
    """`If-Match` or `If-None-Match` does not hold."""

    status = 412

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def require(conditions: Conditions, etag: str | None, *, exists: bool) -> None:
    """Raise `PreconditionFailed` unless the conditions hold of an entry with this ETag (unquoted; None for none)."""
    wanted, unwanted = conditions.if_match, conditions.if_none_match
    if wanted is not None and not (exists if wanted.strip() == "*" else etag in _strong(wanted)):
        raise PreconditionFailed(
            "If-Match does not hold: " + (f'the version is "{etag}" now' if exists else "nothing is there")
        )
    if unwanted is not None and (exists if unwanted.strip() == "*" else etag in _all(unwanted)):
        raise PreconditionFailed("If-None-Match does not hold: such an entry is there already")


def _strong(header: str) -> set[str | None]:
    return {tag for weak, tag in _TAGS.findall(header) if not weak}


def _all(header: str) -> set[str | None]:
    return {tag for _, tag in _TAGS.findall(header)}
