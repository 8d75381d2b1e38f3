"""A collector of OpenTelemetry: takes traces and metrics by OTLP/HTTP, and shows them as trees of spans."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return None if kind is None else getattr(value, kind)


def _attributes(pairs: Any) -> dict[str, Any]:
    given: list[KeyValue] = list(pairs)
    return {pair.key: _value(pair.value) for pair in given}


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it arrived."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    kind: int
    begin: int
    end: int
    failed: bool
    events: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(slots=True)
class Collector:
    """What has arrived."""

    url: str
    spans: list[Span] = field(default_factory=list)
    measured: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The attributes of each data point, by the name of the metric."""
    raw: bytes = b""
    """All bodies."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def environment(self, **more: str) -> dict[str, str]:
        """The variables that send a process's traces here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            **more,
        }

    def take(self, path: str, body: bytes) -> None:
        """Take a request of an exporter."""
        with self._changed:
            self.raw += body
            if path == "/v1/traces":
                self.spans += _spans(ExportTraceServiceRequest.FromString(body))
            else:
                assert path == "/v1/metrics"
                for name, attributes in _points(ExportMetricsServiceRequest.FromString(body)):
                    self.measured.setdefault(name, []).append(attributes)
            self._changed.notify_all()

    def until(self, *names: str, trace: str | None = None) -> list[Span]:
        """Wait until spans of these names have arrived, each as often as it is named; return all, or a trace's."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: not self._missing(names, trace), 60)
            assert arrived, f"{self._missing(names, trace)} did not arrive"
            return self._of(trace)

    def _missing(self, names: Iterable[str], trace: str | None) -> Counter[str]:
        return Counter(names) - Counter(span.name for span in self._of(trace))

    def _of(self, trace: str | None) -> list[Span]:
        return [span for span in self.spans if trace in (None, span.trace)]

    def until_measured(self, *names: str, **attributes: str) -> None:
        """Wait until these metrics have arrived, each with these attributes."""

        def arrived() -> bool:
            points = (self.measured.get(name, ()) for name in names)
            return all(any(attributes.items() <= point.items() for point in each) for each in points)

        with self._changed:
            assert self._changed.wait_for(arrived, 60), self.measured.keys()


def one(spans: list[Span], name: str, service: str | None = None) -> Span:
    """Return the only span of a name."""
    found = [span for span in spans if span.name == name and service in (None, span.service)]
    assert len(found) == 1, f"{len(found)} spans are called {name}: {sorted(span.name for span in spans)}"
    return found[0]


def above(spans: list[Span], span: Span) -> list[str]:
    """Return the names of the spans above one, from its parent to the root."""
    by_id = {each.id: each for each in spans}
    names = []
    while span.parent in by_id:
        span = by_id[span.parent]
        names.append(span.name)
    return names


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes)["service.name"]
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Span(
                span.name,
                service,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.kind,
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                span.status.code == span.status.STATUS_CODE_ERROR,
                tuple(event.name for event in span.events),
                _attributes(span.attributes),
            )


def _points(request: ExportMetricsServiceRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    for resource in request.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.histogram.data_points:
                yield metric.name, _attributes(point.attributes)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
