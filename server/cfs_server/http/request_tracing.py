"""What the server records of its requests for OpenTelemetry."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cfs.transports import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from starlette.types import Scope

_READING = frozenset({"GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT"})
_POLLS = ("/claim", "/update")
"""Ends of the paths by which agents ask for work and send each piece of it. Their own spans say more."""
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


@contextmanager
def request(scope: "Scope", path: str) -> Iterator["Span | None"]:
    """Record a request in a block, as part of the caller's trace if it names one.

    Requests that only read are recorded for callers that trace; agents' polls are not.
    """
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    reads = scope["method"] in _READING and "traceparent" not in headers
    if reads or (path.startswith("/v1/sessions/") and path.endswith(_POLLS)):
        yield None
        return
    address, port = scope.get("server") or (None, None)
    attributes = {
        "http.request.method": scope["method"],
        "url.scheme": scope.get("scheme"),
        "url.path": path,
        "network.protocol.version": scope.get("http_version"),
        "server.address": address,
        "server.port": port,
    }
    span = tracing.begin(scope["method"], attributes, kind="server", parent=headers)
    with tracing.active(span, ends=True):
        yield span


def answered(span: "Span | None", method: str, route: str, status: int, seconds: float, request_id: str) -> None:
    """Record the answer to a request. `route` is the pattern of its path, or `none`."""
    if span is not None:
        if route != "none":
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
        span.set_attributes({"http.response.status_code": status, "cfs.request.id": request_id})
        if status >= 500:
            tracing.fail(span, str(status))
    measured = {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    tracing.measure("http.server.request.duration", "s", _REQUEST_SECONDS, seconds, measured)
