"""Ends what the shells of a tree have started once its runtime has gone, however that ended (B8).

    python -m cfs_agents.fibre.warden COOKIE

A process of its own, whose standard input is a pipe from the runtime: the pipe ends with the runtime, also when that is
killed. All that a shell starts has the cookie in its environment.
"""

import os
import subprocess
import sys

from cfs_agents.tools.shell.census import kill_all

VARIABLE = "CFS_TREE"
"""Name of the variable that holds the cookie."""


class Warden:
    """Watches over this process. Blocks for some milliseconds when it is made, and until it has ended in `close`."""

    def __init__(self, cookie: str) -> None:
        self.environment = {VARIABLE: cookie}
        """What the shells are to have in their environment."""
        command = [sys.executable, "-m", "cfs_agents.fibre.warden", cookie]
        self._process = subprocess.Popen(  # noqa: S603 - this module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that what is sent to our group does not end it before us
        )

    def close(self) -> None:
        """End whatever the shells have left, and the warden."""
        self._process.communicate()


def main() -> None:
    """Wait for the end of the runtime, then end what is left."""
    while os.read(0, 4096):
        pass
    kill_all(frozenset(), sys.argv[1])


if __name__ == "__main__":
    main()
