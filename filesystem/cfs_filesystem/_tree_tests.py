"""Conformance tests of copies, of moves that replace directories, and of the removal of trees (G8). Needs pytest."""
# ruff: noqa: S101  a test asserts

import pytest

from cfs_filesystem._errors import AccessDeniedError, ConflictError, NotFoundError
from cfs_filesystem._kit import FullHandle, HandleMaker, Kit

_Tree = dict[str, str | None]
"""Contents by name; None for a directory."""
_FILES = {"x": "5", "y": "6", "a/f": "1", "a/g/h": "2", "b/f": "3", "b/k/l": "4"}
_TREE: _Tree = {**_FILES, **dict.fromkeys(("a", "a/g", "b", "b/k"))}
_PAIRS = [
    *[("a", target) for target in ("a", "a/f", "a/g", "a/new", "b", "b/k", "b/f", "x", "x/new", "new", "none/new")],
    *[("x", target) for target in ("x", "x/new", "a", "a/g", "a/f", "y", "new", "none/new")],
    *[("a/f", "a"), ("a/g", "a"), ("a/g", "a/f"), ("a/g/h", "a/g"), ("none", "b"), ("none", "new")],
]
"""What is moved or copied, and where: to itself, above, below, beside, over everything, and to where nothing can be."""


def _contains(name: str, other: str) -> bool:
    return other == name or other.startswith(name + "/")


def _expected(tree: _Tree, source: str, target: str, *, overwrite: bool, members: bool, moves: bool) -> _Tree | None:
    """Return the tree after a move or copy; None if it must be refused."""
    parent = target.rpartition("/")[0]
    if source not in tree or _contains(source, target) or _contains(target, source):
        return None
    if (parent and tree.get(parent, "") is not None) or (target in tree and not overwrite):
        return None
    after = {name: text for name, text in tree.items() if not _contains(target, name)}
    for name, text in tree.items():
        if name == source or (members and _contains(source, name)):
            after[target + name.removeprefix(source)] = text
    return {name: text for name, text in after.items() if not (moves and _contains(source, name))}


class TreeTests(Kit):
    """`copy`, `remove_tree`, and `move` with `replace_directories`."""

    @pytest.mark.parametrize("action", ["move", "copy", "copy without members"])
    def test_a_move_or_copy_is_whole_or_nothing(self, full: FullHandle, action: str) -> None:
        """For all pairs: exactly what was asked for has happened, or everything is as it was."""
        if not (self.nested and self.moves_directories and self.replaces_directories):
            pytest.skip("a file system that replaces no directories")
        members, moves = action != "copy without members", action == "move"
        cases = [(*pair, True) for pair in _PAIRS[:: 1 if self.every_pair else 5]]
        cases += [("a", target, False) for target in ("b", "x", "new")] + [("x", "b", False)]
        now: _Tree = {}
        for source, target, overwrite in cases:
            now = self._plant(full, now)
            after = _expected(now, source, target, overwrite=overwrite, members=members, moves=moves)
            path, new = self.at(source), self.at(target)
            try:
                if moves:
                    full.move(path, new, overwrite=overwrite, replace_directories=True)
                else:
                    full.copy(path, new, overwrite=overwrite, members=members)
            except (ConflictError, NotFoundError):
                assert after is None, (source, target)
            else:
                assert after is not None, (source, target)
            assert self._tree(full) == (after or now), (source, target)
            now = after or now

    def test_a_directory_is_replaced_only_on_request_and_with_the_right_to_delete(
        self, filesystem: HandleMaker, full: FullHandle
    ) -> None:
        """Neither by a move that may overwrite an entry, nor by who may only read and write."""
        if not self.nested:
            pytest.skip("one level only")
        full.write(self.at("a/f"), "1")
        full.write(self.at("b/f"), "2")
        full.write(self.at("x"), "3")
        before = self._tree(full)
        writer = self.full_grant(filesystem, "list", "file", "read", "write")
        for source in ("a", "x"):
            with pytest.raises(ConflictError):
                full.move(self.at(source), self.at("b"), overwrite=True)
            with pytest.raises(ConflictError):
                full.move(self.at(source), self.at("b"), replace_directories=True)
            with pytest.raises(AccessDeniedError):
                writer.copy(self.at(source), self.at("b"), overwrite=True)
        with pytest.raises(AccessDeniedError):
            writer.remove_tree(self.at("a"))
        assert self._tree(full) == before

    def test_a_copy_is_another_entry(self, full: FullHandle) -> None:
        """Writing to one of the two does not change the other."""
        full.write(self.at("a"), "first")
        try:
            full.copy(self.at("a"), self.at("b"))
        except ConflictError:
            pytest.skip("a file system that copies no entries")
        full.write(self.at("a"), "second")
        assert full.read_file(self.at("b")) == self.stored("first")

    def test_removing_a_directory_with_everything_in_it(self, full: FullHandle) -> None:
        """Nothing is left at or below its path, and everything else is as it was."""
        if not self.nested:
            pytest.skip("one level only")
        for name in ("d/x", "d/e/y", "dd/x"):
            full.write(self.at(name), name)
        for name in ("none", "d/x"):
            with pytest.raises(NotFoundError):
                full.remove_tree(self.at(name))
        full.remove_tree(self.at("d"))
        assert not full.is_directory(self.at("d"))
        assert self.names(full.list()) == ["dd/x"]
        full.write(self.at("d"), "the path is free")

    def _plant(self, full: FullHandle, now: _Tree) -> _Tree:
        """Let there be the tree of these tests again."""
        for name in (name for name in sorted(now, reverse=True) if now[name] != _TREE.get(name, "")):
            if now[name] is not None:
                full.delete(self.at(name))
            elif full.is_directory(self.at(name)):
                full.remove_tree(self.at(name))
        for name, text in _TREE.items():
            if text is not None and now.get(name) != text:
                full.write(self.at(name), text)
            elif text is None and not full.is_directory(self.at(name)):
                full.make_directory(self.at(name))
        return dict(_TREE)

    def _tree(self, full: FullHandle) -> _Tree:
        tree: _Tree = {}
        waiting = [self.here]
        while waiting:
            for meta in full.scan(waiting.pop()):
                name = meta["path"].removeprefix(self.prefix)
                if name + "/" in self.mounted:
                    continue
                if meta.get("directory"):
                    tree[name] = None
                    waiting.append(meta["path"])
                else:
                    tree[name] = full.read_file(meta["path"])
        return tree
