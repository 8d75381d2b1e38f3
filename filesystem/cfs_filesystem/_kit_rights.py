"""What every file system must refuse, or not show, of its directories (G8)."""
# ruff: noqa: S101  a test asserts

from collections.abc import Callable

import pytest

from cfs_filesystem._errors import AccessDeniedError, InvalidPathError, NotFoundError
from cfs_filesystem._kit import Kit
from cfs_filesystem._types import OPERATIONS, Grant, Operation, Path
from cfs_filesystem._views import FullHandle, Handle, HandleMaker

_CALLS: dict[str, tuple[set[Operation], Callable[[FullHandle, Path], object]]] = {
    "open": ({"read_binary"}, lambda handle, path: handle.open(path).close()),
    "write_from": ({"write"}, lambda handle, path: handle.write_from(path, [b"x"])),
    "scan": ({"list"}, lambda handle, path: handle.scan(path)),
    "make_directory": ({"write"}, lambda handle, path: handle.make_directory(path)),
    "remove_directory": ({"delete"}, lambda handle, path: handle.remove_directory(path)),
    "move": ({"read_binary", "delete", "write"}, lambda handle, path: handle.move(path, path + "-")),
    "move to": ({"read_binary", "delete", "write"}, lambda handle, path: handle.move(path + "-", path)),
}
_BAD = ["", "a", "../a", "./a", "/a", "a*", "a\x00", "a/"]
"""What is no path, once it is below the prefix (the first two by themselves)."""


class DirectoryRightsTests(Kit):
    """The order of checks, and what grants show, for all but the operations that grants have names for."""

    @pytest.mark.parametrize("call", _CALLS)
    def test_strings_that_are_no_path_of_a_directory(self, filesystem: HandleMaker, call: str) -> None:
        """They are refused before rights are looked at."""
        for maker in (self.grant(filesystem), filesystem.create_handle([])):
            handle = self.with_all_operations(maker)
            for bad in (*_BAD[:2], *(self.at(bad) for bad in _BAD[2:])):
                with pytest.raises(InvalidPathError):
                    _CALLS[call][1](handle, bad)
                if call == "scan":
                    with pytest.raises(InvalidPathError):
                        handle.is_directory(bad)

    @pytest.mark.parametrize("call", _CALLS)
    def test_denials_tell_nothing(self, filesystem: HandleMaker, handle: Handle, call: str) -> None:
        """Without one of the rights, or beside the prefix, access is denied, whatever is there."""
        needed, act = _CALLS[call]
        full = self.with_all_operations(handle)
        for name in ("a", "ab"):
            full.write(self.at(name), "x")
        before = full.list()
        lacking = [self.full_grant(filesystem, *(OPERATIONS - {operation})) for operation in sorted(needed)]
        beside = self.full_grant(filesystem, prefix=self.at("a"))
        for denied, name in ((one, name) for one in (*lacking, beside) for name in ("ab", "none", "none/deep")):
            with pytest.raises(AccessDeniedError):
                act(denied, self.at(name))
        assert full.list() == before

    def test_a_move_needs_rights_at_both_paths(self, filesystem: HandleMaker, full: FullHandle) -> None:
        """To read and delete here, to write there; the other way round is of no use."""
        full.write(self.at("a"), "x")
        here = Grant(prefix=self.at("a"), ops={"read_binary", "delete"})
        there = Grant(prefix=self.at("b"), ops={"write"})
        for grants in (
            [here],
            [there],
            [Grant(prefix=self.at("b"), ops=OPERATIONS), Grant(prefix=self.at("a"), ops={"write"})],
        ):
            with pytest.raises(AccessDeniedError):
                self.with_all_operations(filesystem.create_handle(grants)).move(self.at("a"), self.at("b"))
        self.with_all_operations(filesystem.create_handle([here, there])).move(self.at("a"), self.at("b"))
        assert self.names(full.list()) == ["b"]

    def test_a_scan_shows_what_leads_to_what_may_be_listed(self, filesystem: HandleMaker, full: FullHandle) -> None:
        """Below, at, beside and deeper than the grants: the way there and nothing else, and no way to nowhere."""
        if not self.nested:
            pytest.skip("one level only")
        for name in ("a", "ab", "d/x", "d/e/y", "d/e/f/z", "g/x", "h/x"):
            full.write(self.at(name), "x")
        grants = [
            Grant(prefix=self.at(name), ops={"list"})
            for name in ("a", "d/e/f", "g/", "h/none", "none", "none/deep", "a/below/an/entry")
        ]
        some = self.with_all_operations(filesystem.create_handle(grants))
        assert self.names(some.scan(self.here)) == ["a", "d/", "g/"]
        assert self.names(some.scan(self.at("d"))) == ["d/e/"]
        assert self.names(some.scan(self.at("d/e"))) == ["d/e/f/"]
        assert self.names(some.scan(self.at("d/e/f"))) == ["d/e/f/z"]
        assert self.names(some.scan(self.at("g"))) == ["g/x"]
        names = ["a", "d", "d/e", "d/e/f", "g", "h", "none", "ab"]
        assert [name for name in names if some.is_directory(self.at(name))] == ["d", "d/e", "d/e/f", "g"]
        for name in ("h", "none", "a"):
            with pytest.raises(NotFoundError):
                some.scan(self.at(name))
        for name in ("ab", "d/x", "elsewhere", "hh"):
            with pytest.raises(AccessDeniedError):
                some.scan(self.at(name))

    def test_a_directory_on_the_way_says_nothing_of_what_is_beside_it(
        self, filesystem: HandleMaker, full: FullHandle
    ) -> None:
        """Not even when something there has changed: its time is that of what it leads to."""
        if not self.nested:
            pytest.skip("one level only")
        full.write(self.at("d/mine"), "x")
        some = self.full_grant(filesystem, "list", prefix=self.at("d/mine"))
        before = some.scan(self.here)
        assert self.names(before) == ["d/"]
        full.write(self.at("d/other"), "x")
        full.delete(self.at("d/other"))
        assert some.scan(self.here) == before

    def test_who_may_know_of_a_directory(self, filesystem: HandleMaker, full: FullHandle) -> None:
        """Who may list or look at it, and nobody for any other right."""
        full.write(self.at("d/x" if self.nested else "x"), "x")
        directory = self.at("d") if self.nested else self.here
        for operation in sorted(OPERATIONS):
            known = self.full_grant(filesystem, operation, prefix=directory).is_directory(directory)
            assert known is (operation in ("list", "file"))
        assert not self.with_all_operations(filesystem.create_handle([])).is_directory(directory)
