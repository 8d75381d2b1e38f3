"""Runs `cfs` as a child process that ends with its parent, even if the parent is killed: `python -m cfs.cli.child`."""

import os
import signal
import sys
import threading

from cfs.cli.app import main


def run_with_parent() -> None:
    """Run `cfs` and exit when standard input closes: it is a pipe from the parent process."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    main()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    run_with_parent()
