"""Questions at the terminal before a command runs: `--commands ask` (A5).

The question shows exactly what would run. Nothing in it can control the terminal, imitate the question or hide:
invisible characters appear as numbers, and long lines are wrapped here, each part after a mark.
"""

import asyncio
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping

import typer

from cfs.cli.base.output import is_terminal
from cfs.contract.invisible import shapely
from cfs.state.question_text import WISHES
from cfs_agents.tools.consent import Answer, CommandRequest

_LINE, _GOES_ON = "  | ", "  : "
_NARROWEST = 20
_Answers = Mapping[str, Answer]
_ANSWERS: _Answers = {
    **dict.fromkeys(("y", "yes"), Answer.YES),
    **dict.fromkeys(("n", "no"), Answer.NO),
    **dict.fromkeys(("a", "always"), Answer.ALWAYS),
}
_PATTERN_ANSWERS: _Answers = {**_ANSWERS, **dict.fromkeys(("p", "pattern"), Answer.PATTERN)}
_CHOICE = "Run it? y(es), n(o), a(lways: exactly this, in this directory)"


def can_ask() -> bool:
    """Return whether standard input and standard error are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


class CommandQuestions:
    """Asks the person at the terminal, on standard error; an `Ask`."""

    def __init__(self) -> None:
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def quiet(self) -> None:
        """Wait until no question is open, so that nothing appears between a question and its answer."""
        await self._quiet.wait()

    async def __call__(self, agent: str, request: CommandRequest) -> Answer:
        """Ask until there is an answer. The end of the input counts as no."""
        self._quiet.clear()
        try:
            _write(question(agent, request, shutil.get_terminal_size().columns))
            _forget_typed()
            answers = _PATTERN_ANSWERS if request.pattern_choice else _ANSWERS
            pattern = f", p(attern: {shapely(request.pattern_choice)})" if request.pattern_choice else ""
            while True:
                _write(f"{_CHOICE}{pattern}: ")
                typed = await _typed_line()
                if not typed:
                    _write("\n")
                    return Answer.NO
                if (answer := answers.get(typed.decode("utf-8", "replace").strip().lower())) is not None:
                    return answer
        except asyncio.CancelledError as error:
            reason = shapely(str(error)) or "not answered: the command is not run"
            _write(f"\n[{reason}]\n")
            raise
        finally:
            self._quiet.set()


def question(agent: str, request: CommandRequest, columns: int) -> str:
    """Return the question for a command, with all of the command visible."""
    lines = request.command.split("\n")
    long = f" ({len(lines)} lines)" if len(lines) > 1 else ""
    background = " in the background" if request.background else ""
    rendered = [f"{shapely(agent)} wants to {WISHES[request.kind]}{background}{long}, in {shapely(request.directory)}:"]
    width = max(_NARROWEST, columns - len(_LINE) - 1)
    for line in lines:
        for number, part in enumerate(_parts(shapely(line), width)):
            rendered.append((_GOES_ON if number else _LINE) + part)
    if any(shapely(line) != line for line in lines):
        rendered.append("(<U+...> stands for a character that cannot be seen)")
    return "\n".join(rendered) + "\n"


def _parts(line: str, width: int) -> Iterator[str]:
    """Wrap a line into parts of at most `width` columns; an empty line is one part."""
    begin = used = 0
    for end, character in enumerate(line):
        columns = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used + columns > width:
            yield line[begin:end]
            begin, used = end, 0
        used += columns
    yield line[begin:]


async def _typed_line() -> bytes:
    """Read a line from the terminal, empty at its end. After a cancellation later input is left to others."""
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
    """Drop what was typed before the question: it is not an answer."""
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _write(text: str) -> None:
    typer.echo(text, err=True, nl=False)
