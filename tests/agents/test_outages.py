"""Outages are waited out: real servers that are killed, a proxy that refuses, agents as processes."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from cfs import api
from cfs.errors import SessionDeleted
from cfs.transports.async_http import AsyncClient
from cfs_agents.loop.retries import Outages, Retries
from cfs_agents.main.testing import says
from cfs_agents.tree import server_sessions
from cfs_agents.tree.fibre import FibreAgent
from outages import ANSWER, Case, Fault, Kind, Proxy, Result, Upstream, cases, measure, serving
from tests.agents.fibre.trees import ScriptedModels, finish, late, spawn, tree, wait
from tests.client.terminal import Running
from tests.fork_server import Program
from tests.pacing.clock import Clock
from tests.server.support import CFS, ServerHarness, environment, until

T = TypeVar("T")


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """A model that plays the scripts of the benchmark."""
    upstream = Upstream(pause=0.01)
    yield upstream
    upstream.close()


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmark start `cfs` as tests do."""
    monkeypatch.setattr(subprocess, "Popen", Program)


def wrong(result: Result) -> list[str]:
    """What a task that met an outage should not have done."""
    return [*result.problems, *(["a command was run twice"] if result.twice else [])]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tasks_finish_through_outages_and_restarts_of_the_server() -> None:
    """Three outages and two restarts; in one case the agent is killed, too."""
    results = measure(cases(3, 2, 4.0, seed=3), parallel=3)
    assert [wrong(result) for result in results] == [[]] * 5
    assert all(result.finished for result in results)


@pytest.mark.external
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["run", "serve"])
def test_a_model_that_is_away_is_waited_for(kind: Kind) -> None:
    """Longer than all retries of the server and the agent together take, where none is an outage."""
    (result,) = measure([Case(f"model-{kind}", "upstream", kind, 0.5, 40.0, killed=False)], parallel=1)
    assert (wrong(result), result.finished) == ([], True)


@pytest.mark.external
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "kept"),
    [("outage", False), ("kill -9", True), pytest.param("kill -9", False, marks=pytest.mark.slow)],
)
def test_a_tree_survives(fault: Fault, kept: bool) -> None:
    """A server that comes back without sessions gets them again, each message once; with them all just goes on."""
    case = Case(f"tree-{fault[:4]}", fault, "serve", 1.0, 1.5, killed=kept, kept=kept)
    (result,) = measure([case], parallel=1)
    assert (wrong(result), result.finished) == ([], True)


async def test_the_time_of_an_outage_is_not_that_of_a_child(
    tmp_path: Path, server: ServerHarness, clock: Clock
) -> None:
    """Its minute is not over, though the server is away for two before it has its task."""
    began, over = asyncio.Event(), asyncio.Event()
    retries = Retries(first=0.1, outages=Outages(lambda _: began.set(), over.set))
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    scripted = ScriptedModels(main=[late(spawn("a", timeout=60.0)), wait("a"), says("ok")], a=[finish("done")])
    async with tree(tmp_path, scripted, proxy.url, retries) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        proxy.cut()
        scripted.clock.advance(5)
        await began.wait()
        clock.advance(120)
        proxy.mend()
        await over.wait()
        assert (await working).summary == "ok"
        child = agent.agents["a"].report
    assert child is not None
    assert child.status == "success", child
    assert retries.outages.seconds >= 120


class CountingClient(AsyncClient):
    """Counts the claims that have been answered."""

    claims = 0

    async def call(self, call: api.Call[T], *, idempotency_key: str | None = None) -> T:
        """Make a call."""
        try:
            return await super().call(call, idempotency_key=idempotency_key)
        finally:
            self.claims += call.request.path.endswith("/claim")


async def test_a_claim_that_found_nothing_is_followed_by_one_that_may(
    server: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent holds the session for longer than one claim waits: once the first answer came again for ever."""
    monkeypatch.setattr(server_sessions, "_CLAIM_SECONDS", 0.02)
    await server.create("a", driver="agent")
    await server.say("a", "first")
    held = (await server.client.post("/v1/sessions/a/claim", json={"lease": 300})).json()
    async with CountingClient(server.url) as client:
        turn = asyncio.create_task(server_sessions.ServerSessions(client).begin("a", "second", lambda _: None))
        await until(lambda: client.claims >= 3)
        end = {"claim": held["claim"], "reply": "done"}
        (await server.client.post(f"/v1/sessions/a/turns/{held['turn']}/finish", json=end)).raise_for_status()
        assert (await turn).content == "second"


def test_serve_waits_for_a_server_that_is_not_there_yet(upstream: Upstream, tmp_path: Path) -> None:
    """It says so once, and ends at once when it is told to."""
    with serving(upstream) as server:
        server.stop()
        with Running(server.url, "agent", "serve", "--session", "early", "--root", str(tmp_path)) as running:
            errors = running.process.stderr
            assert errors is not None
            assert errors.readline().startswith(b"[waiting for the server: no server answers at")
            server.start()
            assert errors.readline() == b"[the server answers again]\n"
            assert errors.readline() == b"[an agent answers in early; Ctrl-C ends it]\n"
            server.stop()
            assert errors.readline().startswith(b"[waiting for the server: ")
            running.process.send_signal(signal.SIGTERM)
            assert running.end()[0] == 130
            server.start()  # for the block's end


@pytest.mark.timeout(300)
def test_when_patience_is_over_the_task_can_be_resumed(upstream: Upstream, tmp_path: Path) -> None:
    """The outage is reported, nothing has failed, and the command that was run is not run again."""

    def resume(*more: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(CFS),
            "agent",
            "resume",
            "tired",
            "--root",
            str(tmp_path),
            "--url",
            server.url,
            "--commands",
            "host",
            *more,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)

    with serving(upstream) as server:
        flags = ("--session", "tired", "--root", str(tmp_path), "--commands", "host")
        with Running(server.url, "agent", "serve", *flags) as running:
            assert running.process.stderr is not None
            running.process.stderr.readline()
            httpx.post(f"{server.url}/v1/sessions/tired/messages", json={"content": "TASK tired serve"}, timeout=60)
            running.until("execute_command: [exit status 0")
            running.process.kill()
        server.stop()
        ended = resume("--patience", "1s")
        assert ended.returncode != 0
        assert "what was done is kept: `cfs agent resume` continues it" in ended.stderr
        assert ended.stderr.count("[waiting for") == 1
        server.start()
        ended = resume()
        assert ended.returncode == 0, ended.stderr
        assert ANSWER in ended.stdout
        lines = (tmp_path / "tired/agent_workspace/effects").read_text().splitlines()
        assert sorted(lines) == sorted(set(lines))
        history = httpx.get(f"{server.url}/v1/sessions/tired", timeout=60).json()["history"]
        assert [each["content"] for each in history if each["role"] == "user"] == ["TASK tired serve"]


@pytest.mark.timeout(300)
def test_readers_that_leave_do_not_use_up_the_upstream(upstream: Upstream) -> None:
    """Each outage of agents once left a connection to the upstream open for good, until there was none left."""

    def ask(task: str, pieces: int) -> str:
        body = {"messages": [{"role": "user", "content": f"TASK {task} run"}], "stream": True}
        found = ""
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for number, text in enumerate(answer.iter_text()):
                found += text
                if number == pieces:
                    break
        return found

    with serving(upstream) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        for number in range(15):
            ask(f"left{number}", 1)
        assert "[DONE]" in ask("heard", 1000)


class DeletingClient(AsyncClient):
    """Deletes the session `unwanted` after so many answers."""

    answers = 0

    async def call(self, call: api.Call[T], *, idempotency_key: str | None = None) -> T:
        """Make a call."""
        answer = await super().call(call, idempotency_key=idempotency_key)
        self.answers -= 1
        if self.answers == 0:
            await super().call(api.delete("unwanted"))
        return answer


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_session_that_is_deleted_while_its_agent_attaches_is_not_made_anew(
    server: ServerHarness, tmp_path: Path, answers: int
) -> None:
    """After each of the requests by which it attaches."""
    async with (
        DeletingClient(server.url) as client,
        FibreAgent(tmp_path, ScriptedModels(), session="unwanted", client=client) as agent,
    ):
        await agent.attach()
        client.answers = answers
        with pytest.raises(SessionDeleted, match=r"move .* away"):
            async for _ in agent.serve():
                pass
    assert (await server.client.get("/v1/sessions/unwanted")).status_code == 404


def test_a_deleted_session_is_not_made_anew(upstream: Upstream, tmp_path: Path) -> None:
    """That it is gone is no outage: it was deleted on purpose."""
    with serving(upstream) as server:
        flags = ("--session", "unwanted", "--root", str(tmp_path))
        with Running(server.url, "agent", "serve", *flags) as running:
            assert running.process.stderr is not None
            running.process.stderr.readline()
            httpx.delete(f"{server.url}/v1/sessions/unwanted", timeout=60).raise_for_status()
            code, _, errors = running.end()
        assert (code, "has been deleted" in errors) == (1, True), errors
        assert httpx.get(f"{server.url}/v1/sessions/unwanted", timeout=60).status_code == 404
