"""Imported by Python before anything else where this folder is in PYTHONPATH: a clock that is wrong by CLOCK_FILE."""

import os
import time
from pathlib import Path

_FILE = Path(os.environ["CLOCK_FILE"])
_told = time.time


def _turned() -> float:
    return _told() + float(_FILE.read_text())


time.time = _turned
