"""No route lets a caller do, see or learn more than its grants say (G9).

The table of routes is walked: one that is not in `CALLS` or `FOR_ALL` fails the first test, and is covered by all
others as soon as it is.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from fastapi.routing import APIRoute, iter_route_contexts

from cfs_filesystem import OPERATIONS, READ_OPERATIONS, Operation
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine
from tests.filesystem.support import grant
from tests.server.guests import Guest, guests
from tests.server.support import EVENTS, TEXT, ServerHarness, data, running_server

ROUTES = {
    (method, str(route.path_format))
    for route in iter_route_contexts(create_app(ServerSettings(), ScriptedEngine()).routes)
    if isinstance(route.original_route, APIRoute)
    for method in route.methods or ()
}

# -- what Alice has ---------------------------------------------------------------------------------------------------

DIARY, CHAPTER, AGENT, ERRAND = "alices-diary", "alices-diary/chapter", "alices-agent", "alices-errand"
LETTER = "alices-letter"
NOTES = "workspaces/alices-diary/notes.txt"
CONTENT = ("quinces", "marmalade", "medlars", "damsons", "cranberries")
"""Words of her messages, settings and files, each of them in one place only."""


async def furnish(alice: Guest) -> dict[str, str]:
    """Make her sessions (idle, below another, held by an agent, waiting for one) and a file; name the held turn."""
    await alice.create(DIARY, system="marmalade")
    await alice.say(DIARY, "quinces", wait="true")
    await alice.create(CHAPTER)
    medlars = {"content": "medlars", "generate": False}
    await alice.client.post(f"/v1/sessions/{CHAPTER}/messages", json=medlars)
    for session in (AGENT, ERRAND):
        await alice.create(session, driver="agent")
        await alice.say(session, "quinces")
        await alice.say(session, "quinces")
    claimed = (await alice.client.post(f"/v1/sessions/{AGENT}/claim", json={})).json()
    await alice.client.put(f"/v1/files/{NOTES}", content=b"damsons")
    asked = await alice.client.post(
        f"/v1/sessions/{AGENT}/questions", json={"claim": claimed["claim"], "text": "cranberries"}
    )
    made = await alice.client.post("/v1/responses", json={"input": "quinces"}, headers={"X-CFS-Session": LETTER})
    names = {"turn": claimed["turn"], "claim": claimed["claim"], "question": asked.json()["id"]}
    items = (await alice.client.get(f"/v1/conversations/{DIARY}/items")).json()
    return names | {"response": made.json()["id"], "item": items["first_id"]}


async def everything_in(server: ServerHarness) -> list[object]:
    """All that a request could change."""
    workspaces = await asyncio.to_thread(lambda: sorted(server.parts.workspaces.entries("/"), key=str))
    return [
        server.store.bus.log.last,
        workspaces,
        *(
            (session.id, session.etag, session.history.text, session.settings, session.running, list(session.queue))
            for session in server.store
        ),
    ]


# -- what can be asked ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request about something of Alice's, and the operations there that it amounts to (see `AuthorizedSessions`).

    `{id}` is the session that it is about, or whose workspace it is about; `{own}` is a session of the caller, `{new}`
    a name that it may write. `status` is the answer for a caller that may do this and nothing else.
    """

    needs: AbstractSet[Operation]
    status: int
    about: str = DIARY
    id: str = "{id}"
    path: str = "sessions/{id}"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    content: str | None = None
    repeats: bool = False
    """Whether the answer says again what the caller must have read before: the secret of its lease came with it."""

    def request(self, route: tuple[str, str], client: httpx.AsyncClient, names: Mapping[str, str]) -> httpx.Request:
        """Make the request for a route."""

        def filled(text: str) -> str:
            for name, value in names.items():
                text = text.replace(f"{{{name}}}", value)
            return text

        method, url = route
        at = {"id": self.id, "path": self.path, "turn": "{turn}", "question": "{question}", "item": "{item}"}
        at["response"] = "{response}"
        return client.build_request(
            method,
            url.format(**{name: quote(filled(text)) for name, text in at.items()}),
            params=dict(self.params),
            headers={name: filled(value) for name, value in self.headers.items()},
            json=None if self.json is None else json.loads(filled(json.dumps(self.json))),
            content=self.content,
        )


READ: AbstractSet[Operation] = {"read_binary"}
WRITE: AbstractSet[Operation] = {"write"}
DELETE: AbstractSet[Operation] = {"delete"}
SHARED: AbstractSet[Operation] = {"list", "file", "read_binary", "read_file", "read_re"}
ANY = {"If-Match": "*"}
S = "/v1/sessions"
F = "/v1/files/{path}"
V = "/v1/versions/{path}"
P = "/v1/past/{path}"
R = "/v1/responses"
C = "/v1/conversations"
RECORDED = {"X-CFS-Session": "{id}"}
SHORT, STREAM, WHOLE = {"max_tokens": 9}, {"stream": True}, {"stream": False}
X, MEDLARS = {"role": "user", "content": "x"}, {"role": "user", "content": "medlars"}
CALLS: dict[tuple[str, str], list[Call]] = {
    ("POST", S): [
        Call(needs=WRITE, json={"id": "{id}"}, status=409),
        Call(needs=WRITE, json={"id": "{id}/new"}, status=201),
        Call(needs=WRITE | DELETE, json={"id": "{id}/new", "settings": {"keep": "1m"}}, status=201),
    ],
    ("GET", S + "/{id}"): [
        Call(needs=READ, status=200),
        Call(needs=READ, headers=TEXT, status=200),
        Call(needs=READ, params={"wait": "0"}, status=200),
        Call(needs=READ, params={"at": "0"}, status=200),
        Call(needs=READ, headers={"If-None-Match": "*"}, status=304),
    ],
    ("GET", S + "/{id}/versions"): [Call(needs=READ, status=200)],
    ("POST", S + "/{id}/rewind"): [
        Call(needs=READ | WRITE | DELETE, json={"to": 0}, status=200),
        Call(needs=READ | WRITE | DELETE, json={"to": 0, "sub_sessions": True, "dry_run": True}, status=200),
    ],
    ("POST", S + "/{id}/redo"): [Call(needs=READ | WRITE | DELETE, status=409)],
    ("DELETE", S + "/{id}"): [
        Call(needs=DELETE, status=204),
        Call(needs=DELETE, headers=ANY, status=204),
    ],
    ("GET", S + "/{id}/settings"): [Call(needs=READ, status=200)],
    ("PATCH", S + "/{id}/settings"): [
        Call(needs=WRITE, json={"seed": 1}, status=204),
        Call(needs=WRITE, json={}, headers=ANY, status=204),
        Call(needs=WRITE | DELETE, json={"keep": "1m"}, status=204),
        Call(needs=WRITE | READ, json={"driver": "model"}, status=200),
    ],
    ("PUT", S + "/{id}/transcript"): [
        Call(needs=WRITE | DELETE, content="Assistant: x\n", headers=ANY, status=200),
        Call(needs=WRITE | DELETE, content="User: x\n", status=428),
    ],
    ("POST", S + "/{id}/cancel"): [
        Call(needs=WRITE, about=AGENT, json={"queued": True, "cascade": True}, status=200),
    ],
    ("POST", S + "/{id}/fork"): [
        Call(needs=READ, json={"id": "{new}"}, status=201),
        Call(needs=READ, json={"id": "{new}", "at": 1}, status=201),
        Call(needs=WRITE, id="{own}", json={"id": "{id}"}, status=409),
        Call(needs=WRITE, id="{own}", json={"id": "{id}/new"}, status=201),
    ],
    ("POST", S + "/{id}/rename"): [
        Call(needs=READ | DELETE, json={"id": "{new}"}, status=200),
        Call(needs=WRITE, id="{own}", json={"id": "{id}"}, status=409),
        Call(needs=WRITE, id="{own}", json={"id": "{id}/new"}, status=200),
    ],
    ("GET", S + "/{id}/wait"): [Call(needs={"file"}, status=200)],
    ("GET", S + "/{id}/sub_sessions"): [Call(needs={"list"}, status=200)],
    ("POST", S + "/{id}/messages"): [
        Call(needs=WRITE, content="x", status=202),
        Call(needs=WRITE, content="", status=202),
        Call(needs=WRITE, content="x", headers=ANY, status=202),
        Call(needs=WRITE, json={"content": "x", "role": "system"}, status=202),
        Call(needs=WRITE | READ, content="x", params={"wait": "true"}, status=200),
        Call(needs=WRITE | READ, content="x", headers=EVENTS, status=200),
    ],
    ("GET", S + "/{id}/events"): [Call(needs=READ, params={"after": "0"}, status=200)],
    ("POST", S + "/{id}/claim"): [Call(needs=READ | WRITE, about=ERRAND, json={}, status=200)],
    ("POST", S + "/{id}/turns/{turn}/update"): [
        Call(needs=WRITE, about=AGENT, json={"claim": "{claim}", "text": "x"}, status=200, repeats=True)
    ],
    ("POST", S + "/{id}/turns/{turn}/finish"): [
        Call(needs=WRITE, about=AGENT, json={"claim": "{claim}", "reply": "x"}, status=200)
    ],
    ("POST", S + "/{id}/questions"): [
        Call(needs=WRITE, about=AGENT, json={"claim": "{claim}", "text": "x"}, status=201)
    ],
    ("GET", S + "/{id}/questions"): [
        Call(needs=READ, about=AGENT, status=200),
        Call(needs=READ, about=AGENT, params={"all": "true"}, status=200),
    ],
    ("GET", S + "/{id}/questions/{question}"): [Call(needs=READ, about=AGENT, status=200)],
    ("POST", S + "/{id}/questions/{question}"): [
        Call(needs=WRITE, about=AGENT, json={"answer": "deny", "claim": "{claim}"}, status=200, repeats=True)
    ],
    ("POST", "/v1/imports"): [Call(needs=WRITE, json={"sessions": [{"id": "{id}"}]}, status=200, repeats=True)],
    ("POST", "/v1/shares"): [
        Call(needs=SHARED, json={"session": "{id}"}, status=201, repeats=True),
        Call(needs=SHARED | WRITE, json={"session": "{id}", "access": "write"}, status=201, repeats=True),
    ],
    ("POST", "/v1/chat/completions"): [
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"messages": [X]}, status=200),
        Call(needs=WRITE | READ, about=CHAPTER, headers=RECORDED, json={"messages": [MEDLARS, X]}, status=200),
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"messages": [X], "stream": True}, status=200),
    ],
    ("POST", "/v1/completions"): [
        Call(needs=WRITE | READ, headers=RECORDED, json={"prompt": "x"}, status=200),
        Call(needs=WRITE | READ, headers=RECORDED, json={"prompt": "x", "stream": True}, status=200),
    ],
    ("POST", R): [
        Call(needs=WRITE | READ, headers=RECORDED, json={"input": "x"}, status=200),
        Call(needs=WRITE | READ, headers=RECORDED, json={"input": "x", "stream": True}, status=200),
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"input": [X]}, status=200),
        Call(needs=WRITE | READ, json={"input": "x", "conversation": "{id}"}, status=200),
        Call(needs=WRITE | READ, about=LETTER, json={"input": "x", "previous_response_id": "{response}"}, status=200),
        Call(
            needs=READ,
            about=LETTER,
            json={"input": "x", "previous_response_id": "{response}", "store": False},
            status=200,
        ),
    ],
    ("GET", R + "/{response}"): [
        Call(needs=READ, about=LETTER, status=200),
        Call(needs=READ, about=LETTER, params={"stream": "true"}, status=200),
    ],
    ("DELETE", R + "/{response}"): [Call(needs=DELETE, about=LETTER, status=200, repeats=True)],
    ("POST", R + "/{response}/cancel"): [Call(needs=READ | WRITE, about=LETTER, status=200)],
    ("GET", R + "/{response}/input_items"): [Call(needs=READ, about=LETTER, status=200)],
    ("POST", C): [
        Call(needs=WRITE, headers=RECORDED, json={}, status=409),
        Call(needs=WRITE, headers={"X-CFS-Session": "{id}/new"}, json={"items": [X]}, status=200),
    ],
    ("GET", C + "/{id}"): [Call(needs={"file"}, status=200)],
    ("DELETE", C + "/{id}"): [Call(needs=DELETE, status=200)],
    ("GET", C + "/{id}/items"): [Call(needs=READ, status=200)],
    ("POST", C + "/{id}/items"): [Call(needs=WRITE, json={"items": [X, X]}, status=200)],
    ("GET", C + "/{id}/items/{item}"): [Call(needs=READ, status=200)],
    ("POST", "/v1/messages"): [
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"messages": [X], **SHORT}, status=200),
        Call(needs=WRITE | READ, about=CHAPTER, headers=RECORDED, json={"messages": [MEDLARS, X], **SHORT}, status=200),
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"messages": [X], **SHORT, **STREAM}, status=200),
    ],
    ("POST", "/api/chat"): [
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"messages": [X], **WHOLE}, status=200),
        Call(needs=WRITE | READ, about=CHAPTER, headers=RECORDED, json={"messages": [MEDLARS, X]}, status=200),
    ],
    ("POST", "/api/generate"): [
        Call(needs=WRITE | READ, headers=RECORDED, json={"prompt": "x", **WHOLE}, status=200),
        Call(needs=WRITE | READ | DELETE, headers=RECORDED, json={"prompt": "x", "context": []}, status=200),
    ],
    ("GET", F): [
        call
        for path in ("sessions/{id}", "workspaces/{id}/notes.txt")
        for call in (
            Call(needs=READ, path=path, status=200),
            Call(needs=READ, path=path, headers={"Range": "bytes=0-3"}, status=206),
            Call(needs={"file"}, path=path, params={"view": "meta"}, status=200),
            Call(needs={"read_file"}, path=path, params={"view": "text", "index": "0", "line": "1"}, status=200),
            Call(needs={"read_re"}, path=path, params={"view": "matches", "pattern": "[a-z]+s"}, status=200),
        )
    ],
    ("PUT", F): [
        call
        for path in ("sessions/{id}", "workspaces/{id}/notes.txt")
        for call in (
            Call(needs=WRITE, path=path, content="x", status=200),
            Call(needs=WRITE | {"file"}, path=path, content="x", headers=ANY, status=200),
            Call(needs=WRITE | {"file"}, path=path, content="x", headers={"If-None-Match": "*"}, status=412),
        )
    ],
    ("DELETE", F): [
        call
        for path in ("sessions/{id}", "workspaces/{id}/notes.txt")
        for call in (
            Call(needs=DELETE, path=path, status=204),
            Call(needs=DELETE | {"file"}, path=path, headers=ANY, status=204),
        )
    ],
    ("GET", V): [Call(needs={"file"}, path=f"workspaces/{path}", status=200) for path in ("{id}", "{id}/notes.txt")],
    ("GET", P): [
        Call(needs=READ, path="sessions/{id}", params={"view": "list"}, status=200),
        Call(needs=READ, path="sessions/{id}/@0", status=200),
        Call(needs={"file"}, path="workspaces/{id}/notes.txt", params={"view": "meta"}, status=200),
        Call(needs={"file"}, path="workspaces/{id}/notes.txt/@1", params={"view": "meta"}, status=200),
        Call(needs=READ, path="workspaces/{id}/notes.txt/@1", status=200),
    ],
    ("DELETE", V): [Call(needs=DELETE, path="workspaces/{id}", status=204)],
    ("POST", V): [
        Call(needs=READ, path="workspaces/{own}", json={"source": "{id}"}, status=404),
        Call(needs=READ | WRITE | DELETE, path="workspaces/{id}", json={"source": "{own}"}, status=404),
    ],
}
FOR_ALL = {
    ("GET", path)
    for path in (
        "/", "/health", "/healthz", "/readyz", "/metrics", "/v1/whoami", "/v1/sessions", "/v1/files", "/v1/events",
        "/v1/models", "/v1/models/{model}", "/v1/backup", "/v1/search", "/v1/shares", "/v1/costs",
        "/v1/connections", "/api/tags", "/api/ps", "/api/version",
    )
} | {
    ("POST", path)
    for path in (
        "/v1/connections", "/v1/connection-search",
        "/v1/tokens", "/v1/render", "/v1/messages/count_tokens", "/api/show", "/api/pull", "/api/push", "/api/create",
        "/api/embed", "/api/embeddings", "/v1/embeddings",
    )
} | {("DELETE", "/v1/shares/{share}"), ("DELETE", "/v1/connections/{model}"), ("DELETE", "/api/delete")}  # fmt: skip
"""Routes that are about nothing in particular: what they show depends on the caller."""


def test_every_route_has_a_place_in_the_tables() -> None:
    known = {*CALLS, *FOR_ALL}
    assert ROUTES - known == set(), "say in CALLS or FOR_ALL which rights these routes need"
    assert known - ROUTES == set(), "these routes are not there any more"


# -- asking -----------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What came back, without what differs from one request to the next."""

    status: int
    headers: list[tuple[str, str]]
    body: str

    def about(self, *names: str) -> "Answer":
        """The same with the names that were asked for blotted out, longest first."""
        text = json.dumps([self.headers, self.body])
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, "#" * len(name))
        headers, body = json.loads(text)
        return Answer(self.status, headers, body)


async def ask(guest: Guest, request: httpx.Request) -> Answer:
    """Send a request; of a stream take the first piece."""
    answer = await guest.client.send(request, stream=True)
    try:
        pieces: AsyncIterator[bytes] = answer.aiter_bytes()
        streams = answer.headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson"))
        body = await anext(pieces, b"") if streams else b"".join([piece async for piece in pieces])
    finally:
        await answer.aclose()
    headers = [
        (name, value) for name, value in answer.headers.items() if name not in ("date", "x-request-id", "request-id")
    ]
    return Answer(answer.status_code, headers, body.decode())


EACH = [
    pytest.param(route, call, id=f"{route[0]} {route[1]} {n}") for route in CALLS for n, call in enumerate(CALLS[route])
]
BOBS = [grant(f"/{place}/{name}") for place in ("sessions", "workspaces") for name in ("bobs", "alices", "alices-diar")]
"""What is his, and some that share letters with what is hers."""
NAMES = {"own": "bobs", "new": "bobs/new"}


class Estate(NamedTuple):
    """A server with what Alice has, and Bob, who has a session of his own."""

    server: ServerHarness
    who: dict[str, Guest]
    turn: dict[str, str]


@asynccontextmanager
async def estate(*, may_block: bool = False) -> AsyncIterator[Estate]:
    async with running_server(may_block=may_block) as server, guests(server, alice=[grant("/")], bob=BOBS) as who:
        turn = await furnish(who["alice"])
        await who["bob"].create("bobs", "Assistant: mine\n")
        yield Estate(server, who, turn)


def twin(name: str) -> str:
    """A name like one of Alice's, of nothing."""
    return name.replace("chapter", "chaptez") if name == CHAPTER else name.replace("alices", "alicez")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Estate]:
    """One estate for all calls that may change nothing; the watch over blocking calls is off, as it has no end."""
    async with estate(may_block=True) as found:
        yield found


@pytest.mark.parametrize(("route", "call"), EACH)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_not_granted_is_as_if_it_did_not_exist(
    shared: Estate, route: tuple[str, str], call: Call
) -> None:
    """Asked for without rights, it changes nothing and answers as what is not there, to the letter."""
    server, who, turn = shared
    bob, before = who["bob"], await everything_in(server)
    methods = ("GET", "HEAD") if route[0] == "GET" else (route[0],)
    for method, session in itertools.product(methods, (call.about, CHAPTER)):
        answers = []
        for name in (session, twin(session)):
            request = call.request((method, route[1]), bob.client, NAMES | turn | {"id": name})
            answer = (await ask(bob, request)).about(name)
            assert answer.status == 404, answer
            assert not any(word in str(answer) for word in (*CONTENT, "alice", *turn.values())), answer
            answers.append(answer)
        assert answers[0] == answers[1]
    assert await everything_in(server) == before


def some_rights(needs: AbstractSet[Operation], *, all_of_them: bool) -> list[AbstractSet[Operation]]:
    """All but one that is needed, which is never enough; or every single one, and some that are usual, as well."""
    rights: list[AbstractSet[Operation]] = [OPERATIONS - {operation} for operation in sorted(needs)]
    if all_of_them:
        reader = OPERATIONS - WRITE - DELETE
        rights += [{operation} for operation in sorted(OPERATIONS)] + [reader, reader | WRITE, WRITE | DELETE]
    return [ops for ops in rights if not needs <= ops]


@pytest.mark.parametrize(("route", "call"), EACH)
async def test_a_call_needs_all_of_its_operations_and_no_other(
    request: pytest.FixtureRequest, route: tuple[str, str], call: Call
) -> None:
    """With less it is forbidden and changes nothing; with just these it is done, and shows no more than they allow."""
    async with estate() as (server, who, turn):
        bob, before = who["bob"], await everything_in(server)
        names = NAMES | turn | {"id": call.about}
        places = [f"/sessions/{call.about}", f"/workspaces/{call.about}"]
        for ops in some_rights(call.needs, all_of_them=request.config.getoption("--slow")):
            bob.may(*BOBS, *(grant(place, *ops) for place in places))
            answer = await ask(bob, call.request(route, bob.client, names))
            assert answer.status == 403, (ops, answer)
            assert not any(word in answer.body for word in (*CONTENT, *turn.values())), (ops, answer)
            assert await everything_in(server) == before, ops
        bob.may(*BOBS, *(grant(place, *call.needs) for place in places))
        answer = await ask(bob, call.request(route, bob.client, names))
        assert answer.status == call.status, answer
        if not call.needs & READ_OPERATIONS and not call.repeats:
            assert not any(word in answer.body for word in CONTENT), answer


async def test_a_change_of_settings_shows_them_to_readers_only() -> None:
    async with estate() as (_, who, _):
        for ops, status, shown in ((WRITE, 204, False), (WRITE | READ, 200, True)):
            who["bob"].may(grant(f"/sessions/{DIARY}", *ops))
            answer = await who["bob"].client.patch(f"/v1/sessions/{DIARY}/settings", json={})
            assert (answer.status_code, "marmalade" in answer.text) == (status, shown)


# -- what is about nothing in particular ------------------------------------------------------------------------------


async def untargeted(guest: Guest) -> dict[str, Answer]:
    """All answers of the routes that need no token, but for the stream."""
    return {
        path: await ask(guest, guest.client.build_request(method, path))
        for method, path in sorted(FOR_ALL)
        if path != "/v1/events"
    }


async def test_what_others_do_changes_no_answer() -> None:
    """Listings, their ETags, counts, usage: all is as if Bob were alone, whatever Alice does."""
    async with running_server() as server, guests(server, alice=[grant("/")], bob=BOBS) as who:
        bob, alice = who["bob"], who["alice"]
        await bob.create("bobs", "Assistant: mine\n")
        await bob.create("bobs/child")
        await bob.client.put("/v1/files/workspaces/bobs/a.txt", content=b"mine")
        about_him = ["/v1/sessions?prefix=bobs/", "/v1/sessions/bobs", "/v1/sessions/bobs/sub_sessions"]
        before = await untargeted(bob) | {
            path: await ask(bob, bob.client.build_request("GET", path)) for path in about_him
        }
        assert before["/metrics"].status == before["/v1/backup"].status == 403
        await furnish(alice)
        await alice.client.post(f"/v1/sessions/{DIARY}/fork", json={"id": "alices-copy"})
        await alice.client.post(f"/v1/sessions/{DIARY}/rename", json={"id": "alices-book"})
        await alice.client.delete(f"/v1/sessions/{AGENT}")
        after = await untargeted(bob) | {
            path: await ask(bob, bob.client.build_request("GET", path)) for path in about_him
        }
        assert after == before
        assert not any(word in str(after) for word in (*CONTENT, DIARY, AGENT, ERRAND, "copy", "book"))


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_listings_and_the_common_stream_need_one_operation_each(operation: Operation) -> None:
    async with estate() as (_, who, _):
        bob = who["bob"]
        bob.may(grant("/sessions/", operation), grant("/workspaces/bobs"))
        listed = operation == "list"
        sessions = (await bob.client.get("/v1/sessions")).json()
        assert [session["id"] for session in sessions["sessions"]] == (
            ["alices-agent", "alices-diary", "alices-errand", "alices-letter", "bobs"] if listed else []
        )
        children = (await bob.client.get("/v1/sessions", params={"prefix": DIARY + "/"})).json()
        assert [session["id"] for session in children["sessions"]] == ([CHAPTER] if listed else [])
        files = (await bob.client.get("/v1/files")).json()["files"]
        assert [file["path"] for file in files if DIARY in file["path"]] == (
            [f"/sessions/{DIARY}", f"/sessions/{CHAPTER}"] if listed else []
        )
        assert (await bob.client.get("/metrics")).status_code == 403
        async with await bob.stream("/v1/events?after=0") as stream:
            bob.may(grant("/sessions/", operation), grant("/sessions/bobs", "read"))
            await who["alice"].say("bobs", "a mark")
            seen = await stream.until("message.added")
        assert any(json.loads(event.data)["session"] == DIARY for event in seen) == (operation == "read_binary")
        assert data(seen[-1])["message"]["content"] == ("quinces" if operation == "read_binary" else "a mark")


async def test_without_a_token_only_what_is_the_same_for_all_is_told() -> None:
    async with estate() as (server, _, turn):
        routes = [(method, url) for method, url in sorted(ROUTES) if url not in ("/", "/health", "/healthz", "/readyz")]
        before = await everything_in(server)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as nobody:
            for method, url in routes:
                answer = await nobody.request(method, url.format(id=DIARY, path=NOTES, model="x", share="s", **turn))
                assert answer.status_code == 401, (method, url)
                assert not any(word in answer.text for word in CONTENT)
            for url in ("/", "/health", "/healthz", "/readyz", "/openapi.json"):
                answer = await nobody.get(url)
                assert (answer.status_code, "alice" in answer.text) == (200, False)
        assert await everything_in(server) == before


# -- parts of a family ------------------------------------------------------------------------------------------------


async def listed(guest: Guest, **params: str) -> list[str]:
    """All ids of a listing, page by page."""
    found: list[str] = []
    after = ""
    while True:
        page = (await guest.client.get("/v1/sessions", params={"limit": "2", "after": after} | params)).json()
        found += [session["id"] for session in page["sessions"]]
        assert len(page["sessions"]) <= 2
        if page["next"] is None:
            return found
        after = page["next"]


async def test_pages_hold_what_may_be_listed_and_end_with_it() -> None:
    """Grants of all sessions, of single ones, of what is below one, and of one deep below."""
    async with estate() as (_, who, _):
        bob, alice = who["bob"], who["alice"]
        for session in ("main/coder/t1", "main/coder/t2", "main/docs", "main/tester", "a*", "mainly"):
            await alice.create(session)
        for prefixes, roots, children in (
            (
                ["/sessions/"],
                ["a*", AGENT, DIARY, ERRAND, LETTER, "bobs", "main", "mainly"],
                ["coder", "docs", "tester"],
            ),
            (
                ["/sessions/main", "/sessions/a%2A", "/sessions/bobs"],
                ["a*", "bobs", "main"],
                ["coder", "docs", "tester"],
            ),
            (["/sessions/main/"], [], ["coder", "docs", "tester"]),
            (["/sessions/main/docs", "/sessions/main/coder/t2"], [], ["docs"]),
            ([], [], []),
        ):
            bob.may(*(grant(prefix, "list") for prefix in prefixes))
            assert await listed(bob) == roots
            assert await listed(bob, prefix="ma") == [root for root in roots if root.startswith("ma")]
            assert await listed(bob, prefix="main/") == [f"main/{child}" for child in children]
        bob.may(grant("/sessions/main/coder/t2", "list"))
        assert await listed(bob, prefix="main/coder/") == ["main/coder/t2"]


async def test_the_etag_of_a_listing_changes_with_what_it_shows_only() -> None:
    async with estate() as (_, who, _):
        etag = (await who["bob"].client.get("/v1/sessions")).headers["ETag"]
        for guest, session, status in ((who["alice"], DIARY, 304), (who["bob"], "bobs", 200)):
            await guest.say(session, "hello", wait="true")
            answer = await who["bob"].client.get("/v1/sessions", headers={"If-None-Match": etag})
            assert answer.status_code == status


async def test_a_right_below_does_not_make_what_is_above() -> None:
    """By no route that makes sessions; where what is above exists already, it does its work."""
    async with estate() as (server, who, _):
        bob = who["bob"]
        bob.may(*BOBS, grant("/sessions/alices-new/child"))
        ways: dict[str, tuple[str, str, dict[str, Any]]] = {
            "create": ("POST", "/v1/sessions", {"json": {"id": "alices-new/child"}}),
            "message": ("POST", "/v1/sessions/alices-new/child/messages", {"content": b"x"}),
            "nothing": ("POST", "/v1/sessions/alices-new/child/messages", {"content": b""}),
            "fork": ("POST", "/v1/sessions/bobs/fork", {"json": {"id": "alices-new/child"}}),
            "file": ("PUT", "/v1/files/sessions/alices-new/child", {"content": b"x"}),
            "rename": ("POST", "/v1/sessions/bobs/rename", {"json": {"id": "alices-new/child"}}),
        }
        before = await everything_in(server)
        for method, url, body in ways.values():
            answer = await bob.client.request(method, url, **body)
            assert answer.status_code in (404, 409), answer.text
            assert await everything_in(server) == before
        await who["alice"].create("alices-new")
        for method, url, body in ways.values():
            answer = await bob.client.request(method, url, **body)
            assert answer.status_code < 300, answer.text
            await bob.client.delete("/v1/sessions/alices-new/child")
