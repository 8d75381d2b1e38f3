"""Fork a program that off-loads, replaces and cleans up, and end it before each of its steps on the disk in turn.

    python stopped_offloader.py ROOT

Prints, as JSON, after how many steps it was ended, and what was wrong then. What random kills may miss, this finds.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from cfs.wire import Message
from cfs_agents.context import ContextFileSystem, ContextItem
from cfs_filesystem import FsHandle

SESSION = "the_session"


def item(number: int) -> ContextItem:
    """An item that is the same in each run."""
    content = f"{number} " * (160_000 if number == 2 else 200)  # one that is to be compressed
    message = Message(role="tool", content=content, name="tool", tool_call_id=f"call_{number}")
    return ContextItem(f"item_{number}", "tool_result", message)


def work(root: str) -> None:
    """Do everything that changes something on the disk."""
    with ContextFileSystem(root, SESSION, reserve=0, durable=False) as files:
        files.offload([item(0), item(1)])
        files.offload([item(1).with_content("changed"), item(2)])
        files.compress()
        files.remove(["item_0", "item_1"], "a test")
        files.offload([item(0)])


def end_before(step: int) -> None:
    """Let the process end when it is about to take this step; count writes and removals."""
    taken = 0

    def counted(original: Any) -> Any:
        def take(*arguments: Any, **keywords: Any) -> Any:
            nonlocal taken
            if taken == step:
                os._exit(7)
            taken += 1
            return original(*arguments, **keywords)

        return take

    for name in ("write", "delete"):
        setattr(FsHandle, name, counted(getattr(FsHandle, name)))


def main(root: str) -> None:
    """End it before the first step, the second, and so on, until it comes to its end."""
    wrong: list[str] = []
    step, status = 0, 7
    while status == 7:
        place = f"{root}/{step}"
        worker = os.fork()
        if worker == 0:
            end_before(step)
            work(place)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        wrong += [f"step {step}: {problem}" for problem in looked_at(Path(place))]
        step += 1
    sys.stdout.write(json.dumps({"steps": step, "status": status, "wrong": wrong}))


def looked_at(root: Path) -> list[str]:
    """What is wrong before anything is mended, and after that."""
    index = root / SESSION / "index.json"
    records = json.loads(index.read_text())["items"] if index.exists() else []
    found = [f"{record['path']} is nowhere" for record in records if not (index.parent / record["path"]).is_file()]
    found += [
        f"{record['path']} has no text" for record in records if not (index.parent / record["text_path"]).is_file()
    ]
    with ContextFileSystem(root, SESSION) as files:
        known = {record["item_id"] for record in records}
        there = {record.item_id for record in files.history() if record.path}
        found += [f"{item_id} is lost" for item_id in known - there]
        found += files.check_integrity()
        for item_id in there:
            files.restore(item_id)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
