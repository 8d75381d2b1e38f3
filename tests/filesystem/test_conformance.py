"""The public test kit, held against every file system of this package (G8)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs_filesystem import BuiltinFileSystem, DiskFileSystem, InMemoryFileSystem, RouterFileSystem
from cfs_filesystem.testing import FileSystemConformance
from tests.filesystem.support import OnlyTheFourHooks, without_unnamed_files


class TestMemory(FileSystemConformance):
    @pytest.fixture
    def filesystem(self) -> Iterator[InMemoryFileSystem]:
        memory = InMemoryFileSystem()
        yield memory
        memory.check_integrity()


class TestDisk(FileSystemConformance):
    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> DiskFileSystem:
        return DiskFileSystem(tmp_path, durable=True)


class TestDiskBelowAPrefix(FileSystemConformance):
    prefix = "/workspaces/"

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> DiskFileSystem:
        return DiskFileSystem(tmp_path, prefix=self.prefix)


class TestDiskWithoutUnnamedFiles(FileSystemConformance):
    """As on macOS and on old kernels."""

    @pytest.fixture
    def filesystem(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskFileSystem:
        without_unnamed_files(monkeypatch)
        return DiskFileSystem(tmp_path)


class TestRouterAtARoot(FileSystemConformance):
    mounted = frozenset({"on/"})

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> RouterFileSystem:
        disk = DiskFileSystem(tmp_path, prefix="/on/disk/")
        return RouterFileSystem({"/": InMemoryFileSystem(), "/on/disk/": disk})


class TestRouterAtADeepMount(FileSystemConformance):
    prefix = "/on/disk/"

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> RouterFileSystem:
        disk = DiskFileSystem(tmp_path, prefix="/on/disk/")
        return RouterFileSystem({"/": InMemoryFileSystem(), "/on/disk/": disk})


class TestWorkspaceOfTheBuiltinLayout(FileSystemConformance):
    prefix = "/workspace/"

    @pytest.fixture
    def filesystem(self) -> BuiltinFileSystem:
        return BuiltinFileSystem()


class TestYourOwnInFourHooks(FileSystemConformance):
    empty_directories = False
    moves_directories = False
    replaces_directories = False

    @pytest.fixture
    def filesystem(self) -> OnlyTheFourHooks:
        return OnlyTheFourHooks()
