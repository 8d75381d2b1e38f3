"""The program `cfs`: finds its commands, and loads them when they run or are listed (C10).

Its own commands are in `cfs.cli.commands`; other packages add theirs through entry points.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from io import TextIOWrapper
from typing import Annotated, Any, ClassVar

import typer
from typer.main import get_command, get_group

from cfs.cli.base.exit_codes import exit_codes, print_system_error
from cfs.cli.base.groups import CommandGroup, Group
from cfs.cli.base.output import did_you_mean, open_streams
from cfs.contract.errors import CfsError

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
    "merge": _SESSIONS,
    "files": _SESSIONS,
    "share": _SESSIONS,
    "log": _SESSIONS,
    "show": _SESSIONS,
    "diff": _SESSIONS,
    "rewind": _SESSIONS,
    "redo": _SESSIONS,
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

_SEPARATE = ("acp", "mcp")
"""Commands of distributions of their own; an extra of the same name installs each."""
_PARTS = {"server": _SERVER, "fuse": _SERVER, "mcp": _SERVER, "agents": "Agents", "acp": "Agents"}


class _Commands(Group):
    """The command group. It reports packages that could not be loaded when an unknown command may be one of theirs."""

    entries: ClassVar[Iterable[EntryPoint]] = ()
    _brought: dict[str, Any] | None = None
    _missing: Mapping[str, str] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is the library's
        """List all commands: those of this package, then those of the others."""
        return [*_OWN, *self._of_packages()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command; other packages are loaded only if this package does not have it."""
        if cmd_name in _OWN and cmd_name not in self.commands:
            self.commands[cmd_name] = _put(_own_command(cmd_name), _OWN[cmd_name])
        return self.commands.get(cmd_name) or self._of_packages().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command; an unknown one may be a question, or belong to a package that could not be loaded."""
        if _is_question(args[0]):
            args = ["ask", *args]
        if self.get_command(ctx, args[0]) is None and args[0] in _SEPARATE:
            raise CfsError(
                f"the command {args[0]!r} is not installed: pip install 'cfs-local[{args[0]}]' "
                f"(in a clone: scripts/install {args[0]})"
            )
        if self.get_command(ctx, args[0]) is None:
            similar = self._similar(ctx, args[0])
            groups = self._groups_with(args[0])
            if len(groups) == 1:
                ctx.fail(f"no command {args[0]!r}" + did_you_mean([f"cfs {groups[0]} {args[0]}"]))
            for extra, reason in () if similar else self._missing.items():
                ctx.fail(
                    f"no command {args[0]!r} here; the commands of {extra!r} are not installed ({reason}): "
                    f"pip install 'cfs-local[{extra}]'"
                )
        return super().resolve_command(ctx, args)

    def _similar(self, ctx: Any, name: str) -> list[str]:
        """List similar command names for an unknown command; all commands are loaded for this."""
        for command in _OWN:
            self.get_command(ctx, command)
        return get_close_matches(name, self.commands)

    def _groups_with(self, name: str) -> list[str]:
        """List the groups of which one has a command of this name; all commands are loaded already."""
        return [group for group, command in self.commands.items() if name in getattr(command, "commands", ())]

    def invoke(self, ctx: Any) -> Any:
        """Run a command and set its exit code."""
        with exit_codes():
            return super().invoke(ctx)

    def _of_packages(self) -> dict[str, Any]:
        if self._brought is None:
            self._brought, self._missing = _load(self.entries)
            self.commands.update(self._brought)
        return self._brought


def _is_question(text: str) -> bool:
    """Return whether an argument is no attempt at the name of a command: it has a space, or letters that none has."""
    return not text.startswith("-") and (len(text.split()) > 1 or not text.isascii())


def _own_command(name: str) -> Any:
    """Create a command from the function of its name in `cfs.cli.commands`."""
    app = CommandGroup(add_completion=False)
    commands = import_module("cfs.cli.commands")
    function = getattr(commands, f"{name}_", None) or getattr(commands, name)  # some names have another meaning there
    if isinstance(function, CommandGroup):
        return get_group(function)
    app.command(name, context_settings=_CONTEXTS.get(name))(function)
    return get_command(app)


def _load(entries: Iterable[EntryPoint]) -> tuple[dict[str, Any], dict[str, str]]:
    """Load the commands of other packages, and collect the reasons of failures."""
    brought: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: entry.name):
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


def _show_version(requested: bool) -> None:
    if requested:
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


def build(entry_points: Iterable[EntryPoint]) -> typer.Typer:
    """Build the program with the commands of all packages; for one of this package no entry point is read."""

    class Commands(_Commands):
        pass

    Commands.entries = entry_points
    app = typer.Typer(
        name="cfs", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback()(_callback)
    return app


def _installed() -> Iterator[EntryPoint]:
    """Find the commands of other packages, once they are needed: it takes longer than some commands."""
    yield from entry_points(group=GROUP)


def main() -> None:
    """Run `cfs`."""
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # transcripts are UTF-8, whatever the locale
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    try:
        build(_installed())(prog_name="cfs")
    except OSError as error:  # of the help, or of an error about the usage
        sys.exit(print_system_error(error))
