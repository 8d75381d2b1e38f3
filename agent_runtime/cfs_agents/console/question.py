"""Asks at the terminal whether a command may run: `--commands ask` (A5).

What is shown is exactly what would run. Nothing in it can steer the terminal, look like the question, or be overlooked:
what has no shape is written as its number, and long lines are broken here, each part below a mark.
"""

import asyncio
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator

import typer

from cfs.cli.screen import is_terminal
from cfs_agents.tools.commands import Answer, CommandRequest

_LINE, _GOES_ON = "  | ", "  : "
_NARROWEST = 20
_SHAPELESS = frozenset(map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)))
"""Letters and marks that are shown as nothing."""
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
_ANSWERS = {
    **dict.fromkeys(("y", "yes"), Answer.YES),
    **dict.fromkeys(("n", "no"), Answer.NO),
    **dict.fromkeys(("a", "always"), Answer.ALWAYS),
}
_CHOICE = "Run it? y(es), n(o), a(lways: this exact command in this directory, until this program ends): "


def can_ask() -> bool:
    """Whether there is a terminal to ask at, and one to show the question on."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


class CommandQuestions:
    """Asks the person at the terminal, on standard error; an `Ask`."""

    def __init__(self) -> None:
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def quiet(self) -> None:
        """Wait until no question is open, so that nothing is shown between it and its answer."""
        await self._quiet.wait()

    async def __call__(self, agent: str, request: CommandRequest) -> Answer:
        """Ask, until there is an answer. The end of the input is a no."""
        self._quiet.clear()
        try:
            _write(question(agent, request, shutil.get_terminal_size().columns))
            _forget_typed()
            while True:
                _write(_CHOICE)
                typed = await _typed_line()
                if not typed:
                    _write("\n")
                    return Answer.NO
                if (answer := _ANSWERS.get(typed.decode("utf-8", "replace").strip().lower())) is not None:
                    return answer
        except asyncio.CancelledError:
            _write("\n[not answered: the command is not run]\n")
            raise
        finally:
            self._quiet.set()


def question(agent: str, request: CommandRequest, columns: int) -> str:
    """Show a command so that all of it can be seen. Pure."""
    lines = request.command.split("\n")
    long = f" ({len(lines)} lines)" if len(lines) > 1 else ""
    background = " in the background" if request.background else ""
    shown = [f"{shapely(agent)} wants to run this command{background}{long}, in {shapely(request.directory)}:"]
    width = max(_NARROWEST, columns - len(_LINE) - 1)
    for line in lines:
        for number, part in enumerate(_parts(shapely(line), width)):
            shown.append((_GOES_ON if number else _LINE) + part)
    if any(shapely(line) != line for line in lines):
        shown.append("(<U+...> stands for a character that cannot be seen)")
    return "\n".join(shown) + "\n"


def shapely(text: str) -> str:
    """Write as its number each character that a terminal obeys, or shows as nothing."""
    return "".join(each if _has_shape(each) else f"<U+{ord(each):04X}>" for each in text)


def _has_shape(character: str) -> bool:
    if not character.isprintable() or character in _SHAPELESS:
        return False
    return not any(ord(character) in selectors for selectors in _SELECTORS)


def _parts(line: str, width: int) -> Iterator[str]:
    """Cut a line into parts of so many columns at most; an empty one is one part."""
    begin = used = 0
    for end, character in enumerate(line):
        columns = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used + columns > width:
            yield line[begin:end]
            begin, used = end, 0
        used += columns
    yield line[begin:]


async def _typed_line() -> bytes:
    """Read a line from the terminal; nothing at its end. A cancellation leaves what comes later to others."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    terminal = sys.stdin.fileno()

    def read() -> None:
        try:
            typed = os.read(terminal, 4096)
        except OSError:  # the terminal has gone
            typed = b""
        loop.remove_reader(terminal)
        if not line.done():
            line.set_result(typed)

    loop.add_reader(terminal, read)
    try:
        return await line
    finally:
        loop.remove_reader(terminal)


def _forget_typed() -> None:
    """Forget what was typed before the question: it was no answer to it."""
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _write(text: str) -> None:
    typer.echo(text, err=True, nl=False)
