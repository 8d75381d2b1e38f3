"""What a mount shows to one caller, and what the caller may do with it: entries and collections by their paths."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO


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

    Its methods are called by threads, and raise whatever has an attribute `status`, an HTTP status, and `detail`, a
    sentence; anything else is a defect.
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

    def refusal(self, error: Exception) -> Exception:
        """Return the error to show for one that was raised here: it has a `status` and a `detail`."""
        return error

    def properties(self, path: str) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return the properties that the tree itself has, all of them in its namespace."""
        return {}

    def set_property(self, path: str, name: str, value: str | None, *, dry_run: bool) -> bool:  # noqa: ARG002
        """Set a property, or put it back to its default by None; False if that is none of the tree's namespace.

        With `dry_run` only raise what would be raised.
        """
        return False
