"""How a shell is set up: where it starts, how long a command may take, what it may use, what it sees."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cfs_agents.tools.shell.warden import Warden


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each process of the shell may use at most; None leaves what the runtime itself has.

    `processes` is how many more the user may have than when the shell starts, threads too; root is only
    held to it in a sandbox. `memory_bytes` counts what a process has reserved, used or not.
    """

    processes: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Commands run in bubblewrap: the system read-only, no home, an own /tmp, own processes, no network unless set.

    In `/tmp` is room for `scratch_bytes`, which are taken from memory.
    `writable` directories are there under their real paths, `places` also under the paths that are their keys (such as
    `/workspace`), `readable` directories read-only.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    places: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False
    scratch_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        """Refuse a writable directory with another directory of the sandbox in it: commands could replace that one."""
        writable = {*self.writable, *self.places.values()}
        for above in writable:
            for each in {*writable, *self.readable} - {above}:
                if each.is_relative_to(above):
                    raise ValueError(f"{each} is inside {above}, which commands can write to: they could replace it")

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        for place, real in self.places.items():
            if path.is_relative_to(real):
                return os.path.normpath(os.path.join(place, path.relative_to(real)))  # noqa: PTH118 - a path elsewhere
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """How one shell works. Times are in seconds, sizes in bytes.

    It starts in `directory`, which is also HOME, and is made if it is missing. `records` is where long outputs and
    those of background jobs are written (`directory/.cfs`). A command is interrupted after `timeout`, and killed
    when it has not ended `grace` later. Of an output `keep` bytes are kept in memory, and `most_recorded` in its file.
    With `merge` an output holds what came on standard error too, in the order in which it came.

    Of the runtime's environment commands see what `environment.py` lists and what `keep_variables` names, and with it
    `environment`. As root, commands can run as another `user`. Should the runtime be killed, a `warden` ends what
    the shell has started.
    """

    directory: Path
    records: Path | None = None
    timeout: float = 120.0
    grace: float = 1.0
    keep: int = 8 << 10
    most_recorded: int = 64 << 20
    merge: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_variables: frozenset[str] = frozenset()
    limits: Limits = Limits()
    sandbox: Sandbox | None = None
    user: str | int | None = None
    warden: Warden | None = None

    @property
    def record_directory(self) -> Path:
        """Where outputs are written."""
        return self.records or self.directory / ".cfs"

    def unmovable(self, path: Path) -> Path:
        """Return the directory above (or at) a path that commands cannot replace, while they can what is below it."""
        mounts = (*self.sandbox.writable, *self.sandbox.places.values()) if self.sandbox else ()
        return next((base for base in (*mounts, self.directory) if path.is_relative_to(base)), path)

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        return self.sandbox.inside(path) if self.sandbox else str(path)
