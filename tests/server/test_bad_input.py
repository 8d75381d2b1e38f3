"""What is refused, in one shape, with nothing stored (H5, H7)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.server.support import ServerHarness, running_server

MEGABYTE = 1 << 20


class Bad(NamedTuple):
    """A request that cannot be served, and how it is refused."""

    method: str
    target: str
    status: int
    slug: str
    body: bytes = b""
    media: str = "text/plain"


A = "/v1/sessions/a"
MESSAGES = f"{A}/messages"
JSON = "application/json"
TABLE = {
    "message that is no UTF-8": Bad("POST", MESSAGES, 415, "unsupported-media", b"caf\xe9"),
    "message with an encoded surrogate": Bad("POST", MESSAGES, 415, "unsupported-media", b"\xed\xa0\x80"),
    "message said to be in another charset": Bad(
        "POST", MESSAGES, 415, "unsupported-media", b"x", "text/plain; charset=latin-1"
    ),
    "multipart form": Bad("POST", MESSAGES, 415, "unsupported-media", b"x", "multipart/form-data; boundary=x"),
    "message over its limit": Bad("POST", MESSAGES, 413, "too-large", b"x" * (4 * MEGABYTE + 1)),
    "JSON message over its limit": Bad(
        "POST", MESSAGES, 413, "too-large", b'{"content":"' + b"x" * (4 * MEGABYTE) + b'x"}', JSON
    ),
    "body of 10 MB": Bad("POST", MESSAGES, 413, "too-large", b"x" * (10 * MEGABYTE)),
    "body of 10 MB for a route without one": Bad("DELETE", A, 413, "too-large", b"x" * (10 * MEGABYTE)),
    "broken JSON": Bad("POST", MESSAGES, 400, "invalid-request", b'{"content": ', JSON),
    "empty JSON": Bad("POST", MESSAGES, 400, "invalid-request", b"", JSON),
    "JSON that is no UTF-8": Bad("POST", MESSAGES, 400, "invalid-request", b'{"content": "\xff"}', JSON),
    "JSON with a lone surrogate": Bad("POST", MESSAGES, 400, "invalid-request", b'{"content": "\\ud800"}', JSON),
    "JSON of the wrong type": Bad("POST", MESSAGES, 422, "invalid-parameters", b"[]", JSON),
    "content of the wrong type": Bad("POST", MESSAGES, 422, "invalid-parameters", b'{"content": 1}', JSON),
    "no content": Bad("POST", MESSAGES, 422, "invalid-parameters", b"{}", JSON),
    "unknown member": Bad("POST", MESSAGES, 422, "invalid-parameters", b'{"content": "x", "color": 1}', JSON),
    "unknown role": Bad("POST", MESSAGES, 422, "invalid-parameters", b'{"content": "x", "role": "boss"}', JSON),
    "unknown setting": Bad("POST", MESSAGES, 422, "invalid-parameters", b'{"content":"x","settings":{"heat":1}}', JSON),
    "setting that is not a number": Bad(
        "POST", MESSAGES, 400, "invalid-request", b'{"content":"x","settings":{"temperature":NaN}}', JSON
    ),
    "setting that is infinite": Bad(
        "POST", MESSAGES, 400, "invalid-request", b'{"content":"x","settings":{"temperature":1e999}}', JSON
    ),
    "setting out of range": Bad(
        "POST", MESSAGES, 422, "invalid-parameters", b'{"content":"x","settings":{"top_p":1.5}}', JSON
    ),
    "number as text": Bad(
        "POST", MESSAGES, 422, "invalid-parameters", b'{"content":"x","settings":{"seed":"1"}}', JSON
    ),
    "truth as number": Bad(
        "POST", MESSAGES, 422, "invalid-parameters", b'{"content":"x","settings":{"seed":true}}', JSON
    ),
    "very deep JSON": Bad("POST", MESSAGES, 400, "invalid-request", b"[" * 100_000, JSON),
    "wait that is no time": Bad("POST", f"{MESSAGES}?wait=soon", 422, "invalid-parameters", b"x"),
    "text where JSON is needed": Bad("POST", "/v1/sessions", 415, "unsupported-media", b"{}"),
    "JSON where text is needed": Bad("PUT", f"{A}/transcript", 415, "unsupported-media", b"{}", JSON),
    "transcript without a role": Bad(
        "POST", "/v1/sessions", 422, "invalid-transcript", b'{"transcript": "hello"}', JSON
    ),
    "id that is too long": Bad("POST", f"/v1/sessions/{'x' * 256}/messages", 422, "invalid-identifier", b"x"),
    "id of 300 bytes": Bad("POST", f"/v1/sessions/{'%E6%BC%A2' * 100}/messages", 422, "invalid-identifier", b"x"),
    "id that is empty": Bad("POST", "/v1/sessions//messages", 422, "invalid-identifier", b"x"),
    "id that is no name": Bad("POST", "/v1/sessions/%2e%2e/messages", 422, "invalid-identifier", b"x"),
    "id with a dot before it": Bad("POST", "/v1/sessions/.a/messages", 422, "invalid-identifier", b"x"),
    "path that climbs": Bad("POST", "/v1/sessions/a/../b/messages", 422, "invalid-identifier", b"x"),
    "path that climbs behind escapes": Bad("POST", "/v1/sessions/a/%2e%2e/b/messages", 422, "invalid-identifier", b"x"),
    "sub-session with a space": Bad("POST", "/v1/sessions/a/b%20c/messages", 422, "invalid-identifier", b"x"),
    "sub-session without a name": Bad("POST", "/v1/sessions/a//b/messages", 422, "invalid-identifier", b"x"),
    "sub-sessions too deep": Bad(
        "POST", f"/v1/sessions/{'/'.join('a' * 17)}/messages", 422, "invalid-identifier", b"x"
    ),
    "id in a body that is none": Bad("POST", "/v1/sessions", 422, "invalid-identifier", b'{"id": "a/messages"}', JSON),
    "id in a body with a NUL": Bad("POST", "/v1/sessions", 422, "invalid-identifier", b'{"id": "a\\u0000"}', JSON),
    "id that is no UTF-8": Bad("POST", "/v1/sessions/%FF/messages", 400, "invalid-request", b"x"),
    "id with a NUL": Bad("POST", "/v1/sessions/a%00b/messages", 400, "invalid-request", b"x"),
    "id with a line break": Bad("POST", "/v1/sessions/a%0Ab/messages", 400, "invalid-request", b"x"),
    "route with a line break": Bad("POST", "/v1/sessions/a/messages%0A", 400, "invalid-request", b"x"),
    "encoded slash": Bad("POST", "/v1/sessions/a%2Fb/messages", 400, "invalid-request", b"x"),
    "broken escape": Bad("POST", "/v1/sessions/100%/messages", 400, "invalid-request", b"x"),
    "query that is no UTF-8": Bad("GET", "/v1/sessions?prefix=%FF", 400, "invalid-request"),
    "limit that is too large": Bad("GET", "/v1/sessions?limit=1001", 422, "invalid-parameters"),
    "limit that is no number": Bad("GET", "/v1/sessions?limit=many", 422, "invalid-parameters"),
    "wait that is no number": Bad("GET", f"{A}?wait=NaN", 422, "invalid-parameters"),
    "wait that is negative": Bad("GET", f"{A}/wait?timeout=-1", 422, "invalid-parameters"),
    "no such session": Bad("GET", A, 404, "not-found"),
    "no such route": Bad("GET", "/v2", 404, "not-found"),
    "no such route below a session": Bad("GET", f"{A}/messages/1", 404, "not-found"),
    "method that is not known here": Bad("PUT", A, 405, "method-not-allowed", b"x"),
    "method of another protocol": Bad("PROPFIND", A, 405, "method-not-allowed"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[ServerHarness]:
    """One server for the whole table: nothing that is refused may leave a trace for the next.

    The watch over blocking calls is off, as it would hold for whatever else runs while this server does.
    """
    async with running_server(may_block=True) as server:
        yield server


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_bad_request_gets_a_problem_and_leaves_no_trace(shared: ServerHarness, name: str) -> None:
    bad = TABLE[name]
    await check(shared, await send(shared, bad), bad)


async def send(server: ServerHarness, bad: Bad) -> httpx.Response:
    """Send the target as it is written: a client would tidy up its path."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    fields = {"Host": host, "Content-Type": bad.media, "Content-Length": len(bad.body), "Connection": "close"}
    head = [f"{bad.method} {bad.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    writer.write("\r\n".join(head).encode() + bad.body)
    status, _, lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().partition("\r\n")
    headers = dict(line.split(": ", 1) for line in lines.split("\r\n"))
    answer = httpx.Response(int(status.split()[1]), headers=headers, content=await reader.read())
    writer.close()
    await writer.wait_closed()
    return answer


async def check(server: ServerHarness, answer: httpx.Response, bad: Bad) -> None:
    """The problem is the expected one, nothing was stored, and the server goes on."""
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (bad.status, f"urn:cfs:error:{bad.slug}"), problem
    assert problem["status"] == bad.status
    assert len(problem["detail"]) > 15
    assert problem["title"]
    assert answer.headers["X-Request-ID"]
    assert len(server.store) == 0
    assert (await server.client.get("/healthz")).status_code == 200


async def _pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 65_536):
        yield b"x" * 65_536


async def test_a_body_without_a_length_is_counted_as_it_comes(server: ServerHarness) -> None:
    answer = await server.client.post(MESSAGES, content=_pieces(10 * MEGABYTE))
    await check(server, answer, Bad("POST", MESSAGES, 413, "too-large"))


async def test_a_client_that_asks_first_need_not_send_a_large_body(server: ServerHarness) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\n".encode()
        + f"Content-Length: {10 * MEGABYTE}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()
    await writer.wait_closed()


async def test_the_limits_of_bodies_and_messages_are_settings() -> None:
    async with running_server(max_body_bytes=100, max_message_bytes=10) as server:
        assert (await server.say("a", "x" * 10)).status_code == 202
        over = await server.say("a", "x" * 11)
        assert (over.status_code, "10 bytes" in over.json()["detail"]) == (413, True)
        assert (await server.say("a", "x" * 101)).json()["detail"].startswith("a request's body has 100 bytes at most")


async def test_a_message_just_within_its_limit_is_taken(server: ServerHarness) -> None:
    assert (await server.say("a", "x" * (4 * MEGABYTE))).status_code == 202


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with running_server(max_queued_turns=2) as server:
        server.engine.hold()
        statuses = [(await server.say("a", "x")).status_code for _ in range(3)]
        full = await server.say("a", "x")
        assert (statuses, full.status_code, full.headers["Retry-After"]) == ([202, 202, 202], 429, "1")
        assert full.json()["retry_after"] == 1
        server.engine.release()
        await server.text("a")
        assert (await server.say("a", "x")).status_code == 202


async def test_several_faults_are_all_named(server: ServerHarness) -> None:
    answer = await server.client.post("/v1/sessions", json={"settings": {"seed": -1, "heat": 2}})
    assert [error["at"] for error in answer.json()["errors"]] == ["settings.seed", "settings.heat"]


async def test_a_405_names_all_methods_of_all_routes_at_the_path(server: ServerHarness) -> None:
    answer = await server.client.put("/v1/sessions")
    assert answer.headers["Allow"] == "GET, HEAD, POST"
    assert "GET, HEAD, POST" in json.loads(answer.content)["detail"]


async def test_a_request_keeps_the_id_that_it_came_with_if_it_is_harmless(server: ServerHarness) -> None:
    for given, kept in (("abc-1", True), ("a b", False), ("x" * 65, False)):
        answer = await server.client.get("/healthz", headers={"X-Request-ID": given})
        assert (answer.headers["X-Request-ID"] == given) is kept


async def test_a_body_for_a_route_that_reads_none_does_no_harm(server: ServerHarness) -> None:
    await server.create("a")
    assert (await server.client.request("GET", A, content=b"hello")).status_code == 200


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00"])
async def test_bytes_that_are_no_http_harm_nobody(server: ServerHarness, raw: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    assert (await server.client.get("/healthz")).status_code == 200
