"""A model of Anthropic that thinks gets back what it signed, or is not asked to think (E4)."""

from typing import Any

import pytest

from cfs.wire import Message
from cfs_server.engine.upstream.options import PersistentTexts
from cfs_server.engine.upstream.signed_replies import SignedReplies
from tests.engine.support import ask, user
from tests.upstream.anthropic_stub import AnthropicStub
from tests.upstream.stub import Refusal, Speech
from tests.upstream.support import Pair, calls_of, pair, result, said_by_model, thinking_of

TOOLS: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "look"}},)
CALL = ("look", ('{"at": "it"}',))
THINKS = Speech(words=["Let me look. "], thinking=("I should ", "look."), calls=(CALL,))
N = 2048


class Newer(AnthropicStub):
    """Its model decides itself how much it thinks."""

    adaptive = True


async def loop(both: Pair, **changes: Any) -> list[Message]:
    """Ask, and answer the call that comes; the history up to the result."""
    asked = [user("What is it?")]
    answer = await ask(both.engine, asked, "s", tools=TOOLS, **changes)
    return [*asked, said_by_model(answer), *(result(call, "a cat") for call in calls_of(answer))]


async def test_a_budget_is_asked_for_and_comes_on_top_of_the_reply() -> None:
    async with pair("anthropic", Speech(words=["Yes."], thinking=("hm",)), thinking_tokens=N) as both:
        answer = await ask(both.engine, "Sure?", max_tokens=50)
        assert (answer.text, thinking_of(answer)) == ("Yes.", "hm")
        (body,) = both.stub.bodies
        assert body["thinking"] == {"type": "enabled", "budget_tokens": N}
        assert body["max_tokens"] == 50 + N
        assert "temperature" not in body


async def test_what_was_signed_goes_back_unchanged_with_the_results() -> None:
    """The server checks signatures and refuses a loop that does not begin with thinking."""
    speech = Speech(words=["Let me look. "], thinking=("I should ", "look."), hidden="AbC=", calls=(CALL, CALL))
    async with pair("anthropic", speech, thinking_tokens=N) as both:
        history = await loop(both)
        assert (await ask(both.engine, history, "s", tools=TOOLS)).finished.reason == "stop"
        assert both.stub.refused == []
        kinds = [block["type"] for block in both.stub.bodies[1]["messages"][1]["content"]]
        assert kinds == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
        assert both.stub.bodies[1]["messages"][1]["content"][0]["thinking"] == "I should look."
        assert "thinking" in both.stub.bodies[1]


async def test_several_rounds_of_calls_go_back_whole() -> None:
    """In the same loop a model may call again without thinking again."""
    async with pair(
        "anthropic", THINKS, Speech(words=[], thinking=("more",), calls=(CALL,)), thinking_tokens=N
    ) as both:
        history = await loop(both)
        second = await ask(both.engine, history, "s", tools=TOOLS)
        history += [said_by_model(second), *(result(call, "a dog") for call in calls_of(second))]
        await ask(both.engine, [*history], "s", tools=TOOLS)
        assert both.stub.refused == []
        assert all("thinking" in body for body in both.stub.bodies)


async def test_a_user_who_writes_in_between_does_not_break_the_loop() -> None:
    async with pair("anthropic", THINKS, thinking_tokens=N) as both:
        history = [*await loop(both), user("Hurry!")]
        assert (await ask(both.engine, history, "s", tools=TOOLS)).text.endswith("Hurry!")
        both.engine.forget("s")
        assert (await ask(both.engine, history, "s", tools=TOOLS)).text.endswith("Hurry!")
        assert ["thinking" in body for body in both.stub.bodies] == [True, True, False]
        assert both.stub.refused == []


async def test_what_was_signed_outlives_the_process() -> None:
    """Another engine that gets the documents of the first one sends the same blocks."""
    kept: dict[str, str] = {}

    def keep(name: str, text: str | None) -> None:
        if text is None:
            del kept[name]
        else:
            kept[name] = text

    stub = AnthropicStub(THINKS)
    async with pair("anthropic", stub=stub, thinking_tokens=N, documents=PersistentTexts(kept, keep)) as both:
        history = await loop(both)
    async with pair("anthropic", stub=stub, thinking_tokens=N, documents=PersistentTexts(dict(kept), keep)) as both:
        await ask(both.engine, history, "s", tools=TOOLS)
        assert "thinking" in stub.bodies[1]
        assert stub.refused == []
        both.engine.forget("s")
    assert kept == {}


@pytest.mark.parametrize("why", ["forgotten", "edited", "another owner"])
async def test_without_the_signed_blocks_it_goes_on_without_thinking(why: str) -> None:
    """After an edit, or in a history that came from elsewhere."""
    async with pair("anthropic", THINKS, thinking_tokens=N) as both:
        history = await loop(both, owner="me")
        if why == "forgotten":
            both.engine.forget("s")
        if why == "edited":
            history[1] = history[1].model_copy(update={"content": "Let me not look."})
        owner = "you" if why == "another owner" else "me"
        assert (await ask(both.engine, history, "s", tools=TOOLS, owner=owner)).finished.reason == "stop"
        assert both.stub.refused == []
        assert "thinking" not in both.stub.bodies[1]
        history += [Message(role="assistant", content="It is a cat."), user("And now?")]
        await ask(both.engine, history, "s", tools=TOOLS, owner=owner)
        assert "thinking" in both.stub.bodies[2]  # the loop is over
        assert both.stub.refused == []


async def test_who_must_call_a_tool_does_not_think() -> None:
    """Neither does a reply that has to be JSON: the protocol does not allow both."""
    speech = Speech(words=[], calls=(("give_answer", ('{"a": 1}',)),))
    async with pair("anthropic", speech, thinking_tokens=N) as both:
        answer = await ask(both.engine, "JSON please", json_schema={"type": "object"})
        assert answer.text == '{"a": 1}'
        assert "thinking" not in both.stub.bodies[0]


async def test_a_newer_model_is_asked_to_think_in_its_own_way() -> None:
    """It refuses the budget once, and is not asked for it again."""
    async with pair("anthropic", stub=Newer(THINKS), thinking_tokens=N) as both:
        history = await loop(both)
        await ask(both.engine, history, "s", tools=TOOLS)
        assert [body["thinking"]["type"] for body in both.stub.bodies] == ["adaptive", "adaptive"]
        assert len(both.stub.refused) == 1


async def test_the_beginning_of_a_conversation_is_marked_for_the_upstreams_cache() -> None:
    """Where the user spoke last and before that: what was sent last time is found again."""
    history = [user("one"), Message(role="assistant", content="two"), user("three")]
    async with pair("anthropic") as both:
        await ask(both.engine, history, system="Count.")
        (body,) = both.stub.bodies
        marked = [block for message in body["messages"] for block in message["content"] if "cache_control" in block]
        assert [block["text"] for block in marked] == ["one", "three"]
        assert "cache_control" in body["system"][0]


async def test_a_server_without_a_cache_is_not_told_of_it_again() -> None:
    refusal = Refusal(400, message="messages.0.content.0.cache_control: Extra inputs are not permitted")
    async with pair("anthropic", refusal) as both:
        assert (await ask(both.engine, "hello", system="Be kind.")).text == "hello"
        assert ["cache_control" in str(body) for body in both.stub.bodies] == [True, False]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]"),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, "null"),
        ({"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "object"}}}, '{"left": {}}'),
    ],
)
async def test_json_that_is_no_object_travels_in_one(schema: dict[str, Any], value: str) -> None:
    """The input of a tool is an object; references still find their definitions."""
    speech = Speech(words=["Here: "], calls=(("give_answer", ('{"value": ', value, "}")),))
    async with pair("anthropic", speech) as both:
        answer = await ask(both.engine, "JSON please", json_schema=schema)
        assert (answer.text, answer.finished.reason) == (value, "stop")
        sent = both.stub.bodies[0]["tools"][0]["input_schema"]
        assert sent["required"] == ["value"]
        assert sent.get("$defs") == schema.get("$defs")


async def test_temperatures_above_the_protocols_highest_are_cut() -> None:
    async with pair("anthropic") as both:
        await ask(both.engine, "hello", temperature=1.7)
        assert both.stub.bodies[0]["temperature"] == 1


def test_the_oldest_signed_replies_go_first() -> None:
    signed = SignedReplies(limit=2)
    for number in range(3):
        signed.keep("me", f"s{number}", [{"type": "tool_use", "id": f"t{number}", "name": "f", "input": {}}])
    signed.keep("me", "s", [{"type": "text", "text": "no call, nothing to keep"}])
    assert len(signed) == 2
    signed.forget("s2")
    assert len(signed) == 1
