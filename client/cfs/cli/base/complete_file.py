"""Files that get their name when they are complete."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfs.contract.errors import (
    InvalidRequest,
)


@contextmanager
def complete_file(file: Path, *, force: bool) -> Iterator[io.BufferedWriter]:
    """Open a file that others cannot read, and that gets its name when it is complete."""
    if file.exists() and not force:
        raise InvalidRequest(f"{file} exists; choose another name, or overwrite it with --force")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        part.replace(file)
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
