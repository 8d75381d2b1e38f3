"""`cfs cat`: the transcript of a session."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cfs.cli.app import DEFAULT_URL, Json, Session, TokenFile, Url, connect
from cfs.cli.screen import note, show

if TYPE_CHECKING:
    from cfs.transports.http import Client

app = typer.Typer(add_completion=False)
_WAIT_SECONDS = 30.0
"""One request waits no longer, so that a dead connection is noticed and the wait goes on over another one."""


@app.command()
def cat(
    session: Session,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until nothing runs or is queued, or print what is there now.")
    ] = True,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print what is there, then what comes, token by token, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Print the transcript of a session, once it is settled.

    With --json it is one object with the structured messages; with --follow and --json, each event on a line.
    """
    with connect(url, token_file) as client:
        if follow:
            _follow(client, session, as_json=as_json)
        elif as_json:
            _print_detail(client, session, wait=wait)
        else:
            _print_text(client, session, wait=wait)


def _print_text(client: "Client", session: str, *, wait: bool) -> None:
    from cfs import api

    view = client.call(api.transcript(session, _WAIT_SECONDS if wait else None))
    while wait and not view.settled:
        view = client.call(api.transcript(session, _WAIT_SECONDS))
    show(view.text)
    if view.state != "idle":
        note(f"cfs: {session} is {view.state.replace('_', ' ')}: this is what there is so far")


def _print_detail(client: "Client", session: str, *, wait: bool) -> None:
    from cfs import api

    if wait:
        _settle(client, session)
    show(client.call(api.read(session)).model_dump_json() + "\n")


def _settle(client: "Client", session: str) -> None:
    from cfs import api
    from cfs.errors import Timeout

    while True:
        try:
            client.call(api.wait(session, _WAIT_SECONDS))
        except Timeout:
            continue
        return


def _follow(client: "Client", session: str, *, as_json: bool) -> None:
    from cfs import api
    from cfs.cli.tail import Tail, as_line

    detail = client.call(api.read(session))
    tail = Tail(session)
    if not as_json:
        show(tail.begin(detail))
    with closing(client.events(api.events(session, str(detail.event)), attempts=float("inf"))) as events:
        for event in events:
            show(as_line(event) if as_json else tail.feed(event))
            if event.type == "stale" and not as_json:
                note("cfs: events were lost; this is the session from its beginning")
                show(tail.begin(client.call(api.read(session))))
    sys.stdout.flush()
    note(f"cfs: {session} has been deleted")
