"""`cfs share`: make and list links to a session (G9)."""

from datetime import UTC, datetime
from typing import Literal

import typer

from cfs import api
from cfs.cli.base.output import note, show
from cfs.contract.wire import Keep, seconds_of
from cfs.transports.http import Client


def seconds_until(expires: str | None) -> float | None:
    """Return a time such as `12h` in seconds; None means never. Raises `typer.BadParameter`."""
    from pydantic import TypeAdapter, ValidationError

    if expires is None:
        return None
    try:
        seconds = seconds_of(TypeAdapter[str](Keep).validate_python(expires))
    except ValidationError:
        raise typer.BadParameter(f"{expires!r} is no time: write 12h, 30d or 1y", param_hint="--expires") from None
    longest = 366 * 86_400
    if seconds >= longest:
        raise typer.BadParameter("a link ends within a year: without --expires it never ends", param_hint="--expires")
    return seconds


def create(
    client: Client, session: str, access: Literal["read", "write"], seconds: float | None, *, as_json: bool
) -> None:
    """Make a link and print its address."""
    shared = client.call(api.share(session, access, seconds))
    address = client.url + shared.path
    if as_json:
        show(shared.model_dump_json() + "\n")
        return
    show(address + "\n")
    if shared.id is None:
        note("cfs: this server has no tokens, so anyone who can reach it can read and write all sessions")
    else:
        note(f"cfs: store this link now, it is not shown again; `cfs share revoke {shared.id}` ends it")


def print_shares(client: Client, session: str, *, as_json: bool) -> None:
    """Print the caller's links to a session."""
    shares = client.call(api.shares(session)).shares
    if as_json:
        show("[" + ",\n".join(share.model_dump_json() for share in shares) + "]\n")
        return
    if not shares:
        note(f"You have no link to {session!r}.")
    for share in shares:
        end = (
            "never ends"
            if share.expires is None
            else f"ends {datetime.fromtimestamp(share.expires, UTC):%Y-%m-%d %H:%MZ}"
        )
        show(f"{share.id}  {share.access:<5}  {end}\n")
