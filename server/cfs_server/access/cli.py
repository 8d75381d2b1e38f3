"""`cfs token`: make, list and revoke access tokens (G9, C10)."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cfs_server.access import tokens
from cfs_server.access.tokens import Token, TokenGrant, TokenLimits, TokensError

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke access tokens.")

_SHORT: dict[str, list[str]] = {"all": ["list", "file", "read", "write", "delete"], "ro": ["list", "file", "read"]}
_SPAN = re.compile(r"([0-9]{1,6})([mhdwy])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}

File = Annotated[
    Path, typer.Option("--tokens", envvar="CFS_TOKENS", help="The tokens file.", show_default=False, dir_okay=False)
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the token; logs show it as the caller.")],
    file: File,
    grant: Annotated[
        list[str],
        typer.Option(
            help="PREFIX or PREFIX=OPS; may be repeated. '/' grants everything, '/sessions/alice' that session and its"
            " sub-sessions. OPS: 'all' (default), 'ro' (list, file, read), or comma-separated names."
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(help="Expiry: a duration such as 12h, 30d, 1y, or a date such as 2027-01-31.")
    ] = None,
    sessions: Annotated[int | None, typer.Option(help="Maximum number of sessions.", min=0)] = None,
    size: Annotated[int | None, typer.Option("--bytes", help="Maximum number of bytes.", min=0)] = None,
    streams: Annotated[int | None, typer.Option(help="Maximum number of open streams.", min=0)] = None,
    requests: Annotated[float | None, typer.Option(help="Maximum requests per second.")] = None,
) -> None:
    """Create a token and print it once; the file stores only its hash."""
    try:
        limits = TokenLimits(sessions=sessions, bytes=size, streams=streams, requests=requests)
        secret = tokens.create(file, name, [_grant(each) for each in grant], expires=_time(expires), limits=limits)
    except ValidationError as error:
        raise _failure(tokens.told(error)) from None
    except TokensError as error:
        raise _failure(str(error)) from None
    typer.echo(
        f"Store this token now: it is not shown again. Servers that run with --tokens {file} accept it.", err=True
    )
    typer.echo(secret)


@app.command(name="list")
def show(file: File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the tokens, without their secrets."""
    try:
        known = tokens.load(file)
    except TokensError as error:
        raise _failure(str(error)) from None
    if as_json:
        shown = {name: token.model_dump(mode="json", exclude={"hash"}) for name, token in known.items()}
        for grant in (grant for token in shown.values() for grant in token["grants"]):
            grant["ops"].sort()
        typer.echo(json.dumps(shown))
        return
    for name, token in known.items():
        typer.echo("  ".join([name, _until(token), *(f"{each.prefix}={_ops(each)}" for each in token.grants)]))


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="Name of the token.")], file: File) -> None:
    """Revoke a token; a running server refuses it within two seconds."""
    try:
        tokens.revoke(file, name)
    except TokensError as error:
        raise _failure(str(error)) from None


def _grant(text: str) -> TokenGrant:
    prefix, equals, ops = text.rpartition("=")  # the last one: an id may hold others
    if not equals:
        prefix, ops = text, "all"
    names = _SHORT.get(ops) or [name.strip() for name in ops.split(",")]
    return TokenGrant.model_validate({"prefix": prefix, "ops": names})


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        if span := _SPAN.fullmatch(text):
            moment = now + timedelta(seconds=int(span[1]) * _SECONDS[span[2]])
        else:
            moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise TokensError(f"{text!r} is no time: write 12h, 30d, 1y, or 2027-01-31") from None
    if moment <= now:
        raise TokensError(f"{text!r} is over already")
    return moment.replace(microsecond=0)


def _until(token: Token) -> str:
    if token.expires is None:
        return "for ever"
    word = "expired" if token.expired(datetime.now(UTC)) else "until"
    return f"{word} {token.expires.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def _ops(grant: TokenGrant) -> str:
    for short, names in _SHORT.items():
        if grant.ops == set(names):
            return short
    return ",".join(sorted(grant.ops))


def _failure(reason: str) -> typer.Exit:
    typer.echo(f"cfs: {reason}", err=True)
    return typer.Exit(2)
