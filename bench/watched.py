"""Run `cfs` commands of a checkout with the recorder in each process, and ask the recorders for what was called.

`crossings.py` is the recorder, and says what counts as a call.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from crossings import Step
from layout import packages

PATIENCE = 120.0
"""Seconds that anything may take."""
PROGRAM = (
    "from importlib.metadata import entry_points\n"
    "raise SystemExit(entry_points(group='console_scripts')['cfs'].load()())"
)


@dataclass(slots=True)
class Walk:
    """What one path passed. `modules` are those of all rounds. Only modules below `package` count, if it is given."""

    name: str
    process: str
    package: str = ""
    counts: list[int] = field(default_factory=list)
    crossings: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)

    def add(self, steps: Sequence[Step]) -> None:
        """Count one round."""
        steps = [step for step in steps if step[2].startswith(self.package)]
        found = {module for _, _, module in steps}
        self.counts.append(len(found))
        self.crossings.append(sum(caller not in ("", module) for _, caller, module in steps))
        self.calls.append(len(steps))
        self.modules |= found


class Checkout:
    """Runs commands of a checkout, with the recorder in each process."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._packages = packages(root)
        shutil.copy(Path(__file__).with_name("crossings.py"), folder / "sitecustomize.py")
        self._describe(root)

    def _describe(self, root: Path) -> None:
        """Name the checkout's commands as an installed package does."""
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        folder = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        folder.mkdir()
        about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (folder / "METADATA").write_text(about, encoding="utf-8")
        groups = {"console_scripts": project["scripts"], **project["entry-points"]}
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for group, rows in groups.items()]
        (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run `cfs` with arguments, and end it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}
        environment["CFS_DATA_DIR"] = "temporary"
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [self.folder, *{p.parent: 0 for p in self._packages}]))
        environment["WALKS_PACKAGES"] = os.pathsep.join(map(str, self._packages))
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            process.kill()
            process.communicate()

    @contextmanager
    def serving(self, *flags: str) -> Iterator[tuple[str, int]]:
        """Run `cfs serve`; its URL and its process."""
        with self.running("serve", "--port", "0", "--log-level", "error", *flags) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                raise SystemExit(f"cfs serve does not start:\n{(self.folder / 'log').read_text()}")
            yield line.removeprefix("listening on ").strip(), process.pid

    def take(self, way: Callable[[], tuple[int, int]], rounds: int, **walks: tuple[int, Walk]) -> None:
        """Take a path once, and then as often as it is counted. It returns when it began and ended."""
        for number in range(rounds + 1):
            for pid, _ in walks.values():
                ask(self.folder, pid, "start")
            began, ended = way()
            for pid, walk in walks.values():
                steps = [step for step in ask(self.folder, pid, "stop") if began <= step[0] <= ended]
                if number:
                    walk.add(steps)

    def worker_of(self, pid: int) -> int:
        """Return the process of the engine."""
        watched = [child.pid for child in psutil.Process(pid).children() if (self.folder / str(child.pid)).exists()]
        if len(watched) != 1:
            raise SystemExit(f"the server has {len(watched)} workers, and not one")
        return watched[0]


def ask(folder: Path, pid: int, order: str) -> list[Step]:
    """Tell the recorder of a process to start or to stop."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(folder / str(pid)))
        wire.sendall(order.encode() + b"\n")
        with wire.makefile("r") as answer:
            return [(moment, caller, module) for moment, caller, module in json.load(answer)]


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.02)
