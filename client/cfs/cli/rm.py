"""`cfs rm`: sessions that are no longer needed."""

from typing import Annotated

import typer

from cfs.cli.app import DEFAULT_URL, REFUSED, Sessions, TokenFile, Url, complain, connect

app = typer.Typer(add_completion=False)


@app.command()
def rm(
    sessions: Sessions,
    force: Annotated[bool, typer.Option("--force", "-f", help="Say nothing about sessions that do not exist.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Delete sessions, each with its sub-sessions. Whatever runs in them is cancelled."""
    from cfs import api
    from cfs.errors import CfsError, NotFound, Unreachable

    refused = False
    with connect(url, token_file) as client:
        for session in sessions:
            try:
                client.call(api.delete(session))
            except Unreachable:
                raise
            except CfsError as error:
                if not (force and isinstance(error, NotFound)):
                    complain(error.detail)
                    refused = True
    if refused:
        raise typer.Exit(REFUSED)
