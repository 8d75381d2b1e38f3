"""OpenTelemetry for a process: exports what it records, and passes the active trace on with requests.

Nothing of OpenTelemetry is imported here unless the environment names a collector. In a program that traces itself,
requests carry its active span, and agents record theirs with its provider.
"""

import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cfs.contract.errors import InvalidRequest
from cfs.contract.wire import Message

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.trace import Span, Tracer

T = TypeVar("T")
Attributes = Mapping[str, Any]
"""Attributes of a span or a measurement; those that are None are left out."""
Kind = Literal["internal", "server", "client"]

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNALS = ("TRACES", "METRICS")
_PROTOCOL = "http/protobuf"
_SCOPE = "cfs"
_STOP_SECONDS = 3.0
_VERSION = version("cfs-local")  # reads a file: the first request must not wait for it
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = frozenset({"true", "span_only", "span_and_event"})

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**power for power in range(14))
"""Bounds of histograms, as the conventions want them."""

_started: list[Any] = []
"""The providers that `start` has made."""
_histograms: dict[str, "Histogram"] = {}


def is_wanted() -> bool:
    """Return whether the environment names a collector."""
    return any(map(_exported, _SIGNALS))


def _exported(signal: str) -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return False
    return bool(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or os.environ.get(ENDPOINT))


def start(service: str) -> bool:
    """Export traces and metrics if the environment names a collector (`OTEL_*`). Returns whether it does.

    `service` is the name of this program unless the environment has another. Raises `InvalidRequest` if the extra is
    not installed, or for a protocol that it does not speak.
    """
    if not is_wanted() or _started:
        return bool(_started)
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", *(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL" for signal in _SIGNALS)):
        if (protocol := os.environ.get(name, "").strip().lower() or _PROTOCOL) != _PROTOCOL:
            raise InvalidRequest(f"{name}={protocol}: traces are sent by {_PROTOCOL} only")
    try:
        from opentelemetry import metrics, propagate, trace  # noqa: F401 - the first request must not wait for it
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidRequest(
            f"{ENDPOINT} is set, but OpenTelemetry is not installed: pip install 'cfs-local[otel]'"
        ) from None
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)  # it tells about every attempt
    ours = {"service.name": service, "service.version": _VERSION, "service.instance.id": str(uuid.uuid4())}
    named = OTELResourceDetector().detect().attributes
    resource = Resource.create({name: value for name, value in ours.items() if name not in named})
    if _exported("TRACES"):
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(traces)
        _started.append(traces)
    if _exported("METRICS"):
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        metrics.set_meter_provider(meters)
        _started.append(meters)
    return True


def stop() -> None:
    """Send what has not been sent, for a few seconds at most: a collector that is away must not delay the end."""
    last = threading.Thread(target=_shut_down, args=(list(_started),), daemon=True)
    if _started:
        _started.clear()
        last.start()
        last.join(_STOP_SECONDS)


def _shut_down(providers: list[Any]) -> None:
    for provider in providers:
        provider.shutdown()


def propagated() -> dict[str, str]:
    """Return the headers that name the active span (W3C Trace Context); empty without one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return {}
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def is_on() -> bool:
    """Return whether spans may be recorded here: by `start`, or by the program that imports this."""
    return "opentelemetry.sdk.trace" in sys.modules


def tracer() -> "Tracer | None":
    """Return the tracer; None if nothing is recorded."""
    if not is_on():
        return None
    from opentelemetry import trace

    return trace.get_tracer(_SCOPE, _VERSION)


def captures_content() -> bool:
    """Return whether spans hold texts of messages: never, unless the setting of the conventions says so."""
    return os.environ.get(_CONTENT, "").strip().lower() in _CAPTURING


def texts(messages: Sequence[Message]) -> str:
    """Return messages in the form of the conventions, as JSON."""
    return as_json([{"role": message.role, "parts": _parts(message)} for message in messages])


def as_json(value: object) -> str:
    """Return a value as an attribute: JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}]
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": dict(call.arguments)}
        for call in message.tool_calls
    ]
    return [*([{"type": "text", "content": message.content}] if message.content else []), *calls]


def begin(
    name: str,
    attributes: Attributes,
    *,
    kind: Kind = "internal",
    parent: "Mapping[str, str] | Span | None" = None,
    at: int | None = None,
) -> "Span | None":
    """Begin a span, and do not make it active; None if nothing is recorded.

    Its parent is the active span, a given one, or the one that headers name. `at` is its time in nanoseconds.
    """
    active = tracer()
    if active is None:
        return None
    from opentelemetry import propagate, trace

    context = None
    if isinstance(parent, Mapping):
        context = propagate.extract(parent)
    elif parent is not None:
        context = trace.set_span_in_context(parent)
    return active.start_span(name, context, trace.SpanKind[kind.upper()], known(attributes), start_time=at)


def headers_of(span: "Span") -> dict[str, str]:
    """Return the headers that name a span."""
    from opentelemetry import propagate, trace

    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(span))
    return headers


def fail(span: "Span | None", error: str) -> None:
    """Mark a span as failed. The text of an error is no part of it, because it may quote a message."""
    if span is not None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))


@contextmanager
def active(span: "Span | None", *, ends: bool = False) -> Iterator[None]:
    """Make a span the active one in a block. With `ends` the span ends with the block, and fails with its error."""
    if span is None:
        yield
        return
    from opentelemetry import trace

    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except Exception as error:
        if ends:
            fail(span, type(error).__name__)
        raise
    finally:
        if ends:
            span.end()


async def following(span: "Span | None", items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Yield from a generator in whose code the span is active, but not in the code between."""
    async with aclosing(items):
        while True:
            with active(span):
                item = await anext(items, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc]


_END = object()


def measure(name: str, unit: str, bounds: tuple[float, ...], value: float, attributes: Attributes) -> None:
    """Add a value to a histogram."""
    if not is_on():
        return
    if name not in _histograms:
        from opentelemetry import metrics

        meter = metrics.get_meter(_SCOPE, _VERSION)
        _histograms[name] = meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=bounds)
    _histograms[name].record(value, known(attributes))


def known(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
