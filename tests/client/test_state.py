"""The reducer gives the state that the server had, for events that were recorded from it (S11).

Each file of `tests/fixtures/events` holds events, the state that a reader begins with (`start`), and the state of the
session in the server's store when they were recorded. The dashboard's reducer runs the same files.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cfs.contract.transcript import TranscriptMessage
from cfs.state import SessionState, TurnReader, TurnState
from cfs.state.stream import StreamEvent
from cfs.wire import Event, SessionDetail, Settings

YOUNGER: dict[str, Any] = {
    "failed": False,
    "open_questions": 0,
    "questions": {},
    "title": None,
    "origin": None,
    "work": None,
}
FIXTURES = sorted((Path(__file__).parent.parent / "fixtures/events").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    """Read a recording; each of its events must be one that the wire knows.

    A setting or a field that is younger than the recording has its default in the state.
    """
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if (settings := found["state"]["settings"]) is not None:
        found["state"]["settings"] = Settings.model_validate(settings).model_dump(mode="json")
    found["state"] = YOUNGER | found["state"]
    for event in found["events"]:
        Event.model_validate(event)
    return found


def events_of(recording: dict[str, Any]) -> list[StreamEvent]:
    """The events as a stream yields them."""
    return [
        StreamEvent(each["type"], each["data"], "", each["session"], each["number"], each["position"], each["time"])
        for each in recording["events"]
    ]


def shown(state: SessionState) -> dict[str, Any]:
    """The state as it stands in a recording."""
    found = {name: getattr(state, name) for name in SessionState.__slots__}
    found["settings"] = state.settings.model_dump(mode="json") if state.settings else None
    found["history"] = (
        None
        if state.history is None
        else [message.model_dump(mode="json", exclude_defaults=True) for message in state.history]
    )
    found["origin"] = None if state.origin is None else state.origin.model_dump()
    found["work"] = None if state.work is None else state.work.model_dump(mode="json")
    closing = {"answer", "by", "terminal"}
    found["questions"] = {name: each.model_dump(mode="json", exclude=closing) for name, each in state.questions.items()}
    if state.turn is not None:
        found["turn"] = asdict(state.turn) | {"text": state.turn.text}
        del found["turn"]["pieces"], found["turn"]["since"]
    return found


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_events_of_a_session_give_its_state(path: Path) -> None:
    recording = read(path)
    state = SessionState(history=[])
    if recording["start"]:
        state.restore(SessionDetail.model_validate(recording["start"]))
    for event in events_of(recording):
        state.apply(event)
        assert not state.apply(event), "what is included already changes nothing"
    assert shown(state) == recording["state"]


def test_who_does_not_follow_the_messages_keeps_none() -> None:
    state = SessionState()
    for event in events_of(read(FIXTURES[0])):
        state.apply(event)
    assert state.history is None


@pytest.mark.parametrize("name", ["turn", "agent", "interrupted"])
def test_a_turn_is_read_from_the_same_events(name: str) -> None:
    """The SDK's reader gives the reply and the part of the history that the session had."""
    recording = read(next(path for path in FIXTURES if path.stem == name))
    history = [TranscriptMessage(message["role"], message["content"]) for message in recording["state"]["history"]]
    reader = TurnReader(name, history[0])
    text = "".join(map(reader.feed, events_of(recording)))
    outcome = reader.outcome(history)
    assert (outcome.reply, outcome.history) == (recording["state"]["turn"]["reply"], history)
    assert text == recording["state"]["turn"]["text"]


@pytest.mark.parametrize(
    ("pieces", "reply", "rest"),
    [
        (["a", " b "], "a b", ""),
        ([" a"], "a [Cancelled]", " [Cancelled]"),
        ([], "[Error: x]", "[Error: x]"),
        (["a"], "[Error: x]", None),
    ],
)
def test_the_rest_of_a_reply_is_what_its_tokens_did_not_say(pieces: list[str], reply: str, rest: str | None) -> None:
    assert TurnState("t", pieces, reply=reply).rest() == rest
