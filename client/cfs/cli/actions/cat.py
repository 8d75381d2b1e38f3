"""`cfs cat`: print a session, and follow it (S6, S11)."""

import json
import sys
from contextlib import closing
from dataclasses import asdict

from cfs import api
from cfs.cli.base.output import note, show
from cfs.contract.errors import Timeout
from cfs.state.stream import StreamEvent
from cfs.state.tail import Tail
from cfs.transports.http import Client

_WAIT_SECONDS = 30.0
"""Maximum wait of one request in seconds; longer waits use several, so that a dead connection is noticed."""


def print_text(client: Client, session: str, *, wait: bool) -> None:
    """Print the transcript as text."""
    view = client.call(api.transcript(session, _WAIT_SECONDS if wait else None))
    while wait and not view.settled:
        view = client.call(api.transcript(session, _WAIT_SECONDS))
    show(view.text)
    if view.state != "idle":
        note(f"cfs: {session} is {view.state.replace('_', ' ')}: the transcript is not complete yet")


def print_detail(client: Client, session: str, *, wait: bool) -> None:
    """Print the session with its structured messages as JSON."""
    if wait:
        _settle(client, session)
    show(client.call(api.read(session)).model_dump_json() + "\n")


def _settle(client: Client, session: str) -> None:
    while True:
        try:
            client.call(api.wait(session, _WAIT_SECONDS))
        except Timeout:
            continue
        return


def follow_session(client: Client, session: str, *, as_json: bool) -> None:
    """Print the transcript and then its additions, or each event as a line of JSON."""
    detail = client.call(api.read(session))
    tail = Tail()
    if not as_json:
        show(tail.begin(detail))
    with closing(client.events(api.events(session, str(detail.event)), attempts=float("inf"))) as events:
        for event in events:
            show(as_line(event) if as_json else tail.feed(event))
            if event.type == "stale" and not as_json:
                note("cfs: events were lost; the session is printed again from its beginning")
                show(tail.begin(client.call(api.read(session))))
    sys.stdout.flush()
    note(f"cfs: {session} has been deleted")


def as_line(event: StreamEvent) -> str:
    """Write an event as a line of JSON."""
    return json.dumps(asdict(event), ensure_ascii=False) + "\n"
