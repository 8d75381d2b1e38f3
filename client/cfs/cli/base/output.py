"""Output: safe for terminals, unchanged for files and pipes (C10)."""

import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

import typer

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


_CONTROLS |= dict.fromkeys((*range(0x80, 0xA0), 0x2028, 0x2029), 0xFFFD)


_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
"""Characters that change the direction of what follows, so that a text shows as another one (CVE-2021-42574)."""


def open_streams() -> None:
    """Open the standard streams that are closed, so that no other file gets their numbers.

    Reading or writing them fails then, as if they were closed, but for standard error. Python has no object for them.
    """
    for number, name, mode in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, mode)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    return stream.isatty()


def has_colours(stream: TextIO) -> bool:
    """Return whether to use colours: on a terminal that supports them, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO) -> int | None:
    """Return the columns of a terminal; None for other streams, whose lines have any length."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def visible(text: str) -> str:
    """Make control characters visible, so that text of a model or a user cannot control the terminal."""
    return text.translate(_CONTROLS)


def show(text: str) -> None:
    """Write text to standard output and flush: unchanged, or with visible control characters on a terminal."""
    if is_terminal(sys.stdout):
        sys.stdout.write(visible(text))
    else:
        data = memoryview(text.encode())
        while data:  # with PYTHONUNBUFFERED a write may be partial
            data = data[sys.stdout.buffer.write(data) :]
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to standard error, dimmed if colours are used."""
    text = visible(text)
    with suppress(OSError):  # it has no reader
        typer.echo(typer.style(text, dim=True) if has_colours(sys.stderr) else text, err=True, color=True)


def print_error(reason: str) -> None:
    """Print an error in one line on standard error."""
    with suppress(OSError):  # the exit code says it, too
        typer.echo(visible(f"cfs: {' '.join(reason.split())}"), err=True)


def did_you_mean(names: Iterable[str]) -> str:
    """Return a sentence that suggests names, to follow another one; empty without names."""
    choices = " or ".join(map(repr, names))
    return f". Did you mean {choices}?" if choices else ""
