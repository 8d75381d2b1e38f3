"""`python -m cfs.cli.kept` is `cfs`, but ends with whoever started it, even when that was killed.

Its standard input is a pipe that nobody writes to: when it ends, the process at its other side is gone.
"""

import os
import signal
import sys
import threading

from cfs.cli.app import main


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    main()
