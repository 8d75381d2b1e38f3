"""`cfs ls`, `cfs ps`, `cfs set` and `cfs rm`: list, configure and delete sessions."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import typer

from cfs import api
from cfs.cli.base.connection import similar_session
from cfs.cli.base.exit_codes import REFUSED
from cfs.cli.base.output import note, print_error, show
from cfs.cli.base.settings import read_settings, write_settings
from cfs.contract.errors import CfsError, InvalidSettings, NotFound, Unreachable
from cfs.contract.wire import SessionInfo, SettingsPatch
from cfs.transports.http import Client

_PAGE = 500


def list_sessions(client: Client, prefix: str, *, long: bool, as_json: bool) -> None:
    """Print the sessions whose names begin with a prefix."""
    pages = _pages(client, prefix)
    if as_json:
        _print_json(pages)
        return
    if long:
        show(f"{'STATE':<10} {'QUEUED':>6} {'MESSAGES':>8} {'BYTES':>9}  {'CHANGED':<19} {'BELOW':>5}  NAME\n")
    for page in pages:
        show("".join((_line(info) if long else info.id) + "\n" for info in page))


def list_active(client: Client, *, as_json: bool) -> None:
    """Print the sessions with running or waiting turns, at any depth."""
    pages = _pages(client, "", active=True)
    if as_json:
        _print_json(pages)
        return
    sessions = [info for page in pages for info in page]
    if not sessions:
        note("No turn is running or queued.")
        return
    now = time.time()
    rows = [f"{'STATE':<10} {'QUEUED':>6} {'MESSAGES':>8} {'TOKENS':>9} {'COST':>9} {'TIME':>7}  NAME"]
    for info in sessions:
        since = "" if info.turn_since is None else duration(now - info.turn_since)
        state = f"{_state(info):<10} {info.queued:>6} {info.messages:>8} {info.tokens:>9} {f'${info.cost:.4f}':>9}"
        rows.append(f"{state} {since:>7}  {info.id}")
    show("".join(f"{row}\n" for row in rows))


def latest_session(client: Client) -> str:
    """Return the session that changed last. Raises `NotFound` if there is none."""
    newest = max((info for page in _pages(client, "") for info in page), key=lambda info: info.updated_at, default=None)
    if newest is None:
        raise NotFound("there is no session yet; `cfs chat` begins one")
    return newest.id


def configure_session(client: Client, session: str, assignments: Sequence[str], *, as_json: bool) -> None:
    """Change settings, or print them if there is nothing to change. Raises `typer.BadParameter`."""
    try:
        patch = read_settings(assignments, SettingsPatch)
    except InvalidSettings as error:
        raise typer.BadParameter(error.detail) from None
    settings = client.call(api.configure(session, patch) if assignments else api.settings(session))
    if as_json:
        show(settings.model_dump_json() + "\n")
    elif not assignments:
        show("".join(f"{line}\n" for line in write_settings(settings)))


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
                print_error(error.detail + similar_session(client, error))
                refused = True
    if refused:
        raise typer.Exit(REFUSED)


def _print_json(pages: Iterable[tuple[SessionInfo, ...]]) -> None:
    show("[" + ",\n".join(info.model_dump_json() for page in pages for info in page) + "]\n")


def _pages(client: Client, prefix: str, *, active: bool = False) -> Iterator[tuple[SessionInfo, ...]]:
    after: str | None = ""
    while after is not None:
        page = client.call(api.list_sessions(prefix, after, _PAGE, active=active))
        yield page.sessions
        after = page.next


def _line(info: SessionInfo) -> str:
    changed = datetime.fromtimestamp(info.updated_at).astimezone().isoformat(" ", "seconds")[:19]
    counts = f"{info.queued:>6} {info.messages:>8} {info.size:>9}"
    return f"{_state(info):<10} {counts}  {changed} {info.sub_sessions:>5}  {info.id}"


def _state(info: SessionInfo) -> str:
    return "no agent" if info.state == "waiting_for_agent" else info.state


def duration(seconds: float) -> str:
    """Write a time as `14s`, `2m03s` or `1h02m`."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
