"""The directory tree in an agent's prompt, of bounded size (A7)."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from cfs_agents.tools.paths import STORAGE, WORKSPACE, escaped_name
from cfs_filesystem import open_beneath

MOST_LINES = 40
_MOST_OF_A_FOLDER = 15
_DEEPEST = 3
_LONGEST_NAME = 60
_MOST_LOOKED_AT = 2_000


def tree(root: Path) -> str:
    """Return a tree of workspace and storage: indented, folders with a slash, without hidden files and the history.

    If there is too much, the number of the rest is given. Links are not followed.
    """
    lines: list[str] = []
    for top in (WORKSPACE, STORAGE):
        lines += [f"{top}/", *_below(root / top[1:], (), 1)]
    if len(lines) > MOST_LINES:
        left_out = len(lines) - MOST_LINES + 1
        lines = [*lines[: MOST_LINES - 1], f"... {left_out} more lines"]
    return "\n".join(lines)


def _below(top: Path, folders: tuple[str, ...], depth: int) -> Iterator[str]:
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
    entries.sort()
    for name, is_folder in entries[:_MOST_OF_A_FOLDER]:
        yield f"{indent}{_shown(name)}{'/' if is_folder else ''}"
        if is_folder and depth < _DEEPEST and name not in ("history", "offloaded"):
            yield from _below(top, (*folders, name), depth + 1)
    if len(entries) > _MOST_OF_A_FOLDER:
        plus = "+" if len(entries) == _MOST_LOOKED_AT else ""
        yield f"{indent}... {len(entries) - _MOST_OF_A_FOLDER}{plus} more"


def _shown(name: str) -> str:
    """Return a name as one line."""
    plain = escaped_name(name)
    return plain if len(plain) <= _LONGEST_NAME else plain[:_LONGEST_NAME] + "..."
