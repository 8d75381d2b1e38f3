"""Lets tests run as on a quicker or a slower machine, and holds the engine where a test wants it.

The import of this package gives the process, and the programs that it starts, the pace of the switches. It comes before
that of modules which keep `time.monotonic` in a name of their own.
"""

import os
import sys
from pathlib import Path

from tests.pacing import sitecustomize

FOLDER = Path(__file__).parent
SWITCHES = ("PACE_STEP", "PACE_CLOCK")


def python_path() -> str:
    """Return a `PYTHONPATH` with which programs set their pace."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(FOLDER), *filter(None, others)]))


_at_start = getattr(sys.modules.get("sitecustomize"), "__file__", None)
if any(map(os.environ.get, SWITCHES)) and _at_start != sitecustomize.__file__:  # else Python has done it at its start
    os.environ["PYTHONPATH"] = python_path()
    sitecustomize.main()
