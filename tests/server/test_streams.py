"""Event streams over HTTP (H2, S11)."""

import json

import pytest

from tests.server.support import EVENTS, EventStream, ServerHarness, data, kinds, running_server, spoken, until


async def test_a_stream_shows_what_happens_from_now_on_with_an_id_on_each_event(server: ServerHarness) -> None:
    await server.say("a", "before", wait="true")
    async with await EventStream.open(server.url, "/v1/sessions/a/events") as stream:
        await server.say("a", "one two")
        events = await stream.until("turn.finished")
    assert kinds(events)[:2] == ["message.added", "turn.started"]
    assert spoken(events) == "one two"
    numbers = [int(event.id.split("-")[1]) for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [json.loads(event.data)["number"] for event in events] == numbers


async def test_the_head_of_a_stream_forbids_caching_and_buffering(server: ServerHarness) -> None:
    await server.create("a")
    async with await EventStream.open(server.url, "/v1/sessions/a/events") as stream:
        assert stream.status == 200
        for line in ("content-type: text/event-stream", "cache-control: no-cache", "x-accel-buffering: no"):
            assert line in stream.head.lower()


@pytest.mark.parametrize("form", ["header", "query", "bare number", "header before query"])
async def test_a_stream_resumes_after_the_event_that_the_reader_names(server: ServerHarness, form: str) -> None:
    await server.say("a", "one two three", wait="true")
    async with await EventStream.open(server.url, "/v1/sessions/a/events?after=0") as stream:
        everything = await stream.until("turn.finished")
    seen = everything[3]
    path, headers = {
        "header": ("/v1/sessions/a/events", {"Last-Event-ID": seen.id}),
        "query": (f"/v1/sessions/a/events?after={seen.id}", {}),
        "bare number": (f"/v1/sessions/a/events?after={seen.id.split('-')[1]}", {}),
        "header before query": ("/v1/sessions/a/events?after=0", {"Last-Event-ID": seen.id}),
    }[form]
    async with await EventStream.open(server.url, path, headers) as stream:
        assert await stream.until("turn.finished") == everything[4:]


async def test_after_zero_begins_with_the_making_of_the_session(server: ServerHarness) -> None:
    await server.create("a")
    async with await EventStream.open(server.url, "/v1/sessions/a/events?after=0") as stream:
        (event,) = await stream.take(1)
    assert event.event == "session.created"


async def test_the_stream_of_all_sessions_has_one_order_and_its_own_ids(server: ServerHarness) -> None:
    async with await EventStream.open(server.url, "/v1/events") as stream:
        await server.say("a", "x", wait="true")
        await server.say("b", "y", wait="true")
        events = await stream.take(12)
    assert [json.loads(event.data)["position"] for event in events] == [int(e.id.split("-")[1]) for e in events]
    assert [json.loads(event.data)["session"] for event in events] == ["a"] * 8 + ["b"] * 4


async def test_a_reader_that_comes_back_too_late_is_told_and_gets_the_present_state() -> None:
    async with running_server(session_events=4) as server:
        await server.say("a", "1 2 3 4 5 6 7 8 9", wait="true")
        last = server.store.get("a").log.last
        async with await EventStream.open(server.url, "/v1/sessions/a/events?after=1") as stream:
            (stale,) = await stream.take(1)
            assert stale.event == "stale"
            told = json.loads(stale.data)
            assert (told["asked"], told["last"]) == (1, last)
            assert told["session"]["history"][1]["content"] == "1 2 3 4 5 6 7 8 9"
            assert stale.id == server.store.get("a").log.token(last)
            await server.say("a", "x")
            assert (await stream.take(1))[0].event == "message.added"


async def test_a_reader_of_all_sessions_that_is_too_late_learns_the_last_number_only() -> None:
    async with running_server(all_events=4) as server:
        await server.say("a", "1 2 3 4 5 6 7 8 9", wait="true")
        async with await EventStream.open(server.url, "/v1/events?after=1") as stream:
            (stale,) = await stream.take(1)
        last = server.store.bus.log.last
    assert (stale.event, json.loads(stale.data)) == ("stale", {"asked": 1, "last": last})


async def test_a_cursor_of_a_session_that_was_deleted_and_made_again_is_stale(server: ServerHarness) -> None:
    await server.create("a")
    old = server.store.get("a").log.token(1)
    await server.client.delete("/v1/sessions/a")
    await server.create("a")
    async with await EventStream.open(server.url, "/v1/sessions/a/events", {"Last-Event-ID": old}) as stream:
        assert kinds(await stream.take(1)) == ["stale"]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "a-1", "9" * 30, ""])
async def test_a_cursor_that_is_none_is_refused(server: ServerHarness, cursor: str) -> None:
    await server.create("a")
    answer = await server.client.get("/v1/sessions/a/events", params={"after": cursor}, headers=EVENTS)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:cfs:error:invalid-parameters")


async def test_the_stream_of_a_session_ends_after_its_deletion(server: ServerHarness) -> None:
    await server.create("a")
    async with await EventStream.open(server.url, "/v1/sessions/a/events") as stream:
        await server.client.delete("/v1/sessions/a")
        assert kinds(await stream.rest()) == ["session.deleted"]


async def test_the_stream_of_a_session_survives_its_renaming(server: ServerHarness) -> None:
    await server.create("a")
    async with await EventStream.open(server.url, "/v1/sessions/a/events") as stream:
        await server.client.post("/v1/sessions/a/rename", json={"id": "b"})
        await server.say("b", "hello")
        events = await stream.until("turn.finished")
    assert kinds(events)[:2] == ["session.deleted", "session.created"]
    assert json.loads(events[0].data)["session"] == "a"
    assert json.loads(events[-1].data)["session"] == "b"


async def test_a_quiet_stream_beats() -> None:
    async with running_server(ping=0.01) as server:
        await server.create("a")
        async with await EventStream.open(server.url, "/v1/sessions/a/events") as stream:
            assert await stream.reader.readuntil(b"\n\n") == b"8\r\n: ping\n\n"


async def test_closing_a_stream_cancels_nothing(server: ServerHarness) -> None:
    server.engine.hold()
    async with await EventStream.open(server.url, "/v1/sessions/a/messages", body=b"one two") as stream:
        await stream.take(2)
    await until(lambda: not (server.parts.streams.open))
    server.engine.release()
    assert await server.text("a") == "User: one two\nAssistant: one two\n"


async def test_a_stream_of_one_turn_ends_with_it_and_shows_nothing_of_others(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "first")
    async with await EventStream.open(server.url, "/v1/sessions/a/messages", body=b"second") as stream:
        server.engine.release()
        events = await stream.rest()
    assert len({data(event)["turn"] for event in events}) == 1
    assert kinds(events) == [
        "state.changed",  # accepted, waits behind the first
        "message.added",
        "turn.started",
        "token",
        "message.added",
        "turn.finished",
    ]
    assert spoken(events) == "second"


async def test_the_stream_of_a_message_without_a_turn_ends_when_it_is_added(server: ServerHarness) -> None:
    body = json.dumps({"content": "note", "generate": False}).encode()
    headers = {"Content-Type": "application/json"}
    async with await EventStream.open(server.url, "/v1/sessions/a/messages", headers, body) as stream:
        events = await stream.rest()
    assert kinds(events) == ["message.added"]


async def test_the_stream_of_a_turn_ends_when_its_session_is_deleted(server: ServerHarness) -> None:
    server.engine.hold()
    async with await EventStream.open(server.url, "/v1/sessions/a/messages", body=b"x") as stream:
        await server.client.delete("/v1/sessions/a")
        assert kinds(await stream.rest())[-1] == "session.deleted"


async def test_a_reader_that_takes_nothing_is_dropped_and_holds_up_nobody() -> None:
    word = "x" * 100_000
    async with running_server(send_timeout=0.2) as server:
        await server.create("a")
        asleep = await EventStream.open(server.url, "/v1/sessions/a/events", receive_buffer=4096)
        async with await EventStream.open(server.url, "/v1/sessions/a/events") as awake:
            for _ in range(20):  # more than the buffers of the sleeper's socket
                await server.say("a", word, wait="true")
                assert spoken(await awake.until("turn.finished")) == word
            await until(lambda: not (server.parts.streams.open > 1))
            await until(lambda: not (len(server.server.server_state.connections) > 2))
        asleep.close()


async def test_many_events_that_wait_go_out_in_few_pieces(server: ServerHarness) -> None:
    await server.say("a", " ".join(map(str, range(500))), wait="true")
    async with await EventStream.open(server.url, "/v1/sessions/a/events?after=0") as stream:
        events = await stream.until("turn.finished")
    assert spoken(events).split() == [str(n) for n in range(500)]


async def test_streams_over_the_limit_are_asked_to_come_back_and_a_place_is_free_again_after_a_hang_up() -> None:
    async with running_server(max_streams=2) as server:
        await server.create("a")
        first = await EventStream.open(server.url, "/v1/sessions/a/events")
        second = await EventStream.open(server.url, "/v1/events")
        refused = await server.client.get("/v1/events", headers=EVENTS)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        async with first, second:
            first.close()
            await until(lambda: server.parts.streams.open < 2)
            async with await EventStream.open(server.url, "/v1/events") as third:
                assert third.status == 200


async def test_a_stream_lives_no_longer_than_configured_and_ends_in_order() -> None:
    async with running_server(stream_seconds=0.05) as server:
        async with await EventStream.open(server.url, "/v1/events?after=0") as stream:
            assert await stream.rest() == []
            assert stream.ended
        answer = await server.client.get("/v1/events", headers=EVENTS)
        assert answer.content == b""


async def test_a_head_request_for_a_stream_does_not_open_one(server: ServerHarness) -> None:
    answer = await server.client.head("/v1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert server.parts.streams.open == 0


async def test_a_stream_is_offered_to_those_only_who_take_one(server: ServerHarness) -> None:
    answer = await server.client.get("/v1/events", headers={"Accept": "application/json"})
    assert answer.status_code == 406
