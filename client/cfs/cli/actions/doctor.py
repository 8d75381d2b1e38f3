"""`cfs doctor`: check the machine, the installation and the server."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path

import typer

from cfs.cli.actions.machine_checks import machine_checks
from cfs.cli.actions.server_checks import server_checks
from cfs.cli.base.checks import GROUP, Check, needed
from cfs.cli.base.exit_codes import REFUSED
from cfs.cli.base.output import has_colours, show, visible

_MARKS = {"ok": ("ok", typer.colors.GREEN), "warning": ("--", typer.colors.YELLOW), "error": ("!!", typer.colors.RED)}


def run(url: str, token_file: Path | None, *, as_json: bool) -> None:
    """Print every check; exits with `REFUSED` when something is missing that `cfs serve` needs."""
    checks = []
    for check in _checks(url, token_file):
        checks.append(check)
        if not as_json:
            typer.echo(_line(check), nl=False, color=has_colours(sys.stdout))
    healthy = all(check.status != "error" for check in checks)
    if as_json:
        show(json.dumps({"ok": healthy, "checks": [asdict(check) for check in checks]}, ensure_ascii=False) + "\n")
    if not healthy:
        raise typer.Exit(REFUSED)


def _checks(url: str, token_file: Path | None) -> Iterator[Check]:
    yield from machine_checks()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            checks = entry.load()
        except ImportError as error:
            yield needed(entry.name, str(error), f"pip install 'cfs-local[{entry.name}]'")
            continue
        yield from checks()
    yield from server_checks(url, token_file)


def _line(check: Check) -> str:
    mark, colour = _MARKS[check.status]
    label = typer.style(mark, fg=colour, bold=True) if has_colours(sys.stdout) else mark
    advice = f"\n{'':22}-> {check.advice}" if check.advice else ""
    return f"{label} {visible(f'{check.name:<18} {check.found}{advice}')}\n"
