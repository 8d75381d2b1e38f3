"""The server's commands of `cfs`: the flags of `serve` are the table in `settings`."""

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from cfs_server.access.cli import app as token_app
from cfs_server.engine.cli import app as model_app
from cfs_server.settings import CONFIG_VARIABLE, ConfigurationError, Settings, flag_of, load

app = typer.Typer(no_args_is_help=True)


def serve(**flags: Any) -> None:
    """Run the CFS server: sessions over HTTP and WebDAV, answered by the built-in model engine.

    Each flag can also be set by an environment variable (CFS_PORT for --port) or in the TOML file of --config.
    """
    config = flags.pop("config")
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = load(given, config)
    except ConfigurationError as error:
        typer.echo(f"cfs: {error}", err=True)
        raise typer.Exit(2) from None
    from cfs_server.serve import run  # everything heavy comes in here, so that --help is quick

    raise typer.Exit(run(settings))


def _parameter(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    default = "" if field.default in (None, "") else f" [default: {field.default}]"
    help_text = f"{field.description}{default}"
    flag = f"{flag_of(name)}/--no-{flag_of(name)[2:]}" if field.annotation is bool else flag_of(name)
    option = typer.Option(flag, help=help_text, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_plain(field.annotation) | None, option],
    )


def _plain(annotation: Any) -> Any:
    """The type as typer reads it from a command line; `Settings` checks the value again."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if annotation in (bool, int, float, Path):
        return annotation
    members = [kind for kind in get_args(annotation) if kind is not type(None)]
    return _plain(members[0]) if len(members) == 1 and isinstance(members[0], type) else str


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option("--config", envvar=CONFIG_VARIABLE, help="TOML file of settings.", show_default=False),
    ],
)
_PARAMETERS = [*map(_parameter, Settings.model_fields), _CONFIG]
serve.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
app.command()(serve)
app.add_typer(token_app, name="token")
app.add_typer(model_app, name="model")


@app.callback()
def _server() -> None:
    """The server."""
