"""The three-prefix layout: framework files, user input, and the agent's workspace (G6)."""

from collections.abc import Iterable

from cfs_filesystem._base import FileSystemBase
from cfs_filesystem._errors import InvalidPathError
from cfs_filesystem._grants import checked
from cfs_filesystem._handle import FsHandle
from cfs_filesystem._memory import InMemoryFileSystem
from cfs_filesystem._paths import covers
from cfs_filesystem._router import RouterFileSystem
from cfs_filesystem._types import OPERATIONS, Grant, GrantedOperation, Operation, Path

INTERNAL = "/internal/"
USERINPUT = "/userinput/"
WORKSPACE = "/workspace/"

_LOOK: frozenset[Operation] = OPERATIONS - {"write", "delete"}
_LAYOUT: dict[Path, frozenset[Operation]] = {INTERNAL: OPERATIONS - {"delete"}, USERINPUT: _LOOK, WORKSPACE: OPERATIONS}


def builtin_grant(prefix: Path, ops: Iterable[GrantedOperation] | None = None) -> Grant:
    """Return a grant at or below one of the three prefixes.

    The default for `ops` is what the layout allows: all operations below `/workspace/`, all but `delete` below
    `/internal/`, and listing and reading below `/userinput/`. The framework names `write` explicitly to store input.
    Nothing below `/internal/` can be deleted, whatever the grants are.
    """
    for root, usual in _LAYOUT.items():
        if covers(root, prefix):
            return checked([Grant(prefix=prefix, ops=usual if ops is None else frozenset(ops))])[0]
    raise InvalidPathError(f"{prefix!r} is below none of {', '.join(_LAYOUT)}", prefix)


class BuiltinFileSystem(RouterFileSystem):
    """`/internal/`, `/userinput/` and `/workspace/`; each is in memory by default."""

    builtin_grant = staticmethod(builtin_grant)

    def __init__(
        self,
        *,
        internal: FileSystemBase | None = None,
        userinput: FileSystemBase | None = None,
        workspace: FileSystemBase | None = None,
    ) -> None:
        super().__init__(
            {
                INTERNAL: internal or InMemoryFileSystem([INTERNAL]),
                USERINPUT: userinput or InMemoryFileSystem([USERINPUT]),
                WORKSPACE: workspace or InMemoryFileSystem([WORKSPACE]),
            }
        )
        self.undeletable = (INTERNAL, *self.undeletable)

    def create_internal_handle(self) -> FsHandle:
        """Create the framework's handle: all operations but `delete` below `/internal/`."""
        return self.create_handle([builtin_grant(INTERNAL)])

    def create_userinput_handle(self) -> FsHandle:
        """Create a handle that lists and reads entries below `/userinput/`."""
        return self.create_handle([builtin_grant(USERINPUT)])

    def create_workspace_handle(self) -> FsHandle:
        """Create a handle with all operations below `/workspace/`."""
        return self.create_handle([builtin_grant(WORKSPACE)])
