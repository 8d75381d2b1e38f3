"""A write that is sent twice with its idempotency key is carried out once, on each interface over HTTP."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from cfs.api import KEY, REPLAYED
from cfs_server.domain.changes import Record
from cfs_server.http.idempotency import (
    KEPT_SECONDS,
    MOST_BYTES_OF_ONE,
    MOST_OF_ONE,
    SPACE,
    BoundTurn,
    Requests,
    RunningRequest,
    Ticket,
)
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import EVENTS, JSON, EventStream, ServerHarness, kinds, spoken, until

MESSAGES = "/v1/sessions/a/messages"
WRITES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/sessions", {"json": {"id": "b", "transcript": "User: x\n"}}),
    ("POST", "/v1/sessions", {}),
    ("POST", "/v1/imports", {"json": {"sessions": [{"id": "b"}]}}),
    ("DELETE", "/v1/sessions/a", {}),
    ("PATCH", "/v1/sessions/a/settings", {"json": {"temperature": 0.5}}),
    ("PUT", "/v1/sessions/a/transcript", {"content": "User: y\n", "headers": {"If-Match": "*"}}),
    ("POST", "/v1/sessions/a/cancel", {}),
    ("POST", "/v1/sessions/a/fork", {}),
    ("POST", "/v1/sessions/a/rename", {"json": {"id": "b"}}),
    ("POST", "/v1/sessions/a/rewind", {"json": {"to": 0}}),
    ("POST", MESSAGES, {"content": "x"}),
    ("POST", MESSAGES, {"content": ""}),
    ("POST", MESSAGES, {"json": {"content": "x"}, "params": {"wait": "true"}}),
    ("POST", MESSAGES, {"json": {"role": "system", "content": "x"}, "params": {"wait": "true"}}),
    (
        "POST",
        "/v1/chat/completions",
        {"json": {"messages": [{"role": "user", "content": "x"}]}, "headers": {"X-CFS-Session": "a"}},
    ),
    (
        "POST",
        "/v1/messages",
        {
            "json": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
            "headers": {"X-CFS-Session": "a"},
        },
    ),
    (
        "POST",
        "/api/chat",
        {
            "json": {"messages": [{"role": "user", "content": "x"}], "stream": False},
            "headers": {"X-CFS-Session": "a"},
        },
    ),
    ("POST", "/v1/responses", {"json": {"input": "x"}, "headers": {"X-CFS-Session": "a"}}),
    ("POST", "/v1/responses", {"json": {"input": "x"}}),
    ("POST", "/v1/conversations", {"json": {}, "headers": {"X-CFS-Session": "b"}}),
    ("POST", "/v1/conversations/a/items", {"json": {"items": [{"role": "user", "content": "x"}]}}),
    ("DELETE", "/v1/conversations/a", {}),
    ("POST", "/v1/completions", {"json": {"prompt": "x"}, "headers": {"X-CFS-Session": "a"}}),
    ("POST", "/api/generate", {"json": {"prompt": "x", "stream": False}, "headers": {"X-CFS-Session": "a"}}),
    ("POST", "/v1/shares", {"json": {"session": "a"}}),
    ("PUT", "/v1/files/sessions/a", {"content": "x"}),
    ("DELETE", "/v1/files/sessions/a", {}),
    ("PUT", "/v1/files/workspaces/a/x", {"content": "x"}),
    ("PUT", "/v1/files/workspaces/a/x", {"content": "x" * 3_000_000}),
    ("DELETE", "/v1/files/workspaces/a/old", {}),
    ("DELETE", "/v1/versions/workspaces/a", {}),
    ("POST", "/v1/versions/workspaces/a", {"json": {"source": "copy"}}),
    ("PUT", "/dav/sessions/a", {"content": "x"}),
    ("DELETE", "/dav/sessions/a", {}),
    ("MOVE", "/dav/sessions/a", {"headers": {"Destination": "/dav/sessions/b"}}),
    ("COPY", "/dav/sessions/a", {"headers": {"Destination": "/dav/sessions/b"}}),
    ("MKCOL", "/dav/workspaces/a/d", {}),
    ("PUT", "/dav/workspaces/a/x", {"content": "x"}),
]


READS = (
    *("/v1/tokens", "/v1/render", "/v1/messages/count_tokens", "/api/show", "/v1/connection-search"),
    *("/v1/embeddings", "/api/embed", "/api/embeddings"),
)
"""Routes that change nothing, though their method is POST."""
OF_THE_SERVER = ("/v1/connections", "/v1/connections/{model}")
"""Routes that change a file of the server, twice as well as once."""


def keyed(key: str, **headers: str) -> dict[str, str]:
    """The header with a key."""
    return {KEY: key, **headers}


VARYING = ("id", "created", "created_at", "usage", "total_duration", "eval_duration")


def shown(answer: httpx.Response) -> tuple[object, ...]:
    """What an answer says, without what differs by its time."""
    body: Any = answer.text
    if answer.headers.get("content-type", "").startswith("application/json"):
        body = {key: value for key, value in answer.json().items() if key not in VARYING}
    return answer.status_code, answer.headers.get("etag"), answer.headers.get("location"), body


@pytest.mark.parametrize(("method", "path", "request_"), WRITES, ids=lambda each: each if isinstance(each, str) else "")
async def test_a_repeated_write_is_carried_out_once(
    server: ServerHarness, method: str, path: str, request_: dict[str, Any]
) -> None:
    await server.create("a")
    await server.client.put("/v1/files/workspaces/a/old", content=b"old")
    await server.client.post("/v1/sessions/a/fork", json={"id": "copy"})
    await server.client.put("/v1/files/workspaces/copy/new", content=b"new")
    headers = keyed("k") | request_.get("headers", {})
    first = await server.client.request(method, path, **(request_ | {"headers": headers}))
    assert first.status_code < 300, first.text
    assert REPLAYED not in first.headers
    await until(lambda: all(session.idle for session in server.store))
    before = server.store.bus.log.last
    again = await server.client.request(method, path, **(request_ | {"headers": headers}))
    assert again.headers[REPLAYED] == "true"
    assert shown(again) == shown(first)
    assert server.store.bus.log.last == before, "nothing has changed again"


async def test_every_route_that_writes_is_tested_here(server: ServerHarness) -> None:
    tested = [
        *WRITES,
        ("POST", "/v1/sessions/a/redo", {}),  # in test_rewind.py
        ("DELETE", "/v1/shares/x", {}),  # in test_shares
        ("DELETE", "/v1/responses/r", {}),  # in test_openai_responses.py
        ("POST", "/v1/responses/r/cancel", {}),
        *(("POST", f"/v1/sessions/a/{route}", {}) for route in ("claim", "turns/t/update", "turns/t/finish")),
        *(("POST", f"/v1/sessions/a/{route}", {}) for route in ("questions", "questions/q")),  # test_questions.py
    ]
    document = (await server.client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        form = re.compile(re.sub(r"\{\w+\}", ".+", path))
        for method in operations.keys() - {"get"}:
            known = any(form.fullmatch(each[1]) and each[0] == method.upper() for each in tested)
            assert known or path in (*READS, *OF_THE_SERVER), f"{method.upper()} {path}: add it to WRITES"


async def test_without_a_key_each_request_counts(server: ServerHarness) -> None:
    for _ in range(2):
        assert REPLAYED not in (await server.say("a", "x")).headers
    assert await server.text("a") == "User: x\nAssistant: x\n" * 2


async def test_a_message_is_answered_in_each_form_before_and_after_its_end(server: ServerHarness) -> None:
    """202, the reply, or its events from the one that accepted it, whatever the first request had asked for."""
    server.engine.hold()
    accepted = await server.client.post(MESSAGES, content="x y", headers=keyed("k"))
    stream = await EventStream.open(server.url, MESSAGES, keyed("k", **EVENTS), b"x y")
    reply = asyncio.create_task(
        server.client.post(MESSAGES, content="x y", headers=keyed("k"), params={"wait": "true", "transcript": "true"})
    )
    async with stream:
        assert [event.event for event in await stream.take(2)] == ["message.added", "turn.started"]
        server.engine.release()
        events = await stream.rest()
    assert spoken(events) == "x y"
    assert (await reply).json()["transcript"] == "User: x y\nAssistant: x y\n"
    async with await EventStream.open(server.url, MESSAGES, keyed("k", **EVENTS), b"x y") as late:
        assert kinds(await late.rest()) == ["message.added", "turn.started", *kinds(events)]
    again = await server.client.post(MESSAGES, content="x y", headers=keyed("k"), params={"wait": "1"})
    assert again.json() | {"transcript": "User: x y\nAssistant: x y\n"} == (await reply).json()
    now = await server.client.post(MESSAGES, content="x y", headers=keyed("k"))
    assert now.json() == accepted.json()
    assert len(server.store.get("a").history) == 2


async def test_a_message_of_a_renamed_session_is_answered_by_its_old_name(server: ServerHarness) -> None:
    first = await server.client.post(MESSAGES, content="x", headers=keyed("k"))
    await server.text("a")
    life = {"X-CFS-Life": first.headers["X-CFS-Life"]}
    await server.client.post("/v1/sessions/a/rename", json={"id": "b"})
    reply = await server.client.post(MESSAGES, content="x", headers=keyed("k") | life, params={"wait": "true"})
    assert (reply.status_code, reply.json()["session"], reply.json()["reply"]) == (200, "b", "x")
    await server.client.delete("/v1/sessions/b")
    gone = await server.client.post(MESSAGES, content="x", headers=keyed("k"))
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:cfs:error:session-deleted")
    assert len(server.store) == 0, "nothing was made again"


async def test_requests_at_the_same_time_are_one(server: ServerHarness) -> None:
    async def post() -> httpx.Response:
        return await server.client.post(MESSAGES, content="x", headers=keyed("k"), params={"wait": "true"})

    async def make() -> httpx.Response:
        return await server.client.post("/v1/sessions", headers=keyed("made"))

    for send in (post, make):
        answers = await asyncio.gather(*(send() for _ in range(5)))
        assert len({answer.text for answer in answers}) == 1, answers
        assert sum(REPLAYED in answer.headers for answer in answers) == 4
    assert len(server.store) == 2
    assert await server.text("a") == "User: x\nAssistant: x\n"


async def test_a_retry_waits_for_the_first_request_and_takes_its_place_if_that_ends_without_effect(
    server: ServerHarness,
) -> None:
    await server.create("a", driver="agent")

    async def claim() -> httpx.Response:
        return await server.client.post("/v1/sessions/a/claim", json={"wait": 60}, headers=keyed("k"))

    requests = server.parts.requests
    first = asyncio.create_task(claim())
    await until(lambda: requests.find("local", "k"))
    second, third = asyncio.create_task(claim()), asyncio.create_task(claim())
    waiting = requests.find("local", "k")
    first.cancel()  # its client leaves
    await until(lambda: requests.find("local", "k") not in (None, waiting))
    await server.say("a", "work")
    leases = [(await each).json() for each in (second, third)]
    assert leases[0] == leases[1]
    assert leases[0]["message"]["content"] == "work"


async def test_a_claim_that_found_nothing_leaves_its_key_free(server: ServerHarness) -> None:
    """An agent that asks again gets what has come since; that is its lease from then on."""
    await server.create("a", driver="agent")

    async def claim() -> httpx.Response:
        return await server.client.post("/v1/sessions/a/claim", json={"wait": 0}, headers=keyed("k"))

    assert [(await claim()).status_code for _ in range(2)] == [204, 204]
    await server.say("a", "work")
    leases = [(await claim()).json() for _ in range(2)]
    assert leases[0] == leases[1]
    assert leases[0]["message"]["content"] == "work"


async def test_an_agents_calls_are_carried_out_once(server: ServerHarness) -> None:
    """A claim returns the same lease, an update adds its messages once, and a finish is answered as done."""
    await server.create("a", driver="agent")
    await server.say("a", "work")
    claims = [await server.client.post("/v1/sessions/a/claim", headers=keyed("c")) for _ in range(2)]
    lease = claims[0].json()
    assert claims[1].json() == lease
    turn = f"/v1/sessions/a/turns/{lease['turn']}"
    news = {"claim": lease["claim"], "text": "so ", "messages": [{"role": "assistant", "content": "step"}]}
    for number in range(2):
        answer = await server.client.post(f"{turn}/update", json=news, headers=keyed("u"))
        assert (answer.status_code, REPLAYED in answer.headers) == (200, number == 1)
        assert answer.json()["claim"] == lease["claim"]
    end = {"claim": lease["claim"], "reply": "done", "usage": {"completion_tokens": 7}}
    ends = [await server.client.post(f"{turn}/finish", json=end, headers=keyed("f")) for _ in range(2)]
    assert ends[0].json() == ends[1].json()
    late = await server.client.post(f"{turn}/update", json=news, headers=keyed("u"))
    assert late.status_code == 404, "the lease is over"
    nothing = await server.client.post("/v1/sessions/a/claim", headers=keyed("c"))
    assert nothing.status_code == 204, "the turn of this claim has ended"
    assert await server.text("a") == "User: work\nAssistant: step\nAssistant: done\n"


async def test_a_key_belongs_to_one_request(server: ServerHarness) -> None:
    await server.create("a")
    sent = await server.client.post(MESSAGES, content="x", headers=keyed("k", **{"If-Match": "*"}))
    assert sent.status_code == 202
    others: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", MESSAGES, {"content": "x"}),
        ("POST", "/v1/sessions/b/messages", {"content": "x"}),
        ("POST", MESSAGES, {"content": "y"}),
        ("POST", MESSAGES, {"content": "x", "params": {"other": "1"}}),
        ("POST", MESSAGES, {"content": "x", "headers": {"If-Match": '"other"'}}),
        ("POST", MESSAGES, {"content": "x", "headers": JSON}),
    ]
    for method, path, request in others:
        headers = keyed("k", **{"If-Match": "*"}) | request.pop("headers", {})
        refused = await server.client.request(method, path, headers=headers, **request)
        assert refused.status_code == 422
        assert refused.json()["type"] == "urn:cfs:error:key-reused"
    assert await server.text("a") == "User: x\nAssistant: x\n"


async def test_a_key_belongs_to_one_principal(server: ServerHarness) -> None:
    """G9: what another caller has sent with the same key is neither found nor shown."""
    async with guests(server, alice=[grant("/sessions/a")], bob=[grant("/sessions/b")]) as who:
        for name, session in (("alice", "a"), ("bob", "b")):
            answer = await who[name].client.post(f"/v1/sessions/{session}/messages", content="x", headers=keyed("k"))
            assert (answer.status_code, REPLAYED in answer.headers) == (202, False)


async def test_an_answer_is_not_repeated_to_a_caller_with_other_rights(server: ServerHarness) -> None:
    async with guests(server, alice=[grant("/sessions/a")]) as who:
        forks: dict[str, Any] = {"json": {"id": "a/copy"}, "headers": keyed("f")}
        says: dict[str, Any] = {"content": "x", "headers": keyed("m"), "params": {"wait": "true"}}
        alice = who["alice"]
        assert (await alice.client.post(MESSAGES, **says)).status_code == 200
        assert (await alice.client.post("/v1/sessions/a/fork", **forks)).status_code == 201
        alice.may({"prefix": "/sessions/a", "ops": {"write"}})
        for path, request in ((MESSAGES, says), ("/v1/sessions/a/fork", forks)):
            assert (await alice.client.post(path, **request)).status_code == 403


async def test_an_error_leaves_the_key_free(server: ServerHarness) -> None:
    """Nothing was changed, so the same request may succeed later."""
    rename: dict[str, Any] = {"json": {"id": "b"}, "headers": keyed("k")}
    assert (await server.client.post("/v1/sessions/a/rename", **rename)).status_code == 404
    await server.create("a")
    renamed = await server.client.post("/v1/sessions/a/rename", **rename)
    assert (renamed.status_code, REPLAYED in renamed.headers) == (200, False)


@pytest.mark.parametrize("key", ["", '""', "x" * 256, "ä", "a\tb"])
async def test_a_key_that_is_none_is_refused(server: ServerHarness, key: str) -> None:
    answer = await server.client.post(MESSAGES, content="x", headers={KEY.encode(): key.encode()})
    assert answer.status_code == 400
    assert KEY in answer.json()["detail"]
    assert len(server.store) == 0


async def test_quotes_around_a_key_do_not_count(server: ServerHarness) -> None:
    """The IETF's draft writes a key as a string in quotes."""
    answers = [await server.client.post("/v1/sessions", headers=keyed(key)) for key in ("k k", '"k k"')]
    assert answers[0].json() == answers[1].json()


async def test_reads_and_completions_without_a_session_have_no_key(server: ServerHarness) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}]}
    for _ in range(2):
        answer = await server.client.post("/v1/chat/completions", json=asked, headers=keyed("k"))
        assert (answer.status_code, REPLAYED in answer.headers) == (200, False)
        assert (await server.client.get("/v1/sessions", headers=keyed("k"))).status_code == 200


TOGETHER = [write for write in WRITES if "/workspaces/" not in write[1]]
"""Writes whose effects are all in the journal, and not only there."""


@pytest.fixture
async def journalled(server: ServerHarness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What goes to the journal: the kind of each change or `kept`, and in which callback of the loop it went there."""
    journal, callbacks, found = server.store.journal, 0, list[tuple[str, int]]()
    assert journal is not None
    thread, run, append, keep = threading.get_ident(), asyncio.events.Handle._run, journal.append, journal.keep

    def counted(handle: asyncio.Handle) -> None:
        nonlocal callbacks
        if threading.get_ident() == thread:  # servers and file systems of other tests have loops in threads
            callbacks += 1
        run(handle)

    def appended(record: Record) -> int:
        found.append((type(record.change).__name__, callbacks))
        return append(record)

    def stored(space: str, name: str, value: str | None) -> None:
        found.append(("kept", callbacks))
        keep(space, name, value)

    monkeypatch.setattr(asyncio.events.Handle, "_run", counted)
    monkeypatch.setattr(journal, "append", appended)
    monkeypatch.setattr(journal, "keep", stored)
    return found


@pytest.mark.parametrize(
    ("method", "path", "request_"), TOGETHER, ids=lambda each: each if isinstance(each, str) else ""
)
async def test_an_effect_and_its_answer_are_kept_in_one_callback_of_the_loop(
    server: ServerHarness, journalled: list[tuple[str, int]], method: str, path: str, request_: dict[str, Any]
) -> None:
    """So they are durable together: the journal cuts its transactions between callbacks.

    WebDAV answers in a thread, so there it is first kept that something has changed.
    """
    await server.create("a")
    journalled.clear()
    server.engine.hold()  # only what the request itself does
    headers = keyed("k") | request_.get("headers", {})
    sending = asyncio.create_task(server.client.request(method, path, **(request_ | {"headers": headers})))
    await until(lambda: "kept" in dict(journalled))
    assert journalled[0][1] == next(callback for kind, callback in journalled if kind == "kept"), journalled
    server.engine.release()
    assert (await sending).status_code < 300


async def test_a_claim_and_its_lease_are_kept_in_one_callback_of_the_loop(
    server: ServerHarness, journalled: list[tuple[str, int]]
) -> None:
    """The claim waits in a task of its own."""
    await server.create("a", driver="agent")
    claim = asyncio.create_task(server.client.post("/v1/sessions/a/claim", json={"wait": 30}, headers=keyed("k")))
    await until(lambda: server.parts.requests.find("local", "k"))
    await server.say("a", "work")
    assert (await claim).status_code == 200
    assert dict(journalled)["TurnStarted"] == dict(journalled)["kept"]


# -- what is kept -----------------------------------------------------------------------------------------------------


@dataclass
class Drawer:
    """Documents in memory."""

    there: dict[str, str] = field(default_factory=dict)

    def keep(self, space: str, name: str, value: str | None) -> None:
        """Store one, or delete it."""
        assert space == SPACE
        if value is None:
            del self.there[name]
        else:
            self.there[name] = value

    def kept(self, space: str) -> dict[str, str]:
        """Return all."""
        assert space == SPACE
        return dict(self.there)


def carried_out(requests: Requests, owner: str, key: str, body: bytes = b"") -> None:
    """Let a request be answered."""
    Ticket(requests, requests.begin(owner, key, "f")).answer(200, [(b"etag", b'"\xe4"')], body)


async def test_requests_are_kept_for_a_day() -> None:
    now = 0.0
    drawer = Drawer()
    requests = Requests(drawer, lambda: now)
    carried_out(requests, "alice", "early")
    now = 10.0
    carried_out(requests, "alice", "late")
    for time, left in ((KEPT_SECONDS - 1, 2), (KEPT_SECONDS + 1, 1), (KEPT_SECONDS + 11, 0)):
        now = time
        requests.find("alice", "any")
        assert len(drawer.there) == left


@pytest.mark.parametrize(
    ("count", "size", "most"),
    [(MOST_OF_ONE + 5, 0, MOST_OF_ONE), (20, 1 << 20, MOST_BYTES_OF_ONE >> 20), (3, 32 << 20, 1)],
)
async def test_the_requests_of_one_principal_are_limited_and_the_newest_stay(count: int, size: int, most: int) -> None:
    drawer = Drawer()
    requests = Requests(drawer)
    carried_out(requests, "bob", "his")
    for number in range(count):
        carried_out(requests, "alice", str(number), b"x" * size)
    kept = [number for number in range(count) if requests.find("alice", str(number))]
    assert kept == list(range(count - len(kept), count))
    assert most - 1 <= len(kept) <= most
    assert requests.find("bob", "his") is not None
    assert len(drawer.there) == len(kept) + 1
    again = Requests(drawer)
    assert [number for number in range(count) if again.find("alice", str(number))] == kept


async def test_what_is_kept_is_found_by_the_next_process() -> None:
    drawer = Drawer()
    requests = Requests(drawer)
    carried_out(requests, "alice", "answered", "ä\x00".encode())
    Ticket(requests, requests.begin("alice", "bound", "f")).bind(BoundTurn("key", "turn", 3, 4, "secret"))
    running = requests.begin("alice", "running", "f")
    assert requests.find("alice", "running") is running
    again = Requests(drawer)
    for key in ("answered", "bound"):
        assert again.find("alice", key) == requests.find("alice", key)
    assert again.find("alice", "running") is None
    assert all(json.loads(value)["owner"] == "alice" for value in drawer.there.values())


async def test_a_change_without_an_answer_is_kept_until_the_answer_is_known() -> None:
    """After a crash in between, the repetition is answered by 204 and changes nothing."""
    drawer = Drawer()
    requests = Requests(drawer)
    ticket = Ticket(requests, requests.begin("alice", "k", "f"))
    ticket.begin()
    (first,) = drawer.there.values()
    assert (json.loads(first)["status"], json.loads(first)["body"]) == (204, "")
    assert isinstance(requests.find("alice", "k"), RunningRequest), "it goes on"
    ticket.answer(507, [], b"full")
    (second,) = drawer.there.values()
    assert json.loads(second)["status"] == 507, "an error, but after a change"
    ticket.answer(200, [], b"late")
    assert list(drawer.there.values()) == [second]
    assert not isinstance(requests.find("alice", "k"), RunningRequest)


async def test_a_request_that_ends_without_effect_is_forgotten() -> None:
    requests = Requests(Drawer())
    errors: list[Callable[[Ticket], None]] = [lambda ticket: ticket.answer(409, [], b""), lambda _: None]
    for leave in errors:
        running = requests.begin("alice", "k", "f")
        ticket = Ticket(requests, running)
        leave(ticket)
        ticket.end()
        assert requests.find("alice", "k") is None
        assert running.done.done()
    assert isinstance(requests.begin("alice", "k", "f"), RunningRequest)
