"""Reading a turn from events, over lost connections and lost events. Nothing here touches a network (S11)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cfs import Forbidden, Gone, TooMany, Unavailable, Unreachable, api
from cfs.contract.sse import ServerSentEvent
from cfs.contract.transcript import TranscriptMessage
from cfs.state import TurnReader
from cfs.state.stream import EventName, EventSource, StreamEvent, read_event
from cfs.wire import NewMessage

USAGE = {"prompt_tokens": 3}
TURN = api.converse("a", NewMessage(content="hello"))


def frame(number: int, kind: str, **data: Any) -> bytes:
    envelope = {"type": kind, "session": "a", "number": number, "position": number, "time": 1.5, "data": data}
    return f"id: n-{number}\nevent: {kind}\ndata: {json.dumps(envelope)}\n\n".encode()


def kinds(source: EventSource, data: bytes) -> list[str]:
    return [event.type for event in source.feed(data)]


def test_the_first_request_is_the_streams_own_and_the_next_ones_resume() -> None:
    source = EventSource(TURN)
    assert source.request is TURN.request
    assert list(source.connected()) == []
    assert kinds(source, frame(7, "turn.started", turn="t")) == ["turn.started"]
    source.lost()
    request = source.request
    assert (request.method, request.path, request.body) == ("GET", "/v1/sessions/a/events", b"")
    assert request.headers["Last-Event-ID"] == "n-7"
    assert list(source.connected()) == []


@pytest.mark.parametrize("token", ["abc-7", "abc.e1-7", '"abc-7"', "abc"])
def test_the_life_of_a_session_is_a_part_of_its_cursors_and_its_etags(token: str) -> None:
    """A cursor also names the epoch of the store; the life goes on in the next one."""
    assert api.life_in(token) == "abc"


def test_a_turn_is_followed_in_the_same_life_only() -> None:
    source = EventSource(TURN)
    list(source.connected())
    kinds(source, frame(7, "turn.started", turn="t").replace(b"id: n-7", b"id: n.e1-7"))
    source.lost()
    headers = source.request.headers
    assert (headers["Last-Event-ID"], headers[api.LIFE]) == ("n.e1-7", "n")


def test_after_resuming_only_events_of_the_turn_are_shown_and_its_last_one_ends_it() -> None:
    source = EventSource(TURN)
    list(source.connected())
    kinds(source, frame(7, "turn.started", turn="t"))
    source.lost()
    list(source.connected())
    data = frame(8, "token", turn="other", text="x") + frame(9, "token", turn="t", text="y")
    data += frame(10, "turn.finished", turn="t") + frame(11, "token", turn="t", text="late")
    assert kinds(source, data) == ["token", "turn.finished"]
    assert source.ended


def test_a_renamed_session_does_not_end_its_stream_and_a_deleted_one_does() -> None:
    source = EventSource(api.events("a"))
    list(source.connected())
    assert kinds(source, frame(1, "session.deleted", renamed_to="b")) == ["session.deleted"]
    assert not source.ended
    assert kinds(source, frame(2, "session.deleted")) == ["session.deleted"]
    assert source.ended


def test_the_stream_of_all_sessions_outlives_each_of_them() -> None:
    source = EventSource(api.events())
    list(source.connected())
    kinds(source, frame(1, "session.deleted"))
    assert not source.ended


def test_each_connection_can_be_announced() -> None:
    source = EventSource(replace(api.events("a"), announce=True))
    for expected in (["connected"], ["connected", "stale"]):
        assert [event.type for event in source.connected()] == expected
        source.lost()


def test_what_no_new_connection_can_help_is_raised_at_once() -> None:
    source = EventSource(api.events("a"))
    list(source.connected())
    with pytest.raises(Forbidden):
        source.lost(Forbidden("no"))


def test_a_stream_that_never_was_is_not_tried_again() -> None:
    with pytest.raises(Unreachable, match="nobody"):
        EventSource(api.events("a")).lost(Unreachable("nobody"))


def test_a_message_whose_turn_is_unknown_is_not_sent_again() -> None:
    source = EventSource(TURN)
    list(source.connected())
    with pytest.raises(TooMany):
        source.lost(TooMany("full"))


def test_pauses_grow_and_attempts_are_counted_from_the_last_event() -> None:
    source = EventSource(api.events("a"), attempts=3)
    list(source.connected())
    pauses = []
    for _ in range(3):
        source.lost()
        pauses.append(source.pause)
    assert pauses == sorted(pauses)
    kinds(source, frame(1, "state.changed"))
    source.lost()
    assert source.pause == pauses[0]
    for _ in range(2):
        source.lost()
    with pytest.raises(Unreachable):
        source.lost()
    endless = EventSource(api.events("a"), attempts=float("inf"))
    list(endless.connected())
    for _ in range(2000):
        endless.lost()
    assert endless.pause == 2.0


def test_stale_and_goodbye_have_no_envelope() -> None:
    event = read_event(ServerSentEvent("stale", '{"asked":1,"last":9}', "n-9"))
    assert (event.type, event.data, event.id, event.turn) == ("stale", {"asked": 1, "last": 9}, "n-9", None)


def event(kind: EventName, **data: Any) -> StreamEvent:
    return StreamEvent(kind, {"turn": "t", **data})


def state(*history: tuple[str, str], partial: str | None = None) -> StreamEvent:
    messages = [{"role": role, "content": content} for role, content in history]
    return StreamEvent("stale", {"session": {"history": messages, "partial": partial}})


def begun(*texts: str) -> TurnReader:
    reader = TurnReader("a", TranscriptMessage("user", "second"))
    reader.feed(event("message.added", index=2))
    for text in texts:
        assert reader.feed(event("token", text=text)) == text
    return reader


BEFORE = (("user", "first"), ("assistant", "one"), ("user", "second"))


def test_a_turn_is_read_to_its_outcome() -> None:
    reader = begun("two", " three")
    reader.feed(event("message.added", index=3))
    assert reader.feed(event("turn.finished", reply="two three", finish_reason="stop", usage=USAGE)) == ""
    history = [TranscriptMessage(role, text) for role, text in (*BEFORE, ("assistant", "two three"), ("user", "later"))]
    outcome = reader.outcome(history)
    assert (outcome.reply, outcome.history, outcome.error) == ("two three", history[:4], None)
    assert outcome.usage is not None
    assert outcome.usage.prompt_tokens == 3


def test_the_mark_of_a_cancelled_turn_is_text_too() -> None:
    reader = begun("two")
    finished = event("turn.finished", reply="two [Cancelled]", finish_reason="cancelled", usage=USAGE)
    assert reader.feed(finished) == " [Cancelled]"


def test_the_message_of_a_failed_turn_is_no_text() -> None:
    reader = begun("two")
    failed = event("turn.failed", reply="[Error: x]", finish_reason="error", usage=USAGE, error="x")
    assert (reader.feed(failed), reader.error) == ("", "x")


def test_lost_events_of_a_running_turn_are_made_up_for_by_what_it_has_said() -> None:
    reader = begun("tw")
    assert reader.feed(state(*BEFORE, partial="two thr")) == "o thr"
    assert reader.feed(event("token", text="ee")) == "ee"
    assert not reader.caught_up


@pytest.mark.parametrize("after", [(), (("user", "third"),)])
def test_lost_events_of_a_finished_turn_are_made_up_for_by_its_reply(after: tuple[tuple[str, str], ...]) -> None:
    reader = begun("tw")
    answers = (("assistant", "calling"), ("tool", "7"), ("assistant", "two three"))
    stale = state(*BEFORE, *answers, *after, partial="other" if after else None)
    assert reader.feed(stale) == "o three"
    assert reader.caught_up
    assert reader.outcome([]).reply == "two three"
    assert len(reader.outcome([TranscriptMessage("user", "x")] * 9).history) == 6
    reader = begun("something else")
    assert reader.feed(stale) == "\ntwo three", "the reply has begun again, and what was shown stays"


@pytest.mark.parametrize("reader", [TurnReader("a", TranscriptMessage("user", "second")), begun()])
def test_where_too_much_is_lost_it_is_said(reader: TurnReader) -> None:
    with pytest.raises(Unavailable, match="read the session"):
        reader.feed(state())


def test_a_deleted_session_has_no_reply() -> None:
    with pytest.raises(Gone, match="'a'"):
        begun().feed(StreamEvent("session.deleted", {}))


@pytest.mark.parametrize(
    ("again", "shown"),
    [
        (["one ", "two ", "three"], ["one ", "two", "", " ", "three"]),
        (["one", " ", "two"], ["one ", "two", "", "", ""]),
        (["four"], ["one ", "two", "\nfour"]),
    ],
    ids=["as before", "no more than before", "another reply"],
)
def test_what_was_shown_is_not_shown_twice(again: list[str], shown: list[str]) -> None:
    """After a restart of the server the reply begins again."""
    reader = TurnReader("a", TranscriptMessage("user", "hello"))

    def said(kind: EventName, **data: Any) -> str:
        return reader.feed(StreamEvent(kind, {"turn": "t", **data}))

    found = [said("token", text=piece) for piece in ("one ", "two")]
    assert said("turn.interrupted") == said("turn.started") == ""
    found += [said("token", text=piece) for piece in again]
    assert found == shown
    reply = "".join(again)
    assert said("turn.finished", reply=reply, finish_reason="stop", usage=None) == ""
    assert reader.outcome(()).reply == reply


def test_a_turn_may_be_interrupted_again_before_it_came_as_far() -> None:
    reader = TurnReader("a", TranscriptMessage("user", "hello"))
    pieces = ["one two ", None, "one ", None, "one two ", "three"]
    found = [
        reader.feed(StreamEvent("turn.interrupted", {}) if piece is None else StreamEvent("token", {"text": piece}))
        for piece in pieces
    ]
    assert "".join(found) == "one two three"


@pytest.mark.parametrize("partial", [None, "", "one"])
def test_events_that_a_crash_took_back_are_not_shown_twice(partial: str | None) -> None:
    """`stale` comes in the place of the event that says so, and the reply begins again."""
    reader = begun("one ", "two")
    found = [reader.feed(state(*BEFORE, partial=partial))]
    pieces = ["one ", "two ", "three"] if not partial else [" ", "two ", "three"]
    found += [reader.feed(event("token", text=piece)) for piece in pieces]
    assert "".join(found) == " three"
