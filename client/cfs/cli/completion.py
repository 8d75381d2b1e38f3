"""Names of sessions for the shell: from the server, quickly or not at all (C10)."""

import threading
from typing import Any

import typer

PATIENCE_SECONDS = 0.5
_MOST = 100


def session_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the sessions that begin so; none when the server does not answer at once."""
    from cfs.transports import http  # noqa: F401 - loaded before the clock runs

    found: list[str] = []
    asking = threading.Thread(target=_ask, args=(ctx.params, incomplete, found), daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return list(found)


def _ask(params: dict[str, Any], incomplete: str, found: list[str]) -> None:
    from cfs import api
    from cfs.cli.options import DEFAULT_URL, connect
    from cfs.errors import CfsError

    try:
        with connect(params.get("url") or DEFAULT_URL, params.get("token_file")) as client:
            page = client.call(api.list_sessions(incomplete, limit=_MOST))
    except (CfsError, typer.BadParameter):
        return
    found += [session.id for session in page.sessions]
