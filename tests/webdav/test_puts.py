"""What a PUT to a session means (W2): each rule, each condition, and that a refusal leaves no trace."""

import asyncio
import re

import pytest

from cfs.wire import Message
from cfs_filesystem import OPERATIONS, Grant
from cfs_server.dav import put
from cfs_server.dav.sessions import SubSessionTree
from cfs_server.domain.quotas import Quota, StoreLimits
from cfs_server.domain.turns import TurnRequest
from tests.filesystem.support import grant
from tests.webdav.support import Caller, mount, mounts

TALK = "User: hello\nAssistant: hi\n"


def talk(ann: Caller, name: str = "chat1", text: str = TALK) -> None:
    """Make a session with a history."""
    ann.harness.store.create(name, transcript=text)


async def test_an_empty_body_makes_a_session_and_adds_nothing() -> None:
    async with mount() as ann:
        etag = await ann.put("/chat1", b"")
        assert (ann.harness.store.get("chat1").history.text, etag) == ("", await ann.etag("/chat1"))
        for blank in ("", " \n\n", "\n"):
            before = ann.everything()
            await ann.put("/chat1", blank)
            assert ann.everything() == before


async def test_the_transcript_itself_adds_nothing_and_keeps_its_name() -> None:
    async with mount() as ann:
        talk(ann)
        before = ann.everything()
        assert await ann.put("/chat1", TALK) == await ann.etag("/chat1")
        without_newline = await ann.put("/chat1", TALK.rstrip("\n"))
        assert without_newline != await ann.etag("/chat1"), "these are other bytes"
        assert ann.everything() == before


async def test_what_is_no_text_is_refused() -> None:
    async with mount() as ann:
        talk(ann)
        assert "UTF-8" in await ann.put_refused(415, "/chat1", TALK.encode() + b"caf\xe9\n")
        await ann.put_refused(415, "/new", b"\xff\xfe")
        assert await ann.look("/new") is None


async def test_a_message_that_is_too_big_is_refused_and_a_transcript_is_not() -> None:
    async with mount(limits=StoreLimits(message_bytes=100)) as ann:
        talk(ann, text=TALK * 50)
        await ann.put_refused(413, "/chat1", TALK * 50 + "x" * 101)
        await ann.put_refused(413, "/new", "x" * 101)
        await ann.put("/chat1", TALK * 50 + "x" * 100)
        assert await ann.harness.text("chat1") == TALK * 50 + f"User: {'x' * 100}\nAssistant: {'x' * 100}\n"


async def test_a_body_has_as_much_as_the_transcript_and_a_bound_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "GATHERED_BYTES", 200)
    async with mount(limits=StoreLimits(message_bytes=100)) as ann:
        assert "300 bytes at most" in await ann.put_refused(413, "/new", TALK * 12)
        await ann.put("/new", TALK * 11)
        assert "100 bytes at most" in await ann.put_refused(413, "/new", TALK * 11 + "x" * 300)
        assert "586 bytes at most now" in await ann.put_refused(413, "/new", TALK * 11 + "x" * 301)


@pytest.mark.parametrize("tail", ["more\n", "more", "User: more\n"])
async def test_the_transcript_with_something_added_is_a_message(tail: str) -> None:
    async with mount() as ann:
        talk(ann)
        ann.harness.engine.hold()
        etag = await ann.put("/chat1", TALK + tail)
        session = ann.harness.store.get("chat1")
        assert session.state == "generating", "it does not wait for the reply"
        ann.harness.engine.release()
        assert re.fullmatch(rf'"{session.nonce}-1r[0-9]+-[0-9a-f]{{32}}"', etag)
        assert await ann.harness.text("chat1") == TALK + "User: more\nAssistant: more\n"


async def test_a_prefix_alone_is_no_message() -> None:
    async with mount() as ann:
        talk(ann)
        await ann.put("/chat1", TALK + "User: \n")
        assert ann.harness.store.get("chat1").history.text == TALK


@pytest.mark.parametrize("there", [True, False])
async def test_a_conversation_is_imported_where_there_is_none(*, there: bool) -> None:
    async with mount() as ann:
        ann.may(grant("/sessions/", "write", "file", "read_binary"))
        if there:
            await ann.put("/chat2", b"")
        assert await ann.put("/chat2", TALK) == await ann.etag("/chat2"), "so the copy that was sent is up to date"
        session = ann.harness.store.get("chat2")
        assert (session.history.text, session.state, ann.harness.engine.requests) == (TALK, "idle", [])
        assert (await ann.put("/chat3", TALK.rstrip("\n"))) != await ann.etag("/chat3")


async def test_foreign_text_is_a_message() -> None:
    async with mount() as ann:
        await ann.put("/chat1", "hello\n")
        assert await ann.harness.text("chat1") == "User: hello\nAssistant: hello\n"
        await ann.put("/chat1", "again\n")
        assert (await ann.harness.text("chat1")).endswith("User: again\nAssistant: again\n")
        assert len(ann.harness.store.get("chat1").history) == 4


@pytest.mark.parametrize(
    "body",
    [
        TALK.replace("hello", "hullo") + "more\n",
        "User: hello\n",
        "User: else\nAssistant: what\n",
        "User: hello\nAssistant: h",
        "Assistant: hi\n",
    ],
)
async def test_an_edited_or_stale_body_is_refused(body: str) -> None:
    async with mount() as ann:
        talk(ann)
        old = await ann.etag("/chat1")
        assert "read it again" in await ann.put_refused(409, "/chat1", body)
        ann.harness.say("chat1", "between")
        await ann.harness.settled("chat1")
        await ann.put_refused(409, "/chat1", body, match=old)
        await ann.put_refused(409, "/chat1", body, match="*")
        assert ann.harness.store.get("chat1").history.text.startswith(TALK)


async def test_an_edit_of_the_present_version_replaces_the_history() -> None:
    async with mount() as ann:
        talk(ann)
        edited = TALK.replace("hello", "hullo")
        etag = await ann.put("/chat1", edited, match=await ann.etag("/chat1"))
        assert ann.harness.store.get("chat1").history.text == edited
        assert etag == await ann.etag("/chat1"), "so the next edit works, too"
        assert ann.harness.engine.requests == []
        shorter = await ann.put("/chat1", "User: hullo", match=f'"other", {etag}')
        assert shorter != await ann.etag("/chat1")
        assert await ann.harness.text("chat1") == "User: hullo\nAssistant: hullo\n", "an unanswered message (S14)"


async def test_an_edit_that_is_no_transcript_is_refused() -> None:
    async with mount() as ann:
        talk(ann)
        await ann.put_refused(422, "/chat1", "garbage\nAssistant: hi\n", match=await ann.etag("/chat1"))


async def test_an_edit_needs_an_idle_session_and_the_right_to_delete() -> None:
    async with mount() as ann:
        talk(ann)
        edited = TALK.replace("hello", "hullo")
        ann.may(Grant(prefix="/sessions/", ops=OPERATIONS - {"delete"}))
        await ann.put_refused(403, "/chat1", edited, match=await ann.etag("/chat1"))
        ann.may(grant("/"))
        ann.harness.engine.hold()
        ann.harness.say("chat1", "busy")
        await ann.put_refused(409, "/chat1", edited, match=await ann.etag("/chat1"))


async def test_a_version_that_nobody_knows_does_not_match() -> None:
    async with mount() as ann:
        talk(ann)
        session = ann.harness.store.get("chat1")
        other = ann.harness.store.open("other")
        unknown = [
            '"x"',
            "x",
            "",
            other.etag,
            f'"{session.nonce}-1"',
            f'"{session.nonce}-1r3-{"0" * 32}"',
            f'"{session.nonce}-0r"',
            f'"{session.nonce}-{"9" * 5000}"',
            f"W/{session.etag}",
            f'"{session.nonce}-e{session.log.last}.0"',
        ]
        for etag in unknown:
            await ann.put_refused(412, "/chat1", TALK + "more\n", match=etag)
            await ann.put_refused(412, "/chat1", "", match=etag)
        for etag in ("*", session.etag):
            await ann.put_refused(412, "/new", "hello", match=etag)
        await ann.put("/chat1", TALK + "more\n", match=f'"x", {session.etag}')
        assert len((await ann.harness.settled("chat1")).history) == 4


async def test_a_new_file_is_asked_for_by_if_none_match() -> None:
    async with mount() as ann:
        talk(ann)
        etag = await ann.etag("/chat1")
        for unwanted in ("*", etag, f'"x", W/{etag}'):
            await ann.put_refused(412, "/chat1", TALK + "more\n", none_match=unwanted)
        await ann.put("/chat1", TALK + "more\n", none_match='"x"')
        await ann.put("/new", "hello", none_match="*")
        assert await ann.harness.text("new") == "User: hello\nAssistant: hello\n"


async def test_an_older_version_is_known_until_the_history_is_replaced() -> None:
    async with mount() as ann:
        talk(ann)
        old = await ann.etag("/chat1")
        for text in ("one", "two"):
            ann.harness.say("chat1", text)
            await ann.harness.settled("chat1")
        await ann.put("/chat1", TALK + "three\n", match=old)
        text = await ann.harness.text("chat1")
        assert text == TALK + "".join(f"User: {each}\nAssistant: {each}\n" for each in ("one", "two", "three"))
        before = ann.everything()
        await ann.put("/chat1", TALK, match=old)
        assert ann.everything() == before, "its old copy is nothing new"
        await ann.put("/chat1", text.replace("three", "3"), match=await ann.etag("/chat1"))
        await ann.put_refused(412, "/chat1", TALK + "four\n", match=old)
        await ann.put_refused(409, "/chat1", TALK + "four\n")


@pytest.mark.parametrize("held", [True, False])
async def test_three_quick_appends_of_a_copy_are_three_messages(*, held: bool) -> None:
    """As davfs2 does it: its own bytes again with a line more, named by the ETag of the answer before."""
    async with mount() as ann:
        if held:
            ann.harness.engine.hold()
        body, etag = "", None
        for text in ("one", "two", "three"):
            body += f"{text}\n"
            etag = await ann.put("/chat1", body, match=etag, none_match=None if etag else "*")
        ann.harness.engine.release()
        text = await ann.harness.text("chat1")
        assert text == "".join(f"User: {each}\nAssistant: {each}\n" for each in ("one", "two", "three"))


async def test_an_append_across_a_reply_keeps_both() -> None:
    async with mount() as ann:
        talk(ann)
        ann.harness.engine.hold()
        etag = await ann.put("/chat1", TALK + "one\n", match=await ann.etag("/chat1"))
        ann.harness.say("chat1", "from elsewhere")
        ann.harness.engine.release()
        await ann.harness.settled("chat1")
        await ann.put("/chat1", TALK + "one\ntwo\n", match=etag)
        said = [message.content for message in (await ann.harness.settled("chat1")).history.messages]
        assert said == ["hello", "hi", "one", "one", "from elsewhere", "from elsewhere", "two", "two"]


async def test_the_same_line_of_two_clients_is_two_messages() -> None:
    """Their bytes differ while the version does not, as what they say waits: no name stands for both."""
    async with mount() as ann:
        ann.harness.engine.hold()
        first = await ann.put("/chat1", "a\n")
        await ann.put("/chat1", "a\nb\n", match=first)
        await ann.put("/chat1", "a\nb\n", match=first)
        ann.harness.engine.release()
        said = [message.content for message in (await ann.harness.settled("chat1")).history.messages]
        assert said == ["a", "a", "b", "b", "b", "b"]


async def test_of_several_names_the_longest_text_is_the_base() -> None:
    async with mount() as ann:
        first = await ann.put("/chat1", "a\n")
        second = await ann.put("/chat1", "a\nb\n", match=first)
        await ann.put("/chat1", "a\nb\nc\n", match=f"{first}, {second}")
        await ann.put("/chat1", "a\nb\nc\nd\n", match=f"{second}, {first}")
        said = [message.content for message in (await ann.harness.settled("chat1")).history.messages]
        assert said[::2] == ["a", "b", "c", "c\nd"]


async def test_other_bytes_than_were_sent_are_no_base() -> None:
    async with mount() as ann:
        etag = await ann.put("/chat1", "hello\n")
        await ann.harness.settled("chat1")
        await ann.put_refused(409, "/chat1", "User: hullo\nAssistant: hullo\nmore\n", match=etag)
        await ann.put("/chat1", "hullo\nmore\n", match=etag)  # shares nothing: a message (rule 7)
        assert ann.harness.store.get("chat1").history.messages[2].content == "hullo\nmore"


async def test_a_copy_is_known_whatever_was_sent_since() -> None:
    async with mount() as ann:
        first = await ann.put("/chat1", "first\n")
        for number in range(100):
            ann.harness.say("chat1", str(number))
            await ann.harness.settled("chat1")
        await ann.put("/chat1", "first\nlast\n", match=first)
        assert (await ann.harness.text("chat1")).endswith("Assistant: 99\nUser: last\nAssistant: last\n")


async def test_who_may_not_write_is_told_as_much_as_it_may_know() -> None:
    async with mount() as ann:
        talk(ann)
        ann.may(grant("/sessions/chat1", "read"))
        await ann.put_refused(403, "/chat1", "hello")
        for body in ("hello", "", TALK):
            assert "no session" in await ann.put_refused(404, "/secret", body)


async def test_who_may_not_read_writes_messages_and_learns_nothing() -> None:
    async with mount() as ann:
        talk(ann)
        ann.may(grant("/sessions/", "write"))
        told = [await ann.put("/chat1", body) for body in (TALK, TALK + "x\n", "User: hello\n", "User: User: x")]
        assert all("r" in etag for etag in told)
        await ann.put("/chat1", "first\n" + "second\n", match=await ann.put("/chat1", "first\n"))
        said = [message.content for message in (await ann.harness.settled("chat1")).history.messages][2::2]
        assert said == [TALK.removeprefix("User: ")[:-1], TALK[6:] + "x", "hello", "User: x", "first", "second"]
        await ann.put_refused(415, "/chat1", b"\xff")


async def test_who_may_not_read_learns_nothing_by_names_and_sizes_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "GATHERED_BYTES", 0)
    async with mount(limits=StoreLimits(message_bytes=100)) as ann:
        ann.may(grant("/sessions/", "write"))
        assert "r0-" in await ann.put("/chat1", "")
        sent = await ann.put("/chat1", "User: hello\n")
        session = await ann.harness.settled("chat1")
        assert session.history.text == "User: hello\nAssistant: hello\n"
        await ann.put("/chat1", session.history.text, match=sent)
        assert (await ann.harness.settled("chat1")).history.messages[2].content == "Assistant: hello"
        assert "100 bytes" in await ann.put_refused(413, "/chat1", "x" * 101)


async def test_a_refused_body_leaves_no_session() -> None:
    async with mounts(limits=StoreLimits(sessions=2, total_bytes=1_400)) as running_server:
        ann = running_server.caller("ann", grant("/"), quota=Quota(sessions=1))
        sub = ann.by(kind=SubSessionTree)
        await ann.put_refused(507, "/big", "x" * 1_400)
        await ann.put_refused(507, "/big", TALK * 50)
        await sub.put_refused(507, "/main/coder", "hello")
        await ann.put_refused(422, "/" + "x" * 256, "hello")
        await ann.put_refused(404, "/a/b", "hello")
        await ann.put("/one", "hello")
        await ann.harness.settled("one")
        for body in ("hello", TALK, ""):
            await ann.put_refused(507, "/two", body)
        assert [session.id for session in running_server.harness.store] == ["one"]


async def test_a_full_queue_is_told_and_nothing_is_added() -> None:
    async with mount(limits=StoreLimits(queued_turns=1)) as ann:
        ann.harness.engine.hold()
        await ann.put("/chat1", "one")
        await ann.put("/chat1", "two")
        await ann.put_refused(429, "/chat1", "three")


async def test_a_session_counts_for_who_made_it() -> None:
    async with mounts() as running_server:
        ann, bob = running_server.caller("ann", grant("/")), running_server.caller("bob", grant("/"))
        await ann.put("/chat1", TALK)
        await bob.put("/chat1", TALK + "x\n")
        await ann.harness.settled("chat1")
        assert ann.harness.store.get("chat1").account is ann.principal.gate._account
        assert ann.principal.gate._account.sessions == 1


@pytest.mark.parametrize("bound", [0, 1 << 20])
async def test_a_long_body_is_judged_again_when_somebody_was_faster(
    monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    """Twelve writers at once, none of whom knows of the others: nobody's message is lost, however it is judged."""
    monkeypatch.setattr(put, "AT_ONCE_BYTES", bound)
    async with mount() as ann:
        talk(ann)
        ann.harness.engine.hold()
        old = await ann.etag("/chat1")
        await asyncio.gather(*(ann.put("/chat1", f"{TALK}m{number}\n", match=old) for number in range(12)))
        ann.harness.engine.release()
        said = [message.content for message in (await ann.harness.settled("chat1")).history.messages][2::2]
        assert sorted(said) == sorted(f"m{number}" for number in range(12))


async def test_what_was_judged_is_not_done_to_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer who comes in between every time: in the end it is judged in one piece, and refused."""
    monkeypatch.setattr(put, "AT_ONCE_BYTES", 0)
    async with mount() as ann:
        talk(ann)
        store = ann.harness.store
        judged: list[str | None] = []
        loop, judge = asyncio.get_running_loop(), put.ComparedSession.judge

        async def say() -> None:
            store.submit("chat1", TurnRequest(Message(role="user", content=f"i{len(judged)}"), generate=False))

        def slow(sight: put.ComparedSession, body: bytes) -> object:
            judged.append(sight.etag)
            if asyncio._get_running_loop() is None and len(judged) < 20:
                asyncio.run_coroutine_threadsafe(say(), loop).result()
            return judge(sight, body)

        monkeypatch.setattr(put.ComparedSession, "judge", slow)
        old = await ann.etag("/chat1")
        await ann.put("/chat1", TALK + "tail\n", match=old)
        assert len(set(judged)) == len(judged) == 6
        said = [message.content for message in (await ann.harness.settled("chat1")).history.messages]
        assert said == ["hello", "hi", "i1", "i2", "i3", "i4", "i5", "tail", "tail"]
