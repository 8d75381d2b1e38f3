"""Defines the tree of entries and collections that a mount shows to one caller, and its operations."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from mimetypes import MimeTypes
from os import SEEK_END
from typing import BinaryIO

from cfs.errors import CfsError, PreconditionFailed
from cfs_filesystem import ConflictError, EntryMeta, FsHandle, NotFoundError, Path, VersionError


@dataclass(frozen=True, slots=True)
class Resource:
    """A snapshot of a file or collection.

    `path` begins with `/` and does not end with one, except for the mount itself, whose path is `/`. `size` is in
    bytes, `modified` in seconds since 1970, and `etag` has no quotes.
    """

    path: str
    collection: bool = False
    size: int = 0
    modified: float | None = None
    etag: str | None = None
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Conditions:
    """The headers `If-Match` and `If-None-Match` of a PUT. The tree checks them atomically with the write."""

    if_match: str | None = None
    if_none_match: str | None = None


class MountView(ABC):
    """A mount as one caller sees it, for one request. Entries that the caller may not see do not exist.

    Several threads call its methods. They raise `CfsError`; any other exception is a bug (500).
    """

    flat = False
    """Whether the mount has no collections besides itself."""

    namespace: str | None = None
    """Prefix of the tree's own property names in Clark's notation, `{namespace}`; None if it has none."""

    @abstractmethod
    def look(self, path: str) -> Resource | None:
        """Return the entry at a path; None if there is none."""

    @abstractmethod
    def members(self, path: str) -> Iterable[Resource]:
        """Return the direct members of a collection."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open the content of an entry for reading."""

    @abstractmethod
    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:
        """Handle a PUT of this body; return the ETag of the body that was sent, without quotes.

        The body is positioned at its beginning and supports `seek`.
        """

    @abstractmethod
    def make(self, path: str) -> None:
        """Create an empty entry."""

    @abstractmethod
    def make_collection(self, path: str) -> None:
        """Create an empty collection in an existing one."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an entry, or a collection with its members. If it raises, nothing has been deleted."""

    @abstractmethod
    def copy(self, path: str, target: str, *, overwrite: bool = True, members: bool = True) -> None:
        """Copy an entry, or a collection with or without its members.

        What is at the target is replaced, or raises `PreconditionFailed` without `overwrite`. If it raises, the target
        is as it was.
        """

    @abstractmethod
    def move(self, path: str, target: str, *, overwrite: bool = True) -> None:
        """Move an entry, or a collection with its members. What is at the target is treated as in `copy`.

        If it raises, both paths are as they were.
        """

    @abstractmethod
    def may_write(self, path: str) -> bool:
        """Return whether the caller may write here: lock it and set properties."""

    def may_overwrite(self, path: str, target: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a move or copy of `path` may replace the existing `target`; checked before it begins."""
        return True

    def check(self, path: str) -> None:  # noqa: B027 - for subclasses
        """Raise if the path of a request is illegal, or names nothing that the caller may see."""

    def refusal(self, error: CfsError) -> CfsError:
        """Return the error that the client gets in place of one that was raised here."""
        return error

    def properties(self, path: str) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return the tree's own properties. All of them are in its namespace."""
        return {}

    def set_property(self, path: str, name: str, value: str | None, *, dry_run: bool) -> bool:  # noqa: ARG002
        """Set a property, or reset it if `value` is None; False if it is not in the tree's namespace.

        With `dry_run` only raise the errors that the change would raise.
        """
        return False


# Conditional requests (RFC 9110, 13.1)

_TAGS = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def require(conditions: Conditions, etag: str | None, *, exists: bool) -> None:
    """Raise `PreconditionFailed` unless the conditions match an entry with this ETag (unquoted; None for none)."""
    required, unwanted = conditions.if_match, conditions.if_none_match
    if required is not None and not (exists if required.strip() == "*" else etag in _strong(required)):
        now = (
            "nothing is there"
            if not exists
            else "it has no version"
            if etag is None
            else f'the version is "{etag}" now'
        )
        raise PreconditionFailed(f"If-Match does not hold: {now}")
    if unwanted is not None and (exists if unwanted.strip() == "*" else etag in _all(unwanted)):
        raise PreconditionFailed("If-None-Match does not hold: the entry already exists")


def _strong(header: str) -> set[str | None]:
    return {tag for weak, tag in _TAGS.findall(header) if not weak}


def _all(header: str) -> set[str | None]:
    return {tag for _, tag in _TAGS.findall(header)}


# A logical file system as a tree (W3)

_CHUNK_BYTES = 1 << 20
_TYPES = MimeTypes()


class HandleTree(MountView):
    """The entries that a handle can see below a registered prefix, which ends in `/`."""

    def __init__(self, handle: FsHandle, prefix: Path) -> None:
        self._handle = handle
        self._prefix = prefix

    def look(self, path: str) -> Resource | None:
        """Return the entry at a path, if the handle may see it."""
        if path == "/":
            return Resource(path, collection=True)
        logical = self._logical(path)
        if self._handle.allows("file", logical):
            with suppress(NotFoundError):
                return self._entry(self._handle.file(logical))
        elif self._handle.allows("list", logical):
            above = self.members(path.rpartition("/")[0] or "/")
            return next((entry for entry in above if entry.path == path), None)
        return Resource(path, collection=True) if self._handle.is_directory(logical) else None

    def members(self, path: str) -> Iterator[Resource]:
        """Return the direct members of a directory."""
        return map(self._entry, self._handle.scan(self._logical(path)))

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        return self._handle.open(self._logical(path))

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:
        """Replace the content with the body, if the conditions hold."""
        logical, size = self._logical(path), body.seek(0, SEEK_END)
        body.seek(0)
        with self._writing(logical, size):
            version = None
            if conditions != Conditions():
                existing = self.look(path)
                require(conditions, existing.etag if existing else None, exists=existing is not None)
                version = existing.etag if existing else None
            overwrite = (conditions.if_none_match or "").strip() != "*"  # also without the right to see the entry
            try:
                meta = self._handle.write_from(logical, _chunks(body), overwrite=overwrite, version=version)
            except VersionError as error:
                raise PreconditionFailed(f"If-Match does not hold: {error.detail}") from None
            except ConflictError as error:
                if overwrite:
                    raise
                raise PreconditionFailed(f"If-None-Match does not hold: {error.detail}") from None
            return self._entry(meta).etag

    def make(self, path: str) -> None:
        """Create an empty file."""
        with self._writing(self._logical(path), 0):
            self._handle.write(self._logical(path), b"", overwrite=False)

    def make_collection(self, path: str) -> None:
        """Create an empty directory."""
        self._handle.make_directory(self._logical(path))

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything in it."""
        logical = self._logical(path)
        if self._handle.is_directory(logical):
            self._handle.remove_tree(logical)
        else:
            self._handle.delete(logical)

    def copy(self, path: str, target: str, *, overwrite: bool = True, members: bool = True) -> None:
        """Copy a file or a directory."""
        logical, new = self._logical(path), self._logical(target)
        with self._copying(logical, new), self._refused_as_precondition(new, overwrite=overwrite):
            self._handle.copy(logical, new, overwrite=overwrite, members=members)

    def move(self, path: str, target: str, *, overwrite: bool = True) -> None:
        """Move a file or a directory."""
        logical, new = self._logical(path), self._logical(target)
        with self._refused_as_precondition(new, overwrite=overwrite):
            self._handle.move(logical, new, overwrite=overwrite, replace_directories=True)

    @contextmanager
    def _refused_as_precondition(self, target: Path, *, overwrite: bool) -> Iterator[None]:
        try:
            yield
        except ConflictError as error:
            if overwrite or error.path != target:
                raise
            raise PreconditionFailed(f"Overwrite: F does not hold: {error.detail}") from None

    def may_write(self, path: str) -> bool:
        """Return whether the handle may write here."""
        return path != "/" and self._handle.allows("write", self._logical(path))

    def _writing(self, path: Path, size: int) -> AbstractContextManager[None]:  # noqa: ARG002 - for subclasses
        """Return a context that encloses a write of `size` bytes, including the check of its conditions."""
        return nullcontext()

    def _copying(self, path: Path, target: Path) -> AbstractContextManager[None]:  # noqa: ARG002 - for subclasses
        """Return a context that encloses a copy of a file or a directory."""
        return nullcontext()

    def _logical(self, path: str) -> Path:
        return self._prefix + path[1:]

    def _entry(self, meta: EntryMeta) -> Resource:
        path = "/" + meta["path"].removeprefix(self._prefix)
        if meta.get("directory"):
            return Resource(path, collection=True, modified=meta["updated_at"].timestamp() or None)
        version = meta.get("version")
        etag = version if isinstance(version, str) else None
        return Resource(path, False, meta["size"], meta["updated_at"].timestamp(), etag, media_type_of(path))


def _chunks(content: BinaryIO) -> Iterator[bytes]:
    return iter(partial(content.read, _CHUNK_BYTES), b"")


def media_type_of(path: str) -> str:
    """Guess the media type from the name; compressed files are `application/octet-stream`."""
    media, compression = _TYPES.guess_type(path)
    return "application/octet-stream" if media is None or compression else media
