"""The output of a console: it appears at once, cannot control the terminal, and never raises."""

import os
import re
from typing import TextIO

import typer

from cfs.cli.base.output import has_colours, visible

_WHOLE_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class ConsolePage:
    """Writes to a stream and tracks whether a line is open.

    Control characters are made visible, in a pipe too, as it may end at a terminal. Styles are used only on terminals
    with colours. If the reader has left or the disk is full, `closed` is true and nothing more is written: a console
    never ends its agent.
    """

    def __init__(self, out: TextIO) -> None:
        self.colours = has_colours(out)
        self.closed = False
        self._out = out
        self._fresh = True

    def write(self, text: str, *, prefix: str = "", colour: str | None = None, dim: bool = False) -> None:
        """Write text; each line gets the prefix, except one that continues an open line."""
        lines = _WHOLE_LINE.findall(visible(text.replace("\r\n", "\n")))
        for number, line in enumerate(lines):
            lines[number] = self._styled(prefix + line if number or self._fresh else line, colour, dim)
        if lines:
            self._fresh = text.endswith("\n")
            self._put("".join(lines))

    def line(self, text: str, *, prefix: str = "", colour: str | None = None, dim: bool = False) -> None:
        """Write whole lines."""
        self.begin_line()
        self.write(f"{text}\n", prefix=prefix, colour=colour, dim=dim)

    def begin_line(self) -> None:
        """End the open line, if there is one."""
        self.write("" if self._fresh else "\n")

    def _styled(self, text: str, colour: str | None, dim: bool) -> str:
        if not self.colours or not (colour or dim):
            return text
        body = text.removesuffix("\n")
        return typer.style(body, fg=colour, dim=dim or None) + text[len(body) :]

    def _put(self, text: str) -> None:
        if self.closed:
            return
        try:
            self._out.write(_encodable(text, self._out))
            self._out.flush()
        except (OSError, ValueError):  # a closed stream is a ValueError
            self.closed = True
            self._forget_the_rest()

    def _forget_the_rest(self) -> None:
        """Redirect buffered output to /dev/null, or the exit of the program would fail to write it."""
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self._out.fileno())
            finally:
                os.close(nowhere)
        except (OSError, ValueError):
            return  # the stream is not a file


def _encodable(text: str, out: TextIO) -> str:
    encoding = out.encoding or "utf-8"  # what is no file has none
    return text.encode(encoding, "replace").decode(encoding)
