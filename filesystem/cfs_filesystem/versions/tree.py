"""What the history of a workspace needs of its files: `FolderTree` has them on a disk, `ObjectTree` in a bucket."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, Self

from cfs_filesystem.versions.model import Entry, EntryType

Contents = Callable[[Entry], BinaryIO]
"""Opens the content of an entry of the past."""


class EntryChangedError(Exception):
    """A program has changed what is at a path since it was recorded, so it was not replaced."""


@dataclass(frozen=True, slots=True)
class TreeStatus:
    """What is at a path: its type, its permission bits, the bytes of a file, and its stamp.

    A different stamp means that the content may have changed. Folders have none.
    """

    type: EntryType
    mode: int
    size: int = 0
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class RestoredFiles:
    """What `restore` has done: the stamps of the files that it has put, and the paths that it had to leave."""

    stamps: dict[str, str]
    left: list[str]


class VersionedTree(Protocol):
    """The files of one workspace. Paths are relative to it, without a `/` at either end; `""` is the workspace itself.

    All methods raise `OSError` if the disk refuses, and `Unavailable` if the bucket does not answer.
    """

    compares: bool
    """Whether a change can name the stamp of what it replaces, and is refused if that has another one."""

    def view(self, paths: Collection[str]) -> "VersionedTree":
        """Return a tree on which these paths are looked at soon. It may show everything as it is now."""

    def status(self, path: str) -> TreeStatus | None:
        """Return what is at a path, without following links; None if nothing is there that can be recorded."""

    def mode(self, path: str) -> int:
        """Return the permissions of a file that was just written."""

    def above(self, path: str) -> dict[str, TreeStatus]:
        """Return the folders above a path that are there."""

    def above_written(self, path: str) -> dict[str, TreeStatus]:
        """Return the folders above a file that was just written."""

    def present(self, path: str = "", skip: frozenset[str] = frozenset()) -> Iterator[tuple[str, TreeStatus]]:
        """Yield what is at and below a path, each folder before its contents, but not the workspace itself.

        Folders below it whose names are in `skip` are left out.
        """

    def open(self, path: str) -> tuple[BinaryIO, str]:
        """Open a file, or the target of a link; return it with its stamp, from before anything is read.

        Raises `FileNotFoundError`, or another `OSError`, if there is none any more.
        """

    def open_before(self, path: str) -> BinaryIO | None:
        """Open a file that is replaced soon, if that is faster than to read it from the versions."""

    def restore(
        self, entries: Mapping[str, Entry | None], contents: Contents, replaced: Mapping[str, Entry | None]
    ) -> RestoredFiles:
        """Make what is at each path what its entry says; None removes it. Done again, it changes nothing.

        `replaced` has the newest versions. Where the tree compares, nothing else is replaced: it raises
        `EntryChangedError`. A path is left where a folder holds files that no entry names.
        """

    def room(self) -> int | None:
        """Return the bytes that can still be stored; None if that is not known."""

    def copy(self, present: Iterable[tuple[str, TreeStatus]], target: Self) -> dict[str, str]:
        """Copy what is `present` to another tree, which has only the workspace itself.

        Returns the stamp of each file as it was copied. What is removed meanwhile is left out.
        """


class VersionedTrees(Protocol):
    """All workspaces of a server: folders in a folder, or prefixes in a bucket."""

    def tree(self, workspace: str) -> VersionedTree:
        """Return the files of a workspace, which need not exist."""

    def vacate(self, workspace: str) -> bool:
        """Remove the workspace if it is an empty folder. Returns whether it was."""

    def new(self, workspace: str, mode: int) -> AbstractContextManager[tuple[VersionedTree, int]]:
        """Make a workspace; yield its empty tree, and a mark by which `remove` recognises it.

        On a disk it gets its name when the block ends. Raises `FileExistsError` if the name is taken by then.
        """

    def remove(self, workspace: str, mark: int, is_known: Callable[[str, TreeStatus], bool]) -> bool:
        """Remove a workspace that `new` has made, also in part. Returns whether nothing else is there.

        Without a mark, `is_known` says of each file whether its content is one that was copied; others stay.
        """


def parents(path: str) -> list[str]:
    """Return the paths above a path, the outermost first, without the workspace itself."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
