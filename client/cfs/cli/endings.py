"""How a command ends: its exit code, and one line on standard error about what went wrong (C10)."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cfs.errors import CfsError, Unreachable, Unverified

REFUSED = 1
"""The server said no, or the turn failed."""
USAGE = 2
UNREACHABLE = 3
UNVERIFIED = 4
"""An agent says of files what is not so."""
INTERRUPTED = 130
"""128 and the number of SIGINT, as a shell says it."""
NO_READER = 141
"""128 and the number of SIGPIPE: whoever read our output has left."""


@contextmanager
def told() -> Iterator[None]:
    """End a command as its errors want it: with the right code, and without a stack trace."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that has left is an ending like others
    except CfsError as error:
        complain(error.detail)
        raise typer.Exit(code_of(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        raise typer.Exit(NO_READER) from None


def code_of(error: CfsError) -> int:
    """Choose the exit code for an error."""
    if isinstance(error, Unreachable):
        return UNREACHABLE
    return UNVERIFIED if isinstance(error, Unverified) else REFUSED


def complain(reason: str) -> None:
    """Tell on standard error, in one line, what went wrong."""
    typer.echo(f"cfs: {' '.join(reason.split())}", err=True)
