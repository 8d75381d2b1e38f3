"""The command line `cfs`: commands of its own, and those that each room brings through entry points.

Nothing is imported before its command is called or listed, so that a short command is over quickly (C10).
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from io import TextIOWrapper
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from cfs.cli.endings import told

GROUP = "cfs.commands"
_SESSIONS, _SERVER = "Sessions", "Server and mount"
_OWN = {
    "send": _SESSIONS,
    "chat": _SESSIONS,
    "cat": _SESSIONS,
    "ls": _SESSIONS,
    "rm": _SESSIONS,
    "up": _SERVER,
    "doctor": _SERVER,
}
"""The commands of this package: each is a module of its name, and stands in a part of the help."""
_PARTS = {"server": _SERVER, "fuse": _SERVER, "agents": "Agents"}


class _Commands(TyperGroup):
    """Knows which rooms could not be loaded, and says so when one of their commands may be meant."""

    found: ClassVar[list[EntryPoint]] = []
    _brought: dict[str, Any] | None = None
    _missing: Mapping[str, str] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is the library's
        """Name all commands: our own, then those of the rooms."""
        return [*_OWN, *self._of_rooms()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Find a command; the rooms are only asked for what is not our own."""
        if cmd_name in _OWN and cmd_name not in self.commands:
            command = get_command(import_module(f"cfs.cli.{cmd_name}").app)
            self.commands[cmd_name] = _put(command, _OWN[cmd_name])
        return self.commands.get(cmd_name) or self._of_rooms().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is meant; an unknown one may be that of a room that is missing."""
        if self.get_command(ctx, args[0]) is None and not self._similar(ctx, args[0]):
            for extra, reason in self._missing.items():
                ctx.fail(
                    f"no command {args[0]!r} here; the commands of {extra!r} are not installed ({reason}): "
                    f"pip install 'cfs-local[{extra}]'"
                )
        return super().resolve_command(ctx, args)

    def _similar(self, ctx: Any, name: str) -> list[str]:
        """Name the commands that may have been mistyped; they are loaded, so that they can be proposed."""
        for own in _OWN:
            self.get_command(ctx, own)
        return get_close_matches(name, self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and tell how it ended."""
        with told():
            return super().invoke(ctx)

    def _of_rooms(self) -> dict[str, Any]:
        if self._brought is None:
            self._brought, self._missing = _load(self.found)
            self.commands.update(self._brought)
        return self._brought


def _load(found: list[EntryPoint]) -> tuple[dict[str, Any], dict[str, str]]:
    """Collect the commands of the rooms, and why those of some cannot be had."""
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
    """Put a command into a part of the help, and let its paragraphs flow: they are wrapped for the source code."""
    command.rich_help_panel = part
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in command.help.split("\n\n"))
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cfs {version('cfs-local')}")
        raise typer.Exit


def _callback(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """CFS: every conversation with a language model is a file, a URL and a Python object.

    Exit codes: 0 done, 1 the server refused or the turn failed, 2 wrong usage, 3 no server answers, 130 interrupted.
    """


def build(found: list[EntryPoint]) -> typer.Typer:
    """Put the commands of all rooms into one program."""

    class Commands(_Commands):
        pass

    Commands.found = found
    app = typer.Typer(name="cfs", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_callback)
    return app


def main() -> None:
    """Run `cfs`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a transcript is UTF-8, whatever the locale says
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    build(list(entry_points(group=GROUP)))(prog_name="cfs")
