"""The program `cfs`: loads its commands, maps errors to exit codes, and defines shared options (C10).

Its own commands are in `cfs.cli.commands`; other packages add theirs through entry points. A command's module is
imported when the command runs or is listed, so that short commands are fast.
"""

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from cfs.errors import CfsError, InvalidRequest, NotFound, Unauthorized, Unreachable, Unverified

if TYPE_CHECKING:
    from cfs.transports.http import Client


# Output: safe for terminals, unchanged for files and pipes (C10)

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys((*range(0x80, 0xA0), 0x2028, 0x2029), 0xFFFD)
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
"""Characters that change the direction of what follows, so that a text shows as another one (CVE-2021-42574)."""


def open_streams() -> None:
    """Open the standard streams that are closed, so that no other file gets their numbers.

    Reading or writing them fails then, as if they were closed, but for standard error. Python has no object for them.
    """
    for number, name, mode in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, mode)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    return stream.isatty()


def has_colours(stream: TextIO) -> bool:
    """Return whether to use colours: on a terminal that supports them, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO) -> int | None:
    """Return the columns of a terminal; None for other streams, whose lines have any length."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def visible(text: str) -> str:
    """Make control characters visible, so that text of a model or a user cannot control the terminal."""
    return text.translate(_CONTROLS)


_SHAPELESS = frozenset(map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)))
"""Characters that are shown as nothing."""
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def shapely(text: str) -> str:
    """Replace control characters and invisible characters by their numbers."""
    return "".join(each if _has_shape(each) else f"<U+{ord(each):04X}>" for each in text)


def _has_shape(character: str) -> bool:
    if not character.isprintable() or character in _SHAPELESS:
        return False
    return not any(ord(character) in selectors for selectors in _SELECTORS)


def show(text: str) -> None:
    """Write text to standard output and flush: unchanged, or with visible control characters on a terminal."""
    if is_terminal(sys.stdout):
        sys.stdout.write(visible(text))
    else:
        data = memoryview(text.encode())
        while data:  # with PYTHONUNBUFFERED a write may be partial
            data = data[sys.stdout.buffer.write(data) :]
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to standard error, dimmed if colours are used."""
    text = visible(text)
    with suppress(OSError):  # nobody reads it
        typer.echo(typer.style(text, dim=True) if has_colours(sys.stderr) else text, err=True, color=True)


# Shell completion of session names, within a short time limit (C10)

PATIENCE_SECONDS = 0.5
_MOST = 100


def session_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """List the sessions with this prefix; empty if the server does not respond at once."""
    from cfs.transports import http  # noqa: F401 - imported before the time limit starts

    found: list[str] = []
    asking = threading.Thread(target=_ask, args=(ctx.params, incomplete, found), daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return list(found)


def _ask(params: dict[str, Any], incomplete: str, found: list[str]) -> None:
    from cfs import api
    from cfs.errors import CfsError

    try:
        with connect(params.get("url") or DEFAULT_URL, params.get("token_file")) as client:
            page = client.call(api.list_sessions(incomplete, limit=_MOST))
    except (CfsError, typer.BadParameter):
        return
    found += [session.id for session in page.sessions]


# Exit codes, and one line on standard error for each error (C10)

REFUSED = 1
"""The server refused the request, or the turn failed."""
USAGE = 2
UNREACHABLE = 3
UNVERIFIED = 4
"""An agent claims changes of files that did not happen."""
UNANSWERED = 5
"""An agent waits for an answer of the user, and there is no terminal to ask at."""
INTERRUPTED = 130
"""128 plus the number of SIGINT, as in shells."""
NO_READER = 141
"""128 plus the number of SIGPIPE: the reader of the output has closed it."""


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors into one line on standard error and the exit code, without a stack trace."""
    try:
        yield
        sys.stdout.flush()  # flush here, so that a closed pipe is handled like other errors
    except CfsError as error:
        print_error(error.detail)
        raise typer.Exit(code_of(error)) from None
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            typer.echo(err=True)  # behind the ^C
        print_error("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        raise typer.Exit(_print_system_error(error)) from None
    except ModuleNotFoundError as error:
        if (extra := _extra_for(error)) is None:
            raise
        print_error(f"this command needs {error.name}, which is not installed: pip install 'cfs-local[{extra}]'")
        raise typer.Exit(REFUSED) from None


def _print_system_error(error: OSError) -> int:
    """Print an error of the system, such as a full disk, in one line. Return the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard buffered output
    if isinstance(error, BrokenPipeError):
        return NO_READER
    reason = error.strerror or str(error)
    print_error(f"{error.filename}: {reason}" if error.filename else f"input or output failed: {reason}")
    return REFUSED


_EXTRAS = {
    "cfs_server": "server",
    "cfs_webdav": "webdav",
    "cfs_fuse": "fuse",
    "cfs_agents": "agents",
    "cfs_acp": "acp",
    "cfs_mcp": "mcp",
}


def _extra_for(error: ModuleNotFoundError) -> str | None:
    """Return the extra that brings a missing module: that of the package of ours that imports it."""
    found, frame = None, error.__traceback__
    while frame is not None:
        found = _EXTRAS.get(frame.tb_frame.f_globals.get("__name__", "").partition(".")[0], found)
        frame = frame.tb_next
    return None if (error.name or "cfs").startswith("cfs") else found


def code_of(error: CfsError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Unreachable):
        return UNREACHABLE
    return UNVERIFIED if isinstance(error, Unverified) else REFUSED


def print_error(reason: str) -> None:
    """Print an error in one line on standard error."""
    with suppress(OSError):  # the exit code says it, too
        typer.echo(visible(f"cfs: {' '.join(reason.split())}"), err=True)


# Shared options: server, token, session and JSON output

DEFAULT_URL = "http://127.0.0.1:8000"


def check_name(session: str | None) -> str | None:
    """Return a legal session id; raises `typer.BadParameter`."""
    from cfs.ids import check_id

    try:
        return session and check_id(session)
    except CfsError as error:
        raise typer.BadParameter(error.detail) from None


def _each_checked(sessions: list[str]) -> list[str]:
    return [check_name(session) or "" for session in sessions]


Session = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        help="Name of the session.",
        callback=check_name,
        autocompletion=session_names,
        show_default=False,
    ),
]
OptionalSession = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION",
        help="Name of the session (default: a new one).",
        callback=check_name,
        autocompletion=session_names,
        show_default=False,
    ),
]
Sessions = Annotated[
    list[str],
    typer.Argument(
        metavar="SESSION",
        help="Names of sessions.",
        callback=_each_checked,
        autocompletion=session_names,
        show_default=False,
    ),
]
OptionalSessions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SESSION",
        help="Names of sessions.",
        callback=lambda names: names and _each_checked(names),
        autocompletion=session_names,
        show_default=False,
    ),
]
Url = Annotated[str, typer.Option("--url", envvar="CFS_URL", help="URL of the server.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the access token (default: the variable CFS_TOKEN).",
        show_default=False,
    ),
]
Background = Annotated[
    bool, typer.Option("--background", "-b", help="Return as soon as it is ready; it goes on in the background.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]


@contextmanager
def connect(url: str, token_file: Path | None, *, timeout: float = 30.0) -> Iterator["Client"]:
    """Create a client with a timeout in seconds; the error about an unknown session names a similar one.

    Raises `typer.BadParameter` for an invalid URL or token file.
    """
    from cfs.transports.addresses import address_of
    from cfs.transports.http import Client

    token = read_token(token_file)
    try:
        address_of(url, token)
    except InvalidRequest as error:
        raise typer.BadParameter(error.detail) from None
    with Client(url, token, timeout=timeout) as client:
        try:
            yield client
        except NotFound as error:
            error.detail += similar_session(client, error)
            raise
        except Unauthorized as error:
            error.detail += "; set CFS_TOKEN, or name a file with --token-file"
            raise
        except Unreachable as error:
            error.detail += _other_servers()
            raise


def _other_servers() -> str:
    from cfs.cli.background import running

    return "".join(f"; your server at {each.url} runs: --url {each.url}" for each in running("server"))


def similar_session(client: "Client", error: CfsError) -> str:
    """Return a sentence that names a session like the unknown one of an error; empty if there is none."""
    from cfs import api

    unknown = _UNKNOWN_SESSION.match(error.detail)
    if unknown is None:
        return ""
    name = unknown[1]
    names: set[str] = set()
    with suppress(CfsError):
        for prefix in {name[: name.rfind("/") + 1], name[:1] if "/" not in name else ""}:
            names |= {info.id for info in client.call(api.list_sessions(prefix, limit=_MOST_NAMES)).sessions}
    return did_you_mean(get_close_matches(name, names, n=1))


_UNKNOWN_SESSION = re.compile(r"there is no session '([^']+)'$")
_MOST_NAMES = 1000


def read_token(token_file: Path | None) -> str | None:
    """Read the token of a file; None without one. Raises `typer.BadParameter`."""
    if token_file is None:
        return None
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{token_file}: {getattr(error, 'strerror', None) or 'this is no text'}") from None
    if not token.isprintable() or not token.isascii() or " " in token or not token:
        raise typer.BadParameter(f"{token_file} does not hold one token on one line")
    return token


GROUP = "cfs.commands"
BUILDS = "cfs.builds"
_SESSIONS, _SERVER = "Sessions", "Server and mount"
_OWN = {
    "ask": _SESSIONS,
    "send": _SESSIONS,
    "chat": _SESSIONS,
    "cat": _SESSIONS,
    "ls": _SESSIONS,
    "search": _SESSIONS,
    "ps": _SESSIONS,
    "open": _SESSIONS,
    "set": _SESSIONS,
    "rename": _SESSIONS,
    "fork": _SESSIONS,
    "share": _SESSIONS,
    "rm": _SESSIONS,
    "questions": _SESSIONS,
    "answer": _SESSIONS,
    "export": _SESSIONS,
    "import": _SESSIONS,
    "up": _SERVER,
    "down": _SERVER,
    "logs": _SERVER,
    "doctor": _SERVER,
}
"""The commands of this package, which are functions of `cfs.cli.commands`, with their section of the help."""
_CONTEXTS = {"up": {"ignore_unknown_options": True}}
"""`cfs up` passes unknown options on to `cfs serve`."""
_PARTS = {"server": _SERVER, "fuse": _SERVER, "mcp": _SERVER, "agents": "Agents", "acp": "Agents"}


class _Group(TyperGroup):
    """Commands whose list shows the first sentence of each, in the sections of the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                sections.setdefault(command.rich_help_panel or "Commands", []).append((name, _summary(command)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group."""
        with _suggestions():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest and run a command."""
        with _suggestions():
            return super().invoke(ctx)


@contextmanager
def _suggestions() -> Iterator[None]:
    """Name a similar option in the error about an unknown one."""
    try:
        yield
    except typer.TyperException as error:
        if known := getattr(error, "possibilities", None):
            named = vars(error)
            words = {name.lstrip("-"): name for name in known}
            similar = get_close_matches(named["option_name"].lstrip("-"), words, n=1)
            error.message += did_you_mean(words[word] for word in similar)
            named["possibilities"] = None
        raise


def _summary(command: Any) -> str:
    """Return the first sentence of a command's help."""
    return str(command.help or "").split("\n\n")[0].split(". ")[0].removesuffix(".")


def did_you_mean(names: Iterable[str]) -> str:
    """Return a sentence that suggests names, to follow another one; empty without names."""
    found = " or ".join(map(repr, names))
    return f". Did you mean {found}?" if found else ""


class _Command(TyperCommand):
    """A command whose help names values as a user would: `PORT` and `[SESSION]`, not `<int>` and `{session}`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the line that shows how to call the command."""
        self._name_values()
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the meaning of each argument and option."""
        self._name_values()
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            if row := parameter.get_help_record(ctx):
                name = row[0].partition(" <")[0] if parameter.param_type_name == "argument" else row[0]
                rows[parameter.param_type_name].append((name, row[1]))
        for kind, found in rows.items():
            if found:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(found)

    def _name_values(self) -> None:
        parameter: Any
        for parameter in self.params:
            if parameter.metavar is None and not getattr(parameter, "is_flag", False):
                choices = "|".join(map(str, parameter.type_descriptor.choices or ()))
                words = parameter.name.upper().split("_")
                parameter.metavar = choices or (words[-1] if parameter.opts[0].startswith("-") else "_".join(words))


_Function = TypeVar("_Function", bound=Callable[..., Any])


class CommandGroup(typer.Typer):
    """A group of commands that write their help and errors as plain text, without boxes."""

    def __init__(self, help_text: str | None = None, **options: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, help=help_text, rich_markup_mode=None, **options)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[TyperCommand] = _Command, **options: Any
    ) -> Callable[[_Function], _Function]:
        """Add a function as a command."""
        return super().command(name, cls=cls, **options)


class _Commands(_Group):
    """The command group. It reports packages that could not be loaded when an unknown command may be one of theirs."""

    found: ClassVar[list[EntryPoint]] = []
    _brought: dict[str, Any] | None = None
    _missing: Mapping[str, str] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is the library's
        """List all commands: those of this package, then those of the others."""
        return [*_OWN, *self._of_rooms()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command; other packages are loaded only if this package does not have it."""
        if cmd_name in _OWN and cmd_name not in self.commands:
            self.commands[cmd_name] = _put(_own_command(cmd_name), _OWN[cmd_name])
        return self.commands.get(cmd_name) or self._of_rooms().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command; an unknown one may be a question, or belong to a package that could not be loaded."""
        if _is_question(args[0]):
            args = ["ask", *args]
        if self.get_command(ctx, args[0]) is None and not self._similar(ctx, args[0]):
            for extra, reason in self._missing.items():
                ctx.fail(
                    f"no command {args[0]!r} here; the commands of {extra!r} are not installed ({reason}): "
                    f"pip install 'cfs-local[{extra}]'"
                )
        return super().resolve_command(ctx, args)

    def _similar(self, ctx: Any, name: str) -> list[str]:
        """List similar command names for an unknown command; all commands are loaded for this."""
        for own in _OWN:
            self.get_command(ctx, own)
        return get_close_matches(name, self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command and set its exit code."""
        with exit_codes():
            return super().invoke(ctx)

    def _of_rooms(self) -> dict[str, Any]:
        if self._brought is None:
            self._brought, self._missing = _load(self.found)
            self.commands.update(self._brought)
        return self._brought


def _is_question(text: str) -> bool:
    """Return whether an argument is no attempt at the name of a command: it has a space, or letters that none has."""
    return not text.startswith("-") and (len(text.split()) > 1 or not text.isascii())


def _own_command(name: str) -> Any:
    """Create a command from the function of its name in `cfs.cli.commands`."""
    app = CommandGroup(add_completion=False)
    commands = import_module("cfs.cli.commands")
    function = getattr(commands, name, None) or getattr(commands, f"{name}_")  # a name may be a keyword of Python
    if isinstance(function, CommandGroup):
        return get_group(function)
    app.command(name, context_settings=_CONTEXTS.get(name))(function)
    return get_command(app)


def _load(found: list[EntryPoint]) -> tuple[dict[str, Any], dict[str, str]]:
    """Load the commands of other packages, and collect the reasons of failures."""
    brought: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for entry in sorted(found, key=lambda entry: entry.name):
        try:
            group = get_group(entry.load())
        except ImportError as error:
            missing[entry.name] = str(error)
            continue
        part = _PARTS.get(entry.name, entry.name.capitalize())
        brought |= {name: _put(command, part) for name, command in group.commands.items()}
    return brought, missing


def _put(command: Any, part: str) -> Any:
    """Set a command's section of the help, and unwrap its paragraphs, which are wrapped for the source code."""
    command.rich_help_panel, command.rich_markup_mode = part, None
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in command.help.split("\n\n"))
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cfs {version('cfs-local')}")
        for entry in entry_points(group=BUILDS):
            typer.echo(f"{entry.name}: {_build_of(entry)}")
        raise typer.Exit


def _build_of(entry: EntryPoint) -> str:
    """Return what a part of an optional package is built from."""
    try:
        return str(entry.load()())
    except ImportError as error:
        return f"cannot be imported ({error})"


def _callback(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """CFS: every conversation with a language model is a file, a URL and a Python object.

    Exit codes: 0 success, 1 refused by the server or failed turn, 2 wrong usage, 3 no server, 4 unverified answer of an
    agent, 5 an agent asks and there is no terminal, 130 interrupted, 141 the reader of the output has closed it.
    """


def build(found: list[EntryPoint]) -> typer.Typer:
    """Build the program with the commands of all packages."""

    class Commands(_Commands):
        pass

    Commands.found = found
    app = typer.Typer(
        name="cfs", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback()(_callback)
    return app


def main() -> None:
    """Run `cfs`."""
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # transcripts are UTF-8, whatever the locale
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    try:
        build(list(entry_points(group=GROUP)))(prog_name="cfs")
    except OSError as error:  # of the help, or of an error about the usage
        sys.exit(_print_system_error(error))
