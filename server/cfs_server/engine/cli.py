"""`cfs model`: lists and downloads models (E5, C10)."""

import json
from typing import Annotated, Any

import typer

from cfs_server.engine.interface import ModelLoadError

app = typer.Typer(no_args_is_help=True, help="List and download models.")

_CANNOT = 1

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]


@app.command(name="list")
def show(as_json: Json = False) -> None:
    """List the embedded model and the downloaded ones. `cfs serve --model` takes these names."""
    from cfs_server.engine import models

    found = [models.resolve(None), *models.cached()]
    rows = [_row(model.name, model.path, embedded=number == 0) for number, model in enumerate(found)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{_size(row['bytes']):>10}  {row['name']}{'  (embedded)' if row['embedded'] else ''}")


@app.command()
def pull(
    model: Annotated[
        str, typer.Argument(metavar="hf:OWNER/REPO:FILE", help="A file of a repository on the hub.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Download a model from the hub, unless it was downloaded before, and print its path.

    Environment: HF_HOME is the folder of downloaded models, HF_TOKEN the token for restricted repositories, HF_ENDPOINT
    the address of another hub, HF_HUB_ETAG_TIMEOUT the seconds to wait for the hub (default: 3).
    """
    from cfs_server.engine import models

    if not model.startswith("hf:"):
        raise typer.BadParameter("a model of the hub is written hf:OWNER/REPO:FILE")
    try:
        found = models.resolve(model)
    except ModelLoadError as error:
        typer.echo(f"cfs: {error}", err=True)
        raise typer.Exit(_CANNOT) from None
    row = _row(model, found.path, embedded=False)
    typer.echo(json.dumps(row) if as_json else row["path"])


def _row(name: str, path: Any, *, embedded: bool) -> dict[str, Any]:
    return {"name": name, "path": str(path), "bytes": path.stat().st_size, "embedded": embedded}


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
