"""Any logical file system as the tree of a mount (W3). It knows of handles and prefixes, and of nothing else."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from mimetypes import MimeTypes
from os import SEEK_END
from typing import BinaryIO

from cfs_filesystem import ConflictError, EntryMeta, FsHandle, NotFoundError, Path
from cfs_webdav.conditions import PreconditionFailed, require
from cfs_webdav.tree import Conditions, Entry, Tree

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
            return Entry(path, collection=True, modified=meta["updated_at"] or None)
        version = meta.get("version")
        etag = version if isinstance(version, str) else None
        return Entry(path, False, meta["size"], meta["updated_at"], etag, media_type_of(path))


def _chunks(content: BinaryIO) -> Iterator[bytes]:
    return iter(partial(content.read, _CHUNK_BYTES), b"")


def media_type_of(path: str) -> str:
    """Guess by the name what a content is; a compressed one is not of the type of what is in it."""
    media, compression = _TYPES.guess_type(path)
    return "application/octet-stream" if media is None or compression else media
