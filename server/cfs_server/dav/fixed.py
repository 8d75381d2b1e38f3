"""A mount whose entries are neither created, moved nor deleted by clients (W3)."""

from abc import abstractmethod
from typing import BinaryIO

from cfs.errors import CfsError
from cfs_webdav import Conditions, MountView


class FixedTree(MountView):
    """Refuses every change. A subclass may accept the writes of some files."""

    @abstractmethod
    def refused(self, path: str) -> CfsError:
        """Return why nothing can be changed at a path."""

    def require_write(self, path: str) -> None:
        """Refuse a PUT before its body is received."""
        raise self.refused(path)

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:  # noqa: ARG002
        """Refuse."""
        raise self.refused(path)

    def make(self, path: str) -> None:
        """Refuse."""
        raise self.refused(path)

    def make_collection(self, path: str) -> None:
        """Refuse."""
        raise self.refused(path)

    def delete(self, path: str) -> None:
        """Refuse."""
        raise self.refused(path)

    def copy(self, path: str, target: str, *, overwrite: bool = True, members: bool = True) -> None:  # noqa: ARG002
        """Refuse."""
        raise self.refused(path)

    def move(self, path: str, target: str, *, overwrite: bool = True) -> None:  # noqa: ARG002
        """Refuse."""
        raise self.refused(path)

    def may_write(self, path: str) -> bool:  # noqa: ARG002
        """Return False: nothing can be written here."""
        return False
