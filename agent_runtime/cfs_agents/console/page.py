"""Where a console writes: lines that appear at once, that cannot steer a terminal, and that never fail."""

import os
import re
from typing import TextIO

import typer

from cfs.cli.screen import has_colours, visible

_WHOLE_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Page:
    """Writes to a stream, of which it knows whether a line has been begun.

    Control characters are made visible, for a pipe as well: there may be a terminal at its end. Styles are only for
    terminals that know colours. When the reader has left, or the disk is full, `closed` is true and nothing is
    written: what an agent does is not for its console to end.
    """

    def __init__(self, out: TextIO) -> None:
        self.colours = has_colours(out)
        self.closed = False
        self._out = out
        self._fresh = True

    def write(self, text: str, *, prefix: str = "", colour: str | None = None, dim: bool = False) -> None:
        """Write text; each of its lines begins with the prefix, where it does not go on in one that has been begun."""
        lines = _WHOLE_LINE.findall(visible(text.replace("\r\n", "\n")))
        for number, line in enumerate(lines):
            lines[number] = self._styled(prefix + line if number or self._fresh else line, colour, dim)
        if lines:
            self._fresh = text.endswith("\n")
            self._put("".join(lines))

    def line(self, text: str, *, prefix: str = "", colour: str | None = None, dim: bool = False) -> None:
        """Write a line of its own, or several."""
        self.begin_line()
        self.write(f"{text}\n", prefix=prefix, colour=colour, dim=dim)

    def begin_line(self) -> None:
        """End the line that has been begun, if one has."""
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
        """Let what is still buffered go nowhere, or the end of the program would fail to write it."""
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self._out.fileno())
            finally:
                os.close(nowhere)
        except (OSError, ValueError):
            return  # it is no file of the system


def _encodable(text: str, out: TextIO) -> str:
    encoding = out.encoding or "utf-8"  # what is no file has none
    return text.encode(encoding, "replace").decode(encoding)
