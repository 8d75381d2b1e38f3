"""Shows a reply while it comes: as Markdown in a notebook, as plain text in a terminal."""

import sys
import time
from typing import Any, Protocol

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle, Markdown, display
from IPython.terminal.interactiveshell import TerminalInteractiveShell

_BETWEEN_SECONDS = 0.1
"""Each update sends the whole text to the browser, so there is not one for each piece."""


class Output(Protocol):
    """Where the text of a reply goes."""

    def show(self, piece: str) -> None:
        """Take the next piece."""

    def end(self) -> None:
        """Show what is left."""


class PlainOutput:
    """Prints pieces as they come."""

    def show(self, piece: str) -> None:
        """Print a piece."""
        sys.stdout.write(piece)
        sys.stdout.flush()

    def end(self) -> None:
        """End the line."""
        self.show("\n")


class MarkdownOutput:
    """One output of a cell, whose text grows."""

    def __init__(self) -> None:
        self._text = ""
        self._shown = ""
        self._at = 0.0
        self._handle: DisplayHandle | None = None

    def show(self, piece: str) -> None:
        """Add a piece; it can be seen after a tenth of a second at most, if more follow."""
        self._text += piece
        if time.monotonic() - self._at >= _BETWEEN_SECONDS:
            self._update()

    def end(self) -> None:
        """Show the whole text."""
        if self._text != self._shown:
            self._update()

    def _update(self) -> None:
        markdown = Markdown(self._text)  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(markdown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(markdown)  # type: ignore[no-untyped-call]
        self._shown, self._at = self._text, time.monotonic()


def output_of(shell: InteractiveShell | Any, *, plain: bool) -> Output:
    """Return the output for a shell: plain text in a terminal, or on request."""
    return PlainOutput() if plain or isinstance(shell, TerminalInteractiveShell) else MarkdownOutput()
