"""Connections of commands to a server, and advice where they fail."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cfs.cli.base.output import did_you_mean
from cfs.contract.errors import CfsError, InvalidRequest, NotFound, Unauthorized, Unreachable

if TYPE_CHECKING:
    from cfs.transports.http import Client

DEFAULT_URL = "http://127.0.0.1:8000"


@contextmanager
def connect(url: str, token_file: Path | None, *, timeout: float = 30.0) -> Iterator["Client"]:
    """Create a client with a timeout in seconds; the error about an unknown session names a similar one.

    Raises `typer.BadParameter` for an invalid URL or token file.
    """
    from cfs.transports.addresses import address_of
    from cfs.transports.http import Client

    token = read_token(token_file)
    try:
        address_of(url, token)
    except InvalidRequest as error:
        raise typer.BadParameter(error.detail) from None
    with Client(url, token, timeout=timeout) as client:
        try:
            yield client
        except NotFound as error:
            error.detail += similar_session(client, error)
            raise
        except Unauthorized as error:
            error.detail += "; set CFS_TOKEN, or name a file with --token-file"
            raise
        except Unreachable as error:
            error.detail += _other_servers()
            raise


def _other_servers() -> str:
    from cfs.cli.base.background import running

    return "".join(f"; your server at {server.url} runs: --url {server.url}" for server in running("server"))


def similar_session(client: "Client", error: CfsError) -> str:
    """Return a sentence that names a session like the unknown one of an error; empty if there is none."""
    from cfs import api

    unknown = _UNKNOWN_SESSION.match(error.detail)
    if unknown is None:
        return ""
    name = unknown[1]
    names: set[str] = set()
    with suppress(CfsError):
        for prefix in {name[: name.rfind("/") + 1], name[:1] if "/" not in name else ""}:
            names |= {info.id for info in client.call(api.list_sessions(prefix, limit=_MOST_NAMES)).sessions}
    return did_you_mean(get_close_matches(name, names, n=1))


_UNKNOWN_SESSION = re.compile(r"there is no session '([^']+)'$")
_MOST_NAMES = 1000


def read_token(token_file: Path | None) -> str | None:
    """Read the token of a file; None without one. Raises `typer.BadParameter`."""
    if token_file is None:
        return None
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"{token_file}: {getattr(error, 'strerror', None) or 'the file is not text'}"
        ) from None
    if not token.isprintable() or not token.isascii() or " " in token or not token:
        raise typer.BadParameter(f"{token_file} does not hold one token on one line")
    return token
