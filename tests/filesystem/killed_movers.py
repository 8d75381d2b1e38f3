"""Kill processes that replace or remove directories at each of their steps. Run by test_replacing.py as a program.

    python killed_movers.py FOLDER

Prints, as JSON, how many steps each operation had, and what was found after a kill that was neither the state before
nor the state after. A program of its own, since a test run with threads must not fork.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cfs_filesystem import DiskFileSystem, FsHandle, Grant

FILES = {"a/f": "1", "a/g/h": "2", "b/f": "3", "b/k/l": "4", "x": "5"}
OPERATIONS: dict[str, Callable[[FsHandle], object]] = {
    "move over a directory": lambda handle: handle.move("/a", "/b", overwrite=True, replace_directories=True),
    "move a file over a directory": lambda handle: handle.move("/x", "/b", overwrite=True, replace_directories=True),
    "move over a file": lambda handle: handle.move("/a", "/x", overwrite=True, replace_directories=True),
    "copy over a directory": lambda handle: handle.copy("/a", "/b", overwrite=True),
    "copy": lambda handle: handle.copy("/a", "/c"),
    "move": lambda handle: handle.move("/a", "/c"),
    "move a file": lambda handle: handle.move("/x", "/c"),
    "remove": lambda handle: handle.remove_tree("/b"),
}
CHANGES = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link"}


def handle_of(root: Path) -> FsHandle:
    """Open a root as a server does that is started: it removes or restores what a killed one has left."""
    disk = DiskFileSystem(root, durable=True)
    return disk.create_handle([Grant(prefix="/", ops={"list", "file", "read", "write", "delete"})])


def snapshot(root: Path) -> dict[str, str | None]:
    """Return everything below a root, whether it is shown or not."""
    return {
        str(path.relative_to(root)): path.read_text() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def run_until(step: int, root: Path, act: Callable[[FsHandle], object]) -> bool:
    """Act in a process that is ended before its n-th change of the disk. Return whether it came to the end."""
    process = os.fork()
    if process == 0:
        try:
            handle = handle_of(root)
            count = itertools.count()

            def end(event: str, _: object) -> None:
                if event in CHANGES and next(count) == step:
                    os._exit(9)

            sys.addaudithook(end)
            act(handle)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, 9), code
    return code == 0


def main(folder: Path) -> None:
    """Try all operations, each with a kill at each step, until one lives to its end."""
    steps, wrong = {}, []
    for name, act in OPERATIONS.items():
        states = []
        for step in itertools.count():
            root = folder / f"{name} {step}"
            handle = handle_of(root)
            for path, text in FILES.items():
                handle.write("/" + path, text)
            before = snapshot(root)
            ended = run_until(step, root, act)
            handle_of(root)
            states.append(snapshot(root))
            if ended:
                break
        steps[name] = step
        wrong += [f"{name} {at}: {state}" for at, state in enumerate(states) if state not in (before, states[-1])]
        assert before != states[-1], name
    sys.stdout.write(json.dumps({"steps": steps, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
