"""Fork programs that off-load, and kill them at random moments. Run by test_storage.py as a program.

    python killed_offloader.py ROOT KILLS

Prints, as JSON, what was found after each kill. A program of its own, since a test run with threads must not fork.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from cfs.wire import Message
from cfs_agents.context import ContextFileSystem, ContextItem
from cfs_agents.context.documents import read_document

SESSION = "the_session"


def offload_until_killed(root: str, acknowledge: int, life: int) -> None:
    """Off-load items of several sizes, each a second time with another content, and clean up now and then."""
    files = ContextFileSystem(root, SESSION, reserve=0)
    for count in itertools.count():
        content = f"{life} {count} " * (50_000 if count % 3 == 0 else 20)
        message = Message(role="tool", content=content, name="tool", tool_call_id=f"call_{count % 5}")
        item = ContextItem.of(message)
        files.offload([item])
        changed = item.with_content(content + "!")
        files.offload([changed])
        os.write(acknowledge, f"+{item.item_id}\n".encode())
        if count % 4 == 3:
            oldest = next(record.item_id for record in files.history() if record.path)
            os.write(acknowledge, f"-{oldest}\n".encode())
            files.remove([oldest], "a test")


def main(root: str, kills: int) -> None:
    """Let the writers live and die; look at what they leave."""
    chance = random.Random(7)
    found: dict[str, list[str]] = {"violations": [], "lost": [], "unreadable": []}
    kept: set[str] = set()
    total = 0
    for life in range(kills):
        reading, writing = os.pipe()
        writer = os.fork()
        if writer == 0:
            try:
                offload_until_killed(root, writing, life)
            finally:
                os._exit(1)
        os.close(writing)
        said = os.read(reading, 1)  # it lives, and has written something
        time.sleep(chance.random() * 0.15)
        os.kill(writer, signal.SIGKILL)
        assert os.waitpid(writer, 0)[1] == signal.SIGKILL, "the writer did not live until it was killed"
        while chunk := os.read(reading, 65_536):
            said += chunk
        os.close(reading)
        for line in said.decode().splitlines():
            (kept.add if line[0] == "+" else kept.discard)(line[1:])
            total += line[0] == "+"
        found["unreadable"] += unreadable(Path(root) / SESSION)
        with ContextFileSystem(root, SESSION) as files:
            there = {record.item_id for record in files.history() if record.path}
            found["lost"] += sorted(kept - there)
            found["violations"] += files.check_integrity()
            for item_id in kept & there:
                assert files.restore(item_id).message.content.endswith("!")
    sys.stdout.write(json.dumps(found | {"kills": kills, "acknowledged": total}))


def unreadable(folder: Path) -> list[str]:
    """Files that do not parse, before anything is mended."""
    bad = []
    for path in folder.rglob("*.json*"):
        try:
            if path.name == "index.json":
                records = json.loads(path.read_bytes())["items"]
                bad += [record["path"] for record in records if not (folder / record["path"]).is_file()]
            else:
                read_document(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            bad.append(f"{path.name}: {error}")
    return bad


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
