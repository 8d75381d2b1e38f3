"""Exit codes, and one line on standard error for each error (C10)."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cfs.cli.base.output import is_terminal, print_error
from cfs.contract.errors import CfsError, Unreachable, Unverified

REFUSED = 1
"""The server refused the request, or the turn failed."""

USAGE = 2
UNREACHABLE = 3

UNVERIFIED = 4
"""An agent claims changes of files that did not happen."""

UNANSWERED = 5
"""An agent waits for an answer of the user, and there is no terminal to ask at."""

INTERRUPTED = 130
"""128 plus the number of SIGINT, as in shells."""

NO_READER = 141
"""128 plus the number of SIGPIPE: the reader of the output has closed it."""


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors into one line on standard error and the exit code, without a stack trace."""
    try:
        yield
        sys.stdout.flush()  # flush here, so that a closed pipe is handled like other errors
    except CfsError as error:
        print_error(error.detail)
        raise typer.Exit(code_of(error)) from None
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            typer.echo(err=True)  # behind the ^C
        print_error("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        raise typer.Exit(print_system_error(error)) from None
    except ModuleNotFoundError as error:
        if (extra := _extra_for(error)) is None:
            raise
        print_error(f"this command needs {error.name}, which is not installed: pip install 'cfs-local[{extra}]'")
        raise typer.Exit(REFUSED) from None


def print_system_error(error: OSError) -> int:
    """Print an error of the system, such as a full disk, in one line. Return the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard buffered output
    if isinstance(error, BrokenPipeError):
        return NO_READER
    reason = error.strerror or str(error)
    print_error(f"{error.filename}: {reason}" if error.filename else f"input or output failed: {reason}")
    return REFUSED


_EXTRAS = {
    "cfs_server": "server",
    "cfs_webdav": "webdav",
    "cfs_fuse": "fuse",
    "cfs_agents": "agents",
    "cfs_acp": "acp",
    "cfs_mcp": "mcp",
}


def _extra_for(error: ModuleNotFoundError) -> str | None:
    """Return the extra that brings a missing module: that of the package of ours that imports it."""
    extra, frame = None, error.__traceback__
    while frame is not None:
        extra = _EXTRAS.get(frame.tb_frame.f_globals.get("__name__", "").partition(".")[0], extra)
        frame = frame.tb_next
    return None if (error.name or "cfs").startswith("cfs") else extra


def code_of(error: CfsError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Unreachable):
        return UNREACHABLE
    return UNVERIFIED if isinstance(error, Unverified) else REFUSED
