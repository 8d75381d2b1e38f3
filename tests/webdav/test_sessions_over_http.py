"""Sessions by WebDAV as a client on the wire sees them: statuses, names and properties (W2, W3, W5)."""

import pytest

from tests.server.support import ServerHarness, running_server
from tests.webdav.wire import Dav


async def chat(server: ServerHarness, name: str = "chat1") -> Dav:
    """A caller, and a session with one answered message."""
    dav = Dav(server.client)
    assert (await dav("PUT", f"/sessions/{name}", b"hello\n")).status_code == 201
    await server.text(name)
    return dav


async def test_a_put_is_a_message_and_a_get_waits_for_the_reply() -> None:
    async with running_server() as server:
        dav = Dav(server.client)
        made = await dav("PUT", "/sessions/chat1", b"hello\n")
        assert (made.status_code, made.content) == (201, b"")
        read = await dav("GET", "/sessions/chat1")
        assert read.text == "User: hello\nAssistant: hello\n"
        assert read.headers["x-cfs-state"] == "idle"
        more = await dav("PUT", "/sessions/chat1", read.content + b"again\n", if_match=read.headers["etag"])
        assert more.status_code == 204
        assert more.headers["etag"] != (await dav("GET", "/sessions/chat1")).headers["etag"]
        assert [message.content for message in server.store.get("chat1").history.messages][2:] == ["again", "again"]


async def test_an_edited_past_is_a_conflict_until_the_present_version_is_named() -> None:
    async with running_server() as server:
        dav = await chat(server)
        text = (await dav("GET", "/sessions/chat1")).content
        edited = text.replace(b"hello", b"goodbye")
        refused = await dav("PUT", "/sessions/chat1", edited)
        assert refused.status_code == 409
        assert refused.headers["content-type"] == "application/problem+json"
        assert "read it again" in refused.json()["detail"]
        stale = await dav("PUT", "/sessions/chat1", edited, if_match='"0-0"')
        assert stale.status_code == 412
        assert (await dav("GET", "/sessions/chat1")).content == text
        now = (await dav("GET", "/sessions/chat1")).headers["etag"]
        assert (await dav("PUT", "/sessions/chat1", edited, if_match=now)).status_code == 204
        assert (await dav("GET", "/sessions/chat1")).content == edited


async def test_settings_are_properties() -> None:
    """They are read and set, and a value that is no setting's is refused with the reason."""
    async with running_server() as server:
        dav = await chat(server)
        path = "/sessions/chat1"
        found = (await dav.find(path, "{cfs:}temperature", "{cfs:}state", "{cfs:}none", depth="0"))["/dav" + path]
        assert found.values == {"{cfs:}temperature": "0.7", "{cfs:}state": "idle", "{cfs:}none": ""}
        assert found.statuses["{cfs:}none"] == 404
        assert (await dav.set(path, "{cfs:}temperature", "0"))["/dav" + path].statuses == {"{cfs:}temperature": 200}
        assert server.store.get("chat1").settings.temperature == 0
        for name, value, status in (
            ("temperature", "hot", 409),
            ("colour", "red", 409),
            ("state", "idle", 403),
        ):
            refused = await dav.set(path, f"{{cfs:}}{name}", value)
            assert refused["/dav" + path].statuses[f"{{cfs:}}{name}"] == status, name
        await dav.set(path, "{cfs:}temperature", None)
        assert server.store.get("chat1").settings.temperature == 0.7
        assert (await dav.set(path, "{urn:x}note", "mine"))["/dav" + path].statuses == {"{urn:x}note": 200}
        assert (await dav.find(path, "{urn:x}note", depth="0"))["/dav" + path].values == {"{urn:x}note": "mine"}


async def test_names_are_copied_moved_and_deleted() -> None:
    async with running_server() as server:
        dav = await chat(server)
        assert (await dav("COPY", "/sessions/chat1", destination="/dav/sessions/copy")).status_code == 201
        assert (await dav("MOVE", "/sessions/copy", destination="/dav/sessions/moved")).status_code == 201
        for method in ("COPY", "MOVE"):
            over = await dav(method, "/sessions/moved", destination="/dav/sessions/chat1")
            assert over.status_code == 403
            assert over.headers["content-type"] == "application/problem+json"
        assert await dav.names("/sessions/") == ["chat1", "moved"]
        assert (await dav("MKCOL", "/sessions/folder")).status_code == 403
        assert (await dav("DELETE", "/sessions/moved")).status_code == 204
        assert (await dav("DELETE", "/sessions/")).status_code == 403
        assert await dav.names("/sessions/") == ["chat1"]


async def test_sub_sessions_have_a_mount_of_their_own() -> None:
    """Writing to one steers it; its collection goes with its root only."""
    async with running_server() as server:
        dav = await chat(server, "main")
        await server.create("main/coder/tester")
        assert await dav.names("/sub_sessions/") == ["main/"]
        assert await dav.names("/sub_sessions/main/") == ["coder", "coder.tester"]
        assert (await dav("PUT", "/sub_sessions/main/coder.tester", b"hurry")).status_code == 204
        assert "hurry" in (await dav("GET", "/sub_sessions/main/coder.tester")).text
        assert (await dav("DELETE", "/sub_sessions/main/")).status_code == 403
        assert await dav.names("/sub_sessions/main/") == ["coder", "coder.tester"]
        assert (await dav("DELETE", "/sub_sessions/main/coder.tester")).status_code == 204
        assert (await dav("DELETE", "/sessions/main")).status_code == 204
        assert await dav.names("/sub_sessions/") == []


@pytest.mark.parametrize("name", ["a b", "ü", "%41", "100%", "what?", "a;b", "a&b", "~x"])
async def test_odd_names_are_what_they_are(name: str) -> None:
    from urllib.parse import quote

    async with running_server() as server:
        dav = Dav(server.client)
        path = f"/sessions/{quote(name, safe='')}"
        assert (await dav("PUT", path, b"hello")).status_code == 201
        assert [session.id for session in server.store] == [name]
        assert (await dav("GET", path)).text.startswith("User: hello")
        assert list(await dav.find("/sessions/"))[1:] == ["/dav/sessions/" + quote(name, safe="!*'(),$-_|.~")]
        target = await dav("MOVE", "/sessions/none", destination="/dav" + path)
        assert target.status_code == (400 if set("?;") & set(name) else 404)
        assert (await dav("DELETE", path)).status_code == 204


async def test_depth_infinity_of_the_flat_mount_is_one_level() -> None:
    async with running_server() as server:
        dav = await chat(server)
        assert list(await dav.find("/sessions/", depth="infinity")) == ["/dav/sessions/", "/dav/sessions/chat1"]


async def test_locks_keep_webdav_writers_apart_and_make_sessions() -> None:
    async with running_server() as server:
        dav = Dav(server.client)
        lock = await dav.lock("/sessions/chat1")
        assert lock.status_code == 201
        assert [session.id for session in server.store] == ["chat1"]
        assert (await dav("PUT", "/sessions/chat1", b"hello")).status_code == 423
        token = lock.headers["lock-token"]
        assert (await dav("PUT", "/sessions/chat1", b"hello", **{"if": f"({token})"})).status_code == 204
        assert (await dav("UNLOCK", "/sessions/chat1", lock_token=token)).status_code == 204


async def test_sessions_made_by_locks_count() -> None:
    """Ten thousand names cannot be filled by locking them (H7)."""
    async with running_server(max_sessions=2) as server:
        dav = Dav(server.client)
        answers = [await dav.lock(f"/sessions/new{number}") for number in range(4)]
        assert [answer.status_code for answer in answers] == [201, 201, 507, 507]
        assert answers[-1].json()["type"] == "urn:cfs:error:storage-full"
        assert len(server.store) == 2


async def test_what_finder_and_explorer_leave_beside_a_session_is_no_session() -> None:
    """Finder writes `._chat1` and `.DS_Store`, Explorer sets times; the session is what it was."""
    times = (
        b"<D:propertyupdate xmlns:D='DAV:' xmlns:Z='urn:schemas-microsoft-com:'><D:set><D:prop>"
        b"<Z:Win32LastModifiedTime>Sat, 21 Nov 2026 10:00:00 GMT</Z:Win32LastModifiedTime>"
        b"</D:prop></D:set></D:propertyupdate>"
    )
    async with running_server() as server:
        dav = await chat(server)
        before = (await dav("GET", "/sessions/chat1")).content
        for noise in ("._chat1", ".DS_Store", "Thumbs.db"):
            lock = await dav.lock(f"/sessions/{noise}")
            token = lock.headers["lock-token"]
            guarded = {"if": f"({token})"}
            assert (await dav("PUT", f"/sessions/{noise}", b"\x00\x05\x16\x07", **guarded)).status_code == 204
            assert (await dav("GET", f"/sessions/{noise}")).content == b"\x00\x05\x16\x07"
            assert (await dav("UNLOCK", f"/sessions/{noise}", lock_token=token)).status_code == 204
        patched = await dav("PROPPATCH", "/sessions/chat1", times)
        assert "200 OK" in patched.text
        assert [session.id for session in server.store] == ["chat1"]
        assert (await dav("GET", "/sessions/chat1")).content == before
        assert (await dav("DELETE", "/sessions/.DS_Store")).status_code == 204
