"""Fork writers and kill them at random moments, while reading what they write. Run by test_disk.py as a program.

    python killed_writers.py ROOT KILLS unnamed|named|streamed

Prints, as JSON, what was seen. A program of its own, since a test run with threads must not fork.
"""

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cfs_filesystem import DiskFileSystem, Grant, _replacing

SIZE = 100_000
PATH = "/reports/today.txt"


def write_until_killed(root: str, started: int, life: int, kind: str) -> None:
    """Write one content after the other, each of one letter, as a server that has just been started again.

    Every other life is at risk from its first write on, the others from the second.
    """
    handle = DiskFileSystem(root).create_handle([Grant(prefix="/", ops={"write"})])
    for count in itertools.count(life):
        if count == life + life % 2:
            os.write(started, b"x")
        letter = "abcdefgh"[count % 8]
        if kind == "streamed":
            handle.write_from(PATH, (letter.encode() * (SIZE // 20) for _ in range(20)))
        else:
            handle.write(PATH, letter * SIZE)


def main(root: str, kills: int, kind: str) -> None:
    """Let the writers live and die; count what was read and what was left."""
    if kind == "named":
        _replacing._UNNAMED = None
    chance = random.Random(kills)
    reader = DiskFileSystem(root).create_handle([Grant(prefix="/", ops={"list", "file", "read", "write"})])
    reader.write(PATH, "a" * SIZE)
    mixtures: list[Sequence[object]] = []
    letters: set[str] = set()
    listed: set[str] = set()
    most_left = 0
    for life in range(kills):
        reading, started = os.pipe()
        writer = os.fork()
        if writer == 0:
            try:
                write_until_killed(root, started, life, kind)
            finally:
                os._exit(1)
        os.close(started)
        began = os.read(reading, 1)
        os.close(reading)
        texts = [reader.read_binary(PATH).decode() for _ in range(chance.randrange(1, 12))]
        for _ in range(chance.randrange(4_000)):
            pass  # a moment that no read marks
        os.kill(writer, signal.SIGKILL)
        assert os.waitpid(writer, 0)[1] == signal.SIGKILL, "the writer did not live until it was killed"
        assert began == b"x", "the writer did not start"
        texts.append(reader.read_binary(PATH).decode())
        letters.update(text[:1] for text in texts)
        mixtures += [(len(text), sorted(set(text))) for text in texts if text != text[:1] * SIZE]
        listed |= {meta["path"] for meta in reader.list()}
        most_left = max(most_left, sum(1 for path in Path(root).rglob(".*")))
    DiskFileSystem(root).close()
    left = [path.name for path in Path(root).rglob("*") if path.is_file()]
    result = {"mixtures": mixtures, "letters": len(letters), "listed": sorted(listed), "most": most_left, "left": left}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
