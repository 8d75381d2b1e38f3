"""Kill `restore` before each of its changes of the disk. Run by test_backup.py as a program, since it forks.

    python killed_restores.py BACKUP FOLDER

Prints how many steps there were.
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

from cfs_server.backups.backup import Layout, restore
from cfs_server.sessions.maintenance import describe, restoring

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir"}


def ends(step: int, backup: Path, path: Path) -> bool:
    """Restore in a process that is ended before its n-th change; return whether it came to its end."""
    child = os.fork()
    if child == 0:
        count = itertools.count()

        def end(event: str, _: object) -> None:
            if event in CHANGES and next(count) == step:
                os._exit(9)

        sys.addaudithook(end)
        restore(backup, Layout.beside(path))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), code
    return code == 0


def main(backup: Path, folder: Path) -> None:
    """Kill it at each step, until it lives to its end; there is always a whole store of this name.

    The files are the old or the new ones, or a mark says that they are not all of one kind.
    """
    first = folder / "first/sessions.db"
    restore(backup, Layout.beside(first))
    for step in itertools.count():
        path = folder / f"{step}/sessions.db"
        shutil.copytree(first.parent, path.parent, symlinks=True)
        (path.parent / "workspaces/main/a.txt").write_text("before")
        ended = ends(step, backup, path)
        assert describe(path).sessions == describe(first).sessions > 0
        file = path.parent / "workspaces/main/a.txt"
        if not restoring(path).exists():
            replaced = len(list(path.parent.glob("*.replaced-*")))
            assert (replaced, file.read_text()) in ((0, "before"), (3, "new"))
        if step % 5 == 0 or ended:  # the next one does it
            restore(backup, Layout.beside(path))
            assert file.read_text() == "new"
            assert not restoring(path).exists()
        shutil.rmtree(path.parent)
        if ended:
            break
    sys.stdout.write(f"{step}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
