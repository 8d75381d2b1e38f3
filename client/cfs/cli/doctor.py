"""`cfs doctor`: what works here, what does not, and what to do about it."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cfs.cli.endings import REFUSED
from cfs.cli.options import DEFAULT_URL, Json, TokenFile, Url
from cfs.cli.screen import has_colours, show

if TYPE_CHECKING:
    from cfs.cli.checks import Check

app = typer.Typer(add_completion=False)

_MARKS = {"ok": ("ok", typer.colors.GREEN), "warning": ("--", typer.colors.YELLOW), "error": ("!!", typer.colors.RED)}


@app.command()
def doctor(as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Check this machine, the installation and the server, and say what to do about what is missing.

    The exit code is 0 if everything is there that `cfs serve` needs; what is only missing for other things is marked
    but no error.
    """
    found = []
    for check in _checks(url, token_file):
        found.append(check)
        if not as_json:
            show(_line(check))
    healthy = all(check.status != "error" for check in found)
    if as_json:
        show(json.dumps({"ok": healthy, "checks": [asdict(check) for check in found]}, ensure_ascii=False) + "\n")
    if not healthy:
        raise typer.Exit(REFUSED)


def _checks(url: str, token_file: Path | None) -> Iterator["Check"]:
    from importlib.metadata import entry_points

    from cfs.cli import machine, reachable
    from cfs.cli.checks import GROUP, needed

    yield from machine.machine_checks()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            checks = entry.load()
        except ImportError as error:
            yield needed(entry.name, str(error), f"pip install 'cfs-local[{entry.name}]'")
            continue
        yield from checks()
    yield from reachable.server_checks(url, token_file)


def _line(check: "Check") -> str:
    mark, colour = _MARKS[check.status]
    shown = typer.style(mark, fg=colour, bold=True) if has_colours(sys.stdout) else mark
    advice = f"\n{'':22}-> {check.advice}" if check.advice else ""
    return f"{shown} {check.name:<18} {check.found}{advice}\n"
