"""One conversation with a session, entry by entry: messages, and commands that begin with a slash (C10)."""

from typing import TYPE_CHECKING

from cfs import api
from cfs.cli import answers, assignments
from cfs.cli.app import complain
from cfs.cli.interrupts import TurnInterrupts
from cfs.cli.screen import note, show
from cfs.errors import CfsError, EngineError, Gone, InvalidRequest, NotFound
from cfs.stream import StreamEvent
from cfs.wire import Message, NewMessage, SettingsPatch

if TYPE_CHECKING:
    from cfs.transports.http import Client

HELP = '''/settings              show the session's settings
/settings KEY=VALUE    change some of them; KEY= puts one back to its default
/cancel                cancel what runs or waits in the session
/fork [NAME]           go on in a copy; the original stays as it is
/help                  this list
/quit                  end; so does Ctrl-D
"""                    begins and ends a message of several lines
//TEXT                 a message that begins with a slash
'''
_SHOWN_MESSAGES = 6
_SHOWN_LINES = 8


class Conversation:
    """What the user types, carried out. Not interactive, it ends with the first error."""

    def __init__(self, client: "Client", session: str, *, interactive: bool) -> None:
        self.session = session
        self._client = client
        self._interactive = interactive
        self._life = api.Life()

    def begin(self) -> None:
        """Show where the conversation stands; raises what the server refuses."""
        try:
            detail = self._client.call(self._life.call(api.read(self.session)))
        except NotFound:
            self._remark(f"New session {self.session}. /help lists the commands.")
            return
        count = len(detail.history)
        self._remark(f"Session {self.session}: {count} message{'s' * (count != 1)}. /help lists the commands.")
        if self._interactive:
            for message in detail.history[-_SHOWN_MESSAGES:]:
                note(_shortened(message))
        if detail.state != "idle":
            self._remark("[a turn is running; what you send is answered after it]")

    def take(self, entry: str) -> bool:
        """Carry out one entry; False when it is the last. Raises errors unless interactive."""
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
            complain(f"{error.detail}; nothing was sent. What you send next begins a new session {self.session}.")
            self._life.forget()
        except CfsError as error:
            if not self._interactive:
                raise
            complain(error.detail)
        return True

    def _remark(self, text: str) -> None:
        if self._interactive:
            note(text)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, text: str) -> None:
        with TurnInterrupts(self._cancel) as interrupts:

            def watch(event: StreamEvent) -> None:
                if event.type == "turn.started":
                    interrupts.turn_runs()
                if remark := answers.remark(event):
                    self._remark(remark)

            try:
                reply = answers.answer(self._client, self.session, NewMessage(content=text), show, watch, self._life)
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                note("\n[no longer waiting; the message stays in the session]")
                return
        if reply.error is not None:
            raise EngineError(f"the turn failed: {reply.error}")
        show("\n")
        if interrupts.seen and not self._interactive:
            raise KeyboardInterrupt

    def _cancel(self) -> None:
        try:
            self._client.call(api.cancel(self.session))
        except CfsError as error:
            complain(error.detail)

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
                self.session = self._client.call(api.fork(self.session, words[0] if words else None)).id
                self._life.forget()
                self._remark(f"[this is {self.session} now]")
            case _:
                raise InvalidRequest(f"there is no command {name}: /help lists them; //TEXT sends what begins so")

    def _settings(self, words: list[str]) -> None:
        if words:
            self._configure(assignments.read(words, SettingsPatch))
        try:
            settings = self._client.call(api.settings(self.session))
        except NotFound:
            self._client.call(api.create(self.session))
            settings = self._client.call(api.settings(self.session))
        show("".join(f"{line}\n" for line in assignments.write(settings)))

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
