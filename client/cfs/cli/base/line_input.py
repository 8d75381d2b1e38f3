"""Input line by line: a terminal with line editing and a history, or any other input."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from cfs.contract.user_folders import state_folder

_READY, _MORE = "> ", "... "
QUOTES = '"""'
_KEPT_LINES = 1000


def messages(read_line: Callable[[str], str]) -> Iterator[str]:
    '''Yield the entries of the user until the input ends.

    An entry that begins with `"""` continues to the line that ends with it. `read_line` gets the prompt and raises
    `EOFError` at the end. An interrupt discards the current entry.
    '''
    while True:
        try:
            text = read_line(_READY)
            if text.lstrip().startswith(QUOTES):
                text = _quoted(text.lstrip().removeprefix(QUOTES), read_line)
        except EOFError:
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            continue
        yield text


def _quoted(text: str, read_line: Callable[[str], str]) -> str:
    lines = [text]
    while not lines[-1].rstrip().endswith(QUOTES):
        try:
            lines.append(read_line(_MORE))
        except EOFError:
            return "\n".join(lines)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def read_input(_: str) -> str:
    """Read a line of standard input that is not a terminal."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


class LineEditor:
    """Reads lines from the terminal; with readline, it supports editing and a persistent history."""

    def __init__(self, history: Path) -> None:
        self._file = history
        try:
            import readline
        except ImportError:  # Python was built without it
            self._readline = None
            return
        self._readline = readline
        readline.set_auto_history(False)
        readline.parse_and_bind("set enable-bracketed-paste on")  # pasted text is one entry, even with several lines
        with suppress(OSError, UnicodeDecodeError):
            for line in history.read_text(encoding="utf-8").splitlines()[-_KEPT_LINES:]:
                readline.add_history(line)

    def read_line(self, prompt: str) -> str:
        """Read a line; raises `EOFError` when the user ends the input."""
        line = input(prompt)
        if line.strip() and self._readline:
            self._readline.add_history(line)
            if "\n" not in line:
                self._keep(line)
        return line

    def _keep(self, line: str) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
                file.write(line + "\n")


def history_file(of: str = "chat") -> Path:
    """Return the path of the history file."""
    return state_folder() / f"{of}_history"
