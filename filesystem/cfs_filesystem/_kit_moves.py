"""What every file system must do when entries and directories are given other paths (G8)."""
# ruff: noqa: S101  a test asserts

import pytest

from cfs_filesystem._errors import ConflictError, NotFoundError
from cfs_filesystem._kit import Kit
from cfs_filesystem._views import FullHandle


class MoveTests(Kit):
    """`move`."""

    def test_moving_an_entry(self, full: FullHandle) -> None:
        """Its content is at the new path, and the old one is free."""
        full.write(self.at("a"), "content")
        content = full.read_binary(self.at("a"))
        full.move(self.at("a"), self.at("b"))
        assert self.names(full.list()) == ["b"]
        assert full.read_binary(self.at("b")) == content
        full.write(self.at("a"), "again", overwrite=False)
        if self.nested:
            full.write(self.at("d/x"), "x")
            full.move(self.at("b"), self.at("d/y"))
            assert self.names(full.list()) == ["a", "d/x", "d/y"]
            assert full.read_binary(self.at("d/y")) == content

    def test_moving_over_an_entry(self, full: FullHandle) -> None:
        """Only when that is asked for; then it takes the place of the other."""
        full.write(self.at("a"), "content")
        full.write(self.at("b"), "other")
        content, other = full.read_binary(self.at("a")), full.read_binary(self.at("b"))
        with pytest.raises(ConflictError):
            full.move(self.at("a"), self.at("b"))
        assert (full.read_binary(self.at("a")), full.read_binary(self.at("b"))) == (content, other)
        if self.moves_over:
            full.move(self.at("a"), self.at("b"), overwrite=True)
            assert self.names(full.list()) == ["b"]
            assert full.read_binary(self.at("b")) == content
        else:
            with pytest.raises(ConflictError):
                full.move(self.at("a"), self.at("b"), overwrite=True)
            assert self.names(full.list()) == ["a", "b"]

    def test_moving_nothing(self, full: FullHandle) -> None:
        """It is not found, and nothing comes to be."""
        full.write(self.at("b"), "x")
        for overwrite in (False, True):
            for target in ("b", "c", "a"):
                with pytest.raises(NotFoundError):
                    full.move(self.at("a"), self.at(target), overwrite=overwrite)
        assert self.names(full.list()) == ["b"]

    def test_moving_to_where_it_is_or_where_nothing_can_be(self, full: FullHandle) -> None:
        """To itself, below itself, below an entry, and to a directory that is not there."""
        full.write(self.at("a"), "x")
        full.write(self.at("b"), "x")
        before = full.list()
        for overwrite in (False, True):
            for target in ("a", "a/b", "b/c", "none/a"):
                with pytest.raises(ConflictError):
                    full.move(self.at("a"), self.at(target), overwrite=overwrite)
        assert full.list() == before

    def test_an_entry_does_not_take_the_place_of_a_directory(self, full: FullHandle) -> None:
        """Not even of one that is empty: that would be for a write."""
        if not self.nested:
            pytest.skip("one level only")
        full.write(self.at("a"), "x")
        full.write(self.at("d/x"), "x")
        targets = ["d"]
        if self.empty_directories:
            full.make_directory(self.at("e"))
            targets.append("e")
        before = full.list(), full.scan(self.here)
        for overwrite in (False, True):
            for target in targets:
                with pytest.raises(ConflictError):
                    full.move(self.at("a"), self.at(target), overwrite=overwrite)
        assert (full.list(), full.scan(self.here)) == before

    def test_moving_a_directory(self, full: FullHandle) -> None:
        """Everything in it has the new path, nothing has the old, and neither has what only shares letters."""
        self._require_directories(full)
        if self.empty_directories:
            full.make_directory(self.at("d/empty"))
        contents = {path.removeprefix(self.at("d")): full.read_binary(path) for path in self._below(full, "d")}
        full.move(self.at("d"), self.at("moved"))
        assert {path.removeprefix(self.at("moved")): full.read_binary(path) for path in self._below(full, "moved")} == (
            contents
        )
        assert not full.is_directory(self.at("d"))
        assert self._below(full, "d") == []
        assert self._below(full, "dd") == [self.at("dd/x")]
        if self.empty_directories:
            assert full.scan(self.at("moved/empty")) == []
        full.write(self.at("d"), "the path is free")

    def test_a_directory_takes_the_place_of_nothing(self, full: FullHandle) -> None:
        """Neither of an entry nor of a directory, be it empty; and it does not go into itself."""
        self._require_directories(full)
        full.write(self.at("a"), "x")
        targets = ["a", "dd", "d", "d/e", "d/new", "d/e/f/new", "none/d", "a/d"]
        if self.empty_directories:
            full.make_directory(self.at("empty"))
            targets.append("empty")
        before = full.list(), full.scan(self.here)
        for overwrite in (False, True):
            for target in targets:
                with pytest.raises(ConflictError):
                    full.move(self.at("d"), self.at(target), overwrite=overwrite)
        assert (full.list(), full.scan(self.here)) == before

    def test_where_directories_stay_where_they_are(self, full: FullHandle) -> None:
        """That is told, and nothing changes."""
        if self.moves_directories or not self.nested:
            pytest.skip("a file system that moves directories, or has none")
        full.write(self.at("d/x"), "x")
        with pytest.raises(ConflictError):
            full.move(self.at("d"), self.at("moved"))
        assert self.names(full.list()) == ["d/x"]

    def _below(self, full: FullHandle, name: str) -> list[str]:
        return [meta["path"] for meta in full.list(self.at(name))]

    def _require_directories(self, full: FullHandle) -> None:
        if not self.nested or not self.moves_directories:
            pytest.skip("a file system that moves no directories")
        for name in ("d/x", "d/e/y", "d/e/f/z", "dd/x"):
            full.write(self.at(name), name)
