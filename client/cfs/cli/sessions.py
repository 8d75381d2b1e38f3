"""`cfs ls` and `cfs rm`: list and delete sessions."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import typer

from cfs import api
from cfs.cli.app import REFUSED, print_error
from cfs.cli.screen import show
from cfs.errors import CfsError, NotFound, Unreachable
from cfs.transports.http import Client
from cfs.wire import SessionInfo

_PAGE = 500


def list_sessions(client: Client, prefix: str, *, long: bool, as_json: bool) -> None:
    """Print the sessions whose names begin with a prefix."""
    pages = _pages(client, prefix)
    if as_json:
        show("[" + ",\n".join(info.model_dump_json() for page in pages for info in page) + "]\n")
        return
    for page in pages:
        show("".join((_line(info) if long else info.id) + "\n" for info in page))


def delete_sessions(client: Client, sessions: Iterable[str], *, force: bool) -> None:
    """Delete each session; exits with `REFUSED` when one could not be deleted. `force` ignores missing ones."""
    refused = False
    for session in sessions:
        try:
            client.call(api.delete(session))
        except Unreachable:
            raise
        except CfsError as error:
            if not (force and isinstance(error, NotFound)):
                print_error(error.detail)
                refused = True
    if refused:
        raise typer.Exit(REFUSED)


def _pages(client: Client, prefix: str) -> Iterator[tuple[SessionInfo, ...]]:
    after: str | None = ""
    while after is not None:
        page = client.call(api.list_sessions(prefix, after, _PAGE))
        yield page.sessions
        after = page.next


def _line(info: SessionInfo) -> str:
    changed = datetime.fromtimestamp(info.updated_at).astimezone().isoformat(" ", "seconds")[:19]
    state = "agent?" if info.state == "waiting_for_agent" else info.state
    queued = f"+{info.queued}" if info.queued else ""
    below = f"{info.sub_sessions} below" if info.sub_sessions else ""
    return f"{state + queued:<12} {info.messages:>5} {info.size:>9} {changed} {below:>9} {info.id}"
