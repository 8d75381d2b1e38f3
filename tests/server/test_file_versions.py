"""Versions of files: conditional requests, parts, and many clients at once (H3; RFC 9110, 13 and 14)."""

import asyncio
import itertools

import httpx
import pytest
from structlog.testing import capture_logs

from tests.server.support import ServerHarness, until
from tests.server.test_errors import problem_in
from tests.server.test_files import ALL_BYTES, CHAT, NOTE, put

VIEWS = {
    "bytes": {},
    "text": {"view": "text", "line": "1"},
    "matches": {"view": "matches", "pattern": "o"},
    "meta": {"view": "meta"},
}


# -- conditional reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("view", "url"), list(itertools.product(VIEWS, [NOTE, CHAT])))
async def test_a_reader_that_has_the_present_version_gets_no_second_copy(
    server: ServerHarness, view: str, url: str
) -> None:
    server.engine.hold()
    etag = await put(server, url, b"one\ntwo")
    first = await server.client.get(url, params=VIEWS[view])
    assert first.headers["ETag"] == etag
    for condition in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await server.client.get(url, params=VIEWS[view], headers={"If-None-Match": condition})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
        assert again.headers["Last-Modified"] == first.headers["Last-Modified"]
    other = await server.client.get(url, params=VIEWS[view], headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)
    server.engine.release()
    assert await put(server, url, b"one\ntwo") != etag
    changed = await server.client.get(url, params=VIEWS[view], headers={"If-None-Match": etag})
    assert changed.status_code == 200


# -- conditional writing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("condition", ["present", "list", "star"])
async def test_a_write_goes_through_when_it_names_the_present_version(
    server: ServerHarness, method: str, condition: str
) -> None:
    etag = await put(server, NOTE)
    value = {"present": etag, "list": f'"x", {etag}', "star": "*"}[condition]
    answer = await server.client.request(method, NOTE, content=b"new", headers={"If-Match": value})
    assert answer.status_code == (200 if method == "PUT" else 204)
    assert (await server.client.get(NOTE)).content == b"new" or method == "DELETE"


REFUSED = {
    "old": {"If-Match": "{old}"},
    "weak": {"If-Match": "W/{now}"},
    "foreign": {"If-Match": '"x-1"'},
    "none at all": {"If-Match": "now"},
}


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("condition", REFUSED)
async def test_a_write_that_names_another_version_changes_nothing(
    server: ServerHarness, method: str, condition: str
) -> None:
    old = await put(server, NOTE)
    now = await put(server, NOTE, b"present")
    headers = {name: value.format(old=old, now=now) for name, value in REFUSED[condition].items()}
    refused = problem_in(await server.client.request(method, NOTE, content=b"new", headers=headers))
    assert (refused.status, refused.type) == (412, "urn:cfs:error:precondition-failed")
    assert now in refused.detail
    read = await server.client.get(NOTE)
    assert (read.content, read.headers["ETag"]) == (b"present", now)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_no_version_matches_where_there_is_no_file(server: ServerHarness, method: str) -> None:
    refused = problem_in(await server.client.request(method, NOTE, content=b"x", headers={"If-Match": "*"}))
    assert (refused.status, "no such entry" in refused.detail) == (412, True)
    assert (await server.client.get(NOTE)).status_code == 404


async def test_a_file_is_made_only_where_none_is(server: ServerHarness) -> None:
    made = await server.client.put(NOTE, content=b"first", headers={"If-None-Match": "*"})
    assert made.status_code == 201
    for condition in ("*", made.headers["ETag"], f'"x", W/{made.headers["ETag"]}'):
        refused = problem_in(await server.client.put(NOTE, content=b"second", headers={"If-None-Match": condition}))
        assert (refused.status, refused.type) == (412, "urn:cfs:error:precondition-failed")
    assert (await server.client.get(NOTE)).content == b"first"
    other = await server.client.put(NOTE, content=b"third", headers={"If-None-Match": '"x"'})
    assert other.status_code == 200


async def test_a_file_made_again_has_another_version(server: ServerHarness) -> None:
    before = await put(server, NOTE, b"same")
    await server.client.delete(NOTE)
    assert await put(server, NOTE, b"same") != before


# -- many at once -------------------------------------------------------------------------------------------------


async def all_at_once(server: ServerHarness, method: str, url: str, **headers: str) -> list[httpx.Response]:
    """Send twenty requests that differ in their bodies."""
    return await asyncio.gather(
        *(server.client.request(method, url, content=f"writer {n}".encode(), headers=headers) for n in range(20))
    )


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_of_twenty_that_change_one_version_one_wins_and_the_others_are_told(
    server: ServerHarness, method: str
) -> None:
    etag = await put(server, NOTE, b"before")
    answers = await all_at_once(server, method, NOTE, **{"If-Match": etag})
    statuses = [answer.status_code for answer in answers]
    assert sorted(statuses) == [200 if method == "PUT" else 204, *[412] * 19]
    winner = statuses.index(min(statuses))
    read = await server.client.get(NOTE)
    if method == "PUT":
        assert (read.text, read.headers["ETag"]) == (f"writer {winner}", answers[winner].headers["ETag"])
    else:
        assert read.status_code == 404


async def test_of_twenty_that_make_a_file_one_does_and_the_others_are_told(server: ServerHarness) -> None:
    answers = await all_at_once(server, "PUT", NOTE, **{"If-None-Match": "*"})
    statuses = [answer.status_code for answer in answers]
    assert sorted(statuses) == [201, *[412] * 19]
    assert (await server.client.get(NOTE)).text == f"writer {statuses.index(201)}"


async def test_of_twenty_messages_to_one_version_of_a_session_one_is_added(server: ServerHarness) -> None:
    etag = await put(server, CHAT, b"")
    server.engine.hold()
    answers = await all_at_once(server, "PUT", CHAT, **{"If-Match": etag})
    statuses = [answer.status_code for answer in answers]
    assert sorted(statuses) == [200, *[412] * 19]
    server.engine.release()
    winner = f"writer {statuses.index(200)}"
    assert await server.text("chat") == f"User: {winner}\nAssistant: {winner}\n"


async def test_fifty_readers_see_whole_versions_while_a_writer_replaces_them(server: ServerHarness) -> None:
    """Each body is what one write stored, all of it, and its ETag is the one that this write got."""
    bodies = [bytes([number]) * 20_000 for number in range(12)]
    written = {await put(server, NOTE, bodies[0]): bodies[0]}
    done = asyncio.Event()

    async def read() -> list[tuple[str, bytes]]:
        seen = []
        while not done.is_set():
            answer = await server.client.get(NOTE)
            assert answer.status_code == 200, answer.text
            seen.append((answer.headers.get("ETag", ""), answer.content))
        return seen

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read()) for _ in range(50)]
        for body in bodies[1:]:
            written[await put(server, NOTE, body)] = body
        done.set()
    seen = [each for reader in readers for each in reader.result()]
    assert len({body for _, body in seen}) > 1
    for etag, body in seen:
        assert body in bodies
        assert etag == "" or written[etag] == body


@pytest.mark.parametrize("before", [None, b"before"])
async def test_a_client_that_hangs_up_in_the_middle_of_a_put_stores_nothing(
    server: ServerHarness, before: bytes | None
) -> None:
    if before is not None:
        await put(server, NOTE, before)
    with capture_logs() as log:
        _, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        writer.write(f"PUT {NOTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode() + b"x" * 50)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await until(lambda: log)
    assert [(entry["event"], entry.get("status")) for entry in log] == [("request", 499)]
    answer = await server.client.get(NOTE)
    assert (answer.status_code, answer.content) == (200, before) if before else answer.status_code == 404
    assert (await server.client.put(NOTE, content=b"after")).status_code == (200 if before else 201)


# -- parts --------------------------------------------------------------------------------------------------------

SIZE = len(ALL_BYTES)
PARTS = {
    "bytes=0-0": range(1),
    "bytes=0-99": range(100),
    "bytes=100-": range(100, SIZE),
    "bytes=-1": range(SIZE - 1, SIZE),
    f"bytes={SIZE - 1}-{SIZE - 1}": range(SIZE - 1, SIZE),
    "bytes=5-99999": range(5, SIZE),
    "bytes=-99999": range(SIZE),
}


@pytest.mark.parametrize("asked", PARTS)
async def test_a_part_is_those_bytes_and_says_which(server: ServerHarness, asked: str) -> None:
    etag = await put(server, NOTE, ALL_BYTES)
    part = PARTS[asked]
    answer = await server.client.get(NOTE, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.content == ALL_BYTES[part.start : part.stop]
    assert answer.headers["Content-Range"] == f"bytes {part.start}-{part.stop - 1}/{SIZE}"
    assert answer.headers["Content-Length"] == str(len(part))
    assert answer.headers["ETag"] == etag


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE}", "bytes=-0"])
async def test_a_part_that_is_not_there_is_told_with_the_size(server: ServerHarness, asked: str) -> None:
    await put(server, NOTE, ALL_BYTES)
    answer = await server.client.get(NOTE, headers={"Range": asked})
    assert problem_in(answer).type == "urn:cfs:error:range-not-satisfiable"
    assert answer.headers["Content-Range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "bytes=5-4", "lines=0-1", "bytes=x-", "bytes=-", ""])
async def test_several_ranges_and_what_is_none_get_the_whole(server: ServerHarness, asked: str) -> None:
    await put(server, NOTE, ALL_BYTES)
    answer = await server.client.get(NOTE, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, ALL_BYTES)
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert "Content-Range" not in answer.headers


@pytest.mark.parametrize(("asked", "status"), [("bytes=0-", 416), ("bytes=0-5", 416), ("bytes=-5", 200)])
async def test_nothing_has_no_first_byte_and_its_last_ones_are_nothing(
    server: ServerHarness, asked: str, status: int
) -> None:
    await put(server, NOTE, b"")
    answer = await server.client.get(NOTE, headers={"Range": asked})
    assert answer.status_code == status
    assert answer.headers.get("Content-Range") == ("bytes */0" if status == 416 else None)


async def test_a_part_is_taken_only_of_the_version_that_is_known(server: ServerHarness) -> None:
    etag = await put(server, NOTE, ALL_BYTES)
    for known, status in ((etag, 206), (f"W/{etag}", 200), ('"old"', 200), ("Thu, 01 Jan 2026 00:00:00 GMT", 200)):
        answer = await server.client.get(NOTE, headers={"Range": "bytes=1-3", "If-Range": known})
        assert (answer.status_code, answer.content) == (status, ALL_BYTES[1:4] if status == 206 else ALL_BYTES)
    beyond = await server.client.get(NOTE, headers={"Range": f"bytes={SIZE}-", "If-Range": '"old"'})
    assert beyond.status_code == 200


@pytest.mark.parametrize("asked", ["bytes=1-3", f"bytes={SIZE}-"])
async def test_a_version_that_the_client_has_goes_before_its_range(server: ServerHarness, asked: str) -> None:
    etag = await put(server, NOTE, ALL_BYTES)
    same = await server.client.get(NOTE, headers={"Range": asked, "If-None-Match": etag})
    assert (same.status_code, same.content) == (304, b"")
    other = await server.client.get(NOTE, headers={"Range": "bytes=1-3", "If-None-Match": '"old"'})
    assert (other.status_code, other.content) == (206, ALL_BYTES[1:4])


async def test_parts_are_for_the_bytes_and_not_for_other_views(server: ServerHarness) -> None:
    await put(server, NOTE, b"one\ntwo\n")
    for query in ({"view": "text"}, {"view": "meta"}, {"view": "matches", "pattern": "o"}):
        answer = await server.client.get(NOTE, params=query, headers={"Range": "bytes=0-1"})
        assert (answer.status_code, "Content-Range" in answer.headers) == (200, False)


@pytest.mark.parametrize("step", [1000, 4096, 99_999])
async def test_a_file_put_together_from_its_parts_is_the_file(server: ServerHarness, step: int) -> None:
    data = ALL_BYTES * 100 + b"end"
    etag = await put(server, NOTE, data)
    got = b""
    while True:
        headers = {"Range": f"bytes={len(got)}-{len(got) + step - 1}", "If-Range": etag}
        answer = await server.client.get(NOTE, headers=headers)
        if answer.status_code == 416:
            break
        assert answer.status_code == 206
        got += answer.content
    assert got == data
