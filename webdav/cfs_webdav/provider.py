"""Adapts the trees of one mount to WsgiDAV: resources, properties, XML and errors."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import quote
from wsgiref.handlers import format_date_time
from xml.sax.saxutils import escape, quoteattr

from lxml import etree
from wsgidav.dav_error import (
    ERROR_DESCRIPTIONS,
    HTTP_BAD_REQUEST,
    HTTP_FORBIDDEN,
    HTTP_NOT_FOUND,
    DAVError,
    PRECONDITION_CODE_PropfindFiniteDepth,
)
from wsgidav.dav_provider import DAVCollection, DAVNonCollection, DAVProvider, _DAVResource
from wsgidav.util import parse_if_header_dict
from wsgidav.xml_tools import xml_to_bytes

from cfs.errors import CfsError
from cfs_webdav.storage import MountLocks, Properties
from cfs_webdav.tree import Conditions, MountView, Resource, require

# Errors


class TreeError(DAVError):  # type: ignore[misc]
    """A tree's error as an error of WsgiDAV, with its status. `error` is the original."""

    def __init__(self, error: CfsError) -> None:
        headers = [("Retry-After", str(math.ceil(error.retry_after)))] if error.retry_after is not None else None
        super().__init__(error.status, error.detail, add_headers=headers)
        self.error = error

    def get_response_page(self) -> tuple[str, bytes]:
        """Return media type and body."""
        return "text/plain; charset=utf-8", str(self.context_info).encode()


@contextmanager
def translate_errors(tree: MountView) -> Iterator[None]:
    """Raise a `CfsError` of a tree as a `TreeError`."""
    try:
        yield
    except CfsError as error:
        raise TreeError(tree.refusal(error)) from error


def reason_of(status: int) -> str:
    """Return a status with its phrase, as in the status line and in `D:status`."""
    return f"{status} {HTTPStatus(status).phrase}"


for _status in HTTPStatus:  # the library knows the names of only a few
    ERROR_DESCRIPTIONS.setdefault(_status.value, reason_of(_status.value))


# Request bodies


def plain_xml(body: bytes) -> bytes:
    """Return the document without comments and processing instructions.

    Raises `DAVError` (400) for a body that is not well-formed or declares a document type. WebDAV needs no document
    types, and their entities allow expansion attacks and access to local files (RFC 4918, 20.6).
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(body, parser)
    except etree.XMLSyntaxError as error:
        raise DAVError(HTTP_BAD_REQUEST, f"the body is not well-formed XML: {error.msg}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise DAVError(HTTP_BAD_REQUEST, "the body declares a document type, which is not accepted")
    document: bytes = etree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


# Live properties (RFC 4918, 15)

RESOURCE_TYPE = "{DAV:}resourcetype"
"""The only live property whose value is not text: an empty element `collection`, or nothing."""


def _nothing(entry: Resource) -> None:  # noqa: ARG001 - as the others
    return None


LIVE: dict[str, Callable[[Resource], str | None]] = {
    "{DAV:}getcontentlength": lambda entry: None if entry.collection else str(entry.size),
    "{DAV:}getlastmodified": lambda entry: None if entry.modified is None else format_date_time(entry.modified),
    "{DAV:}getetag": lambda entry: None if entry.etag is None else f'"{entry.etag}"',
    "{DAV:}getcontenttype": lambda entry: None if entry.collection else entry.media_type,
    "{DAV:}creationdate": _nothing,
    "{DAV:}quota-used-bytes": _nothing,  # RFC 4331; clients read an empty value as "full"
    "{DAV:}quota-available-bytes": _nothing,
}


# Fast listings: live properties of all members of a collection, the most frequent request
#
# WsgiDAV builds an XML element for each value, which is several times slower. The code below handles only requests to
# which WsgiDAV would give the same response: live or unknown names, and a collection without conditions.

_SAFE = "/!*'(),$-_|."
_Part = tuple[str, str, Callable[[Resource], str | None] | None]
"""The XML of a property with a value, its XML without a value, and the function that returns the value."""


def asked_names(body: bytes) -> list[str] | None:
    """Return the property names of a PROPFIND; None if it does not list names."""
    root = etree.fromstring(body, etree.XMLParser(resolve_entities=False, no_network=True)) if body else None
    if root is None or root.tag != "{DAV:}propfind" or [child.tag for child in root] != ["{DAV:}prop"]:
        return None
    return [child.tag for child in root[0]]


def multistatus(prefix: str, names: Iterable[str], entries: Iterable[Resource]) -> bytes:
    """Write the properties of entries as a multistatus body. `prefix` is the path of the mount.

    Unknown properties are reported as 404.
    """
    parts = [_part(name) for name in names]
    return "".join(_pieces(quote(prefix, safe=_SAFE), parts, entries)).encode()


def _pieces(prefix: str, parts: list[_Part], entries: Iterable[Resource]) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:">'
    for entry in entries:
        slash = "/" if entry.collection and entry.path != "/" else ""
        present, absent = "", ""
        for named, empty, value_of in parts:
            value = None if value_of is None else value_of(entry)
            if value is None:
                absent += empty
            else:
                present += named % value
        yield f"<D:response><D:href>{prefix}{quote(entry.path, safe=_SAFE)}{slash}</D:href>"
        if present or not absent:
            yield f"<D:propstat><D:prop>{present}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
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


# Resources: each is a snapshot of an entry, taken once in a request

_NOT_THERE = DAVError(HTTP_NOT_FOUND)
TREE = "cfs_webdav.tree"
"""Key of a request's tree in its WSGI environment."""
_NO_XML = dict.fromkeys([0xFFFE, 0xFFFF], "\ufffd")
"""Characters that are legal in names but not in XML. One of them would make the whole listing fail."""
CONDITIONS = "cfs_webdav.conditions"
CREATED = "cfs_webdav.created"
"""Key that tells that a COPY or MOVE has replaced nothing: the library has one status for all that we carry out."""
FAILED = "cfs_webdav.failed"
"""Key of the error of a DELETE, COPY or MOVE."""


def resource(entry: Resource, environ: dict[str, Any]) -> "File | Collection":
    """Return the WsgiDAV resource of an entry."""
    return Collection(entry, environ) if entry.collection else File(entry, environ)


class _Resource(_DAVResource):  # type: ignore[misc]
    """Base class of files and collections."""

    path: str
    environ: dict[str, Any]
    provider: Any

    def __init__(self, entry: Resource, environ: dict[str, Any]) -> None:
        super().__init__(entry.path, environ)
        self.entry = entry
        self.tree: MountView = environ[TREE]

    def support_etag(self) -> bool:
        """Return True, also where there is no ETag: the library ignores conditions on entries that support none."""
        return True

    def get_last_modified(self) -> float | None:
        """Return the time of the last change, in seconds since 1970."""
        return self.entry.modified

    def prevent_locking(self) -> bool:
        """Refuse locks to callers without the right to write."""
        with translate_errors(self.tree):
            return not self.tree.may_write(self.path)

    def get_property_names(self, *, is_allprop: bool) -> list[str]:
        """List the properties that `allprop` and `propname` return."""
        names: list[str] = super().get_property_names(is_allprop=is_allprop)
        with translate_errors(self.tree):
            return [*names, *self.tree.properties(self.path)]

    def get_properties(self, mode: str, *, name_list: list[str] | None = None) -> list[tuple[str, Any]]:
        """Return names and values; an error stands in place of a value. Missing properties are cheap."""
        if mode != "named" or name_list is None:
            properties: list[tuple[str, Any]] = super().get_properties(mode, name_list=name_list)
            return properties
        return [(name, self._value(name)) for name in name_list]

    def get_property_value(self, name: str) -> Any:
        """Return the value of a property; raises `DAVError` (404) if it does not exist."""
        value = self._value(name)
        if isinstance(value, DAVError):
            raise value
        return value

    def _value(self, name: str) -> Any:
        """Return the value of a live property, of one of the tree or of a dead one, or the error."""
        value: Any
        if name == RESOURCE_TYPE:
            value = _type(self.entry)
        elif (live := LIVE.get(name)) is not None:  # faster than the library's way
            value = live(self.entry)
        elif name.startswith(self.tree.namespace or "{}"):
            with translate_errors(self.tree):
                value = self.tree.properties(self.path).get(name)
        elif not self.provider.is_unknown(name, self.tree):
            try:
                value = super().get_property_value(name)
            except DAVError as error:
                return error
        else:
            value = None
        if isinstance(value, str):
            return value.translate(_NO_XML)
        return _NOT_THERE if value is None else value

    def set_property_value(self, name: str, value: Any, *, dry_run: bool = False) -> Any:
        """Set a property, or remove it if the value is None. This needs the right to write."""
        with translate_errors(self.tree):
            if not self.tree.may_write(self.path):
                raise DAVError(HTTP_FORBIDDEN, f"you may not write to {self.path!r}")
        if not name.startswith("{DAV:}"):
            text = None if value is None else "".join(value.itertext())
            with translate_errors(self.tree):
                if self.tree.set_property(self.path, name, text, dry_run=dry_run):
                    return None
        return super().set_property_value(name, value, dry_run=dry_run)

    def forget(self) -> None:
        """Drop what belongs to the name and to all names below it."""
        self.provider.prop_manager.remove_all(self.get_ref_url())
        self.remove_all_locks(recursive=True)

    def handle_delete(self) -> bool:
        """Delete the entry with its members, or nothing. The library would delete one member after the other."""
        with self._carried_out():
            self._require_unlocked()
            self.tree.delete(self.path)
        self.forget()
        return True

    def handle_move(self, dest_path: str) -> bool:
        """Move the entry. The library would delete what it replaces before it begins."""
        return self._put_at(plain(dest_path), is_move=True, members=True)

    def handle_copy(self, dest_path: str, *, depth_infinity: bool) -> bool:
        """Copy the entry. The library would delete what it replaces before it begins."""
        return self._put_at(plain(dest_path), is_move=False, members=depth_infinity)

    def _put_at(self, target: str, *, is_move: bool, members: bool) -> bool:
        overwrite = self.environ["HTTP_OVERWRITE"] == "T"
        properties: Properties = self.provider.prop_manager
        source_url = self.get_ref_url()
        target_url = self.provider.ref_url_of(target, collection=self.entry.collection)
        with self._carried_out():
            if contains(target, self.path):  # the library compares the other way round only
                raise DAVError(HTTP_FORBIDDEN, f"{target!r} contains {self.path!r}, which cannot replace it")
            replaced = self.tree.look(target)
            if replaced is not None and not self.tree.may_overwrite(self.path, target):
                raise DAVError(HTTP_FORBIDDEN, f"{target!r} exists and cannot be replaced by another one")
            if is_move:
                self.tree.move(self.path, target, overwrite=overwrite)
            else:
                properties.require_room_for_copy(source_url, members=members)
                self.tree.copy(self.path, target, overwrite=overwrite, members=members)
        if replaced is None:
            self.environ[CREATED] = True
        elif self.entry.collection or replaced.collection:
            resource(replaced, self.environ).forget()
        properties.copy_all(source_url, target_url, members=members)
        if is_move:
            self.forget()
        return True

    @contextmanager
    def _carried_out(self) -> Iterator[None]:
        """Note an error: the library would keep only its status."""
        try:
            with translate_errors(self.tree):
                yield
        except Exception as error:
            self.environ[FAILED] = error
            raise

    def _require_unlocked(self) -> None:
        """Raise `DAVError` (423) if a lock here or below is not in the request's `If`."""
        manager, url = self.provider.lock_manager, self.get_ref_url()
        below = manager.storage.get_lock_list(url, include_root=False, include_children=True, token_only=False)
        tokens, principal = self.environ["wsgidav.ifLockTokenList"], self.environ["wsgidav.user_name"]
        for locked in (url, *(lock["root"] for lock in below)):
            manager.check_write_permission(url=locked, depth="0", token_list=tokens, principal=principal)


def contains(path: str, other: str) -> bool:
    """Return whether a path is another one or above it."""
    return other == path or other.startswith(path.rstrip("/") + "/")


def _type(entry: Resource) -> Any:
    if not entry.collection:
        return ""
    element = etree.Element(RESOURCE_TYPE)
    etree.SubElement(element, "{DAV:}collection")
    return element


class File(_Resource, DAVNonCollection):  # type: ignore[misc]
    """A resource with content."""

    def __init__(self, entry: Resource, environ: dict[str, Any]) -> None:
        super().__init__(entry, environ)
        self._etag = entry.etag

    def get_content_length(self) -> int:
        """Return the size in bytes."""
        return self.entry.size

    def get_content_type(self) -> str:
        """Return the media type."""
        return self.entry.media_type

    def get_etag(self) -> str | None:
        """Return the ETag without quotes; after a PUT, the ETag of the body that was sent."""
        return self._etag

    def support_ranges(self) -> bool:
        """Return whether range requests are supported."""
        return True

    def get_content(self) -> BinaryIO:
        """Open the content for reading."""
        with translate_errors(self.tree):
            return self.tree.open(self.path)

    def begin_write(self, *, content_type: str | None = None) -> "File":  # noqa: ARG002 - the library's signature
        """Return a sink for the body of a PUT."""
        return self

    def writelines(self, chunks: Iterable[bytes]) -> None:  # noqa: ARG002 - already received
        """Pass the body to the tree. It has already been received as a file."""
        with translate_errors(self.tree):
            self._etag = self.tree.write(self.path, self.environ["wsgi.input"], self.environ[CONDITIONS])
        self.environ["wsgidav.all_input_read"] = 1

    def close(self) -> None:
        """Do nothing."""


class Collection(_Resource, DAVCollection):  # type: ignore[misc]
    """A collection of entries."""

    def get_member_names(self) -> list[str]:
        """List the names of the direct members."""
        return [entry.path.rpartition("/")[2] for entry in self._members()]

    def get_member_list(self) -> list["File | Collection"]:
        """List the direct members with a single look-up."""
        return [resource(entry, self.environ) for entry in self._members()]

    def create_empty_resource(self, name: str) -> File:
        """Create an empty entry for a LOCK. A PUT creates its entry when its body is accepted."""
        path = f"{self.path.rstrip('/')}/{name}"
        if self.environ["REQUEST_METHOD"] != "LOCK":
            return File(Resource(path), self.environ)
        with translate_errors(self.tree):
            self.tree.make(path)
            entry = self.tree.look(path)
        return File(entry or Resource(path), self.environ)

    def create_collection(self, name: str) -> None:
        """Create an empty collection."""
        with translate_errors(self.tree):
            self.tree.make_collection(f"{self.path.rstrip('/')}/{name}")

    def _members(self) -> list[Resource]:
        with translate_errors(self.tree):
            return list(self.tree.members(self.path))


def plain(path: str) -> str:
    """Remove the `/` that the library adds to a collection's path."""
    return path.rstrip("/") or "/"


_CHANGING = frozenset({"PUT", "DELETE", "COPY", "MOVE", "MKCOL", "PROPPATCH", "LOCK"})


def _require_names(method: str, body: BinaryIO) -> None:
    """Raise `DAVError` (400) for a PROPFIND or PROPPATCH that asks for nothing: nothing would look like success."""
    root = _xml_of(body)
    if method == "PROPFIND" and root.tag == "{DAV:}propfind":
        empty = not {child.tag for child in root} & {"{DAV:}prop", "{DAV:}allprop", "{DAV:}propname"}
    else:
        empty = root.tag == "{DAV:}propertyupdate" and root.find("*/{DAV:}prop/*") is None
    if empty:
        raise DAVError(HTTP_BAD_REQUEST, "the body names no property (RFC 4918, 9.1 and 9.2)")


def _owner_of(body: BinaryIO) -> bytes:
    owner = _xml_of(body).find("{DAV:}owner")
    return b"" if owner is None else xml_to_bytes(owner, pretty=False)


def _xml_of(body: BinaryIO) -> Any:
    root = etree.fromstring(body.read(), etree.XMLParser(resolve_entities=False, no_network=True))
    body.seek(0)
    return root


_Handler = Callable[[dict[str, Any], Any], Iterable[bytes]]


class TreeProvider(DAVProvider):  # type: ignore[misc]
    """Finds resources in the tree of the request."""

    def __init__(self, locks: MountLocks) -> None:
        super().__init__()
        self._locks = locks
        self._locking = threading.Lock()

    def get_resource_inst(self, path: str | None, environ: dict[str, Any]) -> File | Collection | None:
        """Return the resource at a path; None if there is none, or if the path is above the mount."""
        if path is None:
            return None
        tree: MountView = environ[TREE]
        with translate_errors(tree):
            entry = tree.look(plain(path))
        return None if entry is None else resource(entry, environ)

    def ref_url_of(self, path: str, *, collection: bool) -> str:
        """Return the form of a path that the stores of locks and properties use."""
        return quote(self.share_path + path + ("/" if collection and path != "/" else ""))

    def custom_request_handler(self, environ: dict[str, Any], start_response: Any, default_handler: _Handler) -> Any:
        """Make the checks that the library's handler leaves out."""
        tree: MountView = environ[TREE]
        path, method = plain(environ["PATH_INFO"]), environ["REQUEST_METHOD"]
        with translate_errors(tree):
            tree.check(path)
        if method in _CHANGING:
            self._take_conditions(tree, path, environ)
        if environ.get("HTTP_CONTENT_ENCODING", "").strip().lower() == "identity":
            del environ["HTTP_CONTENT_ENCODING"]  # the library refuses this one, too
        if method in ("PROPFIND", "PROPPATCH") and environ["CONTENT_LENGTH"] != "0":
            _require_names(method, environ["wsgi.input"])
        match method:
            case "DELETE" | "MOVE" | "COPY" if path == "/":
                raise DAVError(HTTP_FORBIDDEN, "the root of a mount cannot be deleted, moved or copied")
            case "LOCK" if environ["CONTENT_LENGTH"] != "0":
                with self._locking:  # one at a time: no name is created for a lock that exceeds the limit
                    self._require_lockable(path, environ)
                    return default_handler(environ, start_response)
            case "PROPFIND" if environ.get("HTTP_DEPTH", "infinity") == "infinity":
                if not tree.flat:
                    raise DAVError(
                        HTTP_FORBIDDEN,
                        "ask for one level at a time (Depth: 1)",
                        err_condition=PRECONDITION_CODE_PropfindFiniteDepth,
                    )
                environ["HTTP_DEPTH"] = "1"
        if method == "PROPFIND" and (listed := self._listing(environ)) is not None:
            head = [("Content-Type", "application/xml; charset=utf-8"), ("Content-Length", str(len(listed)))]
            start_response("207 Multi-Status", head)
            return [listed]
        answer = default_handler(environ, start_response)
        if (error := environ.get(FAILED)) is not None:
            raise error
        return answer

    def _take_conditions(self, tree: MountView, path: str, environ: dict[str, Any]) -> None:
        """Check `If-Match` and `If-None-Match`, and take them out of the request.

        The library ignores them for entries without an ETag, such as collections, and compares them with the
        destination of a COPY or MOVE too. They are conditions on what the request names (RFC 9110, 13.1).
        """
        conditions = Conditions(environ.pop("HTTP_IF_MATCH", None), environ.pop("HTTP_IF_NONE_MATCH", None))
        environ[CONDITIONS] = conditions  # the tree checks those of a PUT atomically with the write
        if conditions != Conditions() and environ["REQUEST_METHOD"] != "PUT":
            with translate_errors(tree):
                entry = tree.look(path)
                require(conditions, entry.etag if entry else None, exists=entry is not None)

    def _require_lockable(self, path: str, environ: dict[str, Any]) -> None:
        """Raise `DAVError` if a lock cannot be created. The library creates a new name before it finds out."""
        self._locks.require_room(environ["wsgidav.auth.user_name"])
        self._locks.require_short_owner(_owner_of(environ["wsgi.input"]))
        if self.get_resource_inst(path, environ) is None:
            parse_if_header_dict(environ)
            tokens, principal = environ["wsgidav.ifLockTokenList"], environ["wsgidav.auth.user_name"]
            above = self.ref_url_of(path.rpartition("/")[0] or "/", collection=True)
            self.lock_manager.check_write_permission(url=above, depth="0", token_list=tokens, principal=principal)

    def is_unknown(self, name: str, tree: MountView) -> bool:
        """Return whether no entry can have a property of this name."""
        in_namespace = tree.namespace is not None and name.startswith(tree.namespace)
        return not (in_namespace or name.startswith("{DAV:}") or self.prop_manager.has_any)

    def _listing(self, environ: dict[str, Any]) -> bytes | None:
        """Answer a PROPFIND of a collection's members without the library; None where the library has to do it."""
        tree: MountView = environ[TREE]
        if environ["HTTP_DEPTH"] != "1" or any(key.startswith("HTTP_IF") for key in environ):
            return None
        names = asked_names(environ["wsgi.input"].read())
        environ["wsgi.input"].seek(0)
        if not names or not all(name in LIVE or name == RESOURCE_TYPE or self.is_unknown(name, tree) for name in names):
            return None
        path = plain(environ["PATH_INFO"])
        with translate_errors(tree):
            entry = tree.look(path)
            if entry is None or not entry.collection:
                return None
            return multistatus(self.share_path, names, [entry, *tree.members(path)])
