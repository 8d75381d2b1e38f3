"""Kill `restore` before each of its changes of the disk. Run by test_backup.py as a program, since it forks.

    python killed_restores.py BACKUP FOLDER

Prints how many steps there were.
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

from cfs_server.sessions.maintenance import describe, restore

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "open"}


def ends(step: int, backup: Path, path: Path) -> bool:
    """Restore in a process that is ended before its n-th change; return whether it came to its end."""
    child = os.fork()
    if child == 0:
        count = itertools.count()

        def end(event: str, _: object) -> None:
            if event in CHANGES and next(count) == step:
                os._exit(9)

        sys.addaudithook(end)
        restore(backup, path)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), code
    return code == 0


def main(backup: Path, folder: Path) -> None:
    """Kill it at each step, until it lives to its end; there is always a whole store of this name."""
    first = folder / "first.db"
    restore(backup, first)
    for step in itertools.count():
        path = folder / f"{step}.db"
        shutil.copyfile(first, path)
        ended = ends(step, backup, path)
        assert describe(path).sessions == describe(first).sessions > 0
        if ended:
            break
    sys.stdout.write(f"{step}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
