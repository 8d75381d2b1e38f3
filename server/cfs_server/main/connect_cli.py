"""`cfs connect`: find models, try them, and give those that work to the server (E4, E5, C10).

`cfs --help` imports this module, so functions import what takes long to import.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfs.cli.base.connection import DEFAULT_URL, read_token
from cfs.cli.base.exit_codes import REFUSED, USAGE
from cfs.cli.base.options import Json, TokenFile, Url
from cfs.cli.base.output import note, print_error, visible
from cfs.errors import CfsError, ServerError, Unreachable

if TYPE_CHECKING:
    from cfs_server.config.models_file import ModelEntry, ModelsFile
    from cfs_server.config.settings import ServerSettings
    from cfs_server.connect.trials import Trial

_NOTHING = (
    "no model was found: no model server answers on this machine, no key of a service is in the environment, and no"
    " GGUF file is in the usual folders. `cfs connect smollm2` downloads a small model; `cfs connect URL` takes a"
    " server; `export OPENAI_API_KEY=...` (or another key) and `cfs connect` take a service"
)


def connect(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A provider (ollama, openai, ...), the URL of a server, a GGUF file, or a model such as smollm2"
            " (default: search everywhere).",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", "--yes", "-y", help="Connect all that work, without asking.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the connected models.")] = False,
    remove: Annotated[
        str | None,
        typer.Option("--remove", metavar="NAME", help="Disconnect a model, or all of a provider.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model of the provider or server (default: its best known).", show_default=False),
    ] = None,
    default: Annotated[
        str | None,
        typer.Option("--default", metavar="MODEL", help="Connected model that answers by default.", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a model may take to reply.")] = 60,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Find models on this machine and in your accounts, try each, and let the server answer with those that work.

    Without NAME it looks for model servers at their usual ports (Ollama, llama-server, LM Studio, vLLM), for keys of
    services in the environment, and for GGUF files in the usual folders. It sends one short request to each.

    A running server takes the models at once, and others when they start. Their file, `~/.config/cfs/models.toml`,
    names the variables of keys, but never contains a key.
    """
    from cfs_server.config.settings import ConfigurationError
    from cfs_server.connect import connections
    from cfs_server.main import logs

    logs.configure("text", "error")
    settings, path = _settings()
    if target is None and model is not None:
        raise typer.BadParameter("--model needs the NAME of a provider or a server")
    try:
        if show:
            _show(path, as_json=as_json)
            return
        if remove is not None:
            names = connections.remove(path, remove)
            note(f"Disconnected: {', '.join(names)}.")
        elif default is not None and target is None:
            connections.set_default(path, default)
        else:
            _connect(settings, path, target, model, default, timeout, every=every, as_json=as_json)
    except ConfigurationError as error:
        raise ServerError(str(error)) from None
    _report(path, url, token_file)


def _settings() -> "tuple[ServerSettings, Path]":
    """Return the settings of `cfs serve` without flags, and its file of models. Exits if it would read none."""
    from cfs_server.config.settings import CONFIG_VARIABLE, ConfigurationError, load

    config = os.environ.get(CONFIG_VARIABLE)
    try:
        settings = load({}, Path(config) if config else None)
    except ConfigurationError as error:
        print_error(str(error))
        raise typer.Exit(USAGE) from None
    path = settings.models or settings.connections
    if path is None:
        print_error("CFS_CONNECTIONS is none: name a file, or unset it for ~/.config/cfs/models.toml")
        raise typer.Exit(USAGE)
    return settings, path


def _connect(
    settings: "ServerSettings",
    path: Path,
    target: str | None,
    model: str | None,
    default: str | None,
    seconds: float,
    *,
    every: bool,
    as_json: bool,
) -> None:
    import asyncio

    from cfs_server.connect import connections

    trials = asyncio.run(_trials(settings, target, model, seconds))
    working = [entry for trial in trials if (entry := trial.entry) is not None]
    if as_json:
        typer.echo(json.dumps([trial.summary().model_dump(exclude_none=True) for trial in trials]))
    elif trials:
        _table([_row(trial) for trial in trials])
    for trial in trials:
        if trial.candidate.note:
            note(f"{trial.candidate.where}: {trial.candidate.note}")
    if not trials:
        raise ServerError(_NOTHING)
    if not working:
        raise ServerError("none of these models works; nothing was changed")
    chosen = working if every or target is not None or as_json or not sys.stdin.isatty() else _choose(trials)
    if not chosen:
        note("Nothing was changed.")
        raise typer.Exit
    if default is not None and default not in {entry.name for entry in chosen}:
        raise ServerError(f"the default {default!r} is none of {', '.join(entry.name for entry in chosen)}")
    if default is None and target is not None:
        default = chosen[0].name  # who names a model wants its replies
    connections.add(path, chosen, default)


async def _trials(settings: "ServerSettings", target: str | None, model: str | None, seconds: float) -> "list[Trial]":
    from cfs_server.connect import search
    from cfs_server.connect.trials import try_all
    from cfs_server.engine.contract.interface import ModelLoadError

    try:
        if target is None:
            candidates = await search.everything(os.environ, settings.models_folder)
        else:
            candidates = await search.target(target, model, os.environ)
    except ModelLoadError as error:
        raise ServerError(str(error)) from None
    return await try_all(
        settings, candidates, seconds, lambda candidate: note(f"Trying {candidate.name} ({candidate.where}) ...")
    )


def _row(trial: "Trial") -> tuple[str, ...]:
    summary = trial.summary()
    first = f"{summary.first_token_seconds:.2f} s" if summary.first_token_seconds is not None else ""
    speed = f"{summary.tokens_per_second:.0f}" if summary.tokens_per_second else ""
    context = str(summary.context or "") or ("unknown" if summary.works else "")
    where = summary.where.replace(f"{Path.home()}/", "~/")
    return summary.name, where, context, first, speed, "works" if summary.works else " ".join(summary.reason.split())


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    titles = ("NAME", "WHERE", "CONTEXT", "FIRST TOKEN", "TOKENS/S", "STATE")
    rows = [("", *titles), *((str(number), *row) for number, row in enumerate(rows, 1))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True))
        typer.echo(visible("  ".join(cells).rstrip()))


def _choose(trials: "Sequence[Trial]") -> "list[ModelEntry]":
    """Let the user choose among the models that work, by their numbers."""
    text = typer.prompt("Connect which? Numbers such as 1,3, or none", default="all that work", err=True)
    if text == "all that work":
        return [trial.entry for trial in trials if trial.entry is not None]
    numbers = text.replace(",", " ").split()
    if numbers == ["none"]:
        return []
    chosen = []
    for number in numbers:
        trial = trials[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(trials) else None
        if trial is None or trial.entry is None:
            raise ServerError(f"{number!r} is not the number of a model that works; nothing was changed")
        chosen.append(trial.entry)
    return chosen


def _file(path: Path) -> "ModelsFile | None":
    from cfs_server.config import models_file

    return models_file.read(path) if path.exists() else None


def _show(path: Path, *, as_json: bool) -> None:
    """Print the models of the file."""
    from cfs_server.connect.connections import place_of

    file = _file(path)
    entries = file.models.values() if file else ()
    if as_json:
        rows = [
            {
                "name": entry.name,
                "where": place_of(entry),
                "context": entry.context,
                "key_variable": entry.key_variable,
                "default": file is not None and entry.name == file.default,
            }
            for entry in entries
        ]
        typer.echo(json.dumps(rows))
        return
    if file is None:
        note("No model is connected. `cfs connect` finds some.")
        return
    for entry in entries:
        key = f", key in {entry.key_variable}" if entry.key_variable else ""
        typer.echo(visible(f"{'*' if entry.name == file.default else ' '} {entry.name}  {place_of(entry)}{key}"))
    note(f"* answers by default. The file: {path}")


def _report(path: Path, url: str, token_file: Path | None) -> None:
    """Say which model answers by default now, and whether the running server has taken the change."""
    from cfs import api
    from cfs.transports.http import Client

    file = _file(path)
    note(f"{path}: " + (f"{', '.join(file.models)}; default: {file.default}" if file else "no models are connected"))
    try:
        with Client(url, read_token(token_file)) as client:
            listed = client.call(api.connections())
    except Unreachable:
        note("No server runs there yet: `cfs up` (or scripts/up) starts one with these models.")
        return
    except CfsError as error:
        note(f"The server at {url} did not load them: {error.detail}")
        return
    if Path(listed.file) != path.absolute():
        note(f"The server at {url} reads another file: {listed.file}")
        return
    if listed.problem:
        raise ServerError(f"the server at {url} does not use the file: {listed.problem}")
    for connection in listed.connections:
        if not connection.usable:
            note(f"{connection.name}: the server at {url} cannot use it: {connection.reason}")
    note(f"The server at {url} answers with {listed.default} now.")
    if any(connection.reason.startswith("the variable") for connection in listed.connections):
        note("Start the server again in a shell that has the variable: cfs down; cfs up --background")
        raise typer.Exit(REFUSED)
