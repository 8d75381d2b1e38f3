"""What a terminal is shown, and how; what is no terminal gets the text as it is (C10)."""

import os
import sys
from typing import TextIO

import typer

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody looks at it."""
    return stream.isatty()


def has_colours(stream: TextIO) -> bool:
    """Whether colours are welcome: on a terminal that knows them, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """Make control characters visible, so that no text of a model or a user can steer the terminal."""
    return text.translate(_CONTROLS)


def show(text: str) -> None:
    """Write text to standard output at once: as it is in UTF-8, or made visible for a terminal."""
    if is_terminal(sys.stdout):
        sys.stdout.write(visible(text))
    else:
        data = memoryview(text.encode())
        while data:  # under PYTHONUNBUFFERED one write may take a part only
            data = data[sys.stdout.buffer.write(data) :]
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to standard error, which programs that read our output never see; dim where there are colours."""
    text = visible(text)
    typer.echo(typer.style(text, dim=True) if has_colours(sys.stderr) else text, err=True, color=True)
