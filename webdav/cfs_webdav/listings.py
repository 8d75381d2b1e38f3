"""A few live properties of everything in a collection: what clients ask for most, and of thousands of entries.

The library makes an element of each value first, which takes it several times as long. Written here is only what it
would answer just so: names that are live or unknown, and a collection without conditions. The rest is left to it.
"""

from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from lxml import etree

from cfs_webdav.live import LIVE, RESOURCE_TYPE
from cfs_webdav.tree import Entry

_SAFE = "/!*'(),$-_|."
_Part = tuple[str, str, Callable[[Entry], str | None] | None]
"""A property as it is written where it has a value, as it is where it has none, and where its value comes from."""


def asked_names(body: bytes) -> list[str] | None:
    """Read a PROPFIND that names properties; None for any other."""
    root = etree.fromstring(body, etree.XMLParser(resolve_entities=False, no_network=True)) if body else None
    if root is None or root.tag != "{DAV:}propfind" or [child.tag for child in root] != ["{DAV:}prop"]:
        return None
    return [child.tag for child in root[0]]


def multistatus(prefix: str, names: Iterable[str], entries: Iterable[Entry]) -> bytes:
    """Answer by the properties of some entries; `prefix` is the path of the mount, and unknown names have no value."""
    parts = [_part(name) for name in names]
    return "".join(_pieces(quote(prefix, safe=_SAFE), parts, entries)).encode()


def _pieces(prefix: str, parts: list[_Part], entries: Iterable[Entry]) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:">'
    for entry in entries:
        slash = "/" if entry.collection and entry.path != "/" else ""
        found, absent = "", ""
        for named, empty, value_of in parts:
            value = None if value_of is None else value_of(entry)
            if value is None:
                absent += empty
            else:
                found += named % value
        yield f"<D:response><D:href>{prefix}{quote(entry.path, safe=_SAFE)}{slash}</D:href>"
        if found or not absent:
            yield f"<D:propstat><D:prop>{found}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
        if absent:
            yield f"<D:propstat><D:prop>{absent}</D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>"
        yield "</D:response>"
    yield "</D:multistatus>"


def _part(name: str) -> _Part:
    namespace, _, local = name.removeprefix("{").rpartition("}")
    if namespace != "DAV:":
        return "", f"<{local} xmlns={quoteattr(namespace)}/>", None
    named, empty = f"<D:{local}>%s</D:{local}>", f"<D:{local}/>"
    if name == RESOURCE_TYPE:
        return named, empty, lambda entry: "<D:collection/>" if entry.collection else ""
    live = LIVE[name]
    return named, empty, lambda entry: None if (value := live(entry)) is None else escape(value)
