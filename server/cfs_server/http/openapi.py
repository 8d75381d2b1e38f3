"""Completes the OpenAPI document: bodies that routes read themselves, headers and all errors (H5)."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cfs import wire
from cfs.completions import TextPart
from cfs.errors import TABLE, UPSTREAM_STATUSES, CfsError, UpstreamRefused
from cfs_server.http.errors import MEDIA_TYPE
from cfs_server.protocols.errors import protocol_at

_REF = "#/components/schemas/{model}"
_WRITTEN_BY_NAME: tuple[type[BaseModel], ...] = (TextPart,)
"""Models that the schema of another model names in plain JSON."""
_TEXT = {"type": "string"}
_BYTES = {"type": "string", "format": "binary"}
_MEDIA = {
    "json": "application/json",
    "text": "text/plain",
    "bytes": "application/octet-stream",
    "events": "text/event-stream",
    "lines": "application/x-ndjson",
}
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

FILE_HEADERS = {name: _STATE_HEADERS[name] for name in ("ETag", "Last-Modified")}
LIST_HEADERS = {"ETag": _STATE_HEADERS["ETag"]}

_CHALLENGE = {"WWW-Authenticate": {"description": "What credentials it takes.", "schema": _TEXT}}

_ANYWHERE = (400, 401, 403, 429, 500)
"""Statuses that any request can get before it reaches its route."""

Responses = dict[int | str, dict[str, Any]]


Model = type[BaseModel]


class _Reference(dict[str, str]):
    """A reference to a model. It knows the model, so that the document contains what its routes name."""

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__({"$ref": _REF.format(model=model.__name__)})
        self.model = model


def schema(model: Model | tuple[Model, ...]) -> dict[str, Any]:
    """Return a reference to a wire model, or to one of several; their schemas become parts of the document."""
    return {"anyOf": list(map(_Reference, model))} if isinstance(model, tuple) else _Reference(model)


def problems(*kinds: type[CfsError]) -> Responses:
    """Document these errors and those that any request can cause."""
    answers: Responses = {}
    of_upstreams = UPSTREAM_STATUSES if UpstreamRefused in kinds else frozenset()
    for status in sorted({*_ANYWHERE, *(TABLE[kind].status for kind in kinds), *of_upstreams}):
        names = sorted(
            kind.title
            for kind, row in TABLE.items()
            if (row.status == status and (kind in kinds or status in _ANYWHERE))
            or (kind is UpstreamRefused and status in of_upstreams)
        )
        answers[status] = {
            "description": ", ".join(names),
            "content": {MEDIA_TYPE: {"schema": schema(wire.Problem)}},
            **({"headers": _CHALLENGE} if status == 401 else {}),
            **({"headers": _RETRY} if status in (429, 503) else {}),
        }
    return answers


def answer(
    description: str,
    *,
    state: bool = False,
    location: bool = False,
    headers: dict[str, Any] | None = None,
    **content: Model | tuple[Model, ...] | None,
) -> dict[str, Any]:
    """Document a success. `json=Model`, or None for `text`, `bytes`, `events` or `lines`, give its media types."""
    headers = dict(_STATE_HEADERS if state else headers or {})
    if location:
        headers["Location"] = {"description": "Path of the session.", "schema": _TEXT}
    response: dict[str, Any] = {"description": description}
    if content:
        plain = {"text": _TEXT, "bytes": _BYTES, "events": _EVENT, "lines": _TEXT}
        response["content"] = {
            _MEDIA[key]: {"schema": schema(model) if model else plain[key]} for key, model in content.items()
        }
    if headers:
        response["headers"] = headers
    return response


NOT_MODIFIED = {"description": "The client has this version already."}


def body(*, required: bool = True, **content: type[BaseModel] | None) -> dict[str, Any]:
    """Document a body that the route reads itself."""
    plain = {"text": _TEXT, "bytes": _BYTES}
    types = {_MEDIA[key]: {"schema": schema(model) if model else plain[key]} for key, model in content.items()}
    return {"requestBody": {"required": required, "content": types}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Create the document: FastAPI's, with the schemas of the wire models."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    models = dict.fromkeys((*_models_of(app), *_WRITTEN_BY_NAME))
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's; errors have the shape of `Problem` here
        schemas.pop(name, None)
    schemas.update(definitions["$defs"])
    put = document["paths"]["/v1/sessions/{id}/transcript"]["put"]
    put["requestBody"]["content"]["text/plain"]["schema"] = _TEXT | {"pattern": wire.TRANSCRIPT_PATTERN}
    for parameter in put["parameters"]:
        if parameter["name"] == "if-match":
            parameter["required"] = True  # the error for a missing one is 428
    for name, path in document["paths"].items():
        for operation in path.values():
            if protocol_at(name) is not None:
                operation["responses"].pop("422", None)  # the status there is 400
            elif operation["responses"].get("422", {}).get("description") == "Validation Error":
                del operation["responses"]["422"]  # FastAPI adds it for any parameter; the route does not send it
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
    return document


def _models_of(app: FastAPI) -> Iterator[type[BaseModel]]:
    for route in (context.original_route for context in iter_route_contexts(app.routes)):
        if isinstance(route, APIRoute) and route.include_in_schema:
            yield from _models_in([*route.responses.values(), route.openapi_extra])


def _models_in(value: Any) -> Iterator[type[BaseModel]]:
    if isinstance(value, _Reference):
        yield value.model
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _models_in(part)


def _without_null(definition: dict[str, Any]) -> dict[str, Any]:
    """Remove the null that FastAPI allows for optional parameters: URLs and headers have no null."""
    others = [kind for kind in definition.pop("anyOf", ()) if kind != {"type": "null"}]
    return definition | others[0] if others else definition
