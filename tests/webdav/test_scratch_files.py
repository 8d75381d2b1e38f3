"""Files that programs make for themselves, and programs that save by them (W1, W2)."""

import pytest

from cfs_server.dav import scratch
from cfs_server.dav.put import Clients
from cfs_server.dav.scratch import ScratchFiles
from cfs_server.dav.sessions import SubSessionTree
from tests.filesystem.support import grant
from tests.webdav.support import Caller, ManualClock, mount, mounts

TALK = "User: hello\nAssistant: hi\n"
MORE = TALK + "User: more\nAssistant: more\n"


async def test_a_scratch_file_is_an_ordinary_file() -> None:
    async with mount() as ann:
        first = await ann.put("/.a.swp", b"\xff\x00", none_match="*")
        assert (await ann.bytes_at("/.a.swp"), await ann.etag("/.a.swp")) == (b"\xff\x00", first)
        second = await ann.put("/.a.swp", b"2", match=first)
        assert second != first
        await ann.put_refused(412, "/.a.swp", b"3", match=first)
        await ann.put_refused(412, "/.a.swp", b"3", none_match="*")
        await ann.put_refused(412, "/.none.swp", b"3", match="*")
        entry = await ann.look("/.a.swp")
        assert entry is not None
        assert (entry.size, entry.media_type, entry.collection) == (1, "application/octet-stream", False)
        await ann.do(lambda tree: tree.move("/.a.swp", "/b~"))
        await ann.do(lambda tree: tree.copy("/b~", "/c~"))
        await ann.do(lambda tree: tree.make("/d~"))
        await ann.do(lambda tree: tree.make("/b~"))
        assert await ann.paths() == ["/b~", "/c~", "/d~"]
        assert [await ann.bytes_at(path) for path in await ann.paths()] == [b"2", b"2", b""]
        await ann.do(lambda tree: tree.delete("/b~"))
        await ann.refused(404, lambda tree: tree.delete("/b~"))
        await ann.refused(404, lambda tree: tree.move("/b~", "/x~"))
        await ann.refused(404, lambda tree: tree.move("/b~", "/session"))
        assert (await ann.look("/b~"), len(ann.harness.store)) == (None, 0)


async def test_scratch_files_are_their_owners_and_their_mounts() -> None:
    async with mounts() as running_server:
        ann, bob = running_server.caller("ann", grant("/")), running_server.caller("bob", grant("/"))
        await ann.put("/x~", "secret")
        assert (await bob.look("/x~"), await bob.paths()) == (None, [])
        sub = ann.by(kind=SubSessionTree)
        assert (await sub.look("/x~"), await sub.paths()) == (None, [])
        assert await ann.by("another program").bytes_at("/x~") == b"secret"


async def test_scratch_files_have_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CAP_FILE", 10), ("CAP_BYTES", 25), ("CAP_FILES", 4)):
        monkeypatch.setattr(scratch, name, value)
    async with mount() as ann:
        await ann.put_refused(413, "/a~", b"x" * 11)
        for name in "ab":
            await ann.put(f"/{name}~", b"x" * 10)
        await ann.put_refused(507, "/c~", b"x" * 6)
        await ann.put("/a~", b"y" * 10)
        await ann.put("/c~", b"x" * 5)
        await ann.put("/d~", b"")
        await ann.put_refused(507, "/e~", b"")
        await ann.put("/a~", b"y")
        await ann.do(lambda tree: tree.move("/a~", "/b~"))
        await ann.put("/e~", b"x" * 10)
        assert await ann.paths() == ["/b~", "/c~", "/d~", "/e~"]


async def test_scratch_files_are_forgotten_an_hour_after_their_last_change() -> None:
    async with mount() as ann:
        clock = ann.server.clock
        await ann.put("/a~", "x")
        await ann.put("/b~", "x")
        clock.now += 3000
        await ann.put("/a~", "y")
        clock.now += 601
        assert await ann.paths() == ["/a~"]
        clock.now += 3000
        assert await ann.look("/a~") is None


async def test_what_is_forgotten_of_one_is_free_when_another_comes() -> None:
    async with mounts() as running_server:
        ann, bob = running_server.caller("ann", grant("/")), running_server.caller("bob", grant("/"))
        await ann.put("/a~", "x")
        running_server.clock.now += 3601
        await bob.paths()
        assert running_server.client_states.of(ann.principal).scratch._files == {}


async def talk(ann: Caller) -> None:
    """Make a session with a history."""
    ann.harness.store.create("chat1", transcript=TALK)


@pytest.mark.parametrize("none_match", ["*", None])
@pytest.mark.parametrize("reply", [True, False])
async def test_saving_behind_a_backup_by_renaming_adds_the_message(none_match: str | None, *, reply: bool) -> None:
    """vim and Emacs: the old file becomes the backup, the new one is written whole, the backup goes."""
    async with mount() as ann:
        await talk(ann)
        session = ann.harness.store.get("chat1")
        await ann.do(lambda tree: tree.move("/chat1", "/chat1~"))
        assert (await ann.bytes_at("/chat1~"), ann.harness.store.get("chat1")) == (TALK.encode(), session)
        await ann.put("/chat1", TALK + "more\n", none_match=none_match)
        await ann.do(lambda tree: tree.delete("/chat1~"))
        assert (await ann.harness.text("chat1"), ann.harness.store.get("chat1")) == (MORE, session)


async def test_only_who_set_a_session_aside_may_make_it_anew_and_not_for_long() -> None:
    async with mounts() as running_server:
        ann, bob = running_server.caller("ann", grant("/")), running_server.caller("bob", grant("/"))
        await talk(ann)
        await ann.do(lambda tree: tree.move("/chat1", "/chat1~"))
        await bob.put_refused(412, "/chat1", TALK + "x\n", none_match="*")
        etag = await ann.etag("/chat1")
        await ann.put_refused(412, "/chat1", TALK + "x\n", none_match=etag)
        running_server.clock.now += 60
        await ann.put_refused(412, "/chat1", TALK + "x\n", none_match="*")
        await ann.do(lambda tree: tree.move("/chat1", "/chat1~"))
        ann.harness.store.delete("chat1")
        ann.harness.store.open("chat1")
        await ann.put_refused(412, "/chat1", "x\n", none_match="*")


async def test_taking_a_backup_back_changes_nothing_even_behind_a_reply() -> None:
    async with mount() as ann:
        await talk(ann)
        await ann.do(lambda tree: tree.move("/chat1", "/chat1~"))
        await ann.do(lambda tree: tree.copy("/chat1", "/copy~"))
        ann.harness.say("chat1", "more")
        await ann.harness.settled("chat1")
        before = ann.everything()
        assert await ann.do(lambda tree: tree.may_overwrite("/chat1~", "/chat1"))
        await ann.do(lambda tree: tree.move("/chat1~", "/chat1"))
        await ann.do(lambda tree: tree.copy("/copy~", "/chat1"))
        assert ann.everything() == before
        assert await ann.paths() == ["/chat1", "/copy~"]


async def test_a_new_file_moved_over_the_session_adds_the_message() -> None:
    """sed -i, rsync, rclone and GNOME: the whole text under another name, then that in the place of the old one."""
    async with mount() as ann:
        await talk(ann)
        for name in ("/sedAb12Cd", "/.goutputstream-1", "/chat1.a1b2c3d4.partial"):
            ann.harness.store.delete("chat1")
            await talk(ann)
            await ann.put(name, TALK + "more\n")
            assert await ann.do(lambda tree, name=name: tree.may_overwrite(name, "/chat1"))  # type: ignore[misc]
            await ann.do(lambda tree, name=name: tree.move(name, "/chat1"))  # type: ignore[misc]
            assert await ann.harness.text("chat1") == MORE
            assert await ann.paths() == ["/chat1"]


@pytest.mark.parametrize("there", [True, False])
async def test_what_is_refused_stays_a_scratch_file(*, there: bool) -> None:
    async with mount() as ann:
        if there:
            await talk(ann)
        body = TALK.replace("hello", "hullo").encode() if there else b"\xff"
        await ann.put("/new~", body)
        for call in (lambda tree: tree.move("/new~", "/chat1"), lambda tree: tree.copy("/new~", "/chat1")):
            await ann.refused(409 if there else 415, call)
        assert await ann.bytes_at("/new~") == body
        assert len(ann.harness.store) == there


async def test_a_copy_of_a_scratch_file_leaves_it_there() -> None:
    async with mount() as ann:
        await ann.put("/new~", TALK)
        await ann.do(lambda tree: tree.copy("/new~", "/chat1"))
        assert await ann.harness.text("chat1") == TALK
        assert await ann.paths() == ["/chat1", "/new~"]


async def test_a_backup_that_has_no_room_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "CAP_FILE", 5)
    async with mount() as ann:
        await talk(ann)
        await ann.refused(413, lambda tree: tree.move("/chat1", "/chat1~"))
        await ann.put_refused(412, "/chat1", TALK + "x\n", none_match="*")


RCLONE = "rclone/v1.60.1"


async def test_rclone_does_not_delete_what_it_has_just_sent() -> None:
    async with mounts() as running_server:
        ann = running_server.caller("ann", grant("/"))
        bob = running_server.caller("bob", grant("/"))
        clone = ann.by(RCLONE)
        await clone.put("/chat1", "hello")
        await ann.harness.settled("chat1")
        assert "--ignore-size" in await clone.refused(403, lambda tree: tree.delete("/chat1"))
        running_server.clock.now += 4.9
        await clone.refused(403, lambda tree: tree.delete("/chat1"))
        for others in (ann, bob, bob.by(RCLONE), ann.by("curl/8"), ann.by("not rclone/")):
            await others.do(lambda tree: tree.delete("/chat1"))
            await others.put("/chat1", "hello")
            await ann.harness.settled("chat1")
        ann.harness.store.open("chat2")
        await clone.do(lambda tree: tree.delete("/chat2"))
        running_server.clock.now += 0.1
        await clone.do(lambda tree: tree.delete("/chat1"))


async def test_rclone_does_not_delete_what_would_not_take_its_text() -> None:
    async with mount() as ann:
        await talk(ann)
        clone = ann.by(RCLONE)
        await clone.put_refused(409, "/chat1", "User: hello\n")
        await clone.refused(403, lambda tree: tree.delete("/chat1"))


async def test_rclone_does_not_delete_what_it_gave_its_name_and_may_delete_its_own() -> None:
    async with mount() as ann:
        clone = ann.by(RCLONE)
        for name in ("/chat1.0a1b2c3d.partial", "/other.0a1b2c3d.partial"):
            await clone.put(name, "hello")
        await clone.do(lambda tree: tree.move("/chat1.0a1b2c3d.partial", "/chat1"))
        await ann.harness.settled("chat1")
        await clone.refused(403, lambda tree: tree.delete("/chat1"))
        await clone.do(lambda tree: tree.delete("/other.0a1b2c3d.partial"))


def test_what_is_remembered_of_programs_has_a_bound() -> None:
    clients = Clients(ManualClock())
    for number in range(5000):
        clients.sets_aside(str(number))
        clients.uploads(RCLONE, str(number))
    assert clients.has_set_aside("4999")
    assert not clients.has_set_aside("1")


def test_a_file_that_was_written_again_meanwhile_is_not_deleted() -> None:
    files = ScratchFiles(ManualClock())
    old = files.put("/a~", b"old")
    new = files.put("/a~", b"new")
    files.delete("/a~", old)
    assert files.find("/a~") is new
    files.delete("/a~", new)
    assert files.find("/a~") is None


def test_what_is_too_old_is_not_found() -> None:
    clock = ManualClock()
    files = ScratchFiles(clock)
    files.put("/a~", b"old")
    clock.now += scratch.KEPT_SECONDS
    assert files.find("/a~") is not None
    clock.now += 1
    assert files.find("/a~") is None
