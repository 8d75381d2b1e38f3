"""Groups of commands, with their help as plain text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from cfs.cli.base.output import did_you_mean


class Group(TyperGroup):
    """Commands whose list shows the first sentence of each, in the sections of the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                sections.setdefault(command.rich_help_panel or "Commands", []).append((name, summary(command)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group."""
        with suggestions():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest and run a command."""
        with suggestions():
            return super().invoke(ctx)


@contextmanager
def suggestions() -> Iterator[None]:
    """Name a similar option in the error about an unknown one."""
    try:
        yield
    except typer.TyperException as error:
        if possible := getattr(error, "possibilities", None):
            named = vars(error)
            words = {name.lstrip("-"): name for name in possible}
            similar = get_close_matches(named["option_name"].lstrip("-"), words, n=1)
            error.message += did_you_mean(words[word] for word in similar)
            named["possibilities"] = None
        raise


def summary(command: Any) -> str:
    """Return the first sentence of a command's help."""
    return str(command.help or "").split("\n\n")[0].split(". ")[0].removesuffix(".")


class CfsCommand(TyperCommand):
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
        for kind, entries in rows.items():
            if entries:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(entries)

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
        super().__init__(cls=Group, no_args_is_help=True, help=help_text, rich_markup_mode=None, **options)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[TyperCommand] = CfsCommand, **options: Any
    ) -> Callable[[_Function], _Function]:
        """Add a function as a command."""
        return super().command(name, cls=cls, **options)
