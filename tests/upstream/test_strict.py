"""No refusal ends a session: 200 steps of everything that makes odd histories, at servers that refuse odd ones (E4)."""

import itertools
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models.support import KEY_VARIABLE, models_file, upstream
from tests.server.support import Process, serving
from tests.upstream.anthropic_stub import AnthropicStub
from tests.upstream.strict_stub import strict_stubs
from tests.upstream.stub import KEY, Act, Refusal, Speech, Stub, served_aside

READ = {"type": "function", "function": {"name": "files.read", "parameters": {"type": "object", "properties": {}}}}
CALL = ("files.read", ('{"path": "a"}',))
OK = Speech(words=("fine",))
ROUNDS = 15


@dataclass
class Talk:
    """A session at a server, which can be killed, and the upstreams behind it."""

    folder: Path
    stubs: dict[str, Stub]
    stack: ExitStack
    process: Process
    client: httpx.Client
    session: str = "s0"
    model: str = ""
    replies: int = 0

    @property
    def route(self) -> str:
        """The address of the session."""
        return f"/v1/sessions/{self.session}"

    def post(self, **body: Any) -> None:
        """Add a message without a reply."""
        self.client.post(f"{self.route}/messages", json=body).raise_for_status()

    def ask(self, *acts: Act, fails: bool = False, **body: Any) -> dict[str, Any]:
        """Add a message, let the upstream act, and check that it replies, unless it `fails`."""
        self.stubs[self.model].acts.extend(acts)
        answer = self.client.post(f"{self.route}/messages", params={"wait": "true"}, json=body)
        answer.raise_for_status()
        reply: dict[str, Any] = answer.json()
        assert ("[Error" in reply["reply"]) is fails, (self.model, body, reply)
        self.replies += not fails
        return reply

    def begin(self) -> None:
        """Begin a turn that does not end by itself, and wait for its first text."""
        stub = self.stubs[self.model]
        stub.acts.append(Speech(words=("on ",) * 100_000))
        stub.pace = 0.01
        body = {"content": "go on", "settings": {"max_tokens": 100_000}}
        event = self.client.post(f"{self.route}/messages", json=body).raise_for_status().json()["event"]
        with self.client.stream("GET", f"{self.route}/events", params={"after": event}) as events:
            next(line for line in events.iter_lines() if line == "event: token")
        stub.pace = 0.0

    def restart(self) -> None:
        """Kill the server within a turn, and start it again."""
        self.begin()
        self.process.signal(signal.SIGKILL)
        self.process.process.wait()
        self.client.close()
        self.process, self.client = started(self.stack, self.folder)
        self.client.post(f"{self.route}/cancel").raise_for_status()
        self.client.get(self.route, params={"wait": 30}).raise_for_status()


def started(stack: ExitStack, folder: Path) -> tuple[Process, httpx.Client]:
    """Start a server with the models of a folder, where it keeps its sessions."""
    flags = ("--models", str(folder / "models.toml"), "--upstream-retry-pause", "0.01")
    process = stack.enter_context(serving(*flags, **{KEY_VARIABLE: KEY, "CFS_DATA_DIR": str(folder)}))
    client = stack.enter_context(httpx.Client(base_url=process.url, timeout=60, trust_env=False))
    return process, client


@contextmanager
def talking(folder: Path) -> Iterator[Talk]:
    """Run a server in front of all strict servers."""
    stubs: dict[str, Stub] = {**strict_stubs(), "anthropic": AnthropicStub()}
    with ExitStack() as stack:
        tables = [
            upstream(
                name,
                stack.enter_context(served_aside(stub)),
                upstream_model="small-1",
                kind="anthropic" if isinstance(stub, AnthropicStub) else "openai",
            )
            for name, stub in stubs.items()
        ]
        models_file(folder, *tables)
        yield Talk(folder, stubs, stack, *started(stack, folder))


def say(talk: Talk) -> None:
    talk.ask(OK, content="a question")


def use_tool(talk: Talk) -> None:
    reply = talk.ask(Speech(words=(), calls=(CALL, CALL)), content="look", tools=[READ])
    first, second = reply["tool_calls"]
    assert {first["name"], second["name"]} == {"files.read"}
    talk.post(role="tool", content="", tool_call_id=first["id"])
    talk.ask(OK, role="tool", content="found", tool_call_id=second["id"], generate=True, tools=[READ])


def leave_call_open(talk: Talk) -> None:
    talk.ask(Speech(words=("I look.",), calls=(CALL, CALL)), content="look", tools=[READ])
    talk.ask(OK, content="never mind")


def interrupt_after_result(talk: Talk) -> None:
    reply = talk.ask(Speech(words=(), calls=(CALL,)), content="look", tools=[READ])
    talk.post(role="tool", content="found", tool_call_id=reply["tool_calls"][0]["id"])
    talk.ask(OK, content="wait", tools=[READ])


def add_notes(talk: Talk) -> None:
    talk.post(content="a note", generate=False)
    talk.post(content=" \n", generate=False)
    talk.post(role="assistant", content="from another program", thinking="Hm.")
    talk.ask(OK, content="a question")


def add_system(talk: Talk) -> None:
    talk.post(role="system", content="Be brief.")
    talk.ask(OK, content="a question")


def think_only(talk: Talk) -> None:
    talk.ask(Speech(words=(), thinking=("Hm.",)), content="think")
    talk.ask(OK, content="and?")


def fail(talk: Talk) -> None:
    refusal = Refusal(500, message="the test wants it")
    talk.ask(refusal, refusal, refusal, content="fail", fails=True)
    talk.stubs[talk.model].acts.clear()  # the last one is for another form, if there is one
    talk.ask(OK, content="again")


def cancel(talk: Talk) -> None:
    talk.begin()
    talk.client.post(f"{talk.route}/cancel").raise_for_status()
    talk.ask(OK, content="stop")


def grow(talk: Talk) -> None:
    talk.ask(OK, content="word " * 120)


STEPS = (say, use_tool, leave_call_open, interrupt_after_result, add_notes, add_system, think_only, fail, cancel, grow)


@pytest.mark.timeout(120)
def test_no_session_ends_at_strict_servers(tmp_path: Path) -> None:
    """The session changes its provider with each round, is forked, and its server is killed."""
    with talking(tmp_path) as talk:
        models = itertools.cycle(talk.stubs)
        talk.client.post("/v1/sessions", json={"id": talk.session}).raise_for_status()
        for number in range(ROUNDS):
            talk.model = next(models)
            talk.client.patch(f"{talk.route}/settings", json={"model": talk.model}).raise_for_status()
            for step in STEPS[number % 3 :] + STEPS[: number % 3]:
                step(talk)
            if number % 5 == 4:
                talk.client.post(f"{talk.route}/fork", json={"id": f"s{number}"}).raise_for_status()
                talk.session = f"s{number}"
            if number == ROUNDS // 2:
                talk.restart()
        assert talk.replies >= 200
        history = talk.client.get(talk.route, params={"wait": 5}).json()["history"]
        assert "(no reply)" not in str(history)  # what is sent is not what is kept
