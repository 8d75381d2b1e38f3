"""Hostile requests in every protocol: each gets the protocol's own error, and nothing of it is stored (H4, H8).

Each route is a row of `ROWS`. What JSON can say is sent by the protocol's official client, so that its exception is
seen; the rest goes over a bare connection. Every request names a session that exists, or one that does not.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.filesystem.support import grant
from tests.protocols.scripts import PARAMETERS, obedient
from tests.server.guests import guests
from tests.server.openai_client import speaking as openai_at
from tests.server.support import ServerHarness, running_server, until

Members = dict[str, Any]
SESSIONS = ("talk", "nothing")
"""The session that the requests name: one with a history, and one that there is not."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client raised, as far as all have it."""

    kind: type[Exception]
    status: int
    message: str


Send = Callable[[str, str, Members, dict[str, str], str], Awaitable[Failure]]


async def by_openai(url: str, path: str, body: Members, headers: dict[str, str], key: str) -> Failure:
    """Send a body as it is with the client of OpenAI."""
    async with openai_at(url, key) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.post(path.removeprefix("/v1"), body=body, cast_to=object, options={"headers": headers})
    error: Any = caught.value.body
    assert error["type"] and error["code"], error  # noqa: PT018
    return Failure(type(caught.value), caught.value.status_code, error["message"])


async def by_anthropic(url: str, path: str, body: Members, headers: dict[str, str], key: str) -> Failure:
    """Send a body as it is with the client of Anthropic."""
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=http) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.post(path, body=body, cast_to=object, options={"headers": headers})
    said: Any = caught.value.body
    assert said["type"] == "error"
    assert said["error"]["type"] == caught.value.type
    return Failure(type(caught.value), caught.value.status_code, said["error"]["message"])


async def by_ollama(url: str, path: str, body: Members, headers: dict[str, str], key: str) -> Failure:
    """Send a body as it is with the client of Ollama, by the method that its own methods use."""
    named = headers | {"Authorization": f"Bearer {key}"}
    async with ollama.AsyncClient(host=url, headers=named, trust_env=False) as client:
        with pytest.raises(ollama.ResponseError) as caught:
            await client._request_raw("POST", path, json=body)
    return Failure(type(caught.value), caught.value.status_code, caught.value.error)


def spoken_error(path: str, answer: Members) -> str:
    """Return the sentence of an error, read as the clients of a path read it."""
    if path.startswith("/api/"):
        return str(answer["error"])
    if path == "/v1/messages":
        assert answer["type"] == "error"
    return str(answer["error"]["message"])


@dataclass(frozen=True, slots=True)
class Row:
    """A route: a body that it takes, the member with the prompt, how a tool is written, and the client's exceptions."""

    path: str
    asked: str
    send: Send
    invalid: type[Exception]
    unauthorized: type[Exception]
    tool: Callable[[str], Members] | None = None

    def body(self, text: str = "one two") -> Members:
        """Return a body that the route takes."""
        said: Any = [{"role": "user", "content": text}] if self.asked == "messages" else text
        return {"model": "x", "max_tokens": 9, self.asked: said} | ({"stream": False} if "/api/" in self.path else {})


def function(name: str) -> Members:
    """Write a tool as chat completions and Ollama do."""
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}


OPENAI: Any = {"send": by_openai, "invalid": openai.BadRequestError, "unauthorized": openai.AuthenticationError}
ANTHROPIC: Any = {
    "send": by_anthropic,
    "invalid": anthropic.BadRequestError,
    "unauthorized": anthropic.AuthenticationError,
}
OLLAMA: Any = {"send": by_ollama, "invalid": ollama.ResponseError, "unauthorized": ollama.ResponseError}

ROWS = (
    Row("/v1/chat/completions", "messages", tool=function, **OPENAI),
    Row("/v1/completions", "prompt", **OPENAI),
    Row(
        "/v1/responses",
        "input",
        tool=lambda name: {"type": "function", "name": name, "parameters": PARAMETERS},
        **OPENAI,
    ),
    Row(
        "/v1/messages",
        "messages",
        tool=lambda name: {"name": name, "input_schema": PARAMETERS},
        **ANTHROPIC,
    ),
    Row("/api/chat", "messages", tool=function, **OLLAMA),
    Row("/api/generate", "prompt", **OLLAMA),
)
rows = pytest.mark.parametrize("row", ROWS, ids=[row.path for row in ROWS])


@asynccontextmanager
async def unchanged(server: ServerHarness) -> AsyncIterator[None]:
    """Fail if a session is made or changed, or if the model is asked."""

    def state() -> tuple[Any, ...]:
        session = server.store.get("talk")
        return len(server.store), session.log.since(0), session.history.messages, len(server.engine.requests)

    before = state()
    yield
    await until(lambda: server.parts.completions.running == 0)
    assert state() == before


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True, max_body_bytes=3_000_000, max_message_bytes=100_000) as here:
        await here.say("talk", "one", wait="true")
        yield here


@rows
async def test_wrong_types_are_refused(server: ServerHarness, row: Row) -> None:
    """Of the members that all protocols have, each in several ways."""
    values: tuple[Any, ...] = (5, True, {"a": 1}, [5], [[]], [None])
    wrong: list[Members] = [{row.asked: value} for value in values]
    wrong += [{"model": 5}, {"stream": "yes"}, {"stream": [1]}]
    if row.asked in ("messages", "input"):
        values = ({}, {"role": "user", "content": 5}, {"role": 1, "content": "x"})
        wrong += [{row.asked: [message]} for message in values]
    if row.tool:
        values = ("hammer", 5, [5], [{}], [row.tool("x") | {"type": 7}])
        wrong += [{"tools": value} for value in values]
    async with unchanged(server):
        for place, members in enumerate(wrong):
            headers = {"X-CFS-Session": SESSIONS[place % 2]}
            found = await row.send(server.url, row.path, row.body() | members, headers, "any")
            assert (found.kind, found.status) == (row.invalid, 400), members
            assert found.message, members


@rows
async def test_unknown_members_are_ignored(server: ServerHarness, row: Row) -> None:
    """An answer that no session records leaves nothing."""
    body = row.body() | {"nobody_knows": {"deep": [1, 2, 3]}}
    more = {"store": False} if row.path == "/v1/responses" else {}
    answer = await server.client.post(row.path, json=body | more)
    assert (answer.status_code, len(server.store)) == (200, 1)


BROKEN = (
    b"{",
    b"null",
    b"[]",
    b"5",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"model": "x\xed\xa0\x80"}',
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"model": "x", "temperature": NaN}',
    b'{"model": "x", "seed": 1e999}',
)


@rows
async def test_what_is_no_json_object_is_refused(server: ServerHarness, row: Row) -> None:
    async with unchanged(server):
        for place, broken in enumerate(BROKEN):
            headers = {"Content-Type": "application/json", "X-CFS-Session": SESSIONS[place % 2]}
            answer = await server.client.post(row.path, content=broken, headers=headers)
            assert answer.status_code == 400, broken[:50]
            assert spoken_error(row.path, answer.json()), broken[:50]


@rows
async def test_large_requests_are_refused(server: ServerHarness, row: Row) -> None:
    """10 MB in one message, in many, and beside a valid prompt; and a message above its own limit."""
    much = "x" * 10_000_000
    large: list[Members] = [row.body(much), row.body() | {"user": much}, row.body("x" * 200_000)]
    async with unchanged(server):
        for place, body in enumerate(large):
            found = await row.send(server.url, row.path, body, {"X-CFS-Session": SESSIONS[place % 2]}, "any")
            assert found.status == 413, (place, found)
            assert found.message


@pytest.mark.parametrize("row", [row for row in ROWS if row.tool], ids=[row.path for row in ROWS if row.tool])
async def test_thousands_of_tools(server: ServerHarness, row: Row) -> None:
    """They are none too many; but no two may have a name in common."""
    assert row.tool is not None
    tools = [row.tool(f"tool_{number}") for number in range(5_000)]
    async with unchanged(server):
        found = await row.send(server.url, row.path, row.body() | {"tools": [*tools, tools[0]]}, {}, "any")
        assert (found.kind, found.status) == (row.invalid, 400)
        assert "tool_0" in found.message
    more = {"store": False} if row.path == "/v1/responses" else {}
    answer = await server.client.post(row.path, json=row.body() | {"tools": tools} | more)
    assert answer.status_code == 200, answer.text[:500]
    assert len(server.engine.requests[-1].options.tools) == 5_000
    assert len(server.store) == 1


@rows
async def test_a_request_that_is_cut_leaves_nothing(server: ServerHarness, row: Row) -> None:
    """Its head, and half of its body."""
    body = json.dumps(row.body()).encode()
    host, _, port = server.url.removeprefix("http://").partition(":")
    async with unchanged(server):
        for session in SESSIONS:
            _, writer = await asyncio.open_connection(host, int(port))
            head = (
                f"POST {row.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"X-CFS-Session: {session}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body[: len(body) // 2])
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        assert (await server.client.get("/v1/models")).status_code == 200


@rows
async def test_a_stream_that_is_cut_leaves_nothing(server: ServerHarness, row: Row) -> None:
    """Its generation ends, and no session is made."""
    server.engine.hold()
    more = {"store": False} if row.path == "/v1/responses" else {}
    before = server.store.get("talk").log.since(0)
    async with server.client.stream("POST", row.path, json=row.body() | {"stream": True} | more) as answer:
        assert answer.status_code == 200
        server.engine.step()
        async for data in answer.aiter_bytes():
            if b"one" in data:
                break
        assert server.parts.completions.running == 1
    await until(lambda: server.parts.completions.running == 0)
    assert (len(server.store), server.store.get("talk").log.since(0)) == (1, before)


@rows
async def test_wrong_tokens_are_refused(server: ServerHarness, row: Row) -> None:
    """Before the body is read; and a token without the right learns nothing of a session."""
    async with guests(server, bob=[grant("/sessions/bobs")]) as who, unchanged(server):
        token = who["bob"].client.headers["authorization"].removeprefix("Bearer ")
        for key in ("wrong", "cfs_" + "0" * 40, "x" * 10_000):
            for body in (row.body(), {"messages": 5}):
                found = await row.send(server.url, row.path, body, {"X-CFS-Session": "talk"}, key)
                assert (found.kind, found.status) == (row.unauthorized, 401)
        for session in SESSIONS:
            found = await row.send(server.url, row.path, row.body(), {"X-CFS-Session": session}, token)
            assert found.status == 404
