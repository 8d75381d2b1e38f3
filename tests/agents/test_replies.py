"""Completions as other servers may write them, read as replies."""

from cfs.completions import ChatCompletion, ChatMessage, ChatToolCall, Choice, CompletionReason, FunctionCall, Recorded
from cfs_agents.loop.replies import reply_of


def completion(
    *calls: ChatToolCall, reason: CompletionReason = "tool_calls", cfs: Recorded | None = None
) -> ChatCompletion:
    message = ChatMessage(role="assistant", content="", tool_calls=calls or None)
    return ChatCompletion(
        id="1", created=1, model="m", choices=(Choice(message=message, finish_reason=reason),), cfs=cfs
    )


def call(call_id: str, name: str = "f", arguments: str = "{}") -> ChatToolCall:
    return ChatToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))


def test_calls_are_told_apart_also_where_their_ids_do_not() -> None:
    """Results find their calls by the id alone."""
    made = reply_of(completion(call("a"), call("a", "g"), call(""), call("", "h"))).message.tool_calls
    assert [one.name for one in made] == ["f", "g", "f", "h"]
    assert made[0].id == "a"
    assert len({one.id for one in made}) == 4
    assert all(one.id for one in made)


def test_a_call_without_a_name_cannot_be_made() -> None:
    assert reply_of(completion(call("a", ""))).broken == {"a": "the call names no tool"}


def test_no_arguments_at_all_are_none() -> None:
    found = reply_of(completion(call("a", arguments="")))
    assert found.message.tool_calls[0].arguments == {}
    assert found.broken == {}


def test_a_recorded_completion_that_was_cancelled_says_so() -> None:
    """The protocol has no word for it; the server's own member does."""
    recorded = Recorded(session="s", turn="t", finish_reason="cancelled")
    assert reply_of(completion(reason="stop", cfs=recorded)).finish_reason == "cancelled"
