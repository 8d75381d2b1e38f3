"""What is not finished: the names and locks of files and directories that no caller sees yet (G6)."""

import fcntl
import secrets
from contextlib import suppress

TEMPORARY = ".cfs-write-"
"""Prefix of the names of unfinished files."""
FOLDER_IDENTITY = f"{TEMPORARY}identity"
"""A file in a root that names the folder. It is hidden, as unfinished files are, and not removed."""
ASIDE = f"{TEMPORARY}aside-"
"""Prefix of the names of directories that hold what a move is about to replace."""


def temporary_name(prefix: str = TEMPORARY) -> str:
    """Return a name that is not in use."""
    return prefix + secrets.token_hex(8)


def lock_new(descriptor: int) -> None:
    """Lock what this process has just created, so that no other one takes it for left over."""
    with suppress(OSError):  # no locks here: no other process may open the root meanwhile
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
