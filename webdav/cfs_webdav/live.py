"""The live properties that an entry has, as texts (RFC 4918, 15)."""

from collections.abc import Callable
from wsgiref.handlers import format_date_time

from cfs_webdav.tree import Entry

RESOURCE_TYPE = "{DAV:}resourcetype"
"""The one whose value is no text: an empty element `collection`, or nothing."""


def _nothing(entry: Entry) -> None:  # noqa: ARG001 - as the others
    return None


LIVE: dict[str, Callable[[Entry], str | None]] = {
    "{DAV:}getcontentlength": lambda entry: None if entry.collection else str(entry.size),
    "{DAV:}getlastmodified": lambda entry: None if entry.modified is None else format_date_time(entry.modified),
    "{DAV:}getetag": lambda entry: None if entry.etag is None else f'"{entry.etag}"',
    "{DAV:}getcontenttype": lambda entry: None if entry.collection else entry.media_type,
    "{DAV:}creationdate": _nothing,
    "{DAV:}quota-used-bytes": _nothing,  # RFC 4331; an empty answer would be read as "full"
    "{DAV:}quota-available-bytes": _nothing,
}
