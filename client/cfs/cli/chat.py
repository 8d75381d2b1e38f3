"""`cfs chat`: chat in a terminal or through a pipe (C10)."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import typer

from cfs import api
from cfs.cli.app import UNANSWERED, is_terminal, note, print_error, show
from cfs.cli.send import answer, note_model, remark
from cfs.cli.settings import read_settings, write_settings
from cfs.cli.terminal_questions import TerminalQuestions, UnansweredQuestion
from cfs.errors import CfsError, EngineError, Gone, InvalidRequest, NotFound
from cfs.stream import StreamEvent
from cfs.transports.http import Client
from cfs.wire import Message, NewMessage, SettingsPatch

HELP = '''/settings              show the session's settings
/settings KEY=VALUE    change settings; KEY= restores a default
/cancel                cancel the running turn and all queued ones
/fork [NAME]           continue in a copy; the original stays unchanged
/help                  show this list
/quit                  exit; so does Ctrl-D
"""                    starts and ends a message of several lines
//TEXT                 send a message that begins with a slash
'''
_SHOWN_MESSAGES = 6
_SHOWN_LINES = 8
QUOTES = '"""'
_KEPT_LINES = 1000
_READY, _MORE = "> ", "... "


def run(client: Client, session: str | None) -> None:
    """Run a chat until the input ends or the user quits. Without a session, the first message begins a new one."""
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    conversation = Conversation(client, session, interactive=interactive)
    conversation.begin()
    read_line = LineEditor(history_file()).read_line if interactive else read_input
    for entry in messages(read_line):
        if not conversation.take(entry):
            break
    else:
        if interactive:
            typer.echo()
    conversation.end()


class Conversation:
    """Executes the user's input. If not interactive, the first error ends it.

    Without a name, the session is created when it is first needed, under a name that the server chooses.
    """

    def __init__(self, client: Client, session: str | None, *, interactive: bool) -> None:
        self._name = session
        self._given = session is not None
        self._client = client
        self._interactive = interactive
        self._life = api.Life()
        self._new = False
        self._questions: TerminalQuestions | None = None

    def begin(self) -> None:
        """Show the current state of the conversation; raises errors of the server."""
        if self._name is None:
            self._client.call(api.list_sessions(limit=1))  # a server that does not answer is reported before the prompt
            self._remark("New session. /help lists the commands.")
            return
        try:
            detail = self._client.call(self._life.call(api.read(self.session)))
        except NotFound:
            self._remark(f"New session {self.session}. /help lists the commands.")
            self._new = True
            return
        count = len(detail.history)
        self._remark(f"Session {self.session}: {count} message{'s' * (count != 1)}. /help lists the commands.")
        if self._interactive:
            for message in detail.history[-_SHOWN_MESSAGES:]:
                note(_shortened(message))
        if detail.state != "idle":
            self._remark("[a turn is running; what you send is answered after it]")

    def end(self) -> None:
        """Say how to continue a session that the user has not named."""
        if self._name is not None and not self._given:
            self._remark(f"To continue: cfs chat {self._name}")

    @property
    def session(self) -> str:
        """The session, which is created now if it has no name yet."""
        if self._name is None:
            self._name = self._client.call(api.create()).id
            self._remark(f"[this is session {self._name}]")
        return self._name

    def take(self, entry: str) -> bool:
        """Execute one entry; False to quit. Raises errors unless interactive."""
        words = entry.split()
        if not words:
            return True
        if words[0] == "/quit":
            return False
        try:
            if entry.startswith("/") and not entry.startswith("//"):
                self._command(words[0], words[1:])
            else:
                self._send(entry.removeprefix("/") if entry.startswith("//") else entry)
        except Gone as error:
            if not self._interactive:
                raise
            print_error(f"{error.detail}; nothing was sent. What you send next begins a new session {self.session}.")
            self._life.forget()
        except CfsError as error:
            if not self._interactive:
                raise
            print_error(error.detail)
        return True

    def _remark(self, text: str) -> None:
        if self._interactive:
            note(text)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, text: str) -> None:
        questions = self._questions_of(self.session)
        with TurnInterrupts(self._cancel) as interrupts:

            def watch(event: StreamEvent) -> None:
                questions.watch(event)
                if event.type == "turn.started":
                    interrupts.turn_runs()
                if text_of := remark(event):
                    self._remark(text_of)

            try:
                with questions:
                    reply = answer(self._client, self.session, NewMessage(content=text), show, watch, self._life)
            except UnansweredQuestion as question:
                print_error(str(question))
                raise typer.Exit(UNANSWERED) from None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                note("\n[no longer waiting; the message stays in the session]")
                return
        if reply.error is not None:
            raise EngineError(f"the turn failed: {reply.error}")
        show("\n")
        if self._new and self._interactive:
            note_model(self._client)
        self._new = False
        if interrupts.seen and not self._interactive:
            raise KeyboardInterrupt

    def _questions_of(self, session: str) -> TerminalQuestions:
        if self._questions is None or self._questions.session != session:
            self._questions = TerminalQuestions(self._client, session)
        return self._questions

    def _cancel(self) -> None:
        try:
            self._client.call(api.cancel(self.session))
        except CfsError as error:
            print_error(error.detail)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _command(self, name: str, words: list[str]) -> None:
        match name:
            case "/help":
                show(HELP)
            case "/settings":
                self._settings(words)
            case "/cancel":
                counts = self._client.call(api.cancel(self.session, queued=True))
                self._remark(f"[cancelled: {counts.running} running, {counts.queued} waiting]")
            case "/fork":
                copy = self._client.call(api.fork(self.session, words[0] if words else None))
                self._name = copy.id
                self._life.forget()
                for warning in copy.warnings:
                    self._remark(f"[{warning}]")
                self._remark(f"[this is {self._name} now]")
            case _:
                raise InvalidRequest(f"there is no command {name}: /help lists them; //TEXT sends what begins so")

    def _settings(self, words: list[str]) -> None:
        if words:
            self._configure(read_settings(words, SettingsPatch))
        try:
            settings = self._client.call(api.settings(self.session))
        except NotFound:
            self._client.call(api.create(self.session))
            settings = self._client.call(api.settings(self.session))
        show("".join(f"{line}\n" for line in write_settings(settings)))

    def _configure(self, patch: SettingsPatch) -> None:
        try:
            self._client.call(api.configure(self.session, patch))
        except NotFound:
            self._client.call(api.create(self.session, patch))


def _shortened(message: Message) -> str:
    lines = message.content.splitlines()
    cut = [*lines[:_SHOWN_LINES], f"[{len(lines) - _SHOWN_LINES} more lines]"] if len(lines) > _SHOWN_LINES else lines
    mark = "> " if message.role == "user" else "" if message.role == "assistant" else f"[{message.role}] "
    return mark + "\n".join(cut)


# Input: a terminal with line editing and a history, or any other input


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
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / f"cfs/{of}_history"


# Ctrl-C during a turn: the first cancels the turn, the second stops waiting for it (S12)


class TurnInterrupts:
    """Handles SIGINT during a turn. `seen` is whether it was received.

    The first SIGINT of a running turn calls `cancel`, and the stream continues to the end of the turn. A second one, or
    one while the turn is still queued, raises `KeyboardInterrupt`.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.seen = False
        self._cancel = cancel
        self._runs = False
        self._before: Any = None

    def turn_runs(self) -> None:
        """Note that the turn has started and can be cancelled."""
        self._runs = True

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is fixed
        if self.seen or not self._runs:
            raise KeyboardInterrupt
        self.seen = True
        # The main thread may hold a lock of the HTTP client now: a call from here could deadlock.
        threading.Thread(target=self._cancel, daemon=True).start()
