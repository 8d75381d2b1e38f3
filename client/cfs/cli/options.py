"""What many commands share: where the server is, who calls, which session, and output for programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfs.cli.completion import session_names
from cfs.errors import CfsError, InvalidRequest

if TYPE_CHECKING:
    from cfs.transports.http import Client

DEFAULT_URL = "http://127.0.0.1:8000"


def _checked(session: str | None) -> str | None:
    from cfs.ids import check_id

    try:
        return session and check_id(session)
    except CfsError as error:
        raise typer.BadParameter(error.detail) from None


def _each_checked(sessions: list[str]) -> list[str]:
    return [_checked(session) or "" for session in sessions]


Session = Annotated[
    str,
    typer.Argument(
        help="Name of the session.",
        callback=_checked,
        autocompletion=session_names,
        show_default=False,
    ),
]
OptionalSession = Annotated[
    str | None,
    typer.Argument(
        help="Name of the session; a new one unless given.",
        callback=_checked,
        autocompletion=session_names,
        show_default=False,
    ),
]
Sessions = Annotated[
    list[str],
    typer.Argument(
        help="Names of sessions.",
        callback=_each_checked,
        autocompletion=session_names,
        show_default=False,
    ),
]
Url = Annotated[str, typer.Option("--url", envvar="CFS_URL", help="URL of the server.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File that holds the access token; else it is taken from CFS_TOKEN.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output, and nothing else.")]


def connect(url: str, token_file: Path | None, *, timeout: float = 30.0) -> "Client":
    """Make a client that waits `timeout` seconds for an answer; raises `typer.BadParameter` for no URL or no token."""
    from cfs.transports.http import Client

    try:
        return Client(url, read_token(token_file), timeout=timeout)
    except InvalidRequest as error:
        raise typer.BadParameter(error.detail) from None


def read_token(token_file: Path | None) -> str | None:
    """Read the token of a file; None without one. Raises `typer.BadParameter`."""
    if token_file is None:
        return None
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{token_file}: {getattr(error, 'strerror', None) or 'this is no text'}") from None
    if not token.isprintable() or not token.isascii() or " " in token or not token:
        raise typer.BadParameter(f"{token_file} does not hold one token on one line")
    return token
