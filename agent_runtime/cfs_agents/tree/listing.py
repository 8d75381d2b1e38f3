"""The directory tree in an agent's prompt, of bounded size (A7)."""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from cfs_agents.tools.ignored import IgnoredFiles, IgnoreRules
from cfs_agents.tools.paths import PASSED_OVER, STORAGE, escaped_name
from cfs_filesystem import open_beneath

MOST_LINES = 40
_MOST_OF_A_FOLDER = 15
_DEEPEST = 3
_LONGEST_NAME = 60
_MOST_LOOKED_AT = 2_000
_CLOSED = {STORAGE: PASSED_OVER | {"history", "offloaded"}}
"""Names of folders whose content is not shown, for folders that have more of them than others."""


def tree(folders: Mapping[str, Path], ignored: IgnoredFiles | None = None) -> str:
    """Return a tree of folders, by the agent's names: indented, folders with a slash, without hidden files.

    Files that are `ignored` in one of the folders are left out, and so is what is in ignored folders. If there is too
    much, the number of the rest is given. Links are not followed.
    """
    lines: list[str] = []
    for top, folder in folders.items():
        rules = ignored.now() if ignored is not None and ignored.root == folder else None
        lines += [f"{top}/", *_below(folder, (), 1, _CLOSED.get(top, PASSED_OVER), rules)]
    if len(lines) > MOST_LINES:
        left_out = len(lines) - MOST_LINES + 1
        lines = [*lines[: MOST_LINES - 1], f"... {left_out} more lines"]
    return "\n".join(lines)


def _below(
    top: Path, folders: tuple[str, ...], depth: int, closed: frozenset[str], rules: IgnoreRules | None
) -> Iterator[str]:
    indent = " " * depth
    try:
        folder = open_beneath(top, folders)  # commands may have put a link here meanwhile
        try:
            with os.scandir(folder) as scan:
                names = (entry for entry in scan if not entry.name.startswith("."))
                entries = [
                    (entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(names, _MOST_LOOKED_AT)
                ]
        finally:
            os.close(folder)
    except OSError:
        return
    is_cut = len(entries) == _MOST_LOOKED_AT
    if rules is not None:
        entries = [entry for entry in entries if entry[1] or not rules.ignores((*folders, entry[0]), folder=False)]
    entries.sort()
    for name, is_folder in entries[:_MOST_OF_A_FOLDER]:
        yield f"{indent}{_shown(name)}{'/' if is_folder else ''}"
        if is_folder and depth < _DEEPEST and name not in closed:
            below = (*folders, name)
            if rules is None or not rules.ignores(below, folder=True):
                yield from _below(top, below, depth + 1, closed, rules)
    if len(entries) > _MOST_OF_A_FOLDER:
        plus = "+" if is_cut else ""
        yield f"{indent}... {len(entries) - _MOST_OF_A_FOLDER}{plus} more"


def _shown(name: str) -> str:
    """Return a name as one line."""
    plain = escaped_name(name)
    return plain if len(plain) <= _LONGEST_NAME else plain[:_LONGEST_NAME] + "..."
