"""Checks of a running server: reachable, ready, token accepted, engine (H6)."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cfs import api
from cfs.cli.base.checks import Check, fine, missing
from cfs.cli.base.connection import connect
from cfs.contract.errors import CfsError, Unreachable
from cfs.contract.wire import WhoAmI

if TYPE_CHECKING:
    from cfs.transports.http import Client

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
    description = (
        f"{model.get('name')}, context of {model.get('context_tokens') or 'unknown'} tokens, {template} a chat template"
    )
    return fine("ready", "; ".join([description, *model.get("notes", ())]))


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
    return {match["gauge"] or match["name"]: float(match["value"]) for match in _FIGURE.finditer(body.decode())}
