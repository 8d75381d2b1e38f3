"""What a server sends to a collector of OpenTelemetry, and that it sends nothing unless told to."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import make_random_gguf
from tests.collector import Collector, above, collecting, one
from tests.server.support import Process, environment, run_cfs, serving

ROOT = Path(__file__).parent.parent.parent
TRACE, OTHER_TRACE, THIRD_TRACE, FOURTH_TRACE = (digit * 32 for digit in "1234")


def caller(trace: str) -> dict[str, str]:
    """The header of a program that traces itself."""
    return {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(collector: Collector) -> Iterator[Process]:
    """A server with the embedded model, whose worker is a process of its own."""
    with serving("--log-level", "error", **collector.environment()) as process:
        yield process


def post(server: Process, path: str, **more: object) -> httpx.Response:
    return httpx.post(server.url + path, timeout=60, trust_env=False, **more)  # type: ignore[arg-type]


def test_a_turn_belongs_to_the_trace_of_its_request(server: Process, collector: Collector) -> None:
    """Down to the phases of the worker, which take the time of the generation, one after the other."""
    answer = post(
        server, "/v1/sessions/traced/messages", params={"wait": "true"}, content=b"Hello", headers=caller(TRACE)
    )
    usage = answer.json()["usage"]
    spans = collector.until("turn", "decode", "POST /v1/sessions/{id}/messages", trace=TRACE)
    decode = one(spans, "decode")
    model = one(spans, "chat cfs-demo")
    assert above(spans, decode) == ["chat cfs-demo", "turn", "POST /v1/sessions/{id}/messages"]
    request, turn = one(spans, "POST /v1/sessions/{id}/messages"), one(spans, "turn")
    assert request.parent == "b7ad6b7169203331"
    assert request.attributes["http.response.status_code"] == 200
    assert turn.attributes["gen_ai.conversation.id"] == "traced"
    assert turn.events == ("turn.started",)
    assert model.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert model.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert model.attributes["gen_ai.request.model"] == "cfs-demo"
    phases = [one(spans, name) for name in ("queue", "prefill", "decode")]
    assert [span.parent for span in phases] == [model.id] * 3
    assert [span.begin for span in phases] == [model.begin, phases[0].end, phases[1].end]


def test_a_completion_without_a_session_is_traced(server: Process, collector: Collector) -> None:
    """The model's work is below the request."""
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    assert post(server, "/v1/chat/completions", json=body).is_success
    spans = collector.until("POST /v1/chat/completions")
    request = one(spans, "POST /v1/chat/completions")
    assert [span.name for span in spans if span.parent == request.id] == ["chat cfs-demo"]


def test_embeddings_are_traced(collector: Collector, tmp_path: Path) -> None:
    """Below their request, with counts and without the texts; a refusal is marked."""
    model = make_random_gguf.make(tmp_path / "encoder.gguf", "encoder", pooling="mean")
    settings = ("--model", str(model), "--log-level", "error")
    with serving(*settings, **collector.environment()) as process:
        for text, trace in (("strawberry", THIRD_TRACE), ("strawberry " * 4000, FOURTH_TRACE)):
            answer = post(process, "/v1/embeddings", json={"input": [text]}, headers=caller(trace))
            assert answer.is_success == (trace == THIRD_TRACE)
        spans = collector.until("POST /v1/embeddings", "embeddings encoder", trace=THIRD_TRACE)
        failed = one(collector.until("embeddings encoder", trace=FOURTH_TRACE), "embeddings encoder")
    made = one(spans, "embeddings encoder")
    assert above(spans, made) == ["POST /v1/embeddings"]
    assert made.attributes["gen_ai.operation.name"] == "embeddings"
    assert made.attributes["gen_ai.usage.input_tokens"] == len("strawberry") + 2
    assert made.attributes["gen_ai.embeddings.dimension.count"] == 64
    assert made.attributes["cfs.texts"] == 1
    assert (failed.failed, failed.attributes["error.type"]) == (True, "ContextTooLong")
    assert b"strawberry" not in collector.raw


def test_a_failure_is_marked_and_not_quoted(server: Process, collector: Collector) -> None:
    """The class of the error is in the span, its text is not."""
    long = "strawberry " * 4000
    settings = {"overflow": "error"}
    httpx.post(f"{server.url}/v1/sessions", json={"id": "full", "settings": settings}, trust_env=False, timeout=60)
    post(
        server,
        "/v1/sessions/full/messages",
        params={"wait": "true"},
        content=long.encode(),
        headers=caller(OTHER_TRACE),
    )
    spans = collector.until("chat cfs-demo", "turn", trace=OTHER_TRACE)
    failed = {span.name: span.attributes["error.type"] for span in spans if span.failed}
    assert failed == {"turn": "turn_failed", "chat cfs-demo": "ContextTooLong"}
    assert b"strawberry" not in collector.raw


def test_the_server_measures_by_the_conventions(server: Process, collector: Collector) -> None:
    """The histograms arrive with the model's name and no content."""
    post(server, "/v1/sessions/measured/messages", params={"wait": "true"}, content=b"Hello")
    names = [f"gen_ai.server.{name}" for name in ("request.duration", "time_to_first_token", "time_per_output_token")]
    collector.until_measured(*names, "http.server.request.duration")
    assert {each.get("gen_ai.request.model") for each in collector.measured[names[1]]} == {"cfs-demo"}


def test_reading_is_traced_for_callers_that_trace(server: Process, collector: Collector) -> None:
    """A poll of the dashboard fills no trace; a read of a program that traces itself is a part of it."""
    for headers in ({}, caller(TRACE)):
        httpx.get(f"{server.url}/v1/sessions", headers=headers, trust_env=False, timeout=60)
    post(server, "/v1/sessions/last/messages", content=b"Hello")
    spans = collector.until("GET /v1/sessions")
    assert [span.trace for span in spans if span.name == "GET /v1/sessions"] == [TRACE]


def test_an_upstream_belongs_to_the_trace_of_the_turn(collector: Collector) -> None:
    """Here it is a server of the same kind, which says what it does with the request."""
    scripted, quiet = ("--engine", "scripted"), ("--log-level", "error")
    with (
        serving(*scripted, *quiet, **collector.environment(OTEL_SERVICE_NAME="upstream")) as upstream,
        serving("--upstream", f"{upstream.url}/v1", *quiet, **collector.environment()) as server,
    ):
        path, told = "/v1/sessions/far/messages", {"params": {"wait": "true"}, "headers": caller(THIRD_TRACE)}
        assert post(server, path, content=b"hello there", **told).json()["reply"] == "hello there"
        names = (
            "turn",
            "POST /v1/sessions/{id}/messages",
            "POST /v1/chat/completions",
            "chat scripted",
            "chat scripted",
        )
        spans = collector.until(*names, trace=THIRD_TRACE)
    asked = one(spans, "POST /v1/chat/completions", "upstream")
    assert above(spans, asked) == ["chat scripted", "turn", "POST /v1/sessions/{id}/messages"]


def test_a_server_without_a_collector_ends_as_always() -> None:
    """An address where nobody listens costs neither an answer nor the exit code."""
    with serving("--engine", "scripted", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") as server:
        assert post(server, "/v1/sessions/a/messages", params={"wait": "true"}, content=b"hi").json()["reply"] == "hi"
        server.signal()
        assert server.ended()[0] == 0


def test_nothing_is_imported_unless_it_is_configured() -> None:
    """Neither by the SDK, nor by the server, whose framework brings the interface only."""
    for imported in ("cfs, cfs.transports.http, cfs_agents.main.runner", "cfs_server.main.serve"):
        code = f"import sys, {imported}; print(*[name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == ""


def test_a_wrong_configuration_is_refused_in_one_line(collector: Collector) -> None:
    """A protocol that is not spoken, and a missing extra."""
    refused = run_cfs("serve", "--engine", "scripted", **collector.environment(OTEL_EXPORTER_OTLP_PROTOCOL="grpc"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines()[-1] == (
        "cfs: OTEL_EXPORTER_OTLP_PROTOCOL=grpc: traces are sent by http/protobuf only"
    )
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; "
        " sys.argv = ['cfs', 'serve', '--engine', 'scripted']; from cfs.cli import main; main()"
    )
    missing = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**collector.environment()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 2
    assert missing.stderr.splitlines()[-1].endswith("OpenTelemetry is not installed: pip install 'cfs-local[otel]'")


@pytest.mark.parametrize(
    "off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}]
)
def test_the_standard_switches_turn_it_off(off: dict[str, str]) -> None:
    """Nothing is sent to a collector that the environment names all the same."""
    with collecting() as collector, serving("--engine", "scripted", **collector.environment(**off)) as server:
        post(server, "/v1/sessions/a/messages", params={"wait": "true"}, content=b"hi")
        server.signal()
        assert server.ended()[0] == 0
        assert collector.raw == b""


def test_the_first_request_of_a_program_that_traces_waits_for_no_file() -> None:
    """In a process of its own, because the first request counts; blocking its loop would be an error."""
    code = """
import asyncio
import importlib_metadata  # the watch lets the finder of the standard library block
import opentelemetry.sdk.trace
from tests.server.support import running_server

async def main():
    async with running_server() as server:
        print((await server.client.post("/v1/sessions", json={"id": "a"})).status_code)

asyncio.run(main())
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert found.stdout.splitlines()[-1:] == ["201"], found.stdout + found.stderr
