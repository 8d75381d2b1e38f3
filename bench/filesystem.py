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


def figures_of(root: Path, *, rounds: int, calls: int) -> dict[str, float]:
    """Fill memory and a disk below `root`, and measure both: microseconds of a call; of lists, milliseconds."""
    memory, disk = InMemoryFileSystem(), DiskFileSystem(root)
    fill(memory)
    fill(disk)
    in_memory, on_disk = memory.create_handle(GRANTS), disk.create_handle(GRANTS)
    child = in_memory.narrow([Grant(prefix="/reports/d42/", ops={"file", "read"})])
    plain = str(root) + PATH
    rights = Rights(GRANTS)

    def open_and_read() -> str:
        with open(plain, encoding="utf-8") as file:  # noqa: PTH123  what is compared with
            return file.read()

    looks: dict[str, Callable[[], object]] = {
        "check": lambda: rights.require("read_file", validate_path(PATH)),
        "memory file": lambda: in_memory.file(PATH),
        "memory read_file": lambda: in_memory.read_file(PATH),
        "memory read_file, narrowed handle": lambda: child.read_file(PATH),
        "plain stat": lambda: Path(plain).stat(),
        "plain open and read": open_and_read,
        "disk file": lambda: on_disk.file(PATH),
        "disk read_file": lambda: on_disk.read_file(PATH),
    }
    lists: dict[str, Callable[[], object]] = {
        "memory list": in_memory.list,
        "disk list": on_disk.list,
        "disk list of 100": lambda: on_disk.list("/reports/d42/"),
    }
    figures = measure(looks, rounds, calls)
    figures |= {f"{name}, ms": taken / 1000 for name, taken in measure(lists, min(rounds, 9), 1).items()}
    figures["disk read_file / plain"] = figures["disk read_file"] / figures["plain open and read"]
    disk.close()
    return figures


def table_of(figures: dict[str, float]) -> str:
    """Set the figures beside what they should be."""
    on_disk = f"{figures['disk read_file']:.2f} µs ({figures['disk read_file / plain']:.2f} ×)"
    listed = f"{figures['memory list, ms']:.1f} ms, {figures['disk list, ms']:.1f} ms"
    rows = [
        ("what", "measured", "aim"),
        ("---", "---", "---"),
        ("check of path and grants", f"{figures['check']:.2f} µs", "≤ 5 µs"),
        ("`file()` in memory", f"{figures['memory file']:.2f} µs", "≤ 50 µs"),
        ("`read_file()` in memory", f"{figures['memory read_file']:.2f} µs", "≤ 50 µs"),
        ("the same, narrowed handle", f"{figures['memory read_file, narrowed handle']:.2f} µs", "≤ 50 µs"),
        ("`open().read()` on disk, without the gate", f"{figures['plain open and read']:.2f} µs", ""),
        ("`read_file()` on disk", on_disk, "≤ 3 ×"),
        ("`file()` on disk (plain `stat`)", f"{figures['disk file']:.2f} µs ({figures['plain stat']:.2f} µs)", ""),
        (f"`list()` of {ENTRIES:,}: memory, disk", listed, ""),
        ("`list(prefix)` of 100 on disk", f"{figures['disk list of 100, ms']:.2f} ms", ""),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few calls only, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rounds, calls = (3, 10) if arguments.smoke else (61, 200)
    with tempfile.TemporaryDirectory() as name:
        figures = figures_of(Path(name) / "root", rounds=rounds, calls=calls)
    print(f"One entry of {len(TEXT)} bytes among {ENTRIES:,}; median of {rounds} rounds of {calls} calls.\n")
    print(table_of(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
