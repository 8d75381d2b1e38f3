"""The console of an agent: turns its events into text for a person (A8)."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO, TypeAlias

import typer

from cfs.cli.base.output import has_colours, is_terminal, shapely, visible
from cfs.wire import ToolCall, Usage
from cfs_agents.base.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    EndReason,
    FileChanges,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    ToolResult,
    TurnUsage,
    Warned,
)
from cfs_agents.base.usage import added
from cfs_agents.loop.model import Chunk, CompleteResponse
from cfs_agents.tools.commands import COMMAND, Answer, CommandRequest, exit_status, without_status
from cfs_agents.tools.files import EDIT_FILE, READ_FILE, WRITE_FILE, file_path
from cfs_agents.tools.registry import ToolError
from cfs_agents.tree.file_agent import NAME as SYNC_CONTEXT

# Questions at the terminal before a command runs: `--commands ask` (A5).
#
# The question shows exactly what would run. Nothing in it can control the terminal, imitate the question or hide:
# invisible characters appear as numbers, and long lines are wrapped here, each part after a mark.

_LINE, _GOES_ON = "  | ", "  : "
_NARROWEST = 20
_ANSWERS = {
    **dict.fromkeys(("y", "yes"), Answer.YES),
    **dict.fromkeys(("n", "no"), Answer.NO),
    **dict.fromkeys(("a", "always"), Answer.ALWAYS),
}
_CHOICE = "Run it? y(es), n(o), a(lways: this exact command in this directory, until this program ends): "


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
            while True:
                _write(_CHOICE)
                typed = await _typed_line()
                if not typed:
                    _write("\n")
                    return Answer.NO
                if (answer := _ANSWERS.get(typed.decode("utf-8", "replace").strip().lower())) is not None:
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
    shown = [f"{shapely(agent)} wants to run this command{background}{long}, in {shapely(request.directory)}:"]
    width = max(_NARROWEST, columns - len(_LINE) - 1)
    for line in lines:
        for number, part in enumerate(_parts(shapely(line), width)):
            shown.append((_GOES_ON if number else _LINE) + part)
    if any(shapely(line) != line for line in lines):
        shown.append("(<U+...> stands for a character that cannot be seen)")
    return "\n".join(shown) + "\n"


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


# Formatting of calls and results in few lines: long texts are shortened in the middle (A8). No I/O.

FIRST_LINES, LAST_LINES = 10, 5
LONGEST_LINE = 300
MOST_PATHS = 20
_LONGEST_INLINE = 80

_ON_FILES = frozenset({READ_FILE, WRITE_FILE, EDIT_FILE})


@dataclass(frozen=True, slots=True)
class Formatted:
    """A heading and the lines below it."""

    heading: str
    lines: Sequence[str] = ()


def file_of(call: ToolCall) -> str | None:
    """Return the logical path of the file that a call works on; None if there is none."""
    path = call.arguments.get("path")
    if call.name not in _ON_FILES or not isinstance(path, str):
        return None
    try:
        return file_path(path)
    except ToolError:
        return path  # the tool will say what is wrong with it


def format_call(call: ToolCall, operation: int = 0) -> Formatted:
    """Format a call; `operation` numbers the operations on its file."""
    rest = dict(call.arguments)
    heading, lines = call.name, list[str]()
    if (path := file_of(call)) is not None:
        del rest["path"]
        heading += f" {_line(path)} ({ordinal(operation)} operation on this file)"
    if call.name == COMMAND and isinstance(command := rest.get("command"), str):
        del rest["command"]
        lines += [f"$ {line}" for line in shortened(command)]
    for name, value in rest.items():
        text = _value(value)
        if "\n" in text or len(text) > _LONGEST_INLINE:
            lines += [f"{name}:", *(f"  {line}" for line in shortened(text))]
        elif value is not None:
            heading += f" {name}={json.dumps(value, ensure_ascii=False)}"
    return Formatted(heading, lines)


def format_result(call: ToolCall, result: ToolResult, *, repeated: bool = False) -> Formatted:
    """Format a result; a command's has its exit status, a `repeated` output is not shown again."""
    code = _exit_status(call, result)
    status = ("ok" if result.ok else "failed") if code is None else f"exit status {code}"
    heading = " ".join(filter(None, (call.name, _subject(call)))) + f": {status}, {result.seconds:.2f} s"
    output = output_of(call, result)
    if not output.strip():
        return Formatted(heading)
    if repeated:
        return Formatted(heading, [f"[the same output as before: {counted(len(output.splitlines()), 'line')}]"])
    return Formatted(heading, shortened(output))


def output_of(call: ToolCall, result: ToolResult) -> str:
    """Return the output without a command's status line, which is in the heading already."""
    return result.text if _exit_status(call, result) is None else without_status(result.text)


def went_wrong(call: ToolCall, result: ToolResult) -> bool:
    """Return whether a result is an error, or that of a command with a status other than 0."""
    return not result.ok or bool(_exit_status(call, result))


def _exit_status(call: ToolCall, result: ToolResult) -> int | None:
    """Return the exit status of a command that has ended (0 if its result has none)."""
    return exit_status(call.name, call.arguments, result.text) if result.ok else None


def shortened(text: str) -> list[str]:
    """Split a text into lines; of many only the first and the last remain."""
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        lines = [*lines[:FIRST_LINES], f"[... {left_out:,} lines ...]", *lines[-LAST_LINES:]]
    return [_line(line) for line in lines]


def ordinal(number: int) -> str:
    """Return an ordinal number, such as 1st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}" + ("th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th"))


def counted(number: int, thing: str) -> str:
    """Return a number with its unit, such as 2 lines."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(paths: Sequence[str]) -> str:
    """Join the first paths, and say how many more there are."""
    more = f", and {len(paths) - MOST_PATHS:,} more" if len(paths) > MOST_PATHS else ""
    return ", ".join(map(_line, paths[:MOST_PATHS])) + more


def _subject(call: ToolCall) -> str:
    """Return a few words that tell this call from others of its tool."""
    if (path := file_of(call)) is not None:
        return _line(path)
    named = call.arguments.get("command") or call.arguments.get("path")
    if not isinstance(named, str) or not named.strip():
        return ""
    first = named.strip().splitlines()[0]
    return first if first == named.strip() and len(first) <= _LONGEST_INLINE else f"{first[:_LONGEST_INLINE]}..."


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(line: str) -> str:
    line = line.replace("\n", "␊")
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"


# From the chunks of a reply to blocks that can be shown (A8). No I/O.

Kind = Literal["thinking", "text"]

LONGEST_HELD = 400
"""Characters that are held back for a natural break; with more, a break between two words is enough."""

_BREAK = re.compile(r"""\n|[.!?…]["'”’)\]*_]{0,8}[ \t]+|[。！？][”’」』）]{0,8}""")
"""Ends of lines and sentences. A point within a number or a name is not followed by a space."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Text or thinking of a model up to a natural break. All passages together are its words, unchanged."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Void:
    """A reply failed and is requested again; what was `shown` of it does not count."""

    reason: str
    seconds: float
    shown: bool


Block: TypeAlias = (
    Passage
    | Void
    | CallStarted
    | CallFinished
    | ContextUpdated
    | ContextShortened
    | Warned
    | RoundStarted
    | TurnUsage
    | FileChanges
    | Finished
)
"""What is shown at once."""


class StreamProcessor:
    """Turns an agent's events, or a model's chunks and replies, into whole blocks.

    Text is held back until a natural break. Each call appears once, also if both a reply and an event contain it.
    """

    def __init__(self) -> None:
        self._kind: Kind = "text"
        self._held = ""
        self._shown = False
        self._called: set[str] = set()

    def feed(self, event: AgentEvent | Chunk | CompleteResponse) -> list[Block]:
        """Process the next event and return the blocks that it completes."""
        return list(self._blocks(event))

    def finish(self) -> list[Block]:
        """Return what is held back; nothing more will come."""
        return list(self._release())

    def _blocks(self, event: AgentEvent | Chunk | CompleteResponse) -> Iterator[Block]:
        match event:
            case Thinking(text):
                yield from self._words("thinking", text)
            case Text(text):
                yield from self._words("text", text)
            case Chunk(text, thinking):
                yield from self._words("thinking", thinking)
                yield from self._words("text", text)
            case Retrying(reason, seconds):
                self._held = ""
                yield Void(reason, seconds, self._shown)
                self._shown = False
            case CompleteResponse(message):
                yield from self._release()
                self._begin_reply()
                for call in message.tool_calls:
                    yield from self._call(CallStarted(call))
            case CallStarted():
                yield from self._release()
                yield from self._call(event)
            case RoundStarted():
                yield from self._release()
                self._begin_reply()
                yield event
            case CallFinished() | ContextUpdated() | ContextShortened() | Warned() | TurnUsage():
                yield from self._release()
                yield event
            case FileChanges() | Finished():
                yield from self._release()
                yield event

    def _begin_reply(self) -> None:
        self._shown = False
        self._called.clear()  # ids are unique within a reply only

    def _call(self, event: CallStarted) -> Iterator[Block]:
        if event.call.id not in self._called:
            self._called.add(event.call.id)
            yield event

    def _words(self, kind: Kind, text: str) -> Iterator[Block]:
        if not text:
            return
        if kind != self._kind:
            yield from self._release()
            self._kind = kind
        self._held += text
        if end := _last_break(self._held):
            yield from self._passage(end)

    def _release(self) -> Iterator[Block]:
        if self._held:
            yield from self._passage(len(self._held))

    def _passage(self, end: int) -> Iterator[Block]:
        text, self._held = self._held[:end], self._held[end:]
        self._shown = True
        yield Passage(self._kind, text)


def _last_break(text: str) -> int:
    """Return the end of the last break; 0 if there is none and none is needed yet."""
    end = 0
    for found in _BREAK.finditer(text):
        end = found.end()
    if len(text) - end <= LONGEST_HELD:
        return end
    between_words = max(text.rfind(" "), text.rfind("\t")) + 1
    return max(end, between_words) or len(text)


# Output of a console: it appears at once, cannot control the terminal, and never raises.

_WHOLE_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Page:
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


# Prints blocks: text as it comes, calls and results once, in few lines (A8).

_THINKS = "~ "
_CALLS = "> "
_RESULTS = "< "
_BELOW = "    "

_ENDS: dict[EndReason, str] = {
    "answered": "",
    "unverified": "unverified",
    "rounds": "stopped at the limit of steps",
    "interrupted": "interrupted",
    "failed": "failed",
}


class IncrementalOutputFormatter:
    """Formats blocks as text and prints them, one conversation after the other."""

    def __init__(self, out: TextIO) -> None:
        self._page = Page(out)
        self.reset()

    def reset(self) -> None:
        """Begin another conversation: counts and known outputs are cleared."""
        self._page.begin_line()
        self._kind = ""
        self._operations: Counter[str] = Counter()
        self._outputs: set[bytes] = set()
        self._rounds = 0
        self._usage = Usage()
        self._waiting = False

    @property
    def closed(self) -> bool:
        """Whether the reader has left."""
        return self._page.closed

    def print(self, block: Block) -> None:
        """Print a block at once."""
        if self._waiting and not isinstance(block, Void | Warned | Finished):
            self._waiting = False
            self._remark("the model answers again")
        match block:
            case Passage(kind, text):
                self._words(kind, text)
                return
            case CallStarted(call) if call.name == SYNC_CONTEXT and self._is_repeated("call", _value(call.arguments)):
                self._tell(_CALLS, Formatted(call.name, ["[the same context window as before]"]), "cyan")
            case CallStarted(call):
                path = file_of(call)
                if path is not None:
                    self._operations[path] += 1
                self._tell(_CALLS, format_call(call, self._operations[path] if path is not None else 0), "cyan")
            case CallFinished(call, result):
                repeated = self._is_repeated(call.name, output_of(call, result))
                told = format_result(call, result, repeated=repeated)
                self._tell(_RESULTS, told, "red" if went_wrong(call, result) else "green")
            case ContextUpdated(lines, number):
                self._remark(f"context window number {number:,}: {counted(lines, 'line')}")
            case ContextShortened(before, after, summarised):
                how = "summed up" if summarised else "shortened"
                self._remark(f"the conversation was {how}: {before:,} tokens to {after:,}")
            case Warned(text):
                self._remark(f"warning: {text}", "yellow")
            case Void(reason, _, shown):
                void = "; its unfinished reply is discarded" if shown else ""
                if not self._waiting or shown:  # once, however often it is asked
                    self._remark(f"waiting to ask the model again: {reason}{void}")
                self._waiting = True
            case RoundStarted():
                self._rounds += 1
            case TurnUsage(usage):
                self._count(usage)
            case FileChanges():
                for what in ("created", "changed", "deleted"):
                    if paths := getattr(block, what):
                        self._remark(f"{what}: {listed(paths)}")
            case Finished(reason, detail):
                self._end(reason, detail)
        self._kind = ""

    def _words(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self._page.begin_line()
            self._kind = kind
        if kind == "thinking":
            self._page.write(text, prefix="" if self._page.colours else _THINKS, dim=True)
        else:
            self._page.write(text)

    def _tell(self, mark: str, told: Formatted, colour: str) -> None:
        self._page.line(told.heading, prefix=mark, colour=colour)
        for line in told.lines:
            self._page.line(line, prefix=_BELOW, dim=mark == _RESULTS)

    def _remark(self, text: str, colour: str = "") -> None:
        self._page.line(f"[{' '.join(text.split())}]", colour=colour, dim=not colour)

    def _is_repeated(self, tool: str, text: str) -> bool:
        key = hashlib.blake2b(f"{tool}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        repeated = key in self._outputs
        self._outputs.add(key)
        return repeated

    def _count(self, usage: Usage) -> None:
        self._usage = added(self._usage, usage)

    def _end(self, reason: EndReason, detail: str) -> None:
        if how := ": ".join(filter(None, (_ENDS[reason], detail))):
            self._remark(how)
        used = self._usage
        self._remark(
            f"{counted(self._rounds, 'step')}, {counted(used.prompt_tokens, 'token')} read "
            f"({used.cached_tokens:,} of them known), {used.completion_tokens:,} written"
        )
        self._rounds, self._usage = 0, Usage()


class ConsoleStreamHandler:
    """Shows what an agent does, on standard output by default.

        console = ConsoleStreamHandler()
        async for event in agent.run("Tidy up."):
            console.show(event)

    It also takes the chunks and replies of a model. Failures of the output raise nothing; if the reader of a pipe has
    left, `closed` is true.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._stream = StreamProcessor()
        self._printer = IncrementalOutputFormatter(out or sys.stdout)

    @property
    def closed(self) -> bool:
        """Whether the reader has left."""
        return self._printer.closed

    def show(self, event: AgentEvent | Chunk | CompleteResponse) -> None:
        """Show the blocks that an event completes."""
        for block in self._stream.feed(event):
            self._printer.print(block)

    def reset(self) -> None:
        """Show what is held back and begin another conversation; counts start again."""
        for block in self._stream.finish():
            self._printer.print(block)
        self._stream = StreamProcessor()
        self._printer.reset()


__all__ = ["Block", "ConsoleStreamHandler", "Passage", "StreamProcessor", "Void"]
