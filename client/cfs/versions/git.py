"""Writes the changes of a workspace as commits of a bare git repository.

Each commit has the number of its change as a trailer, so that a repository that has some changes gets only the others.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cfs.contract.errors import Conflict, Unsupported
from cfs.contract.wire import FileChange

try:
    from dulwich.errors import NotGitRepository
    from dulwich.index import validate_path_element_hfs, validate_path_element_ntfs
    from dulwich.object_store import commit_tree_changes
    from dulwich.objects import Blob, Commit, ObjectID, Tree
    from dulwich.refs import Ref
    from dulwich.repo import Repo
except ModuleNotFoundError as error:
    raise Unsupported(f"git repositories need {error.name}: pip install 'cfs-local[git]'") from None

_BRANCH = Ref(b"refs/heads/main")
_SECTION = (b"cfs",)
_TRAILER = re.compile(rb"^CFS-Time: ([0-9.]+)\nCFS-Change: ([0-9]+)\n\Z", re.MULTILINE)
_FILE, _PROGRAM, _LINK = 0o100644, 0o100755, 0o120000
_NAMED = 3
"""Paths that the first line of a message names."""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file or link that a change left, with its content, or the target of the link."""

    path: str
    content: bytes
    mode: int
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """A path at which no file and no link is any more."""

    path: str


@dataclass(slots=True)
class Repository:
    """A repository with the changes of one workspace up to `last`, which was made at `at`, in seconds since 1970."""

    last: int
    at: float
    _git: Repo
    _head: Commit | None
    _tree: ObjectID
    _paths: set[bytes] = field(default_factory=set)

    def add(self, change: FileChange, files: Iterable[CommittedFile | Removal]) -> None:
        """Add a commit with the files that a change left, all of whose paths git holds."""
        changes: dict[bytes, tuple[int | None, ObjectID | None]] = {}
        for file in files:
            path = file.path.encode()
            if isinstance(file, CommittedFile):
                blob = Blob.from_string(file.content)
                self._git.object_store.add_object(blob)
                mode = _LINK if file.is_link else _PROGRAM if file.mode & 0o100 else _FILE
                changes[path] = (mode, blob.id)
                self._paths.add(path)
            elif path in self._paths:
                changes[path] = (None, None)
                self._paths.remove(path)
        self._apply(changes)
        commit = Commit()
        commit.tree = self._tree
        commit.parents = [] if self._head is None else [self._head.id]
        commit.author = commit.committer = _identity(change)
        commit.author_time = commit.commit_time = int(change.at)
        commit.author_timezone = commit.commit_timezone = 0
        commit.encoding = b"UTF-8"
        commit.message = _message(change)
        self._git.object_store.add_object(commit)
        self._head, self.last, self.at = commit, change.number, change.at

    def _apply(self, changes: dict[bytes, tuple[int | None, ObjectID | None]]) -> None:
        """Make the tree after changes. A file that becomes a folder, or a folder a file, is removed first."""
        store = self._git.object_store
        removed = [(path, None, None) for path, (_, blob) in changes.items() if blob is None]
        written = [(path, mode, blob) for path, (mode, blob) in changes.items() if blob is not None]
        for part in (removed, written):
            if part:
                self._tree = commit_tree_changes(store, self._tree, part)

    def has_below(self, folder: str) -> bool:
        """Return whether there are files or links below a folder."""
        return any(path.startswith(folder.encode() + b"/") for path in self._paths)

    def save(self) -> None:
        """Make the commits those of the branch `main`."""
        if self._head is not None:
            self._git.refs[_BRANCH] = self._head.id

    def close(self) -> None:
        """Close the files of the repository."""
        self._git.close()


def opened(directory: Path, workspace: str) -> Repository:
    """Open the repository of a workspace, or create it where nothing is or an empty folder.

    Raises `Conflict` if something else is there.
    """
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        git = Repo.init_bare(directory, mkdir=not directory.exists(), default_branch=b"main")
        config = git.get_config()
        config.set(_SECTION, b"workspace", workspace.encode())
        config.write_to_path()
    else:
        git = _existing(directory, workspace)
    try:
        return _read(git, directory)
    except BaseException:
        git.close()
        raise


def holds(path: str) -> bool:
    """Return whether git can hold a path: no part of it is the name of a nested repository, or reads like one."""
    return all(
        validate_path_element_ntfs(part) and validate_path_element_hfs(part) for part in path.encode().split(b"/")
    )


def _existing(directory: Path, workspace: str) -> Repo:
    other = Conflict(f"{directory} is something else than a repository of {workspace!r}: name a new folder")
    try:
        git = Repo(directory)
    except (NotGitRepository, NotADirectoryError):
        raise other from None
    try:
        ours = git.bare and git.get_config().get(_SECTION, b"workspace") == workspace.encode()
    except KeyError:
        ours = False
    if not ours:
        git.close()
        raise other
    return git


def _read(git: Repo, directory: Path) -> Repository:
    tree = Tree()
    git.object_store.add_object(tree)
    if _BRANCH not in git.refs:
        return Repository(0, 0, git, None, tree.id)
    commit = git[git.refs[_BRANCH]]
    trailer = _TRAILER.search(commit.message) if isinstance(commit, Commit) else None
    if not isinstance(commit, Commit) or trailer is None:
        raise Conflict(f"the branch 'main' of {directory} has commits of others: name a new folder")
    paths = {entry.path for entry in git.object_store.iter_tree_contents(commit.tree)}
    return Repository(int(trailer[2]), float(trailer[1]), git, commit, commit.tree, paths)


def _identity(change: FileChange) -> bytes:
    name = re.sub(r"[<>\x00-\x1f\x7f]", "_", change.agent or change.principal or change.kind)
    return f"{name} <{name.replace(' ', '_')}@cfs>".encode()


def _message(change: FileChange) -> bytes:
    paths = [f"{'-' if file.type == 'removed' else ''}{_shown(file.path.split('/', 3)[-1])}" for file in change.files]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    lines = [f"{change.kind} {', '.join(paths[:_NAMED])}{more}", ""]
    lines += [*paths, ""] if more else []
    lines += [f"CFS-Principal: {_shown(change.principal)}"] if change.principal else []
    lines += [f"CFS-Call: {_shown(change.tool_call)}"] if change.tool_call else []
    return ("\n".join([*lines, f"CFS-Time: {change.at!r}", f"CFS-Change: {change.number}"]) + "\n").encode()


def _shown(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "_", text)
