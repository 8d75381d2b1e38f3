"""Files of a workspace by WebDAV (W1, W3)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cfs_server.workspaces.file_service import alone
from tests.server.support import ServerHarness, running_server, until
from tests.webdav.wire import Dav

MAIN = "/workspaces/main"


async def workspace(server: ServerHarness) -> Dav:
    """A caller, and an empty workspace."""
    dav = Dav(server.client)
    assert (await dav("MKCOL", MAIN)).status_code == 201
    return dav


async def put(dav: Dav, name: str, content: bytes, status: int = 201, **headers: str) -> str:
    """Store a file; return its ETag."""
    answer = await dav("PUT", f"{MAIN}/{name}", content, **headers)
    assert answer.status_code == status, answer.text
    return str(answer.headers.get("etag", ""))


async def test_a_file_is_the_same_on_every_face(tmp_path: Path) -> None:
    """What is put by WebDAV is read by REST and found on the disk, with one ETag, and the other way round."""
    async with running_server(data_dir=tmp_path) as server:
        dav = await workspace(server)
        etag = await put(dav, "ü x.txt", "grüße".encode())
        rest = await server.client.get("/v1/files/workspaces/main/ü x.txt")
        assert (rest.content, rest.headers["etag"]) == ("grüße".encode(), etag)
        assert await asyncio.to_thread((tmp_path / "workspaces/main/ü x.txt").read_bytes) == "grüße".encode()
        await asyncio.to_thread((tmp_path / "workspaces/main/made").mkdir)
        await asyncio.to_thread((tmp_path / "workspaces/main/made/by hand").write_bytes, b"12345")
        assert await dav.names(MAIN + "/") == ["%C3%BC%20x.txt", "made/"]
        found = await dav.find(f"{MAIN}/made/")
        by_hand = found["/dav/workspaces/main/made/by%20hand"].values
        assert by_hand["{DAV:}getcontentlength"] == "5"
        head = await dav("HEAD", f"{MAIN}/made/by hand")
        assert (head.headers["etag"], head.headers["content-length"]) == (by_hand["{DAV:}getetag"], "5")


async def test_reading_follows_http() -> None:
    """Ranges, conditions, types, and nothing that a browser would run."""
    async with running_server() as server:
        dav = await workspace(server)
        etag = await put(dav, "page.html", b"0123456789")
        whole = await dav("GET", f"{MAIN}/page.html")
        assert (whole.status_code, whole.content) == (200, b"0123456789")
        assert whole.headers["content-type"].startswith("text/html")
        assert "sandbox" in whole.headers["content-security-policy"]
        part = await dav("GET", f"{MAIN}/page.html", range="bytes=2-4")
        assert (part.status_code, part.content) == (206, b"234")
        assert part.headers["content-range"] == "bytes 2-4/10"
        assert (await dav("GET", f"{MAIN}/page.html", range="bytes=20-")).status_code == 416
        assert (await dav("GET", f"{MAIN}/page.html", range="bytes=2-4", if_range='"other"')).status_code == 200
        assert (await dav("GET", f"{MAIN}/page.html", if_none_match=etag)).status_code == 304
        assert (await dav("GET", f"{MAIN}/none")).status_code == 404


async def test_a_collection_is_read_as_the_names_in_it() -> None:
    async with running_server() as server:
        dav = await workspace(server)
        await put(dav, "b", b"")
        await dav("MKCOL", f"{MAIN}/a")
        listing = await dav("GET", f"{MAIN}/")
        assert (listing.status_code, listing.text) == (200, "a/\nb\n")
        assert listing.headers["content-type"].startswith("text/plain")
        assert (await dav("GET", "/")).text.split() == ["sessions/", "sub_sessions/", "questions/", "workspaces/"]


async def test_conditions_of_a_put_hold_in_one_piece_with_it() -> None:
    """Of many that replace one version at once, one does; and of many that make a name, one."""
    async with running_server() as server:
        dav = await workspace(server)
        first = await put(dav, "note", b"0")
        answers = await asyncio.gather(
            *(dav("PUT", f"{MAIN}/note", b"%d" % n, if_match=first) for n in range(10)),
            *(dav("PUT", f"{MAIN}/new", b"%d" % n, if_none_match="*") for n in range(10)),
        )
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses[:10]) == [204, *[412] * 9]
        assert sorted(statuses[10:]) == [201, *[412] * 9]
        assert (await dav("GET", f"{MAIN}/note")).content == b"%d" % statuses.index(204)
        refused = await dav("PUT", f"{MAIN}/nothing", b"x", if_match="*")
        assert refused.status_code == 412
        assert refused.headers["content-type"] == "application/problem+json"
        assert (await dav("GET", f"{MAIN}/nothing")).status_code == 404


async def test_a_move_waits_for_whoever_compares_a_version_and_writes() -> None:
    """It is a write at its target: between the look at the version there and the write nothing may come."""
    async with running_server() as server:
        dav = await workspace(server)
        for name in ("one", "two", "note"):
            await put(dav, name, name.encode())
        held = alone("/workspaces/main/note")
        free = next(name for name in map(str, range(99)) if alone(f"/workspaces/main/{name}") is not held)
        with held:
            move = asyncio.create_task(dav("MOVE", f"{MAIN}/one", destination=f"/dav{MAIN}/note"))
            assert (await dav("MOVE", f"{MAIN}/two", destination=f"/dav{MAIN}/{free}")).status_code == 201
            assert (await dav("GET", f"{MAIN}/note")).content == b"note"
            assert not move.done()
        assert (await move).status_code == 204
        assert (await dav("GET", f"{MAIN}/note")).content == b"one"


async def test_half_a_body_is_none() -> None:
    """A client that leaves in the middle of an upload changes nothing."""
    async with running_server() as server:
        dav = await workspace(server)
        await put(dav, "note", b"before")
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        writer.write(b"PUT /dav/workspaces/main/note HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()
        await reader.read()
        await until(lambda: len(server.server.server_state.connections) == 1 and not server.server.server_state.tasks)
        assert (await dav("GET", f"{MAIN}/note")).content == b"before"


async def test_uploads_without_a_length_and_larger_than_memory_allows_arrive(tmp_path: Path) -> None:
    content = bytes(range(256)) * (1 << 14)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 50_000):
            yield content[start : start + 50_000]

    async with running_server(data_dir=tmp_path) as server:
        await workspace(server)
        answer = await server.client.put(f"/dav{MAIN}/big", content=pieces())
        assert answer.status_code == 201
        assert await asyncio.to_thread((tmp_path / "workspaces/main/big").read_bytes) == content
        read = await server.client.get(f"/dav{MAIN}/big")
        assert read.content == content


async def test_a_file_over_the_limits_is_refused_and_the_old_one_kept() -> None:
    async with running_server(max_file_bytes=100, token_bytes=150) as server:
        dav = await workspace(server)
        await put(dav, "note", b"x" * 90)
        assert (await dav("PUT", f"{MAIN}/note", b"y" * 101)).status_code == 413
        assert (await dav("PUT", f"{MAIN}/more", b"y" * 90)).status_code == 507
        assert (await dav("COPY", f"{MAIN}/note", destination=f"/dav{MAIN}/copy")).status_code == 507
        assert (await dav("GET", f"{MAIN}/note")).content == b"x" * 90
        assert await dav.names(MAIN + "/") == ["note"]


@pytest.mark.parametrize("method", ["COPY", "MOVE"])
async def test_copies_and_moves(method: str) -> None:
    """New names are 201 and replaced ones 204; `Overwrite: F` protects; trees go with their dead properties."""
    async with running_server() as server:
        dav = await workspace(server)
        await put(dav, "a", b"a")
        await put(dav, "b", b"b")
        await dav.set(f"{MAIN}/a", "{urn:x}colour", "green")
        to_b = f"{server.url}/dav{MAIN}/b"
        assert (await dav(method, f"{MAIN}/a", destination=to_b, overwrite="F")).status_code == 412
        assert (await dav(method, f"{MAIN}/a", destination=to_b)).status_code == 204
        assert (await dav("GET", f"{MAIN}/b")).content == b"a"
        assert (await dav("GET", f"{MAIN}/a")).status_code == (200 if method == "COPY" else 404)
        found = (await dav.find(f"{MAIN}/b", depth="0"))[f"/dav{MAIN}/b"]
        assert found.values["{urn:x}colour"] == "green"
        await dav("MKCOL", f"{MAIN}/tree")
        await dav("MKCOL", f"{MAIN}/tree/empty")
        await put(dav, "tree/leaf", b"leaf")
        await dav.set(f"{MAIN}/tree/leaf", "{urn:x}colour", "red")
        assert (await dav(method, f"{MAIN}/tree/", destination=f"/dav{MAIN}/wood/")).status_code == 201
        assert await dav.names(f"{MAIN}/wood/") == ["empty/", "leaf"]
        leaf = (await dav.find(f"{MAIN}/wood/leaf", depth="0"))[f"/dav{MAIN}/wood/leaf"]
        assert leaf.values["{urn:x}colour"] == "red"
        assert (await dav("PROPFIND", f"{MAIN}/tree/", depth="0")).status_code == (207 if method == "COPY" else 404)


async def test_deleting() -> None:
    """A file with its properties and locks; a collection with everything in it."""
    async with running_server() as server:
        dav = await workspace(server)
        await put(dav, "note", b"x")
        await dav.set(f"{MAIN}/note", "{urn:x}colour", "green")
        assert (await dav("DELETE", f"{MAIN}/note")).status_code == 204
        assert (await dav("DELETE", f"{MAIN}/note")).status_code == 404
        await put(dav, "note", b"y")
        assert "{urn:x}colour" not in (await dav.find(f"{MAIN}/note", depth="0"))[f"/dav{MAIN}/note"].values
        await dav("MKCOL", f"{MAIN}/deep")
        await put(dav, "deep/leaf", b"")
        assert (await dav("DELETE", MAIN + "/")).status_code == 204
        assert await dav.names("/workspaces/") == []


async def test_a_lock_keeps_others_out_until_it_is_given_back() -> None:
    async with running_server() as server:
        dav = await workspace(server)
        await put(dav, "note", b"x")
        lock = await dav.lock(f"{MAIN}/note")
        token = lock.headers["lock-token"]
        assert (await dav("PUT", f"{MAIN}/note", b"y")).status_code == 423
        assert (await dav("DELETE", f"{MAIN}/note")).status_code == 423
        assert (await dav("PUT", f"{MAIN}/note", b"z", **{"if": f"({token})"})).status_code == 204
        unmapped = await dav.lock(f"{MAIN}/new")
        assert unmapped.status_code == 201
        assert (await dav("GET", f"{MAIN}/new")).content == b""
        assert (await dav("UNLOCK", f"{MAIN}/note", lock_token=token)).status_code == 204
        assert (await dav("PUT", f"{MAIN}/note", b"y")).status_code == 204


async def test_what_explorer_does_after_a_copy() -> None:
    """It locks a name that is not there, puts the file, sets its times, and unlocks it."""
    name = f"{MAIN}/report.docx"
    times = (
        b'<?xml version="1.0" encoding="utf-8" ?><D:propertyupdate xmlns:D="DAV:" xmlns:Z="urn:schemas-microsoft-com:">'
        b"<D:set><D:prop><Z:Win32CreationTime>Sat, 21 Nov 2026 10:00:00 GMT</Z:Win32CreationTime>"
        b"<Z:Win32LastModifiedTime>Sat, 21 Nov 2026 10:00:00 GMT</Z:Win32LastModifiedTime>"
        b"<Z:Win32FileAttributes>00000020</Z:Win32FileAttributes></D:prop></D:set></D:propertyupdate>"
    )
    async with running_server() as server:
        dav = await workspace(server)
        options = await dav("OPTIONS", MAIN + "/")
        assert (options.headers["dav"], options.headers["ms-author-via"]) == ("1,2", "DAV")
        lock = await dav.lock(name, timeout="Second-3600")
        guarded = {"if": f"({lock.headers['lock-token']})"}
        assert (await dav("PUT", name, b"PK", **guarded)).status_code == 204
        patched = await dav("PROPPATCH", name, times, **guarded)
        assert patched.text.count("200 OK") == 1
        assert (await dav("UNLOCK", name, lock_token=lock.headers["lock-token"])).status_code == 204


async def test_dead_properties_are_bounded() -> None:
    async with running_server() as server:
        dav = await workspace(server)
        await put(dav, "note", b"x")
        for number in range(2):
            found = await dav.set(f"{MAIN}/note", f"{{urn:x}}p{number}", "v" * 40_000)
            assert found[f"/dav{MAIN}/note"].statuses[f"{{urn:x}}p{number}"] == (507 if number else 200)


async def test_there_is_nothing_else() -> None:
    """What is no mount is not found, and the collection of the mounts takes nothing."""
    async with running_server() as server:
        dav = Dav(server.client)
        assert (await dav("PROPFIND", "/elsewhere", depth="0")).status_code == 404
        for method in ("PUT", "DELETE", "MKCOL", "LOCK"):
            answer = await dav(method, "/new" if method == "PUT" else "/")
            assert answer.status_code in (403, 404, 405, 400), (method, answer.status_code)
        assert (await dav("REPORT", MAIN)).status_code == 405
