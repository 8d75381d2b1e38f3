"""`cfs chat`: chat in a terminal or through a pipe (C10)."""

import sys

import typer

from cfs import api
from cfs.cli.actions.interrupts import TurnInterrupts
from cfs.cli.actions.send import answer, note_model, remark
from cfs.cli.actions.terminal_questions import TerminalQuestions, UnansweredQuestion
from cfs.cli.base.exit_codes import UNANSWERED
from cfs.cli.base.line_input import LineEditor, history_file, messages, read_input
from cfs.cli.base.output import is_terminal, note, print_error, show
from cfs.cli.base.settings import read_settings, write_settings
from cfs.contract.errors import CfsError, EngineError, Gone, InvalidRequest, NotFound
from cfs.contract.wire import Message, NewMessage, SettingsPatch
from cfs.state.stream import StreamEvent
from cfs.transports.http import Client

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


def run(client: Client, session: str | None) -> None:
    """Run a chat until the input ends or the user quits. Without a session, the first message begins a new one."""
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    conversation = ChatConversation(client, session, interactive=interactive)
    conversation.begin()
    read_line = LineEditor(history_file()).read_line if interactive else read_input
    for entry in messages(read_line):
        if not conversation.take(entry):
            break
    else:
        if interactive:
            typer.echo()
    conversation.end()


class ChatConversation:
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
