"""The command line `cfs`: each room brings its own commands, found through entry points (DESIGN.md, rooms)."""

from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

GROUP = "cfs.commands"


class _Commands(TyperGroup):
    """Knows which rooms could not be loaded, and says so when one of their commands may be meant."""

    missing: dict[str, str]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            for extra, reason in self.missing.items():
                ctx.fail(
                    f"no command {args[0]!r} here; the commands of {extra!r} are not installed ({reason}): "
                    f"pip install 'cfs-local[{extra}]'"
                )
        return super().resolve_command(ctx, args)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cfs {version('cfs-local')}")
        raise typer.Exit


def _callback(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """CFS: every conversation with a language model is a file, a URL and a Python object."""


def build(found: list[EntryPoint]) -> typer.Typer:
    """Put the commands of all rooms into one program."""
    missing: dict[str, str] = {}

    class Commands(_Commands):
        pass

    app = typer.Typer(name="cfs", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_callback)
    for entry in sorted(found, key=lambda entry: entry.name):
        try:
            room: typer.Typer = entry.load()
        except ImportError as error:
            missing[entry.name] = str(error)
            continue
        app.registered_commands += room.registered_commands
        app.registered_groups += room.registered_groups
    Commands.missing = missing
    return app


def main() -> None:
    """Run `cfs`."""
    build(list(entry_points(group=GROUP)))()
