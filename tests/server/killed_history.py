"""Change a workspace and die at random moments, again and again. Run by test_versions.py as a program.

    python killed_history.py ROOT KILLS

Prints, as JSON, what was seen. A program of its own, since a test run with threads must not fork.
"""

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from cfs_filesystem import OPERATIONS, FsHandle, Grant
from cfs_filesystem._temporary import TEMPORARY
from cfs_filesystem.versions import EntryType, SqliteVersions
from cfs_server.workspaces.workspaces import DiskWorkspaces

PREFIX = "/workspaces/w/"
Tree = Mapping[str, str]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def opened(root: Path) -> DiskWorkspaces:
    return DiskWorkspaces(root / "workspaces", versions=SqliteVersions(root / "versions.db"))


def tree_of(folder: Path) -> dict[str, str]:
    """The files in a folder, with their digests."""
    files = (path for path in folder.rglob("*") if path.is_file() and TEMPORARY not in path.name)
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def change(handle: FsHandle, folder: Path, chance: random.Random) -> None:
    """Change something, through the file system or behind its back."""
    paths = [meta["path"] for meta in handle.list(PREFIX)]
    path = f"{PREFIX}{chance.choice(['a', 'b', 'src/a', 'src/b', 'src/deep/c'])}"
    action = chance.choice(["write", "write", "edit", "edit", "large", "move", "copy", "delete", "tree", "outside"])
    if action == "edit" and path in paths:
        data = handle.read_binary(path)
        at = chance.randint(0, len(data))
        handle.write(path, data[:at] + chance.randbytes(9) + data[at + 3 :])
    elif action == "large" and chance.random() < 0.2:
        handle.write(path, chance.randbytes(9 << 20))
    elif action in ("move", "copy") and path in paths and path + ".2" not in paths:
        (handle.move if action == "move" else handle.copy)(path, path + ".2")
    elif action == "delete" and path in paths:
        handle.delete(path)
    elif action == "tree" and handle.is_directory(PREFIX + "src"):
        handle.remove_tree(PREFIX + "src")
    elif action == "outside" and path in paths:
        with (folder / path.removeprefix(PREFIX)).open("wb") as file:
            file.write(chance.randbytes(chance.randint(0, 2000)))
    else:
        handle.write(path, chance.randbytes(chance.randint(0, 100_000)))


def live(root: Path, life: int, told: int) -> None:
    """Change things until killed, and tell after each change its number and what is there."""
    chance = random.Random(life)
    workspaces = opened(root)
    folder = root / "workspaces/w"
    handle = workspaces.create_handle([Grant(prefix="/workspaces/", ops=OPERATIONS)])
    assert workspaces.history is not None
    while True:
        change(handle, folder, chance)
        if chance.random() < 0.3:
            workspaces.history.look("w")
        number = workspaces.history.store.last("w")
        current = workspaces.history.store.tree_at("w")
        if {path: entry.digest for path, entry in current.items() if entry.type is EntryType.FILE} == tree_of(folder):
            os.write(told, json.dumps([number, tree_of(folder)]).encode() + b"\n")


def main(root: Path, kills: int) -> None:
    chance = random.Random(kills)
    acknowledged: dict[int, Tree] = {}
    for life in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                live(root, life, writing)
            finally:
                os._exit(1)
        os.close(writing)
        lines = chance.randint(1, 12)
        with os.fdopen(reading, "rb") as pipe:
            for count, line in enumerate(pipe):
                if count == lines:
                    for _ in range(chance.randint(0, 20_000)):  # somewhere in the next change
                        pass
                    os.kill(child, signal.SIGKILL)
                if line.endswith(b"\n"):
                    number, tree = json.loads(line)
                    acknowledged[number] = tree
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit("a child failed")
    wrong = []
    with closing(opened(root)) as workspaces:
        assert workspaces.history is not None
        store = workspaces.history.store
        store.check_integrity()
        for number, tree in acknowledged.items():
            entries = [entry for entry in store.tree_at("w", number).values() if entry.type is EntryType.FILE]
            if {entry.path: digest(store.read("w", entry)) for entry in entries} != tree:
                wrong.append(number)
        workspaces.history.look("w")
        now = {path: entry.digest for path, entry in store.tree_at("w").items() if entry.type is EntryType.FILE}
        current = now == tree_of(root / "workspaces/w")
    sys.stdout.write(json.dumps({"versions": len(acknowledged), "wrong": wrong, "current": current}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
