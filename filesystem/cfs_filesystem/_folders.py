"""The directories of entries in memory: those above something, and those that were made."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cfs_filesystem._paths import directories_above
from cfs_filesystem._types import DirectoryMeta, Path


@dataclass(slots=True)
class _Folder:
    members: int = 0
    """Entries and made directories below it, however deep."""
    made: bool = False
    updated_at: float = 0.0


class Folders:
    """Directories, by the prefix of what is in them (`/`, `/a/`). One that was not made goes with its last member."""

    def __init__(self) -> None:
        self._known: dict[Path, _Folder] = {}

    def add(self, path: Path, now: float) -> None:
        """Count an entry in everything above it."""
        for inside in directories_above(path):
            folder = self._known.setdefault(inside, _Folder())
            folder.members += 1
            folder.updated_at = max(folder.updated_at, now)

    def discard(self, path: Path, now: float) -> None:
        """Count an entry no more."""
        for inside in directories_above(path):
            folder = self._known[inside]
            folder.members -= 1
            folder.updated_at = max(folder.updated_at, now)
            if not folder.members and not folder.made:
                del self._known[inside]

    def make(self, path: Path, now: float) -> None:
        """Let a directory be there by itself; it may be above something already."""
        self.add(path, now)
        folder = self._known.setdefault(path + "/", _Folder())
        folder.made, folder.updated_at = True, max(folder.updated_at, now)

    def remove(self, path: Path, now: float) -> None:
        """Let a made directory be there no more, or no longer than something is below it."""
        folder = self._known[path + "/"]
        folder.made = False
        if not folder.members:
            del self._known[path + "/"]
        self.discard(path, now)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def get(self, inside: Path) -> DirectoryMeta | None:
        """Return what is known of a directory."""
        folder = self._known.get(inside)
        if folder is None:
            return None
        return DirectoryMeta(path=inside[:-1] or "/", size=0, updated_at=folder.updated_at, directory=True)

    def directly_in(self, inside: Path) -> list[DirectoryMeta]:
        """Return the directories one component below one; others may change them meanwhile."""
        depth = inside.count("/") + 1
        paths = [known for known in list(self._known) if known.startswith(inside) and known.count("/") == depth]
        return [meta for path in paths if (meta := self.get(path)) is not None]

    def made(self, inside: Path = "/") -> Iterator[tuple[Path, float]]:
        """Go through the made directories at and below one: their paths and times, the deepest of a branch last."""
        for known, folder in sorted(self._known.items()):
            if folder.made and known.startswith(inside):
                yield known[:-1], folder.updated_at

    def is_empty(self, inside: Path) -> bool:
        """Tell whether a directory has nothing in it, or is none."""
        folder = self._known.get(inside)
        return folder is None or not folder.members

    def is_bare(self, inside: Path) -> bool:
        """Tell whether no entry is below a directory, be there directories; or it is none."""
        folder = self._known.get(inside)
        return folder is None or folder.members == sum(1 for path, _ in self.made(inside) if path + "/" != inside)

    def check_integrity(self, entries: Iterable[Path]) -> None:
        """Raise `AssertionError` where these directories are not those of the entries."""
        members = [*entries, *(path for path, _ in self.made())]
        counted = Counter(inside for path in members for inside in directories_above(path))
        if counted != Counter({inside: folder.members for inside, folder in self._known.items() if folder.members}):
            raise AssertionError("the directories are counted wrongly")
        if any(not folder.members and not folder.made for folder in self._known.values()):
            raise AssertionError("there is a directory with nothing in it that nobody made")
        if any(path + "/" in self._known for path in entries):
            raise AssertionError("a path is both entry and directory")
