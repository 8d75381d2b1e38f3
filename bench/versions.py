"""Measure versions of files: the space of many small edits, what a write costs with them, and how fast they are read.

    scripts/bench versions [--versions N] [--rounds N] [--postgres]

Writes with and without versions are interleaved, on the same disk, and their medians compared: directly, and by REST
against two servers. With `--postgres` only that is measured, with versions in PostgreSQL.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import httpx

from cfs_filesystem import OPERATIONS, Grant
from cfs_filesystem.versions import SqliteVersions
from cfs_server.workspaces.workspaces import DiskWorkspaces

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.postgres import running_postgres
from tests.server.support import serving

PATH = "/workspaces/main/text"
SIZE = 1 << 20


class Text:
    """About a megabyte of lines of words, of which one changes at a time."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._words = [self._chance.randbytes(self._chance.randint(1, 4)).hex() for _ in range(3000)]
        self._lines: list[str] = []
        size = 0
        while size < SIZE:
            self._lines.append(self._line())
            size += len(self._lines[-1]) + 1

    def edited(self) -> bytes:
        """Change a line, and return the text."""
        self._lines[self._chance.randrange(len(self._lines))] = self._line()
        return "\n".join(self._lines).encode()

    def _line(self) -> str:
        return " ".join(self._chance.choices(self._words, k=10))


def space(folder: Path, count: int) -> dict[str, float]:
    """Record many versions; return the bytes of the file and the milliseconds of reading some."""
    text, versions = Text(), SqliteVersions(folder / "versions.db")
    with closing(DiskWorkspaces(folder / "workspaces", durable=False, versions=versions)) as workspaces:
        handle = workspaces.create_handle([Grant(prefix="/", ops=OPERATIONS)])
        for _ in range(count):
            handle.write(PATH, text.edited())
        reads = []
        for number in random.Random(2).sample(range(1, count + 1), 50):
            began = time.perf_counter()
            entry = versions.at("main", "text", number)
            assert entry is not None
            versions.read("main", entry)
            reads.append(time.perf_counter() - began)
        versions.check_integrity()
    return {
        "megabytes": round((folder / "versions.db").stat().st_size / 1e6, 3),
        "read_ms_median": _ms(statistics.median(reads)),
        "read_ms_max": _ms(max(reads)),
    }


def compared(
    writes: Mapping[str, Callable[[bytes], object]], rounds: int, content: Callable[[], bytes]
) -> dict[str, float]:
    """Call all in turn with a new content each round; return the median milliseconds of each, and their ratio."""
    times: dict[str, list[float]] = {name: [] for name in writes}
    for number in range(rounds):
        data = content()
        order = list(writes) if number % 2 else list(writes)[::-1]
        for name in order:
            began = time.perf_counter()
            writes[name](data)
            times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values[2:]) for name, values in times.items()}
    return {name: _ms(median) for name, median in medians.items()} | {
        "ratio": round(medians["with"] / medians["without"], 3)
    }


def written(root: Path, rounds: int, content: Callable[[], bytes]) -> dict[str, float]:
    """Compare durable writes to a folder with and without versions."""
    with ExitStack() as stack:
        writes = {}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=root)))
        for kind, versions in (("with", SqliteVersions(folder / "v.db")), ("without", None)):
            workspaces = stack.enter_context(closing(DiskWorkspaces(folder / kind, versions=versions)))
            handle = workspaces.create_handle([Grant(prefix="/", ops=OPERATIONS)])
            writes[kind] = partial(handle.write, PATH)
        return compared(writes, rounds, content)


def put(places: Mapping[str, Sequence[str]], rounds: int, content: Callable[[], bytes]) -> dict[str, float]:
    """Compare requests to two servers, of which one keeps versions."""
    with ExitStack() as stack:
        puts = {}
        for kind, place in places.items():
            flags = (*place, *(() if kind == "with" else ("--no-versions",)))
            server = stack.enter_context(serving("--engine", "scripted", "--log-level", "error", *flags))
            client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
            client.put(f"/v1/files{PATH}", content=content()).raise_for_status()
            puts[kind] = partial(_put, client)
        return compared(puts, rounds, content)


def _put(client: httpx.Client, data: bytes) -> None:
    client.put(f"/v1/files{PATH}", content=data).raise_for_status()


def main() -> None:
    """Print all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--versions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--postgres", action="store_true")
    given = parser.parse_args()
    contents = {"1 MB": Text().edited, "4 kB": lambda: random.randbytes(4096)}
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=".") as name, ExitStack() as stack:
        root = Path(name)
        places: dict[str, Sequence[str]]
        if given.postgres:
            postgres = stack.enter_context(running_postgres())
            stores = {kind: postgres.url(postgres.new_database()) for kind in ("with", "without")}
            places = {
                kind: ("--store", url, "--workspaces", str(root / f"workspaces {kind}")) for kind, url in stores.items()
            }
        else:
            found[f"{given.versions} versions of 1 MB"] = space(root, given.versions)
            for size, content in contents.items():
                found[f"a durable write of {size} (ms)"] = written(root, given.rounds, content)
            places = {kind: ("--data-dir", str(root / f"data {kind}")) for kind in ("with", "without")}
        for size, content in contents.items():
            found[f"PUT of {size} (ms)"] = put(places, given.rounds, content)
    print(json.dumps(found, indent=2))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


if __name__ == "__main__":
    main()
