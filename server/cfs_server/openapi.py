"""The OpenAPI document, true in every part (H5): bodies that routes read themselves, headers, every error."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cfs import wire
from cfs.errors import TABLE, CfsError
from cfs_server.errors import MEDIA_TYPE

_REF = "#/components/schemas/{model}"
_BODIES = (
    wire.NewSession,
    wire.NewMessage,
    wire.SettingsPatch,
    wire.CancelRequest,
    wire.ForkRequest,
    wire.RenameRequest,
    wire.ClaimRequest,
    wire.AgentUpdate,
    wire.AgentFinish,
    wire.Problem,
)
_TEXT = {"type": "string"}
_STATE_HEADERS = {
    "ETag": {"description": "Name of this version.", "schema": _TEXT},
    "Last-Modified": {"description": "When the session last changed.", "schema": _TEXT},
    "X-CFS-State": {
        "description": "What the session does now.",
        "schema": {"enum": ["idle", "generating", "waiting_for_agent"]},
    },
}
_EVENT = {
    "type": "object",
    "description": "One event of the stream.",
    "properties": {"id": _TEXT, "event": _TEXT, "data": _TEXT},
}
_RETRY = {"Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}}

_ANYWHERE = (400, 403, 500)
"""Statuses of what any request can meet before it reaches its route."""

Responses = dict[int | str, dict[str, Any]]


def schema(model: type[BaseModel]) -> dict[str, str]:
    """Refer to a wire model."""
    return {"$ref": _REF.format(model=model.__name__)}


def problems(*kinds: type[CfsError]) -> Responses:
    """Document errors, with those that any request can meet."""
    answers: Responses = {}
    for status in sorted({*_ANYWHERE, *(TABLE[kind].status for kind in kinds)}):
        names = sorted(
            kind.title for kind, row in TABLE.items() if row.status == status and (kind in kinds or status in _ANYWHERE)
        )
        answers[status] = {
            "description": ", ".join(names),
            "content": {MEDIA_TYPE: {"schema": schema(wire.Problem)}},
            **({"headers": _RETRY} if status in (429, 503) else {}),
        }
    return answers


def answer(
    description: str, *, state: bool = False, location: bool = False, **content: type[BaseModel] | None
) -> dict[str, Any]:
    """Document a success: `json=Model`, `text=None` or `events=None` name what it may be."""
    media = {"json": "application/json", "text": "text/plain", "events": "text/event-stream"}
    headers = dict(_STATE_HEADERS) if state else {}
    if location:
        headers["Location"] = {"description": "Path of the session.", "schema": _TEXT}
    found: dict[str, Any] = {"description": description}
    if content:
        plain = {"text": _TEXT, "events": _EVENT}
        found["content"] = {
            media[key]: {"schema": schema(model) if model else plain[key]} for key, model in content.items()
        }
    if headers:
        found["headers"] = headers
    return found


NOT_MODIFIED = {"description": "The client has this version already."}


def body(*, required: bool = True, **content: type[BaseModel] | None) -> dict[str, Any]:
    """Document a body that the route reads itself."""
    media = {"json": "application/json", "text": "text/plain"}
    types = {media[key]: {"schema": schema(model) if model else _TEXT} for key, model in content.items()}
    return {"requestBody": {"required": required, "content": types}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Make the document: FastAPI's, with the schemas of the wire models."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, definitions = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.clear()
    schemas.update(definitions["$defs"])
    put = document["paths"]["/v1/sessions/{id}/transcript"]["put"]
    put["requestBody"]["content"]["text/plain"]["schema"] = _TEXT | {"pattern": wire.TRANSCRIPT_PATTERN}
    for parameter in put["parameters"]:
        if parameter["name"] == "if-match":
            parameter["required"] = True  # its absence has an answer of its own: 428
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
    return document


def _without_null(found: dict[str, Any]) -> dict[str, Any]:
    """Take away the null that FastAPI allows for optional parameters: a URL or a header cannot say it."""
    others = [kind for kind in found.pop("anyOf", ()) if kind != {"type": "null"}]
    return found | others[0] if others else found


_MODELS = (
    *_BODIES,
    wire.SessionInfo,
    wire.SessionDetail,
    wire.SessionPage,
    wire.SessionTree,
    wire.Settings,
    wire.Accepted,
    wire.Reply,
    wire.Cancelled,
    wire.Claim,
)
