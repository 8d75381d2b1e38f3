"""`cfs ls`: which sessions there are."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cfs.cli.app import DEFAULT_URL, Json, TokenFile, Url, connect, session_names
from cfs.cli.screen import show

if TYPE_CHECKING:
    from cfs.transports.http import Client
    from cfs.wire import SessionInfo

app = typer.Typer(add_completion=False)
_PAGE = 500


@app.command()
def ls(
    prefix: Annotated[
        str,
        typer.Argument(
            help="Beginning of the names; 'main/' lists what is directly below 'main'.",
            autocompletion=session_names,
            show_default=False,
        ),
    ] = "",
    long: Annotated[
        bool, typer.Option("--long", "-l", help="With state, messages, bytes, time of change, sub-sessions.")
    ] = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List sessions, one a line, in the order of their names."""
    with connect(url, token_file) as client:
        pages = _pages(client, prefix)
        if as_json:
            show("[" + ",\n".join(info.model_dump_json() for page in pages for info in page) + "]\n")
            return
        for page in pages:
            show("".join((_line(info) if long else info.id) + "\n" for info in page))


def _pages(client: "Client", prefix: str) -> Iterator[tuple["SessionInfo", ...]]:
    from cfs import api

    after: str | None = ""
    while after is not None:
        page = client.call(api.list_sessions(prefix, after, _PAGE))
        yield page.sessions
        after = page.next


def _line(info: "SessionInfo") -> str:
    changed = datetime.fromtimestamp(info.updated_at).astimezone().isoformat(" ", "seconds")[:19]
    state = "agent?" if info.state == "waiting_for_agent" else info.state
    queued = f"+{info.queued}" if info.queued else ""
    below = f"{info.sub_sessions} below" if info.sub_sessions else ""
    return f"{state + queued:<12} {info.messages:>5} {info.size:>9} {changed} {below:>9} {info.id}"
