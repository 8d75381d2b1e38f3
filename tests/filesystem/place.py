"""A directory of the disk under test, and what is outside of it."""

from pathlib import Path

from cfs_filesystem import DiskFileSystem
from cfs_filesystem._temporary import TEMPORARY
from tests.filesystem.support import everything

SECRET = "nobody may read this"  # noqa: S105


class Place:
    """A root with a disk file system on it, and a neighbour that may not be touched."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.outside = base / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text(SECRET)
        self.disk = DiskFileSystem(self.root)
        self.handle = everything(self.disk)

    def check_outside(self) -> None:
        """Nothing outside of the root has been changed, made or removed."""
        assert sorted(path.name for path in self.root.parent.iterdir()) == ["outside", "root"]
        assert [path.name for path in self.outside.iterdir()] == ["secret"]
        assert (self.outside / "secret").read_text() == SECRET
        assert (self.outside / "secret").stat().st_mode & 0o111 == 0

    def temporaries(self) -> list[str]:
        """Names of unfinished files anywhere below the root."""
        return [path.name for path in self.root.rglob(TEMPORARY + "*")]
