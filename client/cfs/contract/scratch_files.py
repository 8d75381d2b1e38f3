"""Names of temporary files. Pure: no I/O.

Editors, desktops and copying programs create such files next to the one that they work on. Mounts store them as
ordinary files, so that they do not become sessions (F4, W1).
"""

import re

_SCRATCH = re.compile(
    r"\..*"  # dot files: swap files, locks, `rsync` and `gio` temporaries, .DS_Store, ._*, .Trash
    r"|.*~"  # backups
    r"|.*\.sw[a-z]"  # vim
    r"|4913"  # vim tests with it whether it may create a file
    r"|#.*#"  # emacs
    r"|sed[A-Za-z0-9]{6}"  # sed -i
    r"|.*\.partial"  # rclone, before it renames the file
    r"|Thumbs\.db|desktop\.ini",
    re.DOTALL,
)


def is_scratch(name: str) -> bool:
    """Return whether this is the name of a program's temporary file, not of a session."""
    return _SCRATCH.fullmatch(name) is not None
