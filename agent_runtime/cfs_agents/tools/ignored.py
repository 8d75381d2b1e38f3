"""Which files of a user's folder git ignores: agents do not look at them unless they name them.

The rules are those of `.gitignore` in the folder, in folders below it and in those above it up to the repository, and
of `.git/info/exclude`. git itself is not asked: it runs programs that the configuration of a repository names, and
agents can write that. Methods block, and follow no link.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

from cfs_agents.tools.paths import PASSED_OVER, WORKSPACE
from cfs_filesystem import DiskFileSystem, open_beneath

GITIGNORE = ".gitignore"
_REPOSITORY = ".git"
_LONGEST = 1 << 20
"""Bytes of the longest file with rules that is read."""
_MOST_VERDICTS = 100_000
_MOST_WILDCARDS = 4
"""Patterns with more are passed over. Each one multiplies the time that a name takes, and all threads wait for it."""
_WILDCARD = re.compile(rb"\*+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_START = f"{WORKSPACE}/"

_Parts: TypeAlias = tuple[str, ...]


class IgnoredFiles:
    """The files of the folder `root` that git ignores. Any number of threads may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._patterns: dict[bytes, _Patterns] = {}

    def entered(self) -> Callable[[Sequence[str]], bool]:
        """Return what says, by the rules as they are now, which folders a listing of all files enters."""
        rules = self.now()
        return lambda parts: parts[-1] not in PASSED_OVER and not rules.ignores(parts, folder=True)

    def now(self) -> "IgnoreRules":
        """Return the rules as they are now. They are read when they are needed, and then stay the same."""
        return IgnoreRules(self.root, self._patterns)


class IgnoreRules:
    """The rules of a folder at one time. Paths are parts below the folder, as `os.fsdecode` returns them."""

    def __init__(self, root: Path, known: "dict[bytes, _Patterns]") -> None:
        self._known = known
        self._folders: dict[_Parts, tuple[_Rules, ...]] = {}
        """The patterns that hold in each folder, the nearest first."""
        repository = next((folder for folder in (root, *root.parents) if (folder / _REPOSITORY).exists()), root)
        self._base, self._prefix = repository, root.relative_to(repository).parts
        if self._hides(self._prefix, 0, folder=True):
            # The repository has other files, such as the settings in a home: what a user works on counts.
            self._base, self._prefix = root, ()
            self._folders.clear()

    def ignores(self, parts: Sequence[str], *, folder: bool) -> bool:
        """Return whether an entry is ignored that is in no ignored folder."""
        return self._ignores((*self._prefix, *parts), folder=folder)

    def hides(self, parts: Sequence[str], *, folder: bool = False) -> bool:
        """Return whether an entry is ignored, or is in an ignored folder."""
        return self._hides((*self._prefix, *parts), len(self._prefix), folder=folder)

    def _hides(self, full: _Parts, start: int, *, folder: bool) -> bool:
        ends = range(start + 1, len(full) + 1)
        return any(self._ignores(full[:end], folder=folder or end < len(full)) for end in ends)

    def _ignores(self, full: _Parts, *, folder: bool) -> bool:
        """Let the nearest file with rules decide that has one for this entry."""
        for depth, patterns in self._rules_in(full[:-1]):
            verdict = patterns.verdict("/".join(full[depth:]), folder=folder)
            if verdict is not None:
                return verdict
        return False

    def _rules_in(self, folder: _Parts) -> "tuple[_Rules, ...]":
        if folder not in self._folders:
            above = self._rules_in(folder[:-1]) if folder else self._read(0, (_REPOSITORY, "info"), "exclude")
            self._folders[folder] = (*self._read(len(folder), folder, GITIGNORE), *above)
        return self._folders[folder]

    def _read(self, depth: int, folder: _Parts, name: str) -> "tuple[_Rules, ...]":
        """Read a file with rules for what is in a folder so deep below the repository."""
        text = _text(self._base, folder, name).removeprefix(_BYTE_ORDER_MARK)
        if not text.strip():
            return ()
        if text not in self._known:
            self._known[text] = _Patterns(text)
        return ((depth, self._known[text]),)


def agents_disk(path: Path, prefix: str, ignored: IgnoredFiles | None) -> DiskFileSystem:
    """Open a folder for agents. Where files are ignored, what git and programs have is not walked. Raises `OSError`."""
    if ignored is None:
        return DiskFileSystem(path, prefix=prefix, durable=True)
    return DiskFileSystem(path, prefix=prefix, durable=True, entered=ignored.entered)


def ignored_below(ignored: IgnoredFiles | None, directory: str) -> Callable[[str], bool] | None:
    """Return what says if a look at a directory of an agent passes over a file below it, by its logical path.

    None says that it passes over nothing, as in a directory that is ignored itself: an agent that names it wants to see
    it.
    """
    if ignored is None:
        return None
    rules, named = ignored.now(), directory.removeprefix(WORKSPACE).removeprefix("/")
    if directory.startswith(_START) and rules.hides(named.split("/"), folder=True):
        return None
    return lambda path: path.startswith(_START) and rules.hides(path.removeprefix(_START).split("/"))


class _Patterns:
    """The patterns of a file with rules, and the decisions that were made by them."""

    def __init__(self, text: bytes) -> None:
        from dulwich.ignore import Pattern, read_ignore_patterns  # takes a while, and most folders have no rules
        from dulwich.wildmatch import MalformedPattern

        patterns: list[Pattern] = []
        for line in read_ignore_patterns(BytesIO(text)):
            if len(_WILDCARD.findall(line)) > _MOST_WILDCARDS:
                continue
            with suppress(MalformedPattern):  # git takes it for none, too
                patterns.append(Pattern(line))
        self._last_first = patterns[::-1]
        self._verdicts: dict[tuple[str, bool], bool | None] = {}

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """Return whether the path is ignored, as the last pattern says that matches it; None if none does."""
        key = path, folder
        if key not in self._verdicts:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            name = os.fsencode(path)
            matches = (pattern.is_exclude for pattern in self._last_first if pattern.matches(name, folder))
            self._verdicts[key] = next(matches, None)
        return self._verdicts[key]


_Rules: TypeAlias = tuple[int, _Patterns]
"""The depth of a folder below the repository, and its patterns."""


def _text(base: Path, folder: Sequence[str], name: str) -> bytes:
    """Read a regular file; it is empty if it is none, or cannot be read."""
    try:
        directory = open_beneath(base, folder)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
                return file.read(_LONGEST) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        finally:
            os.close(directory)
    except OSError:
        return b""
