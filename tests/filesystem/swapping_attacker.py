"""Swap a directory and a file for links to the outside and back, as fast as possible. Run by test_disk.py.

    python swapping_attacker.py ROOT OUTSIDE

Writes a byte once it has begun, and goes on until it is killed.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


def main(root: Path, outside: Path) -> None:
    """`root/door` is now a directory, now a link; so is the file `root/leaf`."""
    (root / "to-directory").symlink_to(outside)
    announced = False
    while True:
        with suppress(OSError):
            (root / "door").rename(root / "hidden")
        with suppress(OSError):
            (root / "to-directory").rename(root / "door")
        (root / "to-file").symlink_to(outside / "secret")
        (root / "to-file").rename(root / "leaf")
        with suppress(OSError):
            (root / "door").rename(root / "to-directory")
        with suppress(OSError):
            (root / "hidden").rename(root / "door")
        (root / "file").write_text("inside")
        (root / "file").rename(root / "leaf")
        if not announced:
            os.write(1, b"x")
            announced = True


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
