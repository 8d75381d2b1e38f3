"""The settings of a shell and of its sandbox."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cfs_agents.shell.limits import Limits
from cfs_agents.shell.reaper import Reaper


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Commands run in bubblewrap: the system is read-only, there is no home, and `/tmp` and processes are their own.

    - `writable` and `readable` are directories that the sandbox has under their real paths.
    - `places` are writable directories under the paths that are their keys (such as `/workspace`).
    - `network` allows the network.
    - `scratch_bytes` is the size of `/tmp`, which is in memory.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    places: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False
    scratch_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        """Raise `ValueError` for a directory inside of a writable one, because commands could replace it."""
        writable = {*self.writable, *self.places.values()}
        for above in writable:
            for path in {*writable, *self.readable} - {above}:
                if path.is_relative_to(above):
                    raise ValueError(f"{path} is inside {above}, which commands can write to: they could replace it")

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        for mount_point, real in self.places.items():
            if path.is_relative_to(real):
                return os.path.normpath(os.path.join(mount_point, path.relative_to(real)))  # noqa: PTH118 - a path elsewhere
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """Settings of one shell. Times are in seconds, sizes in bytes.

    - `directory` is where it starts. It is created if it is missing.
    - `home` is its HOME (default: `directory`).
    - `records` is the directory for long outputs and the logs of background jobs (default: `directory/.cfs`).
    - After `timeout` a command is interrupted, and `grace` later killed if it still runs.
    - Of an output `keep` bytes stay in memory, and at most `most_recorded` go to its file.
    - With `merge` the output includes standard error, in the order of writing.
    - Commands see the harmless variables of the runtime's environment, those that `keep_variables` names, and
      `environment`.
    - `limits` apply to each process, `sandbox` confines the commands, and `user` runs them as another user (root only).
    - `reaper` ends the processes of the shell if the runtime is killed.
    """

    directory: Path
    home: Path | None = None
    records: Path | None = None
    timeout: float = 120.0
    grace: float = 1.0
    keep: int = 8 << 10
    most_recorded: int = 64 << 20
    merge: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_variables: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    sandbox: Sandbox | None = None
    user: str | int | None = None
    reaper: Reaper | None = None

    @property
    def record_directory(self) -> Path:
        """Directory of the records."""
        return self.records or self.directory / ".cfs"

    def unmovable(self, path: Path) -> Path:
        """Return the nearest directory at or above a path that commands cannot replace."""
        mounts = (*self.sandbox.writable, *self.sandbox.places.values()) if self.sandbox else ()
        return next((base for base in (*mounts, self.directory) if path.is_relative_to(base)), path)

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        return self.sandbox.inside(path) if self.sandbox else str(path)
