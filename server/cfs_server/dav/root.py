"""`/dav` itself: a collection of the mounts, which takes nothing."""

from collections.abc import Iterable
from typing import BinaryIO

from cfs.errors import Forbidden, NotFound
from cfs_webdav import Conditions, Entry, Tree


class RootTree(Tree):
    """Shows the mounts by their names."""

    flat = True

    def __init__(self, names: Iterable[str]) -> None:
        self._mounts = [Entry(f"/{name}", collection=True) for name in names]

    def look(self, path: str) -> Entry | None:
        """Describe the root; what is below it belongs to the mounts."""
        return Entry(path, collection=True) if path == "/" else None

    def members(self, path: str) -> Iterable[Entry]:
        """Describe the mounts."""
        return self._mounts if path == "/" else ()

    def open(self, path: str) -> BinaryIO:
        """Refuse: there are no contents."""
        raise NotFound(f"there is nothing at {path!r}")

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:  # noqa: ARG002
        """Refuse."""
        raise _refused(path)

    def make(self, path: str) -> None:
        """Refuse."""
        raise _refused(path)

    def make_collection(self, path: str) -> None:
        """Refuse."""
        raise _refused(path)

    def delete(self, path: str) -> None:
        """Refuse."""
        raise _refused(path)

    def copy(self, path: str, target: str) -> None:  # noqa: ARG002
        """Refuse."""
        raise _refused(path)

    def move(self, path: str, target: str) -> None:  # noqa: ARG002
        """Refuse."""
        raise _refused(path)

    def may_write(self, path: str) -> bool:  # noqa: ARG002
        """Say no."""
        return False


def _refused(path: str) -> Forbidden:
    return Forbidden(f"nothing can be changed at /dav{path}: go into sessions, sub_sessions or workspaces")
