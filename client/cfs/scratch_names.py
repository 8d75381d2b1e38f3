"""Names of files that programs make for themselves beside the one that they work on. Pure: no I/O.

Editors, desktops and copying programs leave such files next to a session, where they would become sessions of their
own; so each mount of sessions keeps them apart, as ordinary files (F4, W1).
"""

import re

_SCRATCH = re.compile(
    r"\..*"  # dot files: swap files, locks, `rsync` and `gio` temporaries, .DS_Store, ._*, .Trash
    r"|.*~"  # backups
    r"|.*\.sw[a-z]"  # vim
    r"|4913"  # vim's test whether it may create a file
    r"|#.*#"  # emacs
    r"|sed[A-Za-z0-9]{6}"  # sed -i
    r"|.*\.partial"  # rclone, before it gives the file its name
    r"|Thumbs\.db|desktop\.ini",
    re.DOTALL,
)


def is_scratch(name: str) -> bool:
    """Tell whether a file of this name is no session but a program's own."""
    return _SCRATCH.fullmatch(name) is not None
