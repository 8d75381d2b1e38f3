"""Bodies that are long, or that hold very many messages: bounded, and read beside the loop (H7)."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cfs.contract.transcript import render
from cfs.wire import Message, SessionDetail
from cfs_server.domain.loop_bridge import AT_ONCE_BYTES, aside
from cfs_server.http.representations import detail_json
from tests.server.support import JSON, TEXT, ServerHarness, running_server

MOST = 1500
PLAIN = {"Content-Type": "text/plain", "If-Match": "*"}
PAIR = "User: hello\nAssistant: yes\n"
MANY = PAIR * (MOST // 2)
"""As much as a session may hold."""
MORE = MANY + "User: one too many\n"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerHarness]:
    """A server whose sessions have some 1,500 messages at most."""
    async with running_server(max_messages=MOST) as here:
        yield here


async def refused(server: ServerHarness, status: int, method: str, path: str, body: str, **headers: str) -> str:
    answer = await server.client.request(method, path, content=body.encode(), headers=headers)
    assert answer.status_code == status, answer.text
    problem = answer.json()
    return str(problem.get("detail") or problem["error"]["message"])


def chat(count: int) -> str:
    return json.dumps({"messages": [{"role": "user", "content": ""}] * count, "max_tokens": 1})


async def test_one_request_brings_so_many_messages(server: ServerHarness) -> None:
    await server.create("a")
    await server.create("agent", driver="agent")
    new = json.dumps({"id": "new", "transcript": MORE})
    said = [
        await refused(server, 413, "POST", "/v1/sessions", new, **JSON),
        await refused(server, 413, "PUT", "/v1/sessions/a/transcript", MORE, **PLAIN),
        await refused(server, 413, "PUT", "/dav/sessions/new", MORE),
        await refused(server, 413, "POST", "/v1/chat/completions", chat(MOST + 1), **JSON),
        await refused(server, 413, "POST", "/v1/chat/completions", chat(MOST + 1), **JSON, **{"X-CFS-Session": "new"}),
        await refused(server, 413, "POST", "/v1/tokens", chat(MOST + 1), **JSON),
    ]
    assert all(f"{MOST} messages at most" in detail for detail in said), said
    assert sorted(session.id for session in server.store) == ["a", "agent"]
    assert server.store.account.bytes == 0


async def test_a_session_holds_so_many_messages_and_says_what_to_do(server: ServerHarness) -> None:
    made = await server.client.post("/v1/sessions", json={"id": "a", "transcript": MANY})
    assert (made.status_code, made.json()["messages"]) == (201, MOST)
    copied = await server.client.post("/v1/sessions/a/fork", json={"id": "copy"})
    assert copied.status_code == 201
    for method, path, body, more in (
        ("POST", "/v1/sessions/a/messages", "hello", {}),
        ("POST", "/v1/sessions/a/messages", '{"content": "hello"}', JSON),
        ("PUT", "/v1/files/sessions/copy", "hello", {}),
        ("PUT", "/dav/sessions/copy", MANY + "User: hello\n", {}),
    ):
        detail = await refused(server, 507, method, path, body, **more)
        assert f"{MOST} are the most" in detail
        assert "shorter" in detail
    replaced = await server.client.put("/v1/sessions/a/transcript", content=PAIR.encode(), headers=PLAIN)
    assert replaced.status_code == 200
    assert (await server.say("a", "hello")).status_code == 202


async def test_many_messages_come_and_go_whole_by_every_way(server: ServerHarness) -> None:
    for path in ("/v1/sessions/a", "/v1/sessions/b"):
        await server.client.post("/v1/sessions", json={"id": path[-1], "transcript": PAIR})
    put = await server.client.put("/v1/sessions/a/transcript", content=MANY.encode(), headers=PLAIN)
    assert (put.status_code, put.json()["messages"]) == (200, MOST)
    assert (await server.client.put("/dav/sessions/c", content=MANY.encode())).status_code == 201
    for name in ("a", "c"):
        assert (await server.client.get(f"/v1/sessions/{name}", headers=TEXT)).text == MANY
        assert (await server.client.get(f"/v1/files/sessions/{name}")).text == MANY
        assert (await server.client.get(f"/dav/sessions/{name}")).text == MANY
        detail = SessionDetail.model_validate_json((await server.client.get(f"/v1/sessions/{name}")).content)
        assert detail.history == server.store.get(name).history.messages
        assert (render(detail.history), len(detail.history)) == (MANY, MOST)


async def test_a_long_recorded_conversation_becomes_the_history_in_one_event(server: ServerHarness) -> None:
    for count in (1000, 1010):
        body = chat(count).encode()
        headers = JSON | {"X-CFS-Session": "long"}
        answer = await server.client.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
    session = server.store.get("long")
    events = session.log.since(0)
    assert isinstance(events, list)
    assert sum(event.type == "history.replaced" for event in events) == 2
    assert len(session.history) == 1011


LISTS = '{"messages":[],"x":[' + "[]," * 200_000 + "0]}"
OBJECTS = '{"messages":[],"x":[' + '{"a":1},' * 60_000 + "0]}"


@pytest.mark.parametrize("body", [LISTS, OBJECTS, chat(60_000)], ids=["lists", "objects", "messages"])
async def test_a_long_body_in_json_has_so_many_values(server: ServerHarness, body: str) -> None:
    assert "values at most" in await refused(server, 413, "POST", "/v1/chat/completions", body, **JSON)


@pytest.mark.parametrize("text", [", [ { " * 100_000, '", [ {' * 100_000, '\\", [ {' * 90_000, "\n" * 900_000])
async def test_what_looks_like_a_value_within_a_text_is_none(server: ServerHarness, text: str) -> None:
    body = json.dumps({"content": "x" + text + "x", "generate": False}).encode()
    answer = await server.client.post("/v1/sessions/a/messages", content=body, headers=JSON)
    assert answer.status_code == 202, answer.text
    assert server.store.get("a").history.messages[0].content == "x" + text + "x"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1E+4000"])
@pytest.mark.parametrize("before", [0, AT_ONCE_BYTES - 60, AT_ONCE_BYTES - 55, 3 * AT_ONCE_BYTES])
async def test_a_number_that_json_does_not_have_is_found_anywhere(
    server: ServerHarness, number: str, before: int
) -> None:
    body = '{"content":"' + "x" * before + '","settings":{"temperature":' + number + "}}" + " " * 100_000
    assert await refused(server, 400, "POST", "/v1/sessions/a/messages", body, **JSON)
    assert server.store.find("a") is None


@pytest.mark.parametrize("count", [0, 499, 500, 501, 1001])
async def test_json_in_pieces_is_the_json_of_the_whole(server: ServerHarness, count: int) -> None:
    """Whatever a message, a name or the reply that is being made may hold."""
    await server.create("a")
    shown = SessionDetail.model_validate_json((await server.client.get("/v1/sessions/a")).content)
    odd = Message(role="user", content='"history":[] \\ " \u2028 漢 \x00')
    update = {"history": (odd,) * count, "queue": (odd,), "partial": '"history":[]', "id": '"history":[]'}
    whole = shown.model_copy(update=update)
    assert detail_json(whole) == whole.model_dump_json().encode() + b"\n"


async def test_long_work_is_a_threads_and_one_owners_is_done_in_its_order() -> None:
    here = threading.get_ident()
    assert await aside(AT_ONCE_BYTES, "a", threading.get_ident) == here
    assert await aside(AT_ONCE_BYTES + 1, "a", threading.get_ident) != here
    first, others = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        first.set()
        assert others.wait(30)
        order.append("slow")

    size = AT_ONCE_BYTES + 1
    held = asyncio.create_task(aside(size, "a", slow))
    await asyncio.to_thread(first.wait)
    behind = [asyncio.create_task(aside(size, "a", lambda: order.append("behind"))) for _ in range(20)]
    await aside(size, "b", lambda: order.append("another owner's"))
    others.set()
    await asyncio.gather(held, *behind)
    assert order == ["another owner's", "slow", *["behind"] * 20]
