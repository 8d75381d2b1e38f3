"""One refusal is the same error on every face: one `type` and status by REST, WebDAV, files and completions (G9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from cfs_filesystem import OPERATIONS, READ_OPERATIONS, Grant
from tests.server.guests import Guest, guests
from tests.server.support import ServerHarness, running_server
from tests.server.test_errors import problem_in
from tests.webdav.wire import LOCK

LOOKING = {"list", "file", *READ_OPERATIONS}
PATCH = b'<D:propertyupdate xmlns:D="DAV:"><D:set><D:prop><x xmlns="urn:x">1</x></D:prop></D:set></D:propertyupdate>'


@dataclass(frozen=True)
class Try:
    """A request; {name} stands for the session."""

    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    json: Any = None


CHANGES_OF_A_SESSION = [
    Try("POST", "/v1/sessions/{name}/messages", b"hi"),
    Try("POST", "/v1/sessions/mine/fork", json={"id": "{name}"}),
    Try("PUT", "/v1/files/sessions/{name}", b"hi"),
    Try("PUT", "/dav/sessions/{name}", b"hi"),
]
DELETIONS_OF_A_SESSION = [
    Try("DELETE", "/v1/sessions/{name}"),
    Try("DELETE", "/v1/files/sessions/{name}"),
    Try("DELETE", "/dav/sessions/{name}"),
]
LOOKS_AT_A_SESSION = [
    Try("GET", "/v1/sessions/{name}"),
    Try("GET", "/v1/files/sessions/{name}"),
    Try("GET", "/dav/sessions/{name}"),
    Try("PROPFIND", "/dav/sessions/{name}", b"", {"Depth": "0"}),
    Try("COPY", "/dav/sessions/{name}", b"", {"Destination": "{url}/dav/sessions/mine2"}),
]
COMPLETION = Try(
    "POST",
    "/v1/chat/completions",
    json={"model": "scripted", "messages": [{"role": "user", "content": "hi"}]},
    headers={"X-CFS-Session": "{name}"},
)
LOCKING = [Try("LOCK", "/dav/sessions/{name}", LOCK), Try("PROPPATCH", "/dav/sessions/{name}", PATCH)]
LOOKS_AT_A_FILE = [
    Try("GET", "/v1/files/workspaces/{name}"),
    Try("GET", "/dav/workspaces/{name}"),
    Try("PROPFIND", "/dav/workspaces/{name}", b"", {"Depth": "0"}),
]
DELETIONS_OF_A_FILE = [Try("DELETE", "/v1/files/workspaces/{name}"), Try("DELETE", "/dav/workspaces/{name}")]
CHANGES_OF_A_FILE = [
    Try("PUT", "/v1/files/workspaces/{name}", b"hi"),
    Try("PUT", "/dav/workspaces/{name}", b"hi"),
    *DELETIONS_OF_A_FILE,
]
SESSION = [*CHANGES_OF_A_SESSION, *DELETIONS_OF_A_SESSION]
LARGE = b"x" * 2500

ROWS: dict[str, tuple[str, int, str, list[Try]]] = {
    "hidden session": ("not-granted", 404, "secret", [*LOOKS_AT_A_SESSION, *SESSION, COMPLETION, *LOCKING]),
    "hidden file": ("not-granted", 404, "secret/f", [*LOOKS_AT_A_FILE, *CHANGES_OF_A_FILE]),
    "read-only session": ("forbidden", 403, "shown", [*SESSION, COMPLETION, LOCKING[0]]),
    "read-only file": ("forbidden", 403, "shown/f", CHANGES_OF_A_FILE),
    "unknown session": ("not-found", 404, "bad", [*LOOKS_AT_A_SESSION, *DELETIONS_OF_A_SESSION, LOCKING[1]]),
    "unknown file": ("not-found", 404, "mine/none", [*LOOKS_AT_A_FILE, *DELETIONS_OF_A_FILE]),
    "no session id": (
        "invalid-identifier",
        422,
        "x" * 256,
        [each for each in [*LOOKS_AT_A_SESSION, *SESSION, *LOCKING] if "files" not in each.path],
    ),
    "no file path": ("invalid-path", 400, "mine/a*b", [*LOOKS_AT_A_FILE, *CHANGES_OF_A_FILE]),
    "large message": (
        "too-large",
        413,
        "mine",
        [
            Try("POST", "/v1/sessions/mine/messages", LARGE),
            Try("PUT", "/v1/files/sessions/mine", LARGE),
            Try("PUT", "/dav/sessions/mine", LARGE),
            Try("POST", "/v1/chat/completions", headers={"X-CFS-Session": "mine"}, json={"content": LARGE.decode()}),
        ],
    ),
    "large file": (
        "too-large",
        413,
        "mine/f",
        [Try("PUT", f"/{face}/workspaces/mine/f", LARGE * 2) for face in ("dav", "v1/files")],
    ),
}


@asynccontextmanager
async def ann() -> AsyncIterator[tuple[ServerHarness, Guest]]:
    """Serve a caller who sees `shown`, may do everything with `mine` and `bad`, and knows nothing of `secret`."""
    grants = [Grant(prefix=f"/{kind}/shown", ops=LOOKING) for kind in ("sessions", "workspaces")]
    grants += [Grant(prefix=f"/sessions/{name}", ops=OPERATIONS) for name in ("mine", "mine2", "bad")]
    grants += [Grant(prefix="/workspaces/mine", ops=OPERATIONS)]
    async with running_server(max_message_bytes=2000, max_file_bytes=3000) as server:
        for name in ("shown", "secret", "mine"):
            await server.create(name)
            await server.client.put(f"/v1/files/workspaces/{name}/f", content=b"x")
        async with guests(server, ann=grants) as found:
            yield server, found["ann"]


def filled(value: Any, **names: str) -> Any:
    """Put names into a text, or into the values of a dictionary."""
    if isinstance(value, dict):
        return {key: filled(each, **names) for key, each in value.items()}
    return value.format(**names) if isinstance(value, str) and "{" in value else value


@pytest.mark.parametrize("row", ROWS)
async def test_a_refusal_is_the_same_on_every_face(row: str) -> None:
    kind, status, name, tries = ROWS[row]
    async with ann() as (_, guest):
        for each in tries:
            names = {"name": name, "url": guest.url}
            body = filled(each.json, **names)
            if body is not None and "content" in body:
                body = {"model": "scripted", "messages": [{"role": "user", "content": body["content"]}]}
            answer = await guest.client.request(
                each.method,
                filled(each.path, **names),
                content=each.content,
                json=body,
                headers=filled(each.headers, **names),
            )
            found = (problem_in(answer).type.removeprefix("urn:cfs:error:"), answer.status_code)
            assert found == (kind, status), (each.method, each.path, answer.text)


async def test_a_completion_says_400_where_the_other_faces_say_422() -> None:
    """Programs that speak to OpenAI expect that; the type is the same."""
    async with ann() as (_, guest):
        answer = await guest.client.post(COMPLETION.path, json=COMPLETION.json, headers={"X-CFS-Session": "x" * 256})
        assert (problem_in(answer).type, answer.status_code) == ("urn:cfs:error:invalid-identifier", 400)


async def test_a_session_that_is_deleted_while_it_is_waited_for_is_gone_on_every_face() -> None:
    async with running_server() as server:
        await server.create("a", driver="agent")
        await server.say("a", "a task that no agent takes")
        waits = [
            asyncio.create_task(server.client.get(path))
            for path in ("/v1/sessions/a?wait=30", "/v1/sessions/a/wait?timeout=30", "/dav/sessions/a")
        ]
        while server.store.get("a").changed.waiting < 3:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0)
        await server.client.delete("/v1/sessions/a")
        for answer in await asyncio.gather(*waits):
            assert (problem_in(answer).type, answer.status_code) == ("urn:cfs:error:session-deleted", 410)
