"""Measure the gate: what one look and one read cost among 10,000 entries, against the bare disk.

    python bench/filesystem.py [--smoke] [--json FILE]

Each figure is the median of rounds that take turns, so that a busy machine slows all of them alike.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cfs_filesystem import DiskFileSystem, FileSystemBase, Grant, InMemoryFileSystem, validate_path
from cfs_filesystem._grants import Rights

ENTRIES = 10_000
TEXT = "".join(f"line {number} of an entry\n" for number in range(20))
PATH = "/reports/d42/e4242.txt"
GRANTS = [
    Grant(prefix="/userinput/", ops={"list", "file", "read"}),
    Grant(prefix="/workspace/", ops={"list", "file", "read", "write", "delete"}),
    Grant(prefix="/reports/", ops={"list", "file", "read"}),
]


def fill(filesystem: FileSystemBase) -> None:
    """Make entries, a hundred in each of a hundred directories."""
    handle = filesystem.create_handle([Grant(prefix="/", ops={"write"})])
    for number in range(ENTRIES):
        handle.write(f"/reports/d{number // 100}/e{number}.txt", TEXT)


def measure(actions: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Microseconds of one call of each action: the median of rounds that take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            for _ in range(calls):
                action()
            seconds[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(taken) * 1e6 for name, taken in seconds.items()}


def main() -> None:
    """Fill memory and disk, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few calls only, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rounds, calls = (3, 10) if arguments.smoke else (61, 200)
    with tempfile.TemporaryDirectory() as name:
        memory, disk = InMemoryFileSystem(), DiskFileSystem(Path(name) / "root")
        fill(memory)
        fill(disk)
        in_memory, on_disk = memory.create_handle(GRANTS), disk.create_handle(GRANTS)
        child = in_memory.narrow([Grant(prefix="/reports/d42/", ops={"file", "read"})])
        plain = str(Path(name) / "root") + PATH
        rights = Rights(GRANTS)

        def check() -> None:
            rights.require("read_file", validate_path(PATH))

        def open_and_read() -> str:
            with open(plain, encoding="utf-8") as file:  # noqa: PTH123  what is compared with
                return file.read()

        def stat() -> object:
            return Path(plain).stat()

        figures = measure(
            {
                "check": check,
                "memory file": lambda: in_memory.file(PATH),
                "memory read_file": lambda: in_memory.read_file(PATH),
                "memory read_file, narrowed handle": lambda: child.read_file(PATH),
                "plain stat": stat,
                "plain open and read": open_and_read,
                "disk file": lambda: on_disk.file(PATH),
                "disk read_file": lambda: on_disk.read_file(PATH),
            },
            rounds,
            calls,
        )
        lists = measure(
            {
                "memory list": in_memory.list,
                "disk list": on_disk.list,
                "disk list of 100": lambda: on_disk.list("/reports/d42/"),
            },
            rounds if arguments.smoke else 9,
            1,
        )
        disk.close()
    figures |= {f"{key}, ms": value / 1000 for key, value in lists.items()}
    ratio = figures["disk read_file"] / figures["plain open and read"]
    figures["disk read_file / plain"] = ratio
    rows = [
        ("check of path and grants", f"{figures['check']:.2f} µs", "≤ 5 µs"),
        ("`file()` in memory", f"{figures['memory file']:.2f} µs", "≤ 50 µs"),
        ("`read_file()` in memory", f"{figures['memory read_file']:.2f} µs", "≤ 50 µs"),
        ("the same, narrowed handle", f"{figures['memory read_file, narrowed handle']:.2f} µs", "≤ 50 µs"),
        ("`open().read()` on disk, without the gate", f"{figures['plain open and read']:.2f} µs", ""),
        ("`read_file()` on disk", f"{figures['disk read_file']:.2f} µs ({ratio:.2f} ×)", "≤ 3 ×"),
        ("`file()` on disk (plain `stat`)", f"{figures['disk file']:.2f} µs ({figures['plain stat']:.2f} µs)", ""),
        (
            f"`list()` of {ENTRIES:,}: memory, disk",
            f"{lists['memory list'] / 1e3:.1f} ms, {lists['disk list'] / 1e3:.1f} ms",
            "",
        ),
        ("`list(prefix)` of 100 on disk", f"{lists['disk list of 100'] / 1e3:.2f} ms", ""),
    ]
    print(f"One entry of {len(TEXT)} bytes among {ENTRIES:,}; median of {rounds} rounds of {calls} calls.\n")
    print("| what | measured | aim |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
