"""Arguments and options that several commands share: server, token, session and JSON output."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cfs.cli.base.connection import DEFAULT_URL, connect
from cfs.contract.errors import CfsError

ProgramName = Literal["claude-code", "codex", "opencode", "pi"]
"""The programs whose conversations can be imported and exported."""

PATIENCE_SECONDS = 0.5
_MOST = 100


def session_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """List the sessions with this prefix; empty if the server does not respond at once."""
    from cfs.transports import http  # noqa: F401 - imported before the time limit starts

    names: list[str] = []
    asking = threading.Thread(target=_ask, args=(ctx.params, incomplete, names), daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return list(names)


def _ask(params: dict[str, Any], incomplete: str, names: list[str]) -> None:
    from cfs import api
    from cfs.contract.errors import CfsError

    try:
        with connect(params.get("url") or DEFAULT_URL, params.get("token_file")) as client:
            page = client.call(api.list_sessions(incomplete, limit=_MOST))
    except (CfsError, typer.BadParameter):
        return
    names += [session.id for session in page.sessions]


def check_name(session: str | None) -> str | None:
    """Return a legal session id; raises `typer.BadParameter`."""
    from cfs.contract.ids import check_id

    try:
        return session and check_id(session)
    except CfsError as error:
        raise typer.BadParameter(error.detail) from None


def _check_names(sessions: list[str]) -> list[str]:
    return [check_name(session) or "" for session in sessions]


def session_argument(help_text: str, metavar: str = "SESSION", check: Callable[[Any], Any] = check_name) -> Any:
    """Describe an argument that names sessions which exist, so that shells complete it."""
    return typer.Argument(
        metavar=metavar, help=help_text, callback=check, autocompletion=session_names, show_default=False
    )


Session = Annotated[str, session_argument("Name of the session.")]
OptionalSession = Annotated[str | None, session_argument("Name of the session (default: a new one).")]
Sessions = Annotated[list[str], session_argument("Names of sessions.", check=_check_names)]
OptionalSessions = Annotated[
    list[str] | None, session_argument("Names of sessions.", check=lambda names: names and _check_names(names))
]
Url = Annotated[str, typer.Option("--url", envvar="CFS_URL", help="URL of the server.")]

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the access token (default: the variable CFS_TOKEN).",
        show_default=False,
    ),
]

Background = Annotated[
    bool, typer.Option("--background", "-b", help="Return as soon as it is ready; it runs on in the background.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
