"""Files by REST: views, versions, paging, conflicts, sessions as files (G3, H3, H5)."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from cfs_filesystem import GrantedOperation
from cfs_server.access.tokens import Token, TokenGrant, digest
from tests.server.support import TEXT, ServerHarness, running_server
from tests.server.test_errors import problem_in

FILES = "/v1/files"
MAIN = f"{FILES}/workspaces/main"
NOTE = f"{MAIN}/note.txt"
ALL_BYTES = bytes(range(256)) * 3


async def put(server: ServerHarness, url: str, data: bytes = b"x", **headers: str) -> str:
    """Write a file; return the version that it has now."""
    answer = await server.client.put(url, content=data, headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert answer.status_code in (200, 201), answer.text
    etag: str = answer.headers["ETag"]
    return etag


async def paths(server: ServerHarness, **query: str | int) -> list[str]:
    """List the paths of one page."""
    answer = await server.client.get(FILES, params=query)
    assert answer.status_code == 200, answer.text
    return [info["path"] for info in answer.json()["files"]]


# -- reading and writing ------------------------------------------------------------------------------------------


async def test_what_is_put_is_got_and_deleted(server: ServerHarness) -> None:
    made = await server.client.put(NOTE, content=ALL_BYTES)
    assert (made.status_code, made.headers["Location"]) == (201, NOTE)
    assert made.json()["path"] == "/workspaces/main/note.txt"
    assert made.json()["size"] == len(ALL_BYTES)
    assert made.headers["ETag"] == f'"{made.json()["version"]}"'
    assert (await server.client.get(NOTE)).content == ALL_BYTES
    again = await server.client.put(NOTE, content=b"other")
    assert (again.status_code, "Location" in again.headers) == (200, False)
    assert again.headers["ETag"] != made.headers["ETag"]
    read = await server.client.get(NOTE)
    assert (read.content, read.headers["ETag"]) == (b"other", again.headers["ETag"])
    gone = await server.client.delete(NOTE)
    assert (gone.status_code, gone.content) == (204, b"")
    for method in ("GET", "DELETE"):
        assert problem_in(await server.client.request(method, NOTE)).status == 404
    assert (await server.client.put(NOTE, content=b"")).status_code == 201
    assert (await server.client.get(NOTE)).content == b""


async def test_an_empty_file_is_a_file(server: ServerHarness) -> None:
    await put(server, NOTE, b"")
    assert await paths(server) == ["/workspaces/main/note.txt"]
    empty = await server.client.get(NOTE)
    assert (empty.status_code, empty.content, empty.headers["content-length"]) == (200, b"", "0")
    assert (await server.client.get(NOTE, params={"view": "text"})).text == ""


NAMES = [
    "中文",
    "a b",
    " blanks ",
    "100%",
    "%41",
    "#1",
    "a&b=c;d+e",
    "quote\"'s",
    "🙂",
    "e\u0301 is not é",
    "a.",
    "..a",
    "~",
    "[x]{y}|z^`",
    pytest.param("x" * 255, id="255 letters"),
    pytest.param("\u6f22" * 85, id="255 bytes of Chinese"),
]


@pytest.mark.parametrize("name", NAMES)
async def test_every_legal_name_is_reached_and_the_location_is_its_url(server: ServerHarness, name: str) -> None:
    path = f"/workspaces/{name}/{name}/{name}"
    made = await server.client.put(FILES + quote(path), content=name.encode())
    assert made.status_code == 201, made.text
    assert made.json()["path"] == path
    assert made.headers["Location"].isascii()
    assert await paths(server) == [path]
    read = await server.client.get(made.headers["Location"])
    assert (read.status_code, read.content) == (200, name.encode())
    assert (await server.client.delete(made.headers["Location"])).status_code == 204
    assert await paths(server) == []


HEADED = [{}, {"view": "text"}, {"view": "matches", "pattern": "o"}, {"view": "meta"}]


@pytest.mark.parametrize("query", HEADED)
async def test_head_is_get_without_the_body(server: ServerHarness, query: dict[str, str]) -> None:
    await put(server, NOTE, b"one\ntwo\n")
    whole = await server.client.get(NOTE, params=query)
    for headers in ({}, {"Range": "bytes=0-1"}, {"Range": "bytes=99-"}):  # a range is for GET only (RFC 9110, 14.2)
        head = await server.client.head(NOTE, params=query, headers=headers)
        assert (head.status_code, head.content) == (200, b"")
        ours = {name: head.headers[name] for name in whole.headers if name not in ("date", "x-request-id")}
        assert ours == {name: whole.headers[name] for name in ours}


# -- views --------------------------------------------------------------------------------------------------------


async def test_lines_of_the_text(server: ServerHarness) -> None:
    await put(server, NOTE, "null\neins\r\nzwei\nd\u2028rei".encode())

    async def lines(**query: int) -> str:
        answer = await server.client.get(NOTE, params={"view": "text", **query})
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        return answer.content.decode()

    assert await lines() == "null\neins\r\nzwei\nd\u2028rei"
    assert await lines(index=1) == "eins\r\nzwei\nd\u2028rei"
    assert await lines(index=1, line=1) == "eins\r\n"
    assert await lines(line=2) == "null\neins\r\n"
    assert await lines(index=3, line=10**9) == "d\u2028rei"
    past = await server.client.get(NOTE, params={"view": "text", "index": 4})
    assert problem_in(past).type == "urn:cfs:error:not-found"


async def test_what_matches_a_pattern(server: ServerHarness) -> None:
    await put(server, NOTE, "eins zwei drei 中文".encode())

    async def matches(**query: str | int) -> list[str]:
        answer = await server.client.get(NOTE, params={"view": "matches", **query})
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json()["matches"]
        return found

    assert await matches(pattern="[a-z]*ei[a-z]*") == ["eins", "zwei", "drei"]
    assert await matches(pattern=r"(?<=drei )\w+") == ["中文"]
    assert await matches(pattern="nothing") == []
    for overlap in (0, 3, 10**6, 2**70):
        assert await matches(pattern="z..i", overlap=overlap) == ["zwei"]


async def test_what_is_known_of_a_file(server: ServerHarness) -> None:
    written = (await server.client.put(NOTE, content=b"12345")).json()
    known = await server.client.get(NOTE, params={"view": "meta"})
    assert known.json() == written
    assert set(written) == {"path", "size", "updated_at", "version"}
    read = await server.client.get(NOTE)
    assert (known.headers["ETag"], known.headers["Last-Modified"]) == (
        read.headers["ETag"],
        read.headers["Last-Modified"],
    )


@pytest.mark.parametrize("query", [{"view": "text"}, {"view": "matches", "pattern": "x"}])
async def test_bytes_that_are_no_text_have_no_text(server: ServerHarness, query: dict[str, str]) -> None:
    await put(server, NOTE, b"\xff\xfe")
    refused = problem_in(await server.client.get(NOTE, params=query))
    assert (refused.status, refused.type) == (422, "urn:cfs:error:invalid-parameters")


async def test_a_catastrophic_pattern_is_given_up_and_nobody_waits_for_it(server: ServerHarness) -> None:
    await put(server, NOTE, b"a" * 100 + b"b")
    query = {"view": "matches", "pattern": "(a|aa)+$"}
    search = asyncio.create_task(server.client.get(NOTE, params=query))
    while not search.done():
        assert (await server.client.get(NOTE)).status_code == 200
    refused = problem_in(search.result())
    assert (refused.status, refused.type) == (422, "urn:cfs:error:invalid-parameters")
    assert "given up" in refused.detail


class Bad(NamedTuple):
    """A request that is refused with 422 whatever is there."""

    target: str
    said: str


BAD = {
    "negative index": Bad(f"{NOTE}?view=text&index=-1", "index"),
    "index that is no number": Bad(f"{NOTE}?view=text&index=first", "index"),
    "index with a fraction": Bad(f"{NOTE}?view=text&index=0.5", "index"),
    "no lines": Bad(f"{NOTE}?view=text&line=0", "line"),
    "negative lines": Bad(f"{NOTE}?view=text&line=-1", "line"),
    "index of 5,000 digits": Bad(f"{NOTE}?view=text&index={'9' * 5000}", "index"),
    "negative overlap": Bad(f"{NOTE}?view=matches&pattern=x&overlap=-1", "overlap"),
    "overlap that is no number": Bad(f"{NOTE}?view=matches&pattern=x&overlap=x", "overlap"),
    "no pattern": Bad(f"{NOTE}?view=matches", "pattern"),
    "pattern that is none": Bad(f"{NOTE}?view=matches&pattern=(", "regular expression"),
    "pattern that is too large": Bad(f"{NOTE}?view=matches&pattern=((x%7B900%7D)%7B900%7D)%7B900%7D", "repeats"),
    "unknown view": Bad(f"{NOTE}?view=movie", "view"),
    "page of nothing": Bad(f"{FILES}?limit=0", "limit"),
    "page of too much": Bad(f"{FILES}?limit=10001", "limit"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_arguments_out_of_range_are_refused_by_name(server: ServerHarness, kind: str) -> None:
    await put(server, NOTE, b"x\n")
    refused = problem_in(await server.client.get(BAD[kind].target))
    assert (refused.status, refused.type) == (422, "urn:cfs:error:invalid-parameters")
    assert BAD[kind].said in refused.detail


# -- listing ------------------------------------------------------------------------------------------------------


async def test_a_list_comes_in_pages_in_the_order_of_the_paths(server: ServerHarness) -> None:
    names = ["b", "a", "B", "é", "a b", "中", "10", "9", "sub/x", "sub-x"]
    for name in names:
        await put(server, f"{MAIN}/{quote(name)}")
    await put(server, f"{FILES}/sessions/chat", b"")
    everything = sorted(["/sessions/chat", *(f"/workspaces/main/{name}" for name in names)])
    assert await paths(server) == everything
    for limit in (1, 3, 10, 11, 12):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await server.client.get(FILES, params={"after": after, "limit": limit})).json()
            assert 0 < len(page["files"]) <= limit
            found += [info["path"] for info in page["files"]]
            after = page["next"]
            assert after in (None, found[-1])
        assert found == everything


async def test_a_prefix_is_the_entry_and_what_is_below_it_and_no_sibling(server: ServerHarness) -> None:
    for name in ("a/1", "a/2/x", "ab", "b"):
        await put(server, f"{MAIN}/{name}")
    below = ["/workspaces/main/a/1", "/workspaces/main/a/2/x"]
    assert await paths(server, prefix="/workspaces/main/a") == below
    assert await paths(server, prefix="/workspaces/main/a/") == below
    assert await paths(server, prefix="/workspaces/main/a", after=below[0]) == below[1:]
    assert await paths(server, prefix="/workspaces/main/ab") == ["/workspaces/main/ab"]
    assert await paths(server, prefix="/workspaces/main/ab/") == []
    assert await paths(server, prefix="/workspaces/nobody/") == []
    assert len(await paths(server, prefix="/")) == len(await paths(server)) == 4


async def test_a_list_has_a_version_that_changes_with_what_it_shows(server: ServerHarness) -> None:
    await put(server, f"{MAIN}/a")
    first = await server.client.get(FILES)
    etag = first.headers["ETag"]
    same = await server.client.get(FILES, headers={"If-None-Match": etag})
    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", etag)
    await put(server, f"{MAIN}/a", b"y")
    changed = await server.client.get(FILES, headers={"If-None-Match": etag})
    assert (changed.status_code, changed.headers["ETag"] != etag) == (200, True)


# -- paths --------------------------------------------------------------------------------------------------------

LONG = "漢" * 86  # 258 bytes
NO_PATHS = [
    "",
    "/",
    "workspaces",
    "workspaces/",
    "workspaces/main/",
    "workspaces//note",
    "workspaces/main/%2E%2E/note",
    "workspaces/main/%2E",
    "workspaces/main/a*",
    "workspaces/main/a%3F",
    "workspaces/main/a%5Cb",
    "workspaces/main/%EF%BC%8F",
    "workspaces/main/%C2%85",
    f"workspaces/main/{'x' * 256}",
    f"workspaces/main/{quote(LONG)}",
    "workspaces/main/" + "/".join(["d" * 250] * 17),  # over 4,096 bytes in all
    "workspaces/main/.cfs-write-x",
    "etc/passwd",
    "sessions",
    "sessions/",
]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_what_is_no_path_is_refused(server: ServerHarness, method: str) -> None:
    for name in NO_PATHS:
        refused = problem_in(await server.client.request(method, f"{FILES}/{name}"))
        assert (refused.status, refused.type) == (400, "urn:cfs:error:invalid-path"), name
        assert await paths(server) == [], name


@pytest.mark.parametrize("prefix", ["workspaces", "/workspaces/../", "/work", "//", "/workspaces/main*", "/etc/"])
async def test_what_is_no_prefix_is_refused(server: ServerHarness, prefix: str) -> None:
    refused = problem_in(await server.client.get(FILES, params={"prefix": prefix}))
    assert (refused.status, refused.type) == (400, "urn:cfs:error:invalid-path")


@pytest.mark.parametrize("name", ["a%00", "a%0A", "a%2Fb", "a%FF", "a%zz"])
async def test_what_is_no_url_is_refused(server: ServerHarness, name: str) -> None:
    refused = problem_in(await server.client.put(f"{MAIN}/{name}", content=b"x"))
    assert (refused.status, refused.type) == (400, "urn:cfs:error:invalid-request")
    assert await paths(server) == []


async def test_a_workspace_itself_is_no_file(server: ServerHarness) -> None:
    refused = await server.client.put(MAIN, content=b"x")
    assert problem_in(refused).type == "urn:cfs:error:conflict"
    await put(server, NOTE)
    for method, status in (("GET", 404), ("PUT", 409), ("DELETE", 404)):
        assert problem_in(await server.client.request(method, MAIN)).status == status
    assert await paths(server) == ["/workspaces/main/note.txt"]


@pytest.mark.parametrize("name", ["a", "a/b", "a/b/c/d", "a/b/c/d/e"])
async def test_nothing_is_both_file_and_directory(server: ServerHarness, name: str) -> None:
    await put(server, f"{MAIN}/a/b/c", b"deep")
    refused = await server.client.put(f"{MAIN}/{name}", content=b"x")
    assert problem_in(refused).type == "urn:cfs:error:conflict"
    assert await paths(server) == ["/workspaces/main/a/b/c"]
    assert (await server.client.get(f"{MAIN}/a/b/c")).content == b"deep"
    assert problem_in(await server.client.get(f"{MAIN}/a/b")).status == 404
    await server.client.delete(f"{MAIN}/a/b/c")
    await put(server, f"{MAIN}/a", b"the path is free")


# -- what a browser makes of it -----------------------------------------------------------------------------------

TYPES = {
    "a.txt": "text/plain; charset=utf-8",
    "a.html": "text/html; charset=utf-8",
    "a.svg": "image/svg+xml",
    "a.png": "image/png",
    "a.json": "application/json",
    "a.pdf": "application/pdf",
    "a.PNG": "image/png",
    "a": "application/octet-stream",
    "a.unknown": "application/octet-stream",
    "a.tar.gz": "application/octet-stream",
    "a.svgz": "application/octet-stream",
}


@pytest.mark.parametrize("name", TYPES)
async def test_a_file_has_the_type_of_its_name_and_runs_nothing_in_a_browser(server: ServerHarness, name: str) -> None:
    await put(server, f"{MAIN}/{name}", b"<script>alert(1)</script>")
    for headers in ({}, {"Range": "bytes=0-3"}):
        answer = await server.client.get(f"{MAIN}/{name}", headers=headers)
        assert answer.headers["content-type"] == TYPES[name]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"].startswith("sandbox")
        assert "content-encoding" not in answer.headers
        assert answer.headers["Cache-Control"] == "no-cache"
    lines = await server.client.get(f"{MAIN}/{name}", params={"view": "text"})
    assert lines.headers["content-type"] == "text/plain; charset=utf-8"
    assert lines.headers["X-Content-Type-Options"] == "nosniff"


# -- sessions as files --------------------------------------------------------------------------------------------

CHAT = f"{FILES}/sessions/chat"


async def test_a_session_is_a_file_whose_writes_are_messages(server: ServerHarness) -> None:
    made = await server.client.put(CHAT, content=b"hello\n")
    assert (made.status_code, made.headers["Location"]) == (201, CHAT)
    assert await server.text("chat") == "User: hello\nAssistant: hello\n"
    read = await server.client.get(CHAT)
    assert read.text == "User: hello\nAssistant: hello\n"
    assert read.headers["content-type"] == "text/plain; charset=utf-8"
    text = await server.client.get("/v1/sessions/chat", headers=TEXT)
    assert read.headers["ETag"] == text.headers["ETag"]
    assert (await server.client.put(CHAT, content=b"again")).status_code == 200
    assert (await server.text("chat")).endswith("User: again\nAssistant: again\n")
    assert (await server.client.get(CHAT, params={"view": "text", "index": 2, "line": 1})).text == "User: again\n"
    found = await server.client.get(CHAT, params={"view": "matches", "pattern": "(?m)^Assistant: .*$"})
    assert found.json() == {"matches": ["Assistant: hello", "Assistant: again"]}
    assert (await server.client.get(CHAT, headers={"Range": "bytes=0-4"})).content == b"User:"
    assert await paths(server, prefix="/sessions/") == ["/sessions/chat"]
    assert (await server.client.delete(CHAT)).status_code == 204
    assert problem_in(await server.client.get(CHAT)).status == 404
    assert len(server.store) == 0


async def test_a_write_to_a_session_does_not_wait_for_the_reply(server: ServerHarness) -> None:
    server.engine.hold()
    first = await server.client.put(CHAT, content=b"hello")
    assert first.json()["size"] == len("User: hello\n")
    assert (await server.client.get(CHAT)).text == "User: hello\n"
    server.engine.release()
    assert await server.text("chat") == "User: hello\nAssistant: hello\n"


async def test_a_session_is_written_only_as_long_as_nobody_else_did(server: ServerHarness) -> None:
    etag = await put(server, CHAT, b"")
    assert await put(server, CHAT, b"hello", If_Match=etag) != etag
    text = await server.text("chat")
    for condition in ({"If-Match": etag}, {"If-None-Match": "*"}):
        refused = problem_in(await server.client.put(CHAT, content=b"late", headers=condition))
        assert (refused.status, refused.type) == (412, "urn:cfs:error:precondition-failed")
    assert problem_in(await server.client.delete(CHAT, headers={"If-Match": etag})).status == 412
    assert await server.text("chat") == text


async def test_a_deleted_session_takes_its_family_along_and_a_new_one_needs_it(server: ServerHarness) -> None:
    refused = problem_in(await server.client.put(f"{CHAT}/coder", content=b"x"))
    assert (refused.status, refused.type) == (409, "urn:cfs:error:conflict")
    for url in (CHAT, f"{CHAT}/coder", f"{CHAT}/coder/tester"):
        await put(server, url, b"")
    assert await paths(server) == ["/sessions/chat", "/sessions/chat/coder", "/sessions/chat/coder/tester"]
    assert (await server.client.delete(CHAT)).status_code == 204
    assert await paths(server) == []


async def test_an_id_that_is_no_logical_name_is_reached_by_its_escapes(server: ServerHarness) -> None:
    await server.say("what%3F", "hello", wait="true")
    assert await paths(server) == ["/sessions/what%3F"]
    url = f"{FILES}/sessions/what%253F"
    assert (await server.client.get(url)).text == "User: hello\nAssistant: hello\n"
    made = await server.client.put(f"{FILES}/sessions/100%2525", content=b"x")
    assert (made.headers["Location"], made.json()["path"]) == (f"{FILES}/sessions/100%2525", "/sessions/100%25")
    assert (await server.client.get("/v1/sessions/100%25")).json()["id"] == "100%"


async def test_what_is_no_message_is_refused_and_makes_no_session(server: ServerHarness) -> None:
    refused = problem_in(await server.client.put(CHAT, content=b"caf\xe9"))
    assert (refused.status, refused.type) == (422, "urn:cfs:error:invalid-parameters")
    for name in (".hidden", "a/b%20c", "a/settings", "%2541"):
        refused = problem_in(await server.client.put(f"{FILES}/sessions/{name}", content=b"x"))
        assert (refused.status, refused.type) == (400, "urn:cfs:error:invalid-path")
    assert len(server.store) == 0


# -- limits -------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def small() -> AsyncIterator[ServerHarness]:
    """A server that holds little."""
    async with running_server(
        max_body_bytes=1000,
        max_file_bytes=1000,
        max_message_bytes=100,
        max_sessions=2,
        max_queued_turns=1,
        token_bytes=2500,
    ) as here:
        yield here


async def test_too_much_is_refused_and_changes_nothing(small: ServerHarness) -> None:
    await put(small, NOTE, b"first")
    for body in (b"x" * 1001, _chunked(b"x" * 500, 3)):
        assert problem_in(await small.client.put(NOTE, content=body)).type == "urn:cfs:error:too-large"
    assert problem_in(await small.client.put(CHAT, content=b"x" * 101)).type == "urn:cfs:error:too-large"
    assert (await small.client.get(NOTE)).content == b"first"
    assert len(small.store) == 0
    await put(small, f"{MAIN}/large", b"x" * 1000)
    await put(small, f"{MAIN}/larger", b"x" * 1000)
    assert problem_in(await small.client.put(f"{MAIN}/more", content=b"x" * 600)).type == "urn:cfs:error:storage-full"
    assert await paths(small) == ["/workspaces/main/large", "/workspaces/main/larger", "/workspaces/main/note.txt"]


async def _chunked(piece: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield piece


async def test_a_full_queue_and_a_full_store_are_told(small: ServerHarness) -> None:
    small.engine.hold()
    for _ in range(2):
        await put(small, CHAT, b"x")
    full = await small.client.put(CHAT, content=b"x")
    assert problem_in(full).type == "urn:cfs:error:too-many"
    assert int(full.headers["Retry-After"]) >= 1
    await put(small, f"{FILES}/sessions/second", b"")
    refused = await small.client.put(f"{FILES}/sessions/third", content=b"")
    assert problem_in(refused).type == "urn:cfs:error:storage-full"
    small.engine.release()
    await small.text("chat")


# -- what a caller may know ---------------------------------------------------------------------------------------


async def granted(server: ServerHarness, prefix: str, *ops: GrantedOperation) -> httpx.Headers:
    """Make the server know one token; return its credentials."""
    token = Token(hash=digest("secret"), grants=(TokenGrant(prefix=prefix, ops=frozenset(ops)),))
    server.parts.principals.use({"guest": token})
    return httpx.Headers({"Authorization": "Bearer secret"})


LISTED = {
    "/": "forbidden",
    "/workspaces/": "forbidden",
    "/workspaces/main/": "forbidden",
    "/workspaces/main": "forbidden",
    "/workspaces/main/a": "forbidden",
    "/workspaces/mainly/": "not-granted",
    "/workspaces/other": "not-granted",
    "/sessions/": "not-granted",
}


@pytest.mark.parametrize("prefix", LISTED)
async def test_a_list_that_is_not_granted_is_refused_whatever_is_there(server: ServerHarness, prefix: str) -> None:
    for name in ("main/a", "mainly/a", "other"):
        await server.client.put(f"{FILES}/workspaces/{name}", content=b"x")
    credentials = await granted(server, "/workspaces/main/", "read", "write")
    refused = problem_in(await server.client.get(FILES, params={"prefix": prefix}, headers=credentials))
    assert refused.type == f"urn:cfs:error:{LISTED[prefix]}"
    everything = await server.client.get(FILES, headers=credentials)
    assert (everything.status_code, everything.json()["files"]) == (200, [])


async def test_without_the_right_to_look_there_is_content_and_no_version(server: ServerHarness) -> None:
    """Nothing that `file` would say is said in the headers of another view."""
    await put(server, NOTE, b"x\n")
    credentials = await granted(server, "/workspaces/main/", "read", "write")
    for query in ({}, {"view": "text"}, {"view": "matches", "pattern": "x"}):
        answer = await server.client.get(NOTE, params=query, headers=credentials)
        assert answer.status_code == 200
        assert not {"etag", "last-modified"} & set(answer.headers)
    assert problem_in(await server.client.get(NOTE, params={"view": "meta"}, headers=credentials)).status == 403
    guarded = await server.client.put(NOTE, content=b"y", headers={**credentials, "If-None-Match": "*"})
    assert problem_in(guarded).status == 403
    assert (await server.client.get(NOTE, headers=credentials)).content == b"x\n"
    assert (await server.client.put(f"{MAIN}/new", content=b"y", headers=credentials)).status_code == 200
