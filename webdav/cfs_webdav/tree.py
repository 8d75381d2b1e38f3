"""What a mount shows to one caller, and what the caller may do with it: entries and collections by their paths."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from mimetypes import MimeTypes
from os import SEEK_END
from typing import BinaryIO

from cfs.errors import CfsError, PreconditionFailed
from cfs_filesystem import ConflictError, EntryMeta, FsHandle, NotFoundError, Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of a mount as it was at one moment.

    `path` begins with `/`, has none at its end and is `/` for the mount itself; `size` is in bytes, `modified` in
    seconds since 1970, and `etag` has no quotes.
    """

    path: str
    collection: bool = False
    size: int = 0
    modified: float | None = None
    etag: str | None = None
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Headers `If-Match` and `If-None-Match` of a PUT, for the tree to judge in one piece with the write."""

    if_match: str | None = None
    if_none_match: str | None = None


class Tree(ABC):
    """A mount as one caller sees it, for one request. What the caller may not see is not there.

    Its methods are called by threads and raise `CfsError`; any other exception is a defect (500).
    """

    flat = False
    """Whether there is nothing below the entries of the mount itself."""

    namespace: str | None = None
    """How the names of the tree's own properties begin, in Clark's notation: `{namespace}`; None if it has none."""

    @abstractmethod
    def look(self, path: str) -> Entry | None:
        """Describe what is at a path; None if nothing is."""

    @abstractmethod
    def members(self, path: str) -> Iterable[Entry]:
        """Describe what is directly in a collection."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open the content of an entry for reading."""

    @abstractmethod
    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:
        """Do what a PUT of this body means; return the ETag that names what was sent, without quotes.

        The body is at its beginning, and can be read once more by `seek`.
        """

    @abstractmethod
    def make(self, path: str) -> None:
        """Make an empty entry."""

    @abstractmethod
    def make_collection(self, path: str) -> None:
        """Make an empty collection, in one that exists."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Take an entry or an empty collection away."""

    @abstractmethod
    def copy(self, path: str, target: str) -> None:
        """Copy an entry, over one that exists; of a collection make an empty one."""

    @abstractmethod
    def move(self, path: str, target: str) -> None:
        """Give an entry another path, over an entry that exists; or a collection with everything in it."""

    def may_overwrite(self, path: str, target: str) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether `target`, which exists, may be replaced by a move or a copy of `path`."""
        return True

    @abstractmethod
    def may_write(self, path: str) -> bool:
        """Tell whether the caller may write here: lock it, and note properties."""

    def may_remove(self, path: str) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether a collection may be removed with what is in it; asked before anything of that goes."""
        return True

    def check(self, path: str) -> None:  # noqa: B027 - for subclasses
        """Raise where a request's own path can name nothing, or nothing that the caller may know of."""

    def refusal(self, error: CfsError) -> CfsError:
        """Return the error that the client gets for one that was raised here."""
        return error

    def properties(self, path: str) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return the properties that the tree itself has, all of them in its namespace."""
        return {}

    def set_property(self, path: str, name: str, value: str | None, *, dry_run: bool) -> bool:  # noqa: ARG002
        """Set a property, or put it back to its default by None; False if that is none of the tree's namespace.

        With `dry_run` only raise what would be raised.
        """
        return False


# What must hold of an entry before it is replaced (RFC 9110, 13.1).

_TAGS = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


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


# Any logical file system as the tree of a mount (W3). It knows of handles and prefixes, and of nothing else.

_CHUNK_BYTES = 1 << 20
_TYPES = MimeTypes()


class HandleTree(Tree):
    """What a handle shows below a registered prefix, which ends in `/`."""

    def __init__(self, handle: FsHandle, prefix: Path) -> None:
        self._handle = handle
        self._prefix = prefix

    def look(self, path: str) -> Entry | None:
        """Describe what is at a path, if the handle may know of it."""
        if path == "/":
            return Entry(path, collection=True)
        logical = self._logical(path)
        if self._handle.allows("file", logical):
            with suppress(NotFoundError):
                return self._entry(self._handle.file(logical))
        elif self._handle.allows("list", logical):
            above = self.members(path.rpartition("/")[0] or "/")
            return next((entry for entry in above if entry.path == path), None)
        return Entry(path, collection=True) if self._handle.is_directory(logical) else None

    def members(self, path: str) -> Iterator[Entry]:
        """Describe what is directly in a directory."""
        return map(self._entry, self._handle.scan(self._logical(path)))

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        return self._handle.open(self._logical(path))

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:
        """Put the body in the place of the content, if the conditions hold."""
        logical, size = self._logical(path), body.seek(0, SEEK_END)
        body.seek(0)
        with self._writing(logical, size):
            if conditions != Conditions():
                there = self.look(path)
                require(conditions, there.etag if there else None, exists=there is not None)
            overwrite = (conditions.if_none_match or "").strip() != "*"  # who may not look may not overwrite blindly
            try:
                meta = self._handle.write_from(logical, _chunks(body), overwrite=overwrite)
            except ConflictError as error:
                if overwrite:
                    raise
                raise PreconditionFailed(f"If-None-Match does not hold: {error.detail}") from None
            return self._entry(meta).etag

    def make(self, path: str) -> None:
        """Make an empty file."""
        with self._writing(self._logical(path), 0):
            self._handle.write(self._logical(path), b"", overwrite=False)

    def make_collection(self, path: str) -> None:
        """Make an empty directory."""
        self._handle.make_directory(self._logical(path))

    def delete(self, path: str) -> None:
        """Take a file or an empty directory away."""
        logical = self._logical(path)
        if self._handle.is_directory(logical):
            self._handle.remove_directory(logical)
        else:
            self._handle.delete(logical)

    def copy(self, path: str, target: str) -> None:
        """Copy a file in pieces; of a directory make an empty one."""
        logical, new = self._logical(path), self._logical(target)
        if self._handle.is_directory(logical):
            if not self._handle.is_directory(new):
                self._handle.make_directory(new)
            return
        with self._handle.open(logical) as content, self._writing(new, content.seek(0, SEEK_END)):
            content.seek(0)
            self._handle.write_from(new, _chunks(content))

    def move(self, path: str, target: str) -> None:
        """Give a file or a directory another path."""
        self._handle.move(self._logical(path), self._logical(target), overwrite=True)

    def may_write(self, path: str) -> bool:
        """Tell whether the handle may write here."""
        return path != "/" and self._handle.allows("write", self._logical(path))

    def _writing(self, path: Path, size: int) -> AbstractContextManager[None]:  # noqa: ARG002 - for subclasses
        """Surround the writing of so many bytes, from the look at the version to the end."""
        return nullcontext()

    def _logical(self, path: str) -> Path:
        return self._prefix + path[1:]

    def _entry(self, meta: EntryMeta) -> Entry:
        path = "/" + meta["path"].removeprefix(self._prefix)
        if meta.get("directory"):
            return Entry(path, collection=True, modified=meta["updated_at"].timestamp() or None)
        version = meta.get("version")
        etag = version if isinstance(version, str) else None
        return Entry(path, False, meta["size"], meta["updated_at"].timestamp(), etag, media_type_of(path))


def _chunks(content: BinaryIO) -> Iterator[bytes]:
    return iter(partial(content.read, _CHUNK_BYTES), b"")


def media_type_of(path: str) -> str:
    """Guess by the name what a content is; a compressed one is not of the type of what is in it."""
    media, compression = _TYPES.guess_type(path)
    return "application/octet-stream" if media is None or compression else media
