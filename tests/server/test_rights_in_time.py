"""Rights that are taken, and names that change, while a request waits or a stream is open (G9, S11)."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx
import pytest

from cfs_filesystem import Grant
from tests.filesystem.support import grant
from tests.server.guests import Guest, guests
from tests.server.support import EVENTS, EventStream, ServerHarness, data, kinds, running_server, until

SHARED, HIDDEN = "shared", "nobody-knows"
READER = Grant(prefix=f"/sessions/{SHARED}", ops={"read", "file", "list"})
AGENT = Grant(prefix=f"/sessions/{SHARED}", ops={"read", "write"})


@dataclass(frozen=True, slots=True)
class Room:
    """A session that Bob sees, and Alice, who may do everything."""

    server: ServerHarness
    alice: Guest
    bob: Guest

    async def rename(self, new: str = HIDDEN, old: str = SHARED) -> None:
        """Let Alice give the session another name."""
        answer = await self.alice.client.post(f"/v1/sessions/{old}/rename", json={"id": new})
        assert answer.status_code == 200, answer.text

    async def read_on(self) -> None:
        """Let the one reader of the common stream come to its end; what counts for /metrics reads along."""
        await until(lambda: self.server.store.bus.log.broadcast.waiting == 2)


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with running_server() as server, guests(server, alice=[grant("/")], bob=[READER]) as who:
        await who["alice"].create(SHARED)
        yield Room(server, who["alice"], who["bob"])


# -- requests that wait -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that waits, when it does so, and what ends it."""

    ask: Callable[[Guest], Awaitable[httpx.Response]]
    needs: Grant
    settings: dict[str, str]
    begun: Callable[[ServerHarness], bool]
    end: Callable[[Room, str], Awaitable[object]]


URL = f"/v1/sessions/{SHARED}"


async def _let_go(room: Room, _: str) -> None:
    room.server.engine.release()


async def _say(room: Room, session: str) -> None:
    await room.alice.say(session, "the word")


WAITS = {
    "read": Wait(
        lambda bob: bob.client.get(URL, params={"wait": "30"}),
        READER,
        {},
        lambda server: server.store.get(SHARED).changed.waiting > 0,
        _let_go,
    ),
    "wait": Wait(
        lambda bob: bob.client.get(URL + "/wait"),
        READER,
        {},
        lambda server: server.store.get(SHARED).changed.waiting > 0,
        _let_go,
    ),
    "message": Wait(
        lambda bob: bob.say(SHARED, "mine", wait="true"),
        AGENT,
        {},
        lambda server: len(server.store.get(SHARED).queue) == 1,
        _let_go,
    ),
    "claim": Wait(
        lambda bob: bob.client.post(URL + "/claim", json={"wait": 30}),
        AGENT,
        {"driver": "agent"},
        lambda server: server.store.get(SHARED).changed.waiting > 0,
        _say,
    ),
}


@pytest.fixture(params=WAITS)
async def waiting(request: pytest.FixtureRequest, room: Room) -> "Waiting":
    """A request of Bob's that is waiting: for a turn of Alice's, or for one to claim."""
    wait = WAITS[request.param]
    room.bob.may(wait.needs)
    await room.alice.client.patch(URL + "/settings", json=wait.settings)
    room.server.engine.hold()
    if not wait.settings:
        await room.alice.say(SHARED, "the word")
    asking = asyncio.ensure_future(wait.ask(room.bob))
    await until(lambda: wait.begun(room.server))
    return Waiting(room, wait, asking)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait that is going on."""

    room: Room
    wait: Wait
    answer: "asyncio.Future[httpx.Response]"

    async def refused(self, *statuses: int) -> httpx.Response:
        """Return the answer, which must say nothing of the session."""
        answer = await self.answer
        assert answer.status_code in statuses, answer.text
        told = answer.text + str(answer.headers)
        assert not any(word in told for word in ("word", "mine", HIDDEN)), told
        return answer


async def test_an_answer_that_was_waited_for_is_given_to_those_who_may_still_have_it(waiting: Waiting) -> None:
    await waiting.wait.end(waiting.room, SHARED)
    assert (await waiting.answer).status_code == 200


async def test_rights_that_are_taken_during_a_wait_are_missing_at_its_end(waiting: Waiting) -> None:
    waiting.room.bob.may()
    await waiting.wait.end(waiting.room, SHARED)
    await waiting.refused(404)
    assert waiting.room.server.store.get(SHARED).running is None, "a turn was claimed without the right"


async def test_some_rights_that_are_taken_during_a_wait_are_missing_at_its_end(waiting: Waiting) -> None:
    waiting.room.bob.may(grant(f"/sessions/{SHARED}", "delete"))
    await waiting.wait.end(waiting.room, SHARED)
    await waiting.refused(403)


async def test_who_has_no_rights_any_more_is_not_told_of_the_end_of_a_session(waiting: Waiting) -> None:
    waiting.room.bob.may()
    await waiting.room.alice.client.delete(URL)
    answer = await waiting.refused(404)
    assert "deleted" not in answer.text


async def test_a_session_that_is_renamed_out_of_sight_during_a_wait_is_gone(waiting: Waiting) -> None:
    await waiting.room.rename()
    await waiting.wait.end(waiting.room, HIDDEN)
    answer = await waiting.refused(410)
    assert SHARED in answer.json()["detail"]


async def test_nor_is_the_new_name_told_when_it_is_deleted_then(waiting: Waiting) -> None:
    await waiting.room.rename()
    await waiting.room.alice.client.delete(f"/v1/sessions/{HIDDEN}")
    await waiting.refused(410)


async def test_a_session_that_is_renamed_within_sight_is_waited_for_under_its_new_name(waiting: Waiting) -> None:
    waiting.room.bob.may(waiting.wait.needs, Grant(prefix="/sessions/public", ops=waiting.wait.needs["ops"]))
    await waiting.room.rename("public")
    await waiting.wait.end(waiting.room, "public")
    answer = await waiting.answer
    assert (answer.status_code, "public" in answer.text) == (200, True)


# -- streams of one session -------------------------------------------------------------------------------------------


async def test_a_stream_ends_with_the_right_to_read_it(room: Room) -> None:
    async with await room.bob.stream(URL + "/events") as stream:
        await room.alice.say(SHARED, "before", wait="true")
        await stream.until("turn.finished")
        room.bob.may(grant(f"/sessions/{SHARED}", "list", "file", "write", "delete"))
        await room.alice.say(SHARED, "after", wait="true")
        assert "after" not in str(await stream.rest())
        assert stream.ended


async def test_the_stream_of_a_message_ends_with_the_right_to_read_it(room: Room) -> None:
    room.bob.may(AGENT)
    room.server.engine.hold()
    async with await room.bob.stream(URL + "/messages", EVENTS, b"one two three") as stream:
        room.server.engine.step()
        await stream.until("token")
        room.bob.may(grant(f"/sessions/{SHARED}", "write"))
        room.server.engine.release()
        assert await stream.rest() == []
        assert stream.ended
    room.bob.may(READER)
    assert (await room.bob.client.get(URL)).json()["messages"] == 2, "the turn goes on without its reader"


async def test_a_reader_that_is_too_late_is_told_nothing_without_the_right() -> None:
    """The word that events are lost brings the present state with it."""
    async with running_server(session_events=4) as server, guests(server, alice=[grant("/")], bob=[READER]) as who:
        await who["alice"].create(SHARED)
        async with await who["bob"].stream(URL + "/events") as stream:
            log = server.store.get(SHARED).log
            await until(lambda: log.broadcast.waiting)
            who["bob"].may()
            for _ in range(20):
                server.store.get(SHARED).publish_state("the word")
            assert await stream.rest() == []


async def test_a_stream_ends_with_the_name_that_its_reader_may_see(room: Room) -> None:
    async with await room.bob.stream(URL + "/events") as stream:
        await room.rename()
        await room.alice.say(HIDDEN, "the word", wait="true")
        (last,) = await stream.rest()
        assert (last.event, data(last)) == ("session.deleted", {})
        assert stream.ended
    assert (await room.bob.client.get(f"/v1/sessions/{HIDDEN}/events")).status_code == 404


async def test_a_stream_goes_on_under_a_name_that_its_reader_may_see(room: Room) -> None:
    room.bob.may(READER, grant("/sessions/public", "read"))
    async with await room.bob.stream(URL + "/events") as stream:
        await room.rename("public")
        await room.alice.say("public", "hello")
        events = await stream.until("turn.finished")
    assert kinds(events)[:3] == ["session.deleted", "session.created", "message.added"]
    assert [data(event) for event in events[:1]] == [{"renamed_to": "public"}]
    assert data(events[1])["renamed_from"] == SHARED


async def test_a_session_that_was_renamed_into_sight_is_followed_from_there_on(room: Room) -> None:
    """What happened under the old name is left out, and the stream goes on after that."""
    await room.alice.create(HIDDEN)
    await room.alice.say(HIDDEN, "the word", wait="true")
    await room.alice.client.delete(URL)
    await room.rename(SHARED, HIDDEN)
    async with await room.bob.stream(URL + "/events?after=0") as stream:
        (made,) = await stream.until("session.created")
        await room.alice.say(SHARED, "hello")
        events = await stream.until("turn.finished")
    assert "renamed_from" not in data(made)
    assert HIDDEN not in str([made, *events])


# -- the stream of all sessions ---------------------------------------------------------------------------------------


async def about(stream: EventStream, session: str, kind: str) -> list[dict[str, object]]:
    """Read on to an event of a kind in a session; return the sessions and numbers of all on the way."""
    found: list[dict[str, object]] = []
    while True:
        (event,) = await stream.take(1)
        found.append(json.loads(event.data))
        if (found[-1]["session"], event.event) == (session, kind):
            return found


async def test_each_caller_sees_its_sessions_in_the_common_stream_in_one_order() -> None:
    grants = {
        "alice": [grant("/sessions/a")],
        "bob": [grant("/sessions/b")],
        "both": [grant("/sessions/a", "read"), grant("/sessions/b", "read")],
        "root": [grant("/")],
        "none": [grant("/sessions/", "list", "file", "write", "delete")],
    }
    async with running_server() as server, guests(server, **grants) as who:
        streams = {name: await guest.stream("/v1/events") for name, guest in who.items()}
        for _ in range(3):
            for name, session in (("alice", "a"), ("bob", "b"), ("bob", "b/child"), ("alice", "a/child")):
                await who[name].say(session, "hello", wait="true")
        who["none"].may(grant("/sessions/c", "read"))
        await who["root"].say("c", "the end", wait="true")
        end = {"alice": "a/child", "bob": "b/child", "both": "a/child", "root": "c", "none": "c"}
        seen = {}
        for name, stream in streams.items():
            seen[name] = await about(stream, end[name], "turn.finished")
            for _ in range(0 if name in ("root", "none") else 2):
                seen[name] += await about(stream, end[name], "turn.finished")
            stream.close()
        whole = seen["root"]
    assert {event["session"] for event in whole} == {"a", "a/child", "b", "b/child", "c"}
    for name, places in (("alice", "a"), ("bob", "b"), ("both", "ab"), ("none", "c")):
        wanted = [event for event in whole if str(event["session"])[0] in places]
        assert seen[name] == wanted[: len(seen[name])]
        assert wanted[len(seen[name]) :] in ([], [event for event in wanted if event["type"] == "state.changed"][-1:])


async def test_a_reader_resumes_after_its_last_event_whatever_others_did_since() -> None:
    async with (
        running_server() as server,
        guests(server, alice=[grant("/sessions/a")], bob=[grant("/sessions/b")]) as who,
    ):
        async with await who["bob"].stream("/v1/events") as stream:
            await who["bob"].say("b", "first", wait="true")
            last = (await stream.until("turn.finished"))[-1]
        for _ in range(20):
            await who["alice"].say("a", "the word", wait="true")
        await who["bob"].say("b", "second", wait="true")
        async with await who["bob"].stream("/v1/events", {"Last-Event-ID": last.id}) as stream:
            missed = await stream.until("turn.finished")
        assert kinds(missed)[:2] == ["state.changed", "message.added"]
        numbers = [json.loads(event.data)["number"] for event in (last, *missed)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert "the word" not in str(missed)


async def test_the_common_stream_hides_what_happens_while_the_right_is_missing(room: Room) -> None:
    async with await room.bob.stream("/v1/events") as stream:
        await room.read_on()
        room.bob.may()
        await room.alice.say(SHARED, "the word", wait="true")
        await room.read_on()
        room.bob.may(READER)
        await room.alice.say(SHARED, "hello")
        events = await stream.until("turn.finished")
    assert "the word" not in str(events)
    assert data(events[0])["message"]["content"] == "hello"


async def test_the_common_stream_tells_no_name_that_its_reader_may_not_see(room: Room) -> None:
    async with await room.bob.stream("/v1/events") as stream:
        await room.rename()
        await room.alice.say(HIDDEN, "the word", wait="true")
        await room.rename(SHARED, HIDDEN)
        await room.alice.client.post(URL + "/fork", json={"id": "nobody-reads"})
        await room.alice.client.post("/v1/sessions/nobody-reads/fork", json={"id": SHARED + "/child"})
        events = await stream.take(3)
    assert kinds(events) == ["session.deleted", "session.created", "session.created"]
    assert not any("nobody" in event.data for event in events)
    assert [json.loads(event.data)["session"] for event in events] == [SHARED, SHARED, SHARED + "/child"]


async def test_who_may_see_both_names_is_told_of_the_other(room: Room) -> None:
    async with await room.alice.stream("/v1/events") as stream:
        await room.rename()
        await room.alice.client.post(f"/v1/sessions/{HIDDEN}/fork", json={"id": "copy"})
        renamed, made, copied = await stream.take(3)
    assert data(renamed) == {"renamed_to": HIDDEN}
    assert data(made)["renamed_from"] == SHARED
    assert data(copied)["forked_from"] == HIDDEN
