"""A transcript that grows: whatever comes, in whatever pieces, the text is the transcript's (S6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.transcript import TranscriptMessage, render_one
from cfs.state.stream import StreamEvent
from cfs.state.tail import EscapedText, Tail

PIECES = st.lists(st.sampled_from(["\n", "\\", "User: ", "Us", "er", ": ", "Tool: ", "x", "", "Assistant", "System: "]))


@given(PIECES)
def test_pieces_are_escaped_as_the_whole(pieces: list[str]) -> None:
    text = EscapedText()
    shown = "".join(map(text.feed, pieces)) + text.end()
    assert "Assistant: " + shown == render_one(TranscriptMessage("assistant", "".join(pieces)))


@given(PIECES)
def test_nothing_that_is_shown_is_taken_back(pieces: list[str]) -> None:
    """What is held back is at most one beginning of a line."""
    text = EscapedText()
    shown = ""
    for number, piece in enumerate(pieces, 1):
        shown += text.feed(piece)
        whole = render_one(TranscriptMessage("assistant", "".join(pieces[:number]))).removeprefix("Assistant: ")
        assert whole.startswith(shown)
        assert "\n" not in whole[len(shown) :]


def added(role: str, content: str) -> StreamEvent:
    """The event of a message."""
    return StreamEvent("message.added", {"turn": "t", "index": 0, "message": {"role": role, "content": content}})


def token(text: str) -> StreamEvent:
    """The event of some text."""
    return StreamEvent("token", {"turn": "t", "text": text, "tokens": 1})


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ([added("user", "a"), token("b"), token(" c"), added("assistant", "b c")], "User: a\nAssistant: b c\n"),
        ([token("b "), added("assistant", "b [Cancelled]")], "Assistant: b [Cancelled]\n"),
        ([added("assistant", "[Error: x]")], "Assistant: [Error: x]\n"),
        ([token("b\nUser"), added("assistant", "b\nUser")], "Assistant: b\nUser\n"),
        ([token("b"), added("assistant", "other")], "Assistant: b\nAssistant: other\n"),
        ([token("b"), StreamEvent("history.replaced", {})], "Assistant: b\n"),
        ([StreamEvent("state.changed", {})], ""),
    ],
)
def test_events_add_what_the_transcript_gains(events: list[StreamEvent], shown: str) -> None:
    tail = Tail()
    assert "".join(map(tail.feed, events)) == shown
