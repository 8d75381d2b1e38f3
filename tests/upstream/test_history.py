"""A history of ours becomes one that upstreams take: calls and results stand together."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cfs.contract.transcript import parse
from cfs.errors import EngineError
from cfs.wire import Message, ToolCall
from cfs_server.engine.contract.history_forms import NO_RESULT, HistoryForm, in_form, paired
from cfs_server.engine.upstream.conversation import conversation_of
from cfs_server.engine.upstream.openai import OpenAIDialect
from cfs_server.engine.upstream.options import UpstreamOptions
from tests.engine.support import request, user
from tests.upstream import strict_stub
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import MODEL


def calling(*ids: str) -> Message:
    return Message(role="assistant", content="", tool_calls=tuple(ToolCall(id=i, name="f", arguments={}) for i in ids))


def result(call_id: str, content: str = "done") -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id, name="f")


def shape(messages: list[Message]) -> list[str]:
    """Role and ids of each message."""
    return [" ".join([m.role, *(call.id for call in m.tool_calls), m.tool_call_id or ""]).strip() for m in messages]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([user("a"), calling("1"), result("1")], ["user", "assistant 1", "tool 1"]),
        ([calling("1", "2"), result("2"), result("1")], ["assistant 1 2", "tool 1", "tool 2"]),
        ([calling("1"), user("wait!"), result("1")], ["assistant 1", "tool 1", "user"]),
        ([calling("1"), user("no")], ["assistant 1", "tool 1", "user"]),
        ([result("9"), user("a")], ["user", "user"]),
        ([calling("1"), result("1"), result("1")], ["assistant 1", "tool 1", "user"]),
        (
            [calling("1"), result("1"), calling("1"), result("1")],
            ["assistant 1", "tool 1", "assistant 1_2", "tool 1_2"],
        ),
        ([calling("f.x:0"), result("f.x:0")], ["assistant f_x_0", "tool f_x_0"]),
        ([calling(""), result("")], ["assistant call", "tool call"]),
    ],
)
def test_each_result_follows_its_call(history: list[Message], expected: list[str]) -> None:
    assert shape(paired(history)) == expected


def test_a_result_that_is_missing_is_made_up_and_one_too_many_is_told_as_text() -> None:
    made_up = paired([calling("1"), user("go on")])[1]
    assert made_up.content == NO_RESULT
    told = paired([result("9", "42")])[0]
    assert (told.role, told.content) == ("user", "(result of f) 42")


_IDS = st.sampled_from(["a", "b", "c.d", ""])
_MESSAGES = st.one_of(
    st.builds(user, st.sampled_from(["hello", "and", " "])),
    st.builds(lambda text: Message(role="assistant", content=text), st.sampled_from(["well", "so", "", "\n"])),
    st.builds(lambda: Message(role="system", content="Hurry.")),
    st.builds(lambda ids: calling(*ids), st.lists(_IDS, max_size=3)),
    st.builds(result, _IDS),
)


@given(st.lists(_MESSAGES, max_size=12))
def test_any_history_becomes_a_legal_one_and_nothing_that_was_said_is_lost(history: list[Message]) -> None:
    found = paired(history)
    ids = [call.id for message in found for call in message.tool_calls]
    assert len(set(ids)) == len(ids)
    expected: list[str] = []
    for message in found:
        if message.role == "tool":
            assert message.tool_call_id == expected.pop(0)
        else:
            assert expected == []
            expected = [call.id for call in message.tool_calls]
    assert expected == []
    made_up = sum(message.content == NO_RESULT for message in found)
    assert len(found) == len(history) + made_up


TAKES_ALL = [strict_stub.NO_THINKING, strict_stub.EXTRA_THINKING, strict_stub.THINKING_OF_CALLS]
"""Rules about thinking: each server says whether it wants it."""


def rows_of(history: list[Message], form: HistoryForm) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = OpenAIDialect(UpstreamOptions("", "openai"), "m").body(request(history), form)[
        "messages"
    ]
    return rows


@pytest.mark.parametrize("form", [HistoryForm.STRICT, HistoryForm.TEXT])
@given(st.lists(_MESSAGES, max_size=12))
def test_any_history_keeps_to_all_rules_in_a_strict_form(form: HistoryForm, history: list[Message]) -> None:
    """And no word of it is lost."""
    rows = rows_of(history, form)
    without_calls = [strict_stub.NO_CALLS, strict_stub.SIGNED_CALLS]
    rules = [rule for rule in vars(strict_stub).values() if isinstance(rule, strict_stub.Rule)]
    rules = [
        rule for rule in rules if rule not in TAKES_ALL and (form is HistoryForm.TEXT or rule not in without_calls)
    ]
    assert [rule.source for rule in rules if rule.broken(rows)] == []
    list(OpenAIStub().read({"model": MODEL, "stream": True, "messages": rows}))  # each result follows its call
    text = "\n".join(row["content"] for row in rows)
    assert all(message.content.strip() in text for message in history)


@given(st.lists(_MESSAGES, max_size=12), _MESSAGES)
def test_what_comes_later_changes_only_the_end_of_a_strict_form(history: list[Message], last: Message) -> None:
    """So servers find what they have cached; only an open call waits for its result."""
    assume(last.role != "tool")
    before, after = in_form(history, HistoryForm.STRICT), in_form([*history, last], HistoryForm.STRICT)
    assert after[: max(0, len(before) - 2)] == before[:-2]


def test_the_stored_messages_stay_as_they_are() -> None:
    history = [user(" "), calling("x" * 50), user("a"), user("b"), Message(role="system", content="c")]
    before = [message.model_dump_json() for message in history]
    for form in HistoryForm:
        rows_of(history, form)
    assert [message.model_dump_json() for message in history] == before


def test_instructions_at_the_beginning_are_one() -> None:
    history = [
        Message(role="system", content="Be kind."),
        user("a"),
        Message(role="system", content="Hurry."),
        user("b"),
    ]
    talk = conversation_of(request(history, system="Be brief."))
    assert talk.system == "Be brief.\n\nBe kind."
    assert [message.role for message in talk.messages] == ["user", "system", "user"]


def test_a_transcript_is_one_message_that_the_model_goes_on_with() -> None:
    """S8: the history's lines, then `Assistant: `, and replies end where the user would speak."""
    history = [user("one"), Message(role="assistant", content="two"), user("three\nUser: four")]
    talk = conversation_of(request(history, prompt_style="transcript", system="Count."))
    (only,) = talk.messages
    assert only.content.endswith("\nAssistant: ")
    turns = parse(only.content)
    assert [(turn.role, turn.content) for turn in turns[:-1]] == [
        ("system", "Count."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three\nUser: four"),
    ]
    assert (talk.system, talk.stops) == ("", ("User:", "\nSystem:", "\nAssistant:", "\nTool:"))
    assert conversation_of(request("a", prompt_style="transcript", stop=("x",))).stops == (
        "x",
        "\nSystem:",
        "\nUser:",
        "\nAssistant:",
    )  # four are the most that OpenAI takes
    assert conversation_of(request("a")).stops == ()


def test_tools_and_transcripts_do_not_go_together() -> None:
    with pytest.raises(EngineError, match="prompt_style=chat"):
        conversation_of(request("a", prompt_style="transcript", tools=({"type": "function"},)))
