"""The workspaces of sessions as the tree of a mount: real files, within the caller's grants and bounds (W3)."""

from collections.abc import Iterator
from contextlib import contextmanager

from cfs.errors import CfsError
from cfs_filesystem import OPERATIONS, FileSystemError, Path
from cfs_server.access.principals import Principal
from cfs_server.files import alone, problem_of, stored
from cfs_server.sessions.paths import WORKSPACES
from cfs_webdav import HandleTree


class WorkspaceTree(HandleTree):
    """What one caller sees of the workspaces."""

    def __init__(self, principal: Principal) -> None:
        super().__init__(principal.handle, WORKSPACES)
        self._usage = principal.usage
        self._limit = principal.limits.bytes

    def check(self, path: str) -> None:
        """Raise `InvalidPathError`, or `AccessDeniedError` where the caller may do nothing at or below a path."""
        logical = self._logical(path)
        if path != "/" and not any(self._handle.scopes(each, logical) for each in OPERATIONS):
            self._handle.require("file", logical)

    def refusal(self, error: CfsError) -> CfsError:
        """Return the error in the words of the API, as `/v1/files` has it."""
        return problem_of(self._handle, error) if isinstance(error, FileSystemError) else error

    def delete(self, path: str) -> None:
        """Take a file or an empty directory away, while nobody compares its version and writes."""
        with alone(self._logical(path)):
            super().delete(path)

    def move(self, path: str, target: str) -> None:
        """Give a file or a directory another path, while nobody compares the version there and writes."""
        with alone(self._logical(target)):
            super().move(path, target)

    @contextmanager
    def _writing(self, path: Path, size: int) -> Iterator[None]:
        with alone(path), stored(path), self._usage.room(path, size, self._limit):
            yield
