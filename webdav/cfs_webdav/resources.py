"""Entries of a tree as WsgiDAV wants to see them; each is a snapshot, taken once in a request."""

from collections.abc import Iterable
from typing import Any, BinaryIO

from lxml import etree
from wsgidav.dav_error import HTTP_FORBIDDEN, HTTP_NOT_FOUND, DAVError
from wsgidav.dav_provider import DAVCollection, DAVNonCollection, _DAVResource

from cfs_webdav.errors import told
from cfs_webdav.live import LIVE, RESOURCE_TYPE
from cfs_webdav.tree import Entry, Tree

_NOT_THERE = DAVError(HTTP_NOT_FOUND)
TREE = "cfs_webdav.tree"
"""Key of a request's tree in its WSGI environment."""
_NO_XML = dict.fromkeys([0xFFFE, 0xFFFF], "\ufffd")
"""What names and texts may hold, and XML may not: one of them would make the whole listing fail."""
CONDITIONS = "cfs_webdav.conditions"


def resource(entry: Entry, environ: dict[str, Any]) -> "File | Collection":
    """Show an entry."""
    return Collection(entry, environ) if entry.collection else File(entry, environ)


class _Resource(_DAVResource):  # type: ignore[misc]
    """What files and collections have in common."""

    path: str
    environ: dict[str, Any]
    provider: Any

    def __init__(self, entry: Entry, environ: dict[str, Any]) -> None:
        super().__init__(entry.path, environ)
        self.entry = entry
        self.tree: Tree = environ[TREE]

    def get_last_modified(self) -> float | None:
        """Return when it changed, in seconds since 1970."""
        return self.entry.modified

    def prevent_locking(self) -> bool:
        """Say no to who may not write here either."""
        with told(self.tree):
            return not self.tree.may_write(self.path)

    def get_property_names(self, *, is_allprop: bool) -> list[str]:
        """List what `allprop` and `propname` answer."""
        names: list[str] = super().get_property_names(is_allprop=is_allprop)
        with told(self.tree):
            return [*names, *self.tree.properties(self.path)]

    def get_properties(self, mode: str, *, name_list: list[str] | None = None) -> list[tuple[str, Any]]:
        """Return names and values, or the errors in their place; what is named and not there costs next to nothing."""
        if mode != "named" or name_list is None:
            found: list[tuple[str, Any]] = super().get_properties(mode, name_list=name_list)
            return found
        return [(name, self._value(name)) for name in name_list]

    def get_property_value(self, name: str) -> Any:
        """Return a property; raises `DAVError` (404) if there is none of the name."""
        value = self._value(name)
        if isinstance(value, DAVError):
            raise value
        return value

    def _value(self, name: str) -> Any:
        """Return a property: a live one, the tree's own, or a dead one; or what is wrong with it."""
        value: Any
        if name == RESOURCE_TYPE:
            value = _type(self.entry)
        elif (live := LIVE.get(name)) is not None:  # without the library's detours
            value = live(self.entry)
        elif name.startswith(self.tree.namespace or "{}"):
            with told(self.tree):
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
        """Set or (by None) remove a property, which is a way of writing."""
        with told(self.tree):
            if not self.tree.may_write(self.path):
                raise DAVError(HTTP_FORBIDDEN, f"you may not write to {self.path!r}")
        if not name.startswith("{DAV:}"):
            text = None if value is None else "".join(value.itertext())
            with told(self.tree):
                if self.tree.set_property(self.path, name, text, dry_run=dry_run):
                    return None
        return super().set_property_value(name, value, dry_run=dry_run)

    def delete(self) -> None:
        """Take it away, with its locks and dead properties."""
        with told(self.tree):
            self.tree.delete(self.path)
        self.forget(recursive=False)

    def forget(self, *, recursive: bool) -> None:
        """Drop what belongs to the name."""
        self.remove_all_properties(recursive=recursive)
        self.remove_all_locks(recursive=recursive)

    def handle_move(self, dest_path: str) -> bool:
        """Move one entry over another in one piece; leave everything else to the library."""
        return self._replaced(dest_path, is_move=True)

    def handle_copy(self, dest_path: str, *, depth_infinity: bool) -> bool:  # noqa: ARG002 - the library's signature
        """Copy one entry over another in one piece; leave everything else to the library."""
        return self._replaced(dest_path, is_move=False)

    def copy_move_single(self, dest_path: str, *, is_move: bool) -> None:
        """Copy it, or move it with what clients have noted about it."""
        target = plain(dest_path)
        new = self.provider.ref_url_of(target, collection=self.entry.collection)
        with told(self.tree):
            if is_move and not self.entry.collection:
                self.tree.move(self.path, target)
            else:
                self.tree.copy(self.path, target)
        self.provider.prop_manager.copy_properties(self.get_ref_url(), new)
        if is_move and not self.entry.collection:
            self.moved()

    def moved(self) -> None:
        """Drop what belonged to the old name."""

    def _replaced(self, dest_path: str, *, is_move: bool) -> bool:
        target = plain(dest_path)
        with told(self.tree):
            there = self.tree.look(target)
            if there is None:
                return False
            if not self.tree.may_overwrite(self.path, target):
                raise DAVError(HTTP_FORBIDDEN, f"{target!r} exists, and is not replaced by another one")
        if self.entry.collection or there.collection:
            return False
        self.provider.prop_manager.remove_properties(self.provider.ref_url_of(target, collection=False))
        self.copy_move_single(dest_path, is_move=is_move)
        return True


def _type(entry: Entry) -> Any:
    if not entry.collection:
        return ""
    element = etree.Element(RESOURCE_TYPE)
    etree.SubElement(element, "{DAV:}collection")
    return element


class File(_Resource, DAVNonCollection):  # type: ignore[misc]
    """An entry with a content."""

    def __init__(self, entry: Entry, environ: dict[str, Any]) -> None:
        super().__init__(entry, environ)
        self._etag = entry.etag
        self._moved = False

    def get_content_length(self) -> int:
        """Return the size in bytes."""
        return self.entry.size

    def get_content_type(self) -> str:
        """Return the media type."""
        return self.entry.media_type

    def get_etag(self) -> str | None:
        """Return the ETag without quotes; after a PUT, that of what was sent."""
        return self._etag

    def support_etag(self) -> bool:
        """Whether there is one."""
        return self._etag is not None

    def support_ranges(self) -> bool:
        """Whether a part can be read."""
        return True

    def get_content(self) -> BinaryIO:
        """Open the content for reading."""
        with told(self.tree):
            return self.tree.open(self.path)

    def support_recursive_move(self, dest_path: str) -> bool:  # noqa: ARG002 - the library's signature
        """Whether it moves with everything in it: there is nothing in it."""
        return False

    def begin_write(self, *, content_type: str | None = None) -> "File":  # noqa: ARG002 - the library's signature
        """Return what takes the body of a PUT."""
        return self

    def writelines(self, chunks: Iterable[bytes]) -> None:  # noqa: ARG002 - it has been received already
        """Do what the body means, which has been received as a file."""
        with told(self.tree):
            self._etag = self.tree.write(self.path, self.environ["wsgi.input"], self.environ[CONDITIONS])
        self.environ["wsgidav.all_input_read"] = 1

    def close(self) -> None:
        """Nothing is to be done."""

    def delete(self) -> None:
        """Take it away, unless it has been moved: then the library comes to delete what is left."""
        if not self._moved:
            super().delete()

    def moved(self) -> None:
        """Drop what belonged to the old name."""
        self._moved = True
        self.forget(recursive=False)


class Collection(_Resource, DAVCollection):  # type: ignore[misc]
    """A collection of entries."""

    def get_member_names(self) -> list[str]:
        """List the names of what is directly in it."""
        return [entry.path.rpartition("/")[2] for entry in self._members()]

    def get_member_list(self) -> list["File | Collection"]:
        """List what is directly in it: one look for all."""
        return [resource(entry, self.environ) for entry in self._members()]

    def create_empty_resource(self, name: str) -> File:
        """Make an empty entry for a lock to hold; that of a PUT is made when its content is accepted."""
        path = f"{self.path.rstrip('/')}/{name}"
        if self.environ["REQUEST_METHOD"] != "LOCK":
            return File(Entry(path), self.environ)
        with told(self.tree):
            self.tree.make(path)
            entry = self.tree.look(path)
        return File(entry or Entry(path), self.environ)

    def create_collection(self, name: str) -> None:
        """Make an empty collection."""
        with told(self.tree):
            self.tree.make_collection(f"{self.path.rstrip('/')}/{name}")

    def handle_delete(self) -> bool:
        """Say no before anything is taken away, or leave it to the library."""
        with told(self.tree):
            if not self.tree.may_remove(self.path):
                raise DAVError(HTTP_FORBIDDEN, f"{self.path!r} is there as long as what it belongs to")
        return False

    def delete(self) -> None:
        """Take it away with what is in it."""
        for member in self.get_member_list():
            member.delete()
        super().delete()

    def support_recursive_move(self, dest_path: str) -> bool:  # noqa: ARG002 - the library's signature
        """Whether it moves with everything in it."""
        return True

    def move_recursive(self, dest_path: str) -> list[Any]:
        """Move it with everything in it, and what clients have noted about that."""
        target = plain(dest_path)
        with told(self.tree):
            self.tree.move(self.path, target)
        self.provider.prop_manager.move_properties(
            self.get_ref_url(), self.provider.ref_url_of(target, collection=True), with_children=True
        )
        self.remove_all_locks(recursive=True)
        return []

    def _members(self) -> list[Entry]:
        with told(self.tree):
            return list(self.tree.members(self.path))


def plain(path: str) -> str:
    """Cut the `/` off that the library puts at the end of a collection's path."""
    return path.rstrip("/") or "/"
