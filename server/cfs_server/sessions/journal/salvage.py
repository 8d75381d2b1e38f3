"""Sets a damaged file of the journal aside."""

import time
from collections.abc import Sequence
from pathlib import Path


def salvage(path: Path, reason: str) -> Sequence[str]:
    """Set a damaged file aside. Return what was done. Raises `OSError`."""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    for end in ("-wal", ""):
        if (part := path.with_name(path.name + end)).exists():
            part.rename(aside.with_name(aside.name + end))
    return [f"{path} was damaged ({reason}): it is set aside as {aside.name}"]
