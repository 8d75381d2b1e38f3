"""What a handle does with directories: look into one, make, remove and move them (G3).

A directory has no grants of its own. A prefix that covers its path covers all that is below, for grants only ever add:
so a right at the path of a directory is one at everything in it, and is checked there alone.
"""
# ruff: noqa: SLF001  the handle is the one that the hooks of a file system are for

from collections.abc import Iterable, Mapping
from contextlib import suppress

from cfs_filesystem._errors import ConflictError, FileSystemError, InvalidPathError, NotFoundError
from cfs_filesystem._gate import Gate
from cfs_filesystem._index import newer
from cfs_filesystem._paths import validate_directory, validate_path
from cfs_filesystem._types import EntryMeta, Path


class DirectoryOperations(Gate):
    """The operations of a handle for which a path can name a directory."""

    def scan(self, directory: Path) -> list[EntryMeta]:
        """Return what is directly in a directory, sorted by path: entries, and directories as `DirectoryMeta`.

        The directory is named by a path, or as a registered prefix is (`/workspaces/`), or is `/`. Where it may not be
        listed itself, there are only the components that lead to something which may. Raises `AccessDeniedError` when
        nothing at or below it may be listed, `NotFoundError` when there is no such directory.
        """
        inside = validate_directory(directory, self._filesystem.prefixes)
        scopes = self._rights.scopes("list", inside)
        if not scopes:
            self._rights.require("list", directory)
        index = self._refresh()
        if scopes == [inside]:
            found = self._filesystem._members(inside)
        else:
            found = self._leading(inside, scopes, index)
            if not found and not self._leads_to_a_prefix(inside):
                raise NotFoundError(f"there is no directory {directory!r}", directory)
        return [found[path].copy() for path in sorted(found)]

    def is_directory(self, path: Path) -> bool:
        """Tell whether a path, or what else `scan` takes, names a directory that the caller may know of.

        It may if `list` or `file` cover it, or if something below may be listed and is there.
        """
        inside = validate_directory(path, self._filesystem.prefixes)
        known = self._rights.allow("list", inside) or self._rights.allow("file", inside[:-1] or "/")
        scopes = [] if known else self._rights.scopes("list", inside)
        if not known and not scopes:
            return False
        index = self._refresh()
        if scopes:
            return self._leads_to_a_prefix(inside) or bool(self._leading(inside, scopes, index))
        with suppress(InvalidPathError):  # a link
            return self._filesystem._directory(inside) is not None
        return False

    def make_directory(self, path: Path) -> None:
        """Make an empty directory.

        Raises `ConflictError` when the path exists, when there is no directory to make it in, or where a file system
        keeps no empty directories.
        """
        index = self._allowed("write", path)
        self._require_free(path, index)
        self._require_parent(path)
        self._filesystem._make_directory_impl(path)

    def remove_directory(self, path: Path) -> None:
        """Take an empty directory away; raises `ConflictError` when something is in it."""
        self._allowed("delete", path)
        self._require_directory(path)
        self._filesystem._remove_directory_impl(path)

    def move(self, path: Path, target: Path, *, overwrite: bool = False) -> None:
        """Give an entry, or a directory with everything in it, another path.

        Needs the rights to read and delete the one, and to write the other. Raises `ConflictError` when there is no
        directory for the target to be in, when an entry is there and `overwrite` is false, when a directory is there,
        or anything if a directory is moved, when the target is the path or below it, and between two file systems.
        """
        validate_path(path, self._filesystem.prefixes)
        validate_path(target, self._filesystem.prefixes)
        self._rights.require("read_binary", path)
        self._rights.require("delete", path)
        self._rights.require("write", target)
        index = self._refresh()
        is_entry = path in index
        if not is_entry:
            self._require_directory(path)
        if target == path or target.startswith(path + "/"):
            raise ConflictError(f"{path!r} cannot be moved to itself or below itself", target)
        self._require_parent(target)
        self._require_free(target, {} if is_entry and overwrite else index)
        self._filesystem._move_impl(path, target, overwrite and is_entry)

    # -- checks ---------------------------------------------------------------------------------------------------

    def _require_directory(self, path: Path) -> None:
        if self._filesystem._directory(path + "/") is None:
            raise NotFoundError(f"there is no directory {path!r}", path)

    def _require_free(self, path: Path, index: Mapping[Path, EntryMeta]) -> None:
        if path in index:
            raise ConflictError(f"{path!r} exists", path)
        if self._filesystem._directory(path + "/") is not None:
            raise ConflictError(f"{path!r} is a directory", path)

    def _require_parent(self, path: Path) -> None:
        parent = path[: path.rindex("/") + 1]
        if self._filesystem._directory(parent) is None:
            raise ConflictError(f"there is no directory {parent[:-1]!r} for it to be in", path)

    # -- what leads to something ----------------------------------------------------------------------------------

    def _leads_to_a_prefix(self, inside: Path) -> bool:
        return any(prefix.startswith(inside) for prefix in self._filesystem.prefixes)

    def _leading(self, inside: Path, scopes: Iterable[Path], index: Mapping[Path, EntryMeta]) -> dict[Path, EntryMeta]:
        """Return the components below a directory that lead to something in one of the scopes.

        They say no more than the caller may know: the time of such a directory is that of where it leads to.
        """
        found: dict[Path, EntryMeta] = {}
        for scope in scopes:
            path = inside + scope[len(inside) :].partition("/")[0]
            known = self._at(scope, index)
            if known is not None:
                found[path] = known if scope == path else newer(path, known, found.get(path))
        return found

    def _at(self, scope: Path, index: Mapping[Path, EntryMeta]) -> EntryMeta | None:
        """Return what is known of the entry or directory that a scope is, or is the inside of; or None."""
        with suppress(FileSystemError):  # a link, or no path of this file system
            known: EntryMeta | None = None
            if any(scope.startswith(prefix) for prefix in self._filesystem.prefixes) and not scope.endswith("/"):
                known = index.get(scope)
            return known or self._filesystem._directory(scope if scope.endswith("/") else scope + "/")
        return None
