"""Ends what shells have started once their runtime has gone, however that ended (B8)."""

import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from cfs_agents.tools.shell import census

VARIABLE = "CFS_WARDEN"
"""Name of the variable that holds the cookie of a warden."""


class Warden:
    """Watches over the runtime from a process of its own; several shells can share it (`ShellSettings.warden`).

    Its process begins with the first shell. Its standard input is a pipe from the runtime, which ends with it, also
    when it is killed. Then it kills what has the cookie in its environment, as all has that a shell starts, and
    removes the directory in which the shells have their pipes and scripts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cookie = census.new_cookie()
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the shells are to have in their environment."""
        return {VARIABLE: self._cookie}

    def directory(self) -> Path:
        """Return the directory for what shells need while they live. The first time this starts the watch: it blocks.

        Raises `OSError` when there can be no watch.
        """
        with self._lock:
            if self._directory is None:
                self._directory = self._watched(Path(tempfile.mkdtemp(prefix="cfs-shells-")))
            return self._directory

    def close(self) -> None:
        """End whatever the shells have left, and the watch. Blocks until that is done."""
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                shutil.rmtree(self._directory or "", ignore_errors=True)  # had the watch been killed

    def _watched(self, directory: Path) -> Path:
        try:
            directory.chmod(0o711)  # commands of another user have their pipes in it
            self._process = subprocess.Popen(  # noqa: S603 - a module of ours, without all that it does not need
                [sys.executable, "-I", "-S", census.__file__, self._cookie, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that what is sent to our group does not end it before us
            )
        except BaseException:
            with suppress(OSError):
                directory.rmdir()
            raise
        return directory
