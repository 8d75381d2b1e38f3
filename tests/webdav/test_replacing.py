"""Programs save a session by a temporary file that they move over it: nothing answers the temporary file (W1, W2).

No name tells such a file from a new session, so the names here are on no list of the server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cfs.wire import Message
from cfs_server.dav.scratch import ClientStates
from cfs_server.dav.sessions import SubSessionTree
from cfs_server.domain.turns import TurnRequest
from tests.filesystem.support import grant
from tests.webdav.support import Caller, mounts

TALK = "User: hello\nAssistant: hi\n"
MORE = TALK + "User: more\nAssistant: more\n"


@asynccontextmanager
async def patient() -> AsyncIterator[Caller]:
    """Serve a session with a history; the first turn of a new file waits as long as a test may take."""
    async with mounts() as running_server:
        running_server.client_states = ClientStates(running_server.clock, 60.0)
        ann = running_server.caller("ann", grant("/"))
        ann.harness.store.create("chat1", transcript=TALK)
        yield ann


async def replace(ann: Caller, path: str = "/chat1.new", target: str = "/chat1") -> None:
    """Move a file over another one, as a MOVE with `Overwrite: T` does."""
    assert await ann.do(lambda tree: tree.may_overwrite(path, target))
    await ann.do(lambda tree: tree.move(path, target))


@pytest.mark.parametrize("body", [f"{TALK}more\n", f"{TALK}User: more\n", "more\n"])
async def test_the_addition_is_the_message(body: str) -> None:
    async with patient() as ann:
        await ann.put("/chat1.new", body)
        await replace(ann)
        assert (await ann.harness.text("chat1")).strip() == MORE.strip()
        assert await ann.paths() == ["/chat1"]
        assert [request.account for request in ann.harness.engine.requests] == ["chat1"]


async def test_the_same_text_changes_nothing() -> None:
    async with patient() as ann:
        await ann.put("/chat1.new", TALK)
        await replace(ann)
        assert (await ann.harness.text("chat1"), await ann.paths()) == (TALK, ["/chat1"])
        assert ann.harness.engine.requests == []


async def test_an_empty_file_first() -> None:
    """davfs2 and Windows create the file by a LOCK or an empty PUT, and send its text later."""
    async with patient() as ann:
        await ann.do(lambda tree: tree.make("/chat1.new"))
        await ann.put("/chat1.new", f"{TALK}User: more\n")
        assert ann.harness.store.get("chat1.new").queue[0].delayed
        await replace(ann)
        await ann.put("/chat1.new", "")
        await ann.put("/chat1.new", f"{MORE}again\n")
        await replace(ann)
        assert await ann.harness.text("chat1") == f"{MORE}User: again\nAssistant: again\n"
        assert await ann.paths() == ["/chat1"]


async def test_an_edit_is_refused_and_stays_a_file() -> None:
    """It is no message, so nothing answers it; the text is there, and can be moved again or deleted."""
    async with patient() as ann:
        edited = TALK.replace("hello", "bye") + "User: more\n"
        await ann.put("/chat1.new", edited)
        with pytest.raises(Exception, match="its past was edited"):
            await replace(ann)
        assert await ann.harness.text("chat1") == TALK
        assert await ann.paths() == ["/chat1", "/chat1.new"]
        assert (await ann.bytes_at("/chat1.new"), ann.harness.store.find("chat1.new")) == (edited.encode(), None)
        assert ann.harness.engine.requests == []
        await ann.put("/chat1.new", f"{TALK}more\n")
        await replace(ann)
        assert (await ann.harness.text("chat1"), await ann.paths()) == (MORE, ["/chat1"])


async def test_a_turn_that_has_begun_ends_with_the_file() -> None:
    """A program may take longer than the wait."""
    async with patient() as ann:
        ann.harness.engine.hold()
        await ann.put("/chat1.new", f"{TALK}User: more\n")
        ann.harness.store.get("chat1.new").hurry()
        assert ann.harness.store.get("chat1.new").running
        await replace(ann)
        ann.harness.engine.release()
        assert (await ann.harness.text("chat1"), await ann.paths()) == (MORE, ["/chat1"])


async def test_a_new_name_is_renamed_and_answered() -> None:
    async with patient() as ann:
        await ann.put("/new.tmp", "hi\n")
        await ann.do(lambda tree: tree.move("/new.tmp", "/new"))
        assert await ann.harness.text("new") == "User: hi\nAssistant: hi\n"


@pytest.mark.parametrize("why", ["message", "read", "late", "edited", "elsewhere"])
async def test_what_is_no_temporary_file_replaces_nothing(why: str) -> None:
    """A conversation is not thrown away: others wrote to it, read it, or it is there for a while."""
    async with patient() as ann:
        store = ann.harness.store
        if why == "elsewhere":
            store.submit("chat1.new", TurnRequest(Message(role="user", content="hi"), delay=60.0))
        else:
            await ann.put("/chat1.new", "hi\n")
        match why:
            case "message":
                store.submit("chat1.new", TurnRequest(Message(role="user", content="again")))
            case "read":
                ann.tree.note_read("chat1.new")
            case "late":
                ann.server.clock.now += 11
            case "edited":
                store.cancel("chat1.new", queued=True)
                store.replace("chat1.new", TALK, "*")
        assert not await ann.do(lambda tree: tree.may_overwrite("/chat1.new", "/chat1"))
        await ann.refused(409, lambda tree: tree.move("/chat1.new", "/chat1"))


async def test_who_may_not_delete_replaces_nothing() -> None:
    """The temporary file would stay: so the right is required first, and nothing is written."""
    async with patient() as ann:
        ann.may({"prefix": "/sessions/", "ops": {"list", "file", "read_binary", "write"}})
        await ann.put("/chat1.new", f"{TALK}more\n")
        await ann.refused(403, lambda tree: tree.move("/chat1.new", "/chat1"))


async def test_the_file_of_one_caller_is_not_that_of_another() -> None:
    async with patient() as ann:
        bob = ann.server.caller("bob", grant("/"))
        await ann.put("/chat1.new", "hi\n")
        assert not await bob.do(lambda tree: tree.may_overwrite("/chat1.new", "/chat1"))


async def test_sub_sessions_are_saved_in_the_same_way() -> None:
    async with patient() as ann:
        ann.harness.store.create("chat1/coder", transcript=TALK)
        sub = ann.by(kind=SubSessionTree)
        await sub.put("/chat1/coder-new", f"{TALK}more\n")
        await replace(sub, "/chat1/coder-new", "/chat1/coder")
        assert await ann.harness.text("chat1/coder") == MORE
        assert await sub.paths("/chat1") == ["/chat1/coder"]


SCRATCH = ["4913", "note~", "a.swp", "a.swx", "#a#", "sedAb12Cd", "a.partial", "Thumbs.db", "desktop.ini"]


@pytest.mark.parametrize("name", SCRATCH)
async def test_a_session_of_any_name_is_shown(name: str) -> None:
    """Where a session has the name, the name is the session's, also for writes, moves and deletes."""
    async with patient() as ann:
        ann.harness.store.create(name, transcript=TALK)
        assert await ann.paths() == sorted(["/chat1", f"/{name}"])
        assert await ann.bytes_at(f"/{name}") == TALK.encode()
        await ann.put(f"/{name}", f"{TALK}more\n")
        assert await ann.harness.text(name) == MORE
        await ann.do(lambda tree: tree.move(f"/{name}", "/other"))
        assert await ann.harness.text("other") == MORE
        await ann.put(f"/{name}", b"\0")
        assert (await ann.bytes_at(f"/{name}"), ann.harness.store.find(name)) == (b"\0", None)


@pytest.mark.parametrize("name", SCRATCH)
async def test_a_new_session_takes_the_name_of_a_scratch_file(name: str) -> None:
    """What was in the file is gone, and does not come back with the session's end."""
    async with patient() as ann:
        await ann.put(f"/{name}", "scratch")
        ann.harness.store.create(name, transcript=TALK)
        assert await ann.paths() == sorted(["/chat1", f"/{name}"])
        assert await ann.bytes_at(f"/{name}") == TALK.encode()
        await ann.do(lambda tree: tree.delete(f"/{name}"))
        assert await ann.look(f"/{name}") is None
        assert await ann.paths() == ["/chat1"]


async def test_a_session_that_a_caller_may_not_see_has_no_name_for_it() -> None:
    async with patient() as ann:
        ann.harness.store.create("note~", transcript=TALK)
        ann.may({"prefix": "/sessions/chat1", "ops": {"list", "read_binary", "write"}})
        await ann.put("/note~", "mine")
        assert (await ann.bytes_at("/note~"), await ann.harness.text("note~")) == (b"mine", TALK)
