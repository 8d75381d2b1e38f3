"""The magics: `%%cfs` sends a cell to a session, `%cfs` looks at sessions."""

import shlex
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser

from cfs import api
from cfs.cli.actions.interrupts import TurnInterrupts
from cfs.cli.actions.send import answer, remark
from cfs.cli.base.settings import read_settings
from cfs.contract.ids import check_id
from cfs.errors import CfsError
from cfs.state.stream import StreamEvent
from cfs.transports.http import Client
from cfs.wire import NewMessage, Reply, TurnSettings
from cfs_jupyter.output import output_of

_COMMANDS = "%cfs ls [PREFIX], %cfs cat [NAME], %cfs cancel [NAME]"


def _parser() -> MagicArgumentParser:
    parser = MagicArgumentParser("%%cfs")  # type: ignore[no-untyped-call]
    parser.add_argument("session", nargs="?")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", metavar="VARIABLE")
    parser.add_argument("--plain", action="store_true")
    return parser


@magics_class
class CFSMagics(Magics):
    """The magics of one shell. Without a name they use the session of the cell before."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._variables: dict[str, Any] = shell.user_ns
        self._session: str | None = None

    @cell_magic("cfs")  # type: ignore[arg-type] # IPython describes its decorators wrongly
    def send(self, line: str, cell: str) -> None:
        """Send the cell to a session, and show the reply while it comes.

        %%cfs [NAME] [--set KEY=VALUE]... [--out VARIABLE] [--plain]

        NAME: the session, which is created if it does not exist. Without a name: that of the cell before, or a new one.
        --set: a setting of this reply, such as temperature=0. Quote a value with spaces: --set "system=Be brief."
        --out: the variable that gets the text of the reply.
        --plain: show text as it is, not as Markdown. In a terminal it always is.

        Interrupting the cell cancels the turn. CFS_URL names the server, CFS_TOKEN is the access token.
        """
        arguments = _arguments(line)
        if not cell.strip():
            raise UsageError("the cell is empty")
        with _reporting(), Client() as client:
            message = NewMessage(content=cell.removesuffix("\n"), settings=read_settings(arguments.set, TurnSettings))
            name = self._session = self._chosen(client, arguments.session)
            reply = self._ask(client, name, message, plain=arguments.plain)
        if reply.error is not None:
            raise UsageError(f"the turn failed: {reply.error}")
        if reply.finish_reason == "cancelled":
            raise UsageError(f"the turn was cancelled; session {name} keeps what has come")
        if arguments.out:
            self._variables[arguments.out] = reply.reply

    @line_magic("cfs")  # type: ignore[arg-type] # IPython describes its decorators wrongly
    def look(self, line: str) -> None:
        """List sessions, show the transcript of one, or cancel its turns.

        %cfs ls [PREFIX]    %cfs cat [NAME]    %cfs cancel [NAME]

        Without a name: the session of the cell before.
        """
        words = _words(line)
        with _reporting(), Client() as client:
            match words:
                case ["ls"] | ["ls", _]:
                    _list(client, *words[1:])
                case ["cat"] | ["cat", _]:
                    sys.stdout.write(client.call(api.transcript(self._named(words[1:]))).text)
                case ["cancel"] | ["cancel", _]:
                    counts = client.call(api.cancel(self._named(words[1:]), queued=True))
                    sys.stdout.write(f"cancelled: {counts.running} running, {counts.queued} waiting\n")
                case _:
                    raise UsageError(f"%cfs has these commands: {_COMMANDS}; %%cfs sends a cell")

    def _chosen(self, client: Client, requested: str | None) -> str:
        if requested is not None:
            return check_id(requested)
        if self._session is not None:
            return self._session
        name = client.call(api.create()).id
        _note(f"[this is session {name}]")
        return name

    def _named(self, words: list[str]) -> str:
        name = words[0] if words else self._session
        if name is None:
            raise UsageError("no cell has used a session yet: name one")
        return name

    def _ask(self, client: Client, session: str, message: NewMessage, *, plain: bool) -> Reply:
        """Send a message and show its reply. The first interrupt cancels the turn, the second stops waiting for it."""
        output = output_of(self.shell, plain=plain)
        interrupts = TurnInterrupts(lambda: _cancel(session))

        def watch(event: StreamEvent) -> None:
            if event.type == "turn.started":
                interrupts.turn_runs()
            if text := remark(event):
                _note(text)

        main = threading.current_thread() is threading.main_thread()  # others get no signals
        try:
            with interrupts if main else nullcontext():
                return answer(client, session, message, output.show, watch)
        except KeyboardInterrupt:
            raise UsageError(
                f"no longer waiting; the message stays in session {session}: %cfs cancel {session} stops its turn"
            ) from None
        finally:
            output.end()


def _arguments(line: str) -> Namespace:
    arguments: Namespace = _parser().parse_args(_words(line))
    if arguments.out is not None and not arguments.out.isidentifier():
        raise UsageError(f"--out needs the name of a variable, not {arguments.out!r}")
    return arguments


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {error}") from None


def _list(client: Client, prefix: str = "") -> None:
    after = ""
    while True:
        page = client.call(api.list_sessions(prefix, after, 1000))
        sys.stdout.write("".join(f"{info.id}\n" for info in page.sessions))
        if page.next is None:
            return
        after = page.next


def _cancel(session: str) -> None:
    try:
        with Client() as client:  # one that a second interrupt does not close meanwhile
            client.call(api.cancel(session))
    except CfsError as error:
        _note(f"[the turn cannot be cancelled: {error.detail}]")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def _reporting() -> Iterator[None]:
    """Show errors of CFS as a line, without a traceback of this module."""
    try:
        yield
    except CfsError as error:
        raise UsageError(error.detail) from None
