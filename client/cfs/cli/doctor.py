"""`cfs doctor`: check the machine, the installation and the server."""

import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import typer

from cfs import api
from cfs.cli.app import REFUSED, connect, has_colours, show, visible
from cfs.errors import CfsError, Unreachable
from cfs.wire import WhoAmI

if TYPE_CHECKING:
    from cfs.transports.http import Client


# Checks
#
# A package adds checks through an entry point of the group `cfs.checks`: a function that yields them.

GROUP = "cfs.checks"

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: an `error` prevents `cfs serve`, a `warning` affects something else."""

    name: str
    status: Status
    found: str
    advice: str = ""


Checks = Callable[[], Iterable[Check]]


def fine(name: str, found: str) -> Check:
    """Report a passed check."""
    return Check(name, "ok", found)


def missing(name: str, found: str, advice: str) -> Check:
    """Report a problem that does not affect `cfs serve`."""
    return Check(name, "warning", found, advice)


def needed(name: str, found: str, advice: str) -> Check:
    """Report a problem that prevents `cfs serve`."""
    return Check(name, "error", found, advice)


# Checks of a running server: reachable, ready, token accepted, engine (H6)

T = TypeVar("T")

_SECONDS = 5.0
_FIGURE = re.compile(r'^cfs_engine_(?:gauge\{name="(?P<gauge>\w+)"\}|(?P<name>\w+)) (?P<value>\S+)$', re.MULTILINE)
_SHOWN = ("cells_total", "cells_used", "running", "waiting", "sequences_resident", "tokens_generated_total")


def server_checks(url: str, token_file: Path | None) -> Iterator[Check]:
    """Check the server's public endpoints, and those that need a token."""
    try:
        with connect(url, token_file, timeout=_SECONDS) as client:
            try:
                client.call(_get("/healthz", bytes))
            except Unreachable:
                yield missing(
                    "server", f"no server answers at {url}", "start one with `cfs serve`, or set --url or CFS_URL"
                )
                return
            yield fine("server", url)
            for check in (_ready, _token, _engine):
                yield check(client)
    except (CfsError, typer.BadParameter) as error:
        reason = error.detail if isinstance(error, CfsError) else error.message
        yield missing("server", f"{url}: {reason}", "is this the URL of a CFS server?")


def _get(path: str, read: Callable[[bytes], T]) -> api.Call[T]:
    return api.Call(api.Request("GET", path), lambda answer: read(answer.body))


def _ready(client: "Client") -> Check:
    try:
        model = client.call(_get("/readyz", _model_of))
    except CfsError as error:
        return missing("ready", error.detail, "wait, or see the server's log")
    template = "with" if model.get("has_chat_template") else "without"
    found = (
        f"{model.get('name')}, context of {model.get('context_tokens') or 'unknown'} tokens, {template} a chat template"
    )
    return fine("ready", "; ".join([found, *model.get("notes", ())]))


def _model_of(body: bytes) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(body)["model"] or {}
    return model


def _token(client: "Client") -> Check:
    try:
        me = client.call(_get("/v1/whoami", WhoAmI.model_validate_json))
    except CfsError as error:
        return missing("token", error.detail, "set CFS_TOKEN or --token-file; `cfs token create` makes one")
    grants = ", ".join(f"{grant.prefix} ({' '.join(grant.ops)})" for grant in me.grants)
    return fine("token", f"you are {me.name} and may use {grants or 'nothing'}")


def _engine(client: "Client") -> Check:
    try:
        figures = client.call(_get("/metrics", _figures_of))
    except CfsError as error:
        return missing("engine", error.detail, "a token that may list '/' is needed to see the engine's metrics")
    return fine(
        "engine", ", ".join(f"{name.replace('_', ' ')} {figures[name]:g}" for name in _SHOWN if name in figures)
    )


def _figures_of(body: bytes) -> dict[str, float]:
    return {found["gauge"] or found["name"]: float(found["value"]) for found in _FIGURE.finditer(body.decode())}


# Checks of this machine: Python, packages, davfs2, disk space, mounting (C10)

_DISTRIBUTION = "cfs-local"
_EXTRAS = {"server": "cfs serve", "fuse": "cfs mount", "webdav": "/dav", "agents": "cfs agent"}
_NEEDED_EXTRAS = {"server"}
_PYTHON = (3, 11)
_LEAST_BYTES = 1 << 30


def machine_checks() -> Iterator[Check]:
    """Run all checks of this machine."""
    yield _python()
    yield from map(_extra, _EXTRAS)
    yield _davfs()
    yield _disk()


def mount_obstacle() -> str | None:
    """Return in one line why this machine cannot mount; None if it can."""
    for entry in entry_points(group=GROUP, name="fuse"):
        try:
            found = entry.load()()
        except ImportError as error:
            return f"{error}: pip install '{_DISTRIBUTION}[fuse]'"
        return next((f"{check.found}: {check.advice}" for check in found if check.status != "ok"), None)
    return "this installation has no `cfs mount`"


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _PYTHON:
        return needed("Python", found, "CFS needs Python 3.11 or newer")
    return fine("Python", found)


def _extra(name: str) -> Check:
    """Return whether the packages of an extra are installed, by their metadata, without importing them."""
    what = f"packages for {_EXTRAS[name]}"
    lacking = [package for package in _packages(name) if not _is_installed(package)]
    if not lacking:
        return fine(what, "installed")
    advice = f"pip install '{_DISTRIBUTION}[{name}]'"
    report = needed if name in _NEEDED_EXTRAS else missing
    return report(what, f"{', '.join(lacking)} not installed", advice)


def _packages(extra: str) -> list[str]:
    found = []
    for requirement in requires(_DISTRIBUTION) or ():
        package, _, marker = requirement.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", package)
        if name and re.search(rf"extra == ['\"]{extra}['\"]", marker) and "sys_platform" not in marker:
            found.append(name[0])
    return found


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _davfs() -> Check:
    path = shutil.which("mount.davfs") or shutil.which("mount.davfs", path="/sbin:/usr/sbin")
    if path:
        return fine("davfs2", path)
    return missing("davfs2", "not found", "install davfs2 if you want to mount over WebDAV instead of FUSE")


def _disk() -> Check:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    found = f"{free / (1 << 30):.1f} GiB free in {folder}"
    if free < _LEAST_BYTES:
        return missing("disk space", found, "free some space: programs put large files there")
    return fine("disk space", found)


_MARKS = {"ok": ("ok", typer.colors.GREEN), "warning": ("--", typer.colors.YELLOW), "error": ("!!", typer.colors.RED)}


def run(url: str, token_file: Path | None, *, as_json: bool) -> None:
    """Print every check; exits with `REFUSED` when something is missing that `cfs serve` needs."""
    found = []
    for check in _checks(url, token_file):
        found.append(check)
        if not as_json:
            typer.echo(_line(check), nl=False, color=has_colours(sys.stdout))
    healthy = all(check.status != "error" for check in found)
    if as_json:
        show(json.dumps({"ok": healthy, "checks": [asdict(check) for check in found]}, ensure_ascii=False) + "\n")
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
    shown = typer.style(mark, fg=colour, bold=True) if has_colours(sys.stdout) else mark
    advice = f"\n{'':22}-> {check.advice}" if check.advice else ""
    return f"{shown} {visible(f'{check.name:<18} {check.found}{advice}')}\n"
