"""What the tests of the kit share: where they work, what a file system says that it lacks, and handles (G8)."""

from typing import ClassVar, cast

import pytest

from cfs_filesystem._types import OPERATIONS, EntryMeta, Grant, GrantedOperation, Path
from cfs_filesystem._views import FullHandle, Handle, HandleMaker


class Kit:
    """A subclass supplies the fixture `filesystem`, empty at `prefix`, and says where it is special."""

    prefix: ClassVar[Path] = "/"
    """Where the tests may work; ends in `/`."""
    nested: ClassVar[bool] = True
    """Whether entries may have a path of several components below the prefix."""
    binary: ClassVar[bool] = True
    """Whether any bytes may be stored."""
    mounted: ClassVar[frozenset[str]] = frozenset()
    """Directories at the prefix that are there from the beginning, as `names` names them."""
    complete: ClassVar[bool] = True
    """Whether handles have all operations, or only those that grants have names for."""
    empty_directories: ClassVar[bool] = True
    """Whether a directory may be there with nothing in it."""
    moves_directories: ClassVar[bool] = True
    """Whether a directory can be moved with all that is in it."""
    moves_over: ClassVar[bool] = True
    """Whether an entry can be moved to the path of another, and take its place."""

    @pytest.fixture
    def filesystem(self) -> HandleMaker:
        """Make the file system that is tested."""
        raise NotImplementedError

    def stored(self, *writes: str) -> str:
        """Return what an entry holds after these writes: the last, unless writing means something else."""
        return writes[-1]

    def at(self, name: str) -> Path:
        """Return the path of a name that the tests may use."""
        return self.prefix + name

    def grant(self, filesystem: HandleMaker, *ops: GrantedOperation, prefix: Path | None = None) -> Handle:
        """Make a handle for some operations, or all of them, below the prefix."""
        return filesystem.create_handle([Grant(prefix=prefix or self.prefix, ops=set(ops) or set(OPERATIONS))])

    @pytest.fixture
    def handle(self, filesystem: HandleMaker) -> Handle:
        """Make a handle that may do everything below the prefix."""
        return self.grant(filesystem)

    @pytest.fixture
    def full(self, handle: Handle) -> FullHandle:
        """Take that handle for one with all operations, where there are such."""
        return self.with_all_operations(handle)

    def with_all_operations(self, handle: Handle) -> FullHandle:
        """Skip the test where handles have only the operations that grants have names for."""
        if not self.complete:
            pytest.skip("only the operations that grants have names for")
        return cast("FullHandle", handle)

    def full_grant(self, filesystem: HandleMaker, *ops: GrantedOperation, prefix: Path | None = None) -> FullHandle:
        """Make such a handle for some operations, or all of them, below the prefix."""
        return self.with_all_operations(self.grant(filesystem, *ops, prefix=prefix))

    @property
    def here(self) -> Path:
        """The directory that the tests work in; it need not exist before something is written."""
        return self.prefix[:-1] or "/"

    def names(self, metas: list[EntryMeta]) -> list[str]:
        """Return the names of a listing below the prefix; of a directory, with a `/`."""
        names = [meta["path"].removeprefix(self.prefix) + "/" * bool(meta.get("directory")) for meta in metas]
        return [name for name in names if name not in self.mounted]
