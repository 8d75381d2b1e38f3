"""One trace for a turn of an agent: its server, its model, its tools and its child, in processes of their own."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import SettingsPatch
from tests.agents.fibre.test_commands import call, family
from tests.client.terminal import Running
from tests.collector import Collector, Span, above, collecting, one
from tests.server.support import environment, serving

CAPTURE = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from cfs import api
from cfs.transports.http import Client
from cfs.wire import NewMessage

provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
with trace.get_tracer("program").start_as_current_span("work"), Client(sys.argv[2]) as client:
    client.call(api.post(sys.argv[1], NewMessage(content=sys.argv[3])))
"""
"""A user's program with a tracer of its own."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A server and an agent that send their spans to a collector."""

    url: str
    agent: Running
    collector: Collector

    def work(self, session: str, task: str) -> list[Span]:
        """Send a task from the user's program, and end it when the child has reported; return all spans."""
        subprocess.run(
            [sys.executable, "-c", PROGRAM, session, self.url, task],
            env=environment(**self.collector.environment()),
            check=True,
            timeout=60,
        )
        self.agent.until("= ")
        with Client(self.url) as client:
            client.call(api.cancel(session, queued=True, cascade=True))
        return self.collector.until("work", "turn", "turn", "invoke_agent child", f"invoke_agent {session}")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with collecting() as collector:
        env = collector.environment()
        root = str(tmp_path_factory.mktemp("trees"))
        with serving("--engine", "scripted", "--log-level", "error", **env) as server:
            with Client(server.url) as client:
                client.call(api.create("main", SettingsPatch(driver="agent")))
            with Running(server.url, "agent", "serve", "--session", "main", "--root", root, **env) as agent:
                yield Traced(server.url, agent, collector)


@pytest.fixture(scope="module")
def spans(traced: Traced) -> list[Span]:
    """All spans of one task with a child that writes a file."""
    return traced.work("main", family("child"))


def test_a_turn_with_a_child_is_one_trace(spans: list[Span]) -> None:
    """From the user's program to the file that the child writes, through two processes of ours."""
    work = one(spans, "work")
    written = one(spans, "execute_tool write_file")
    assert above(spans, written) == [
        "invoke_agent child",
        "turn",
        "POST /v1/sessions/{id}/messages",
        "execute_tool sys_spawn_agent",
        "invoke_agent main",
        "turn",
        "POST /v1/sessions/{id}/messages",
        "work",
    ]
    assert {span.trace for span in spans if span.name.startswith(("turn", "invoke", "execute", "chat"))} == {work.trace}


def test_a_call_of_the_model_leads_to_the_server_that_answers_it(spans: list[Span]) -> None:
    """The agent's span is the client's side, the server's is below its request."""
    below = [above(spans, span)[:4] for span in spans if span.name == "chat scripted"]
    for agent in ("main", "child"):
        assert ["POST /v1/chat/completions", "chat", f"invoke_agent {agent}", "turn"] in below


def test_spans_carry_what_the_conventions_name(spans: list[Span]) -> None:
    """Agents, tools, conversations, tokens."""
    child, written = one(spans, "invoke_agent child"), one(spans, "execute_tool write_file")
    assert child.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "cfs",
        "gen_ai.agent.name": "child",
        "gen_ai.conversation.id": "main/child",
    }
    assert written.attributes.pop("gen_ai.tool.call.id")
    assert written.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "write_file",
        "gen_ai.tool.type": "function",
    }
    asked = next(span for span in spans if span.name == "chat" and span.service == "cfs-agent")
    assert asked.kind == 3, "a client"
    assert asked.attributes["gen_ai.usage.input_tokens"] > 0
    assert asked.attributes["gen_ai.response.finish_reasons"] == ("tool_calls",)


def test_agents_measure_what_they_do(traced: Traced, spans: list[Span]) -> None:
    """The histograms of the conventions arrive, with their attributes."""
    names = ("gen_ai.client.token.usage", "gen_ai.client.operation.duration", "gen_ai.execute_tool.duration")
    traced.collector.until_measured(*names)
    traced.collector.until_measured(names[2], **{"gen_ai.tool.name": "write_file"})


def test_messages_are_in_no_span_unless_asked_for(traced: Traced, spans: list[Span], tmp_path: Path) -> None:
    """Neither task nor arguments nor results leave the processes; by the conventions' own setting they do."""
    assert spans
    assert not any(text in traced.collector.raw for text in (b"hello", b"<tool_call>", b"wrote it"))
    with collecting() as collector:
        env = collector.environment(**CAPTURE)
        with serving("--engine", "scripted", "--log-level", "error", **env) as server:
            arguments = ("agent", "run", call("write_file", path="secret.txt", content="x"), "--root", str(tmp_path))
            with Running(server.url, *arguments, **env) as agent:
                agent.end()
            found = collector.until("chat scripted", "execute_tool write_file")
    written = next(span for span in found if span.name == "execute_tool write_file")
    assert '"path": "secret.txt"' in written.attributes["gen_ai.tool.call.arguments"]
    assert "secret.txt" in written.attributes["gen_ai.tool.call.result"]
    said = next(span for span in found if span.name == "chat scripted")
    assert "secret.txt" in said.attributes["gen_ai.input.messages"]
