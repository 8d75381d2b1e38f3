"""`cfs search`: print where words occur, with marks on a terminal."""

import re
import sys
import time
from datetime import datetime
from typing import get_args

import typer

from cfs.cli.base.output import has_colours, note, show, visible
from cfs.contract.errors import InvalidParameters
from cfs.contract.wire import Role, SearchResult
from cfs.transports.http import Client

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def print_matches(
    client: Client, words: str, *, within: str, role: str | None, since: str | None, limit: int, as_json: bool
) -> None:
    """Print one line for each match: session, message, and the text around the words.

    Raises `InvalidParameters` for a role or a time that is none.
    """
    chosen = next((value for value in get_args(Role) if value == role), None)
    if role is not None and chosen is None:
        raise InvalidParameters(f"there is no role {role!r}: use one of {', '.join(get_args(Role))}")
    start = None if since is None else _time(since)
    results = client.search(words, within=within, role=chosen, since=start, limit=limit)
    if as_json:
        show(results.model_dump_json() + "\n")
        return
    for match in results.results:
        _print(match)
    if not results.results:
        note("Nothing contains these words.")
    elif results.truncated:
        note(f"There are more: --limit {min(100, limit * 5)} shows more of them.")
    if results.indexing:
        note("The server is still building its index: newer messages may be missing.")


def _time(text: str) -> float:
    if match := re.fullmatch(r"(\d+)([smhdw])", text):
        return time.time() - int(match[1]) * _UNITS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InvalidParameters(f"{text!r} is no time: write 30m, 12h or 7d, or a date such as 2026-11-30") from None


def _print(match: SearchResult) -> None:
    begin = f"{match.place}: "
    if not has_colours(sys.stdout):
        show(begin + " ".join(match.text.split()) + "\n")
        return
    parts = [typer.style(visible(begin), dim=True)]
    at = 0
    for first, last in (*match.ranges, (len(match.text), len(match.text))):
        parts += [_flat(match.text[at:first]), typer.style(_flat(match.text[first:last]), bold=True, fg="yellow")]
        at = last
    typer.echo("".join(parts), color=True)


def _flat(text: str) -> str:
    return visible(re.sub(r"\s+", " ", text))
