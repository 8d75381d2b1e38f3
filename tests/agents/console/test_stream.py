"""Pieces become blocks: words up to natural breaks, calls once and whole (A8)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextUpdated,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    ToolResult,
    TurnUsage,
)
from cfs_agents.loop.model import CallPiece, Chunk, CompleteResponse
from cfs_agents.main.blocks import LONGEST_HELD, Block, DiscardedReply, Passage, StreamProcessor

CALL = ToolCall(id="c1", name="read_file", arguments={"path": "a"})
RESULT = ToolResult("c1", "read_file", "hello", ok=True, seconds=0.5)


def blocks(*events: AgentEvent | Chunk | CompleteResponse) -> list[Block]:
    stream = StreamProcessor()
    return [block for event in events for block in stream.feed(event)]


def texts(found: Sequence[Block]) -> list[str]:
    return [block.text for block in found if isinstance(block, Passage)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["One. Tw", "o! Three"], ["One. ", "Two! "]),
        (["a line\n", "another"], ["a line\n"]),
        (["3", ".", "14 is pi, v1.2.3 is not"], []),
        (['He said "no." ', "Then"], ['He said "no." ']),
        (["第一句。第二", "句！还有"], ["第一句。", "第二句！"]),
        (["wait... ", "what"], ["wait... "]),
        (["One. Two. Three. F"], ["One. Two. Three. "]),
    ],
)
def test_words_come_at_natural_breaks(pieces: list[str], expected: list[str]) -> None:
    assert texts(blocks(*map(Text, pieces))) == expected


@given(st.lists(st.tuples(st.sampled_from([Text, Thinking]), st.text(st.sampled_from('ab .!\n。\t"'), max_size=700))))
def test_no_word_is_lost_changed_or_out_of_order(said: list[tuple[type[Text | Thinking], str]]) -> None:
    """Wherever the pieces are cut: passages put together are what was said, each kind in its order."""
    found = blocks(*(kind(text) for kind, text in said), Finished("answered"))
    for kind, name in ((Text, "text"), (Thinking, "thinking")):
        told = "".join(block.text for block in found if isinstance(block, Passage) and block.kind == name)
        assert told == "".join(text for which, text in said if which is kind)


def test_a_text_without_breaks_is_not_held_back_for_ever() -> None:
    words = blocks(*[Text("word ")] * 200)
    assert words
    assert all(block.text.endswith(" ") for block in words if isinstance(block, Passage))
    assert texts(blocks(Text("x" * (LONGEST_HELD + 1)))) == ["x" * (LONGEST_HELD + 1)]


@pytest.mark.parametrize("text", ["." * 1_000_000, '.")' * 300_000, "x" * 1_000_000, "a. " * 300_000])
@pytest.mark.timeout(20)
def test_a_huge_piece_takes_no_time_worth_speaking_of(text: str) -> None:
    """Looking for breaks is linear: a quadratic search would take hours."""
    assert "".join(texts(blocks(Text(text), Finished("answered")))) == text


def test_thinking_is_kept_apart_from_the_answer() -> None:
    found = blocks(Thinking("Hm"), Thinking(", well"), Text("Yes"), Thinking("Sure?"), Finished("answered"))
    assert found == [
        Passage("thinking", "Hm, well"),
        Passage("text", "Yes"),
        Passage("thinking", "Sure?"),
        Finished("answered"),
    ]


@pytest.mark.parametrize(
    "event",
    [
        CallStarted(CALL),
        CallFinished(CALL, RESULT),
        ContextUpdated(3, 1),
        RoundStarted(2),
        TurnUsage(Usage()),
        Finished("rounds"),
    ],
)
def test_whatever_happens_ends_what_was_being_said(event: AgentEvent) -> None:
    assert blocks(Text("I look"), event) == [Passage("text", "I look"), event]


def test_a_bare_model_is_understood_too() -> None:
    """Its chunks are words, the pieces of calls wait for the reply, which has them whole."""
    chunks = [Chunk("Now"), Chunk(thinking="hm"), Chunk(calls=(CallPiece(0, "c1", "read_file"),))]
    reply = CompleteResponse(Message(role="assistant", content="Now", tool_calls=(CALL,)), "tool_calls", Usage())
    assert blocks(*chunks, reply) == [Passage("text", "Now"), Passage("thinking", "hm"), CallStarted(CALL)]


def test_a_call_that_reply_and_event_have_is_given_once() -> None:
    reply = CompleteResponse(Message(role="assistant", content="", tool_calls=(CALL,)), "tool_calls", Usage())
    found = blocks(RoundStarted(1), reply, CallStarted(CALL), CallFinished(CALL, RESULT))
    assert found == [RoundStarted(1), CallStarted(CALL), CallFinished(CALL, RESULT)]


def test_the_same_id_in_another_round_is_another_call() -> None:
    found = blocks(RoundStarted(1), CallStarted(CALL), RoundStarted(2), CallStarted(CALL))
    assert found.count(CallStarted(CALL)) == 2


def test_a_retry_drops_what_was_held_and_says_whether_something_was_shown() -> None:
    held = blocks(Text("half a sen"), Retrying("lost", 2), Text("A whole one. "))
    assert held == [DiscardedReply("lost", 2, shown=False), Passage("text", "A whole one. ")]
    shown = blocks(Text("One. Tw"), Retrying("lost", 2), Retrying("lost", 4))
    assert shown == [
        Passage("text", "One. "),
        DiscardedReply("lost", 2, shown=True),
        DiscardedReply("lost", 4, shown=False),
    ]


def test_what_earlier_replies_showed_does_not_count() -> None:
    found = blocks(RoundStarted(1), Text("One. "), RoundStarted(2), Retrying("lost", 2))
    assert found[-1] == DiscardedReply("lost", 2, shown=False)


def test_the_end_gives_what_is_held() -> None:
    stream = StreamProcessor()
    assert stream.feed(Text("half")) == []
    assert stream.finish() == [Passage("text", "half")]
    assert stream.finish() == []
