"""Events of answers as servers really send them: odd, but legal, or nearly so."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.sse import ServerSentEvent, SSEDecoder
from cfs.wire import FinishReason, Message, ToolCall
from cfs_server.engine.contract.interface import CallDelta, Delta
from cfs_server.engine.upstream.anthropic_replies import AnthropicReply
from cfs_server.engine.upstream.failures import Failure, UpstreamProblem, of_event, of_status, refusal_of, seconds_of
from cfs_server.engine.upstream.openai import OpenAIDialect, OpenAIReply, ThinkingMember
from cfs_server.engine.upstream.protocol import UpstreamReply, UpstreamUsage
from tests.engine.support import request, user
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import Speech
from tests.upstream.support import options


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, **members: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} | members)


def read(reply: UpstreamReply, *data: str) -> list[Delta]:
    return [delta for each in data for delta in reply.feed(ServerSentEvent(data=each))]


def read_whole(reply: UpstreamReply, *data: str) -> list[tuple[str | None, str | None, str]]:
    """Read a reply up to its end; return the id, the name and the arguments of each call."""
    pieces = calls([*read(reply, *data, "[DONE]"), *reply.rest()])
    assert [piece.index for piece in pieces] == sorted(piece.index for piece in pieces)
    numbers = sorted({piece.index for piece in pieces})
    of_calls = [[piece for piece in pieces if piece.index == number] for number in numbers]
    return [(own[0].id, own[0].name, "".join(piece.arguments for piece in own)) for own in of_calls]


def calls(deltas: list[Delta]) -> list[CallDelta]:
    return [call for delta in deltas for call in delta.calls]


def piece(arguments: str | dict[str, Any], **members: Any) -> str:
    name = members.pop("name", None)
    return chunk({"tool_calls": [members | {"function": {"name": name, "arguments": arguments}}]})


def test_calls_that_all_have_the_same_index_are_told_apart_by_their_ids() -> None:
    found = read_whole(
        OpenAIReply(ThinkingMember()), piece("{}", index=0, id="a", name="f"), piece("{}", index=0, id="b", name="g")
    )
    assert found == [("a", "f", "{}"), ("b", "g", "{}")]


def test_calls_may_come_in_turns_with_the_id_in_each_piece() -> None:
    found = read_whole(
        OpenAIReply(ThinkingMember()),
        piece("", index=0, id="a", name="f"),
        piece("", index=1, id="b", name="g"),
        piece('{"x"', index=0, id="a"),
        piece("{}", index=1),
        piece(": 1}", index=0),
    )
    assert found == [("a", "f", '{"x": 1}'), ("b", "g", "{}")]


def test_a_call_without_an_id_gets_one_and_arguments_may_be_an_object() -> None:
    ((call_id, _, arguments),) = read_whole(OpenAIReply(ThinkingMember()), piece({"x": 1}, name="f"))
    assert call_id
    assert arguments == '{"x": 1}'


def test_a_call_without_a_name_is_nonsense() -> None:
    with pytest.raises(Failure):
        read_whole(OpenAIReply(ThinkingMember()), piece("{}", index=0, id="a"))


def test_calls_that_end_with_stop_are_calls_all_the_same() -> None:
    reply = OpenAIReply(ThinkingMember())
    read(reply, piece("{}", index=0, id="a", name="f"), chunk({}, "stop"))
    assert reply.finish() == "tool_calls"


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stop", "stop"), ("LENGTH", "length"), ("function_call", "tool_calls"), ("eos", "stop"), (None, "stop")],
)
def test_reasons_of_openai(said: str | None, reason: FinishReason) -> None:
    reply = OpenAIReply(ThinkingMember())
    read(reply, chunk({"content": "x"}), chunk({}, said), "[DONE]")
    assert (reply.over, reply.finish()) == (True, reason)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_reasons_of_anthropic(said: str, reason: FinishReason) -> None:
    reply = AnthropicReply()
    read(reply, json.dumps({"type": "message_delta", "delta": {"stop_reason": said}}), '{"type": "message_stop"}')
    assert reply.finish() == reason


def test_the_stop_string_of_anthropic_is_known() -> None:
    reply = AnthropicReply()
    end = {"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}}
    read(reply, json.dumps(end), '{"type": "message_stop"}')
    assert (reply.finish(), reply.stop) == ("stop", "END")


def test_events_of_kinds_to_come_are_passed_over() -> None:
    """The protocol of Anthropic asks for that."""
    reply = AnthropicReply()
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "hologram", "depth": 3}}
    change = {"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta", "text": ""}}
    assert read(reply, '{"type": "new"}', json.dumps(start), json.dumps(change)) == []


def test_tokens_of_anthropic_are_the_sum_of_what_was_read_and_cached() -> None:
    reply = AnthropicReply()
    usage = {"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20, "output_tokens": 1}
    read(reply, json.dumps({"type": "message_start", "message": {"usage": usage}}))
    read(reply, json.dumps({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9}}))
    assert reply.spent == UpstreamUsage(95, 70, 9)


def test_a_call_that_the_length_cut_off_is_no_error() -> None:
    reply = AnthropicReply(keep=lambda _: None)
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}}
    cut = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"x'}}
    read(reply, json.dumps(start), json.dumps(cut), '{"type": "content_block_stop", "index": 0}')
    read(reply, '{"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}', '{"type": "message_stop"}')
    assert reply.finish() == "length"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_goes_back_with_calls_under_the_name_that_the_server_gave_it(name: str) -> None:
    """Some models must get it back there, and refuse it elsewhere."""
    dialect = OpenAIDialect(options("http://127.0.0.1/v1", "openai"), "m")
    (delta,) = read(dialect.reply(request("hello")), chunk({name: "hm"}))
    assert delta.thinking == "hm"
    call = ToolCall(id="a", name="f", arguments={})
    history = [
        user("a"),
        Message(role="assistant", content="", thinking="hm", tool_calls=(call,)),
        Message(role="tool", content="1", tool_call_id="a"),
        Message(role="assistant", content="b", thinking="hm hm"),
        user("c"),
    ]
    sent = dialect.body(request(history))["messages"]
    assert [message.get(name) for message in sent] == [None, "hm", None, None, None]


@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.text(min_size=1), max_size=6))
def test_wherever_the_network_cuts_the_reply_is_the_same(cuts: list[int], words: list[str]) -> None:
    speech = Speech(words=words, thinking=("é", "ü"), calls=(("f", ('{"ä": ', '"ö"}')),), pings=True)
    data = "".join(OpenAIStub().events(speech, words, 5, 100)).encode()
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    decoder, reply = SSEDecoder(), OpenAIReply(ThinkingMember())
    found = [delta for part in [*pieces, data] for event in decoder.feed(part) for delta in reply.feed(event)]
    found += reply.rest()
    assert "".join(delta.text for delta in found) == "".join(words)
    assert "".join(delta.thinking for delta in found) == "éü"
    assert json.loads("".join(call.arguments for call in calls(found))) == {"ä": "ö"}
    assert (reply.finish(), reply.over) == ("tool_calls", True)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ('{"error": {"message": "m", "type": "t", "code": "c"}}', "c t", "m"),
        ('{"type": "error", "error": {"type": "t", "message": "m"}}', "t", "m"),
        ('{"error": "m"}', "", "m"),
        ('{"detail": "m"}', "", "m"),
        ('{"message": "m", "type": "BadRequestError", "code": 400}', "400 BadRequestError", "m"),
        ("<html>\n m </html>", "", "<html> m </html>"),
        ("[]", "", "[]"),
        ("", "", "no reason was given"),
    ],
)
def test_errors_are_read_however_they_are_worded(body: str, kind: str, message: str) -> None:
    assert refusal_of(body) == UpstreamProblem(kind, message)


def test_long_reasons_are_cut() -> None:
    assert len(refusal_of("x" * 10_000).message) == 300


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, '{"error": {"message": "too much", "code": "context_length_exceeded"}}'),
        (400, '{"error": {"message": "try increasing it", "type": "exceed_context_size_error", "code": 400}}'),
        (400, '{"message": "This model\'s maximum context length is 2048 tokens.", "type": "BadRequestError"}'),
        (400, '{"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}'),
        (413, '{"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds"}}'),
    ],
)
def test_conversations_that_are_too_long_are_recognised(status: int, body: str) -> None:
    failure = of_status(status, body, None, "m")
    assert (type(failure.error).__name__, failure.repeat) == ("ContextTooLong", False)
    assert type(of_event(refusal_of(body)).error).__name__ == "ContextTooLong"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3), ("0.5", 0.5), ("-1", 0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("soon", None), (None, None)],
)
def test_the_time_to_wait_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds
