"""A client that leaves: whoever interrupts a program gets the next answer at once (H2, H4, S12).

The engine is held in most tests, so a turn that ends has been cancelled.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.engine.upstream.engine import UpstreamEngine
from tests.server.support import EVENTS, TEXT, EventStream, ServerHarness, running_server, serving, until
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import Speech, served
from tests.upstream.support import options

Members = dict[str, Any]
SAID: Members = {"messages": [{"role": "user", "content": "hello"}]}
PROTOCOLS: dict[str, Members] = {
    "/v1/messages": SAID | {"max_tokens": 100},
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": SAID,
    "/v1/completions": {"prompt": "hello"},
    "/api/chat": SAID,
    "/api/generate": {"prompt": "hello"},
}
OURS = "/v1/sessions/chat/messages"
CANCEL = {"X-CFS-On-Disconnect": "cancel"}
CONTINUE = {"X-CFS-On-Disconnect": "continue"}


def asking(
    server: ServerHarness,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    stream: bool = True,
    session: str | None = "chat",
) -> asyncio.Task[httpx.Response]:
    """Send a request that waits for its reply; cancelling the task closes the connection."""
    headers = headers or {}
    body: Members
    params: dict[str, str]
    if path == OURS:
        body, params = {"content": "hello"}, {"wait": "false" if stream else "true"}
        headers = headers | (EVENTS if stream else {})
    else:
        body, params = {"model": "x", "stream": stream} | PROTOCOLS[path], {}
        headers = headers | ({"X-CFS-Session": session} if session else {})
    return asyncio.create_task(server.client.post(path, json=body, params=params, headers=headers))


@asynccontextmanager
async def held(**changes: Any) -> AsyncIterator[ServerHarness]:
    """Run a server whose model says `one two`, when it may."""
    engine = ScriptedEngine(lambda _: ["one", " two"])
    engine.hold()
    async with running_server(engine=engine, **changes) as server:
        yield server


async def running(server: ServerHarness, session: str = "chat") -> None:
    """Wait until the engine has the turn of a session."""
    await until(lambda: (found := server.store.find(session)) and found.running)
    turn = server.store.get(session).running
    await until(lambda: turn and turn.id in [request.id for request in server.engine.requests])


async def requests_end(server: ServerHarness) -> None:
    """Wait until the server has noticed that its clients have left."""
    await until(lambda: not server.server.server_state.tasks)


async def idle(server: ServerHarness, session: str = "chat") -> None:
    """Wait until a session has no turn."""
    await until(lambda: server.store.get(session).idle)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_who_leaves_at_any_stage_gets_the_next_answer_at_once(path: str, stream: bool) -> None:
    async with held() as server:
        before = asking(server, path, stream=stream)
        await running(server)
        before.cancel()  # before the first token
        await idle(server)
        assert (await server.text("chat")).endswith("Assistant: [Cancelled]\n")

        within = asking(server, path, stream=stream)
        await running(server)
        server.engine.step()
        await server.until("chat", "token")
        within.cancel()
        await idle(server)
        assert (await server.text("chat")).endswith("Assistant: one [Cancelled]\n")

        await server.say("chat", "mine")
        await running(server)
        queued = asking(server, path, stream=stream)
        await until(lambda: server.store.get("chat").queue)
        queued.cancel()
        await until(lambda: not server.store.get("chat").queue)
        assert server.store.get("chat").running is not None

        server.engine.release()
        assert (await asking(server, path, stream=stream)).status_code == 200
        assert (await server.text("chat")).endswith("User: hello\nAssistant: one two\n")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_turn_goes_on_without_its_client_where_the_header_says_so(stream: bool) -> None:
    async with held() as server:
        client = asking(server, "/v1/messages", CONTINUE, stream=stream)
        await running(server)
        client.cancel()
        await requests_end(server)
        server.engine.release()
        assert (await server.text("chat")).endswith("Assistant: one two\n")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_turn_of_our_own_interface_ends_with_its_client_only_where_the_header_says_so(stream: bool) -> None:
    async with held() as server:
        client = asking(server, OURS, stream=stream)
        await running(server)
        client.cancel()
        await requests_end(server)
        server.engine.release()
        assert (await server.text("chat")).endswith("Assistant: one two\n")
        server.engine.hold()
        client = asking(server, OURS, CANCEL, stream=stream)
        await running(server)
        client.cancel()
        await idle(server)
        assert (await server.text("chat")).endswith("Assistant: [Cancelled]\n")


@pytest.mark.parametrize("header", [{}, CANCEL], ids=["setting", "header"])
async def test_a_server_can_let_all_turns_go_on_and_the_header_wins(header: dict[str, str]) -> None:
    async with held(cancel_on_disconnect=False) as server:
        client = asking(server, "/v1/messages", header)
        await running(server)
        client.cancel()
        await requests_end(server)
        server.engine.release()
        assert (await server.text("chat")).endswith("[Cancelled]\n" if header else "one two\n")


async def test_a_turn_goes_on_whose_client_can_ask_for_it_again() -> None:
    """By the idempotency key, as a client does whose time-out was too short; or by the id of a background response."""
    async with held() as server:
        client = asking(server, "/v1/messages", {"Idempotency-Key": "k"}, stream=False)
        await running(server)
        client.cancel()
        await requests_end(server)
        again = asking(server, "/v1/messages", {"Idempotency-Key": "k"}, stream=False)
        server.engine.release()
        assert (await again).json()["content"] == [{"type": "text", "text": "one two"}]
        server.engine.hold()
        body = {"model": "x", "input": "hello", "background": True, "stream": True}
        headers = {"X-CFS-Session": "later"}
        async with server.client.stream("POST", "/v1/responses", json=body, headers=headers) as answer:
            await anext(answer.aiter_bytes())
        await requests_end(server)
        server.engine.release()
        assert (await server.text("later")).endswith("Assistant: one two\n")


async def test_a_server_that_ends_cancels_nothing(tmp_path: Path) -> None:
    """The next one begins the turn again, whose client has seen the end of its connection."""
    flags = ("--engine", "scripted", "--data-dir", str(tmp_path), "--shutdown-grace", "0")
    body = json.dumps({"messages": [{"role": "user", "content": "one two three"}], "stream": True}).encode()
    headers = {"X-CFS-Session": "chat", "Content-Type": "application/json"}
    with serving(*flags, "--scripted-interval", "600") as process:
        async with await EventStream.open(process.url, "/v1/chat/completions", headers, body) as stream:
            process.signal()
            await stream.rest()
            await asyncio.to_thread(process.ended)
    with serving(*flags) as process:
        async with httpx.AsyncClient(base_url=process.url, trust_env=False, timeout=60) as client:
            answer = await client.get("/v1/sessions/chat", params={"wait": 30}, headers=TEXT)
    assert answer.text == "User: one two three\nAssistant: one two three\n"


async def test_an_agent_goes_on_without_its_client() -> None:
    """It may work longer than a client waits; the header ends its turn, too."""
    async with held() as server:
        for session, headers, busy in (("a", {}, True), ("b", CANCEL, False)):
            await server.create(session, driver="agent")
            client = asking(server, "/v1/chat/completions", headers, session=session)
            await until(lambda: server.store.get(session).queue)  # noqa: B023 - awaited within the loop
            client.cancel()
            await requests_end(server)
            assert bool(server.store.get(session).queue) is busy


async def test_a_choice_that_there_is_not_is_refused(server: ServerHarness) -> None:
    answer = await asking(server, "/v1/messages", {"X-CFS-On-Disconnect": "perhaps"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert server.store.find("chat") is None


class Upstream(UpstreamEngine):
    """An upstream engine in the place of a scripted one."""

    def release(self) -> None:
        """Do nothing: its server decides."""

    @property
    def waiting(self) -> int:
        """How many turns wait for a place."""
        return self._places.waiting


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_request_that_waits_for_an_upstream_is_dropped_before_it_costs_a_token(stream: bool) -> None:
    """Nothing of it is sent when its place comes free. The one that was sent ends there, too."""
    stub, gate = OpenAIStub(), asyncio.Event()
    stub.acts.append(Speech(gate=gate))
    async with served(stub) as url:
        engine = Upstream(options(url, "openai", parallel=1))
        async with running_server(engine=cast("ScriptedEngine", engine)) as server:
            sent, waiting = (asking(server, "/v1/messages", stream=stream, session=None) for _ in range(2))
            await stub.until(lambda stub: stub.streaming == 1)
            await until(lambda: engine.waiting == 1)
            waiting.cancel()
            await until(lambda: engine.waiting == 0)
            sent.cancel()
            await stub.until(lambda stub: stub.streaming == 0)
            assert stub.left_early == 1
            answer = await asking(server, "/v1/messages", stream=False, session=None)
            assert answer.json()["content"] == [{"type": "text", "text": "hello"}]
            assert len(stub.bodies) == 2
