"""What every file system must do with directories: look into them, make and remove them (G8)."""
# ruff: noqa: S101  a test asserts

import pytest

from cfs_filesystem._errors import ConflictError, NotFoundError
from cfs_filesystem._kit import Kit
from cfs_filesystem._views import FullHandle


class DirectoryTests(Kit):
    """`scan`, `is_directory`, `make_directory` and `remove_directory`."""

    def test_a_scan_is_one_level(self, full: FullHandle) -> None:
        """Entries as `file` knows them, and each directory once, sorted by path; nothing of what is deeper."""
        names = ["b", "a b", "ab", "d/x", "d/e/y", "d-/x"] if self.nested else ["b", "a b", "ab"]
        for name in names:
            full.write(self.at(name), name)
        found = full.scan(self.here)
        assert self.names(found) == (["a b", "ab", "b", "d/", "d-/"] if self.nested else ["a b", "ab", "b"])
        for meta in found:
            if meta.get("directory"):
                assert meta["size"] == 0
                assert meta["updated_at"] > 1e9
            else:
                assert meta == full.file(meta["path"])
        if self.nested:
            assert self.names(full.scan(self.at("d"))) == ["d/e/", "d/x"]
            assert self.names(full.scan(self.at("d/e"))) == ["d/e/y"]

    def test_only_a_directory_is_scanned(self, full: FullHandle) -> None:
        """Entries and what is not there are none, and `is_directory` says the same."""
        full.write(self.at("a"), "x")
        for name in ("a", "b", "a/b"):
            assert not full.is_directory(self.at(name))
            with pytest.raises(NotFoundError):
                full.scan(self.at(name))
        assert full.is_directory(self.here)
        assert full.is_directory("/")
        if self.nested:
            full.write(self.at("d/e/y"), "x")
            directories = [name for name in ("d", "d/e", "d/e/y", "e", "dd") if full.is_directory(self.at(name))]
            assert directories == ["d", "d/e"]

    def test_each_step_of_the_way_leads_to_the_next(self, full: FullHandle) -> None:
        """From `/` down, everything on the way to an entry is in the scan of what is above it."""
        path = self.at("d/e" if self.nested else "a")
        full.write(path, "x")
        for end in [at for at, character in enumerate(path) if character == "/"]:
            above, below = path[:end] or "/", path[: (path + "/").index("/", end + 1)]
            assert full.is_directory(above)
            known = {meta["path"]: meta.get("directory", False) for meta in full.scan(above)}
            assert known[below] is (below != path)

    def test_what_a_scan_returns_is_the_callers(self, full: FullHandle) -> None:
        """Changing it changes nothing in the file system."""
        full.write(self.at("d/e" if self.nested else "a"), "x")
        before = full.scan(self.here)
        for meta in full.scan(self.here):
            meta["size"] = -1
        assert full.scan(self.here) == before

    # -- directories that are there by themselves -------------------------------------------------------------------

    def test_making_a_directory(self, full: FullHandle) -> None:
        """It is there with nothing in it, is no entry, and stays when what came into it has gone again."""
        self._require_empty_ones(full)
        full.make_directory(self.at("d"))
        full.make_directory(self.at("d/e"))
        assert full.is_directory(self.at("d/e"))
        assert full.scan(self.at("d/e")) == []
        assert self.names(full.scan(self.at("d"))) == ["d/e/"]
        assert self.names(full.scan(self.here)) == ["d/", "seed"]
        assert full.scan(self.here)[0]["updated_at"] > 1e9
        assert self.names(full.list()) == ["seed"]
        with pytest.raises(NotFoundError):
            full.file(self.at("d"))
        full.write(self.at("d/e/x"), "x")
        full.delete(self.at("d/e/x"))
        assert full.scan(self.at("d/e")) == []

    def test_making_what_cannot_be(self, full: FullHandle) -> None:
        """What exists is not made again, and nothing is made in what is no directory."""
        self._require_empty_ones(full)
        full.write(self.at("a"), "x")
        full.write(self.at("d/x"), "x")
        before = full.list(), full.scan(self.here)
        for name in ("a", "d", "d/x", "a/b", "none/e", "d/none/e"):
            with pytest.raises(ConflictError):
                full.make_directory(self.at(name))
        assert (full.list(), full.scan(self.here)) == before

    def test_removing_a_directory(self, full: FullHandle) -> None:
        """Only an empty one; what has gone can come again, as a directory or as an entry."""
        self._require_empty_ones(full)
        full.make_directory(self.at("d"))
        full.make_directory(self.at("d/e"))
        with pytest.raises(ConflictError):
            full.remove_directory(self.at("d"))
        full.remove_directory(self.at("d/e"))
        assert self.names(full.scan(self.here)) == ["d/", "seed"]
        full.remove_directory(self.at("d"))
        assert self.names(full.scan(self.here)) == ["seed"]
        assert not full.is_directory(self.at("d"))
        full.make_directory(self.at("d"))
        full.remove_directory(self.at("d"))
        full.write(self.at("d"), "x")

    def test_removing_what_is_no_empty_directory(self, full: FullHandle) -> None:
        """An entry and nothing at all are no directory; one with an entry in it stays."""
        full.write(self.at("a"), "x")
        before = full.list()
        for name in ("a", "none", "a/b"):
            with pytest.raises(NotFoundError):
                full.remove_directory(self.at(name))
        if self.nested:
            full.write(self.at("d/x"), "x")
            before = full.list()
            with pytest.raises(ConflictError):
                full.remove_directory(self.at("d"))
        assert full.list() == before

    def test_an_empty_directory_gives_way_to_an_entry(self, full: FullHandle) -> None:
        """With the empty ones in it; one with an entry below it does not."""
        self._require_empty_ones(full)
        for name in ("d", "d/e", "d/f"):
            full.make_directory(self.at(name))
        full.write(self.at("d/f/x"), "x")
        with pytest.raises(ConflictError):
            full.write(self.at("d"), "x")
        assert full.is_directory(self.at("d/e"))
        full.delete(self.at("d/f/x"))
        full.write(self.at("d"), "now an entry")
        assert self.names(full.scan(self.here)) == ["d", "seed"]
        assert not full.is_directory(self.at("d/e"))

    def test_where_no_directory_is_empty_none_is_made(self, full: FullHandle) -> None:
        """That is told, and nothing changes."""
        if self.empty_directories:
            pytest.skip("a file system with empty directories")
        full.write(self.at("a"), "x")
        before = full.list()
        with pytest.raises(ConflictError):
            full.make_directory(self.at("d"))
        assert full.list() == before
        assert not full.is_directory(self.at("d"))

    def _require_empty_ones(self, full: FullHandle) -> None:
        """Let the place of the tests be there; skip where no directory can be empty."""
        if not self.empty_directories:
            pytest.skip("a file system without empty directories")
        full.write(self.at("seed"), "x")
