"""The reaper ends what commands have left running when the runtime itself is killed (B8)."""

import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from cfs_agents.shell import census

VARIABLE = "CFS_REAPER"
"""Name of the variable that holds the cookie of a reaper."""


class Reaper:
    """Ends the processes of shells after the end of the runtime, even if the runtime is killed.

    Several shells can share a reaper (`ShellSettings.reaper`). Its own process starts with the first shell, and its
    standard input is a pipe from the runtime. When the pipe closes, it kills all processes with its cookie in their
    environment, which all processes of the shells have, and removes the directory of the shells' pipes and scripts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cookie = census.new_cookie()
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the shells must have in their environment."""
        return {VARIABLE: self._cookie}

    def directory(self) -> Path:
        """Return the directory for pipes and scripts of the shells. The first call starts the process, and blocks.

        Raises `OSError` if the process cannot start.
        """
        with self._lock:
            if self._directory is None:
                self._directory = self._watched(Path(tempfile.mkdtemp(prefix="cfs-shells-")))
            return self._directory

    def close(self) -> None:
        """End all processes that the shells have left, then the reaper's own. Blocks until this is done."""
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                shutil.rmtree(self._directory or "", ignore_errors=True)  # in case the process was killed

    def _watched(self, directory: Path) -> Path:
        try:
            directory.chmod(0o711)  # commands of another user need the pipes in it
            self._process = subprocess.Popen(  # noqa: S603 - our own module, with the standard library only
                [sys.executable, "-I", "-S", census.__file__, self._cookie, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # signals to the runtime's process group must not end it first
            )
        except BaseException:
            with suppress(OSError):
                directory.rmdir()
            raise
        return directory
