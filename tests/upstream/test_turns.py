"""What a turn asks and gets, in both protocols; the servers refuse whatever their documentation does not allow."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

import pytest

from cfs.errors import ContextTooLong, EngineError
from cfs.wire import Message, ToolCall
from cfs_server.engine.contract.interface import Delta, Finished, UpstreamKind
from tests.engine.support import ask, collect, request, user
from tests.upstream.stub import MODEL, Refusal, Speech
from tests.upstream.support import calls_of, pair, result, said_by_model, thinking_of

BOTH = pytest.mark.parametrize("kind", ["openai", "anthropic"])
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = ("weather", ('{"ci', 'ty": "Bern"}'))


@BOTH
async def test_a_history_with_everything_in_it_is_taken(kind: UpstreamKind) -> None:
    """Instructions, calls, results, blank messages, several of one role in a row, a beginning by the model."""
    call = ToolCall(id="x.1", name="weather", arguments={"city": "Bern"})
    history = [
        Message(role="system", content="Be kind."),
        Message(role="assistant", content="Hello!"),
        user("one"),
        user("two"),
        Message(role="assistant", content=""),
        Message(role="assistant", content="Let me see.", tool_calls=(call, call)),
        user("(in between)"),
        Message(role="tool", content="", tool_call_id="x.1", name="weather"),
        Message(role="assistant", content=" "),
        Message(role="system", content="Hurry."),
        user("  "),
        user("the last words"),
    ]
    async with pair(kind) as both:
        answer = await ask(both.engine, history, system="Be brief.")
        assert answer.text.endswith("the last words")
        assert both.stub.refused == []
        assert "Be brief.\\n\\nBe kind." in str(both.stub.bodies).replace("\n", "\\n")


@BOTH
async def test_a_tool_is_called_and_its_result_answered(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(words=["Let me ", "see."], calls=(CALL, CALL))) as both:
        asked = [user("What is the weather?")]
        answer = await ask(both.engine, asked, tools=(WEATHER,))
        first, second = calls_of(answer)
        assert (answer.text, answer.finished.reason) == ("Let me see.", "tool_calls")
        assert (first.name, first.arguments) == ("weather", {"city": "Bern"})
        assert first.id != second.id
        history = [*asked, said_by_model(answer), result(second, "Rain."), result(first, "Sun.")]
        assert (await ask(both.engine, history, tools=(WEATHER,))).finished.reason == "stop"
        assert both.stub.refused == []
        assert (await ask(both.engine, [*history, user("thanks")])).text.endswith("thanks")  # and without tools


@BOTH
async def test_references_within_a_schema_are_sent_so_that_every_server_can_follow_them(kind: UpstreamKind) -> None:
    """As zod writes them; llama-server does not follow those to other properties (ggml-org/llama.cpp#16790)."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    schema: dict[str, Any] = {"type": "object", "properties": {"from": place, "to": {"$ref": "#/properties/from"}}}
    tool = {"type": "function", "function": {"name": "travel", "parameters": schema}}
    either = {"anyOf": [schema["properties"]["from"], {"$ref": "#/anyOf/0"}]}
    async with pair(kind) as both:
        await ask(both.engine, "hello", tools=(tool,))
        await ask(both.engine, "hello", json_schema=schema)
        await ask(both.engine, "hello", json_schema=either)
        bodies = list(map(json.dumps, both.stub.bodies))
        assert [body.count('"city"') for body in bodies] == [2, 2, 2]
        assert "#/properties" not in "".join(bodies)
        assert "#/anyOf" not in "".join(bodies)


@BOTH
async def test_a_call_without_arguments_has_an_empty_object(kind: UpstreamKind) -> None:
    pieces = ("{}",) if kind == "openai" else ()
    async with pair(kind, Speech(words=[], calls=(("now", pieces),))) as both:
        (call,) = calls_of(await ask(both.engine, "what time is it?", tools=(WEATHER,)))
        assert (call.name, call.arguments) == ("now", {})


@BOTH
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_how_tools_are_chosen_is_said(kind: UpstreamKind, choice: Any) -> None:
    async with pair(kind) as both:
        plain = request("hello", tools=(WEATHER,))
        await collect(both.engine, replace(plain, options=replace(plain.options, tool_choice=choice)))
        said = both.stub.bodies[0]["tool_choice"]
        expected = {"required": "any"}.get(choice, choice)
        assert said == (choice if kind == "openai" else {"type": expected})


@BOTH
async def test_a_single_call_is_asked_for(kind: UpstreamKind) -> None:
    async with pair(kind) as both:
        await ask(both.engine, "hello", tools=(WEATHER,), parallel_calls=False)
        (body,) = both.stub.bodies
    said = (
        body["parallel_tool_calls"] is False if kind == "openai" else body["tool_choice"]["disable_parallel_tool_use"]
    )
    assert said is True


@BOTH
async def test_a_reply_in_json_is_asked_for_and_comes_as_text(kind: UpstreamKind) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    pieces = ('{"age"', ": 7}")
    speech = Speech(words=pieces) if kind == "openai" else Speech(words=[], calls=(("give_answer", pieces),))
    async with pair(kind, speech) as both:
        answer = await ask(both.engine, "how old?", json_schema=schema)
        assert (answer.text, calls_of(answer), answer.finished.reason) == ('{"age": 7}', [], "stop")
        assert str(schema["properties"]) in str(both.stub.bodies[0])


@BOTH
async def test_settings_become_what_the_protocol_calls_them(kind: UpstreamKind) -> None:
    async with pair(kind, sampling=("temperature", "top_p", "seed")) as both:
        await ask(both.engine, "hello", max_tokens=77, temperature=0.25, top_p=0.5, seed=3, stop=("END", "STOP"))
        body = both.stub.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_p"]) == (MODEL, 77, 0.25, 0.5)
    if kind == "openai":
        assert (body["seed"], body["stop"]) == (3, ["END", "STOP"])
        assert body["stream_options"] == {"include_usage": True}
    else:
        assert body["stop_sequences"] == ["END", "STOP"]
        assert "seed" not in body


@BOTH
async def test_penalties_and_bias_are_sent_where_the_protocol_has_them(kind: UpstreamKind) -> None:
    """The reply says which are not; neutral values are neither sent nor missed."""
    penalties: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": -1.0, "logit_bias": {"7": -100.0}}
    others: dict[str, Any] = {"repeat_penalty": 1.2, "min_tokens": 5}
    async with pair(kind) as both:
        answer = await ask(both.engine, "hello", **penalties, **others)
        await ask(both.engine, "hello", repeat_penalty=1.0, frequency_penalty=0.0)
        first, second = both.stub.bodies
    sent = penalties if kind == "openai" else {}
    assert {name: first[name] for name in (*penalties, *others) if name in first} == sent
    missed = {warning.split()[0] for warning in answer.finished.warnings if "had no effect" in warning}
    assert missed >= {*penalties, *others} - set(sent)
    assert not missed & set(sent)
    assert not {*penalties, *others} & set(second)


async def test_other_penalties_are_sent_to_servers_that_know_them() -> None:
    """The operator or `connect` says so, as the protocol has no word for them."""
    asked: dict[str, Any] = {"repeat_penalty": 1.2, "min_tokens": 5}
    async with pair("openai", sampling=("repeat_penalty", "min_tokens")) as both:
        answer = await ask(both.engine, "hello", temperature=0.7, **asked)
        assert {name: both.stub.bodies[0].get(name) for name in asked} == asked
    assert answer.finished.warnings == ()


async def test_a_penalty_that_the_upstream_refuses_is_told() -> None:
    """The request is sent again without it."""
    refusal = Refusal(400, message="`frequency_penalty` is not supported with this model.")
    async with pair("openai", refusal) as both:
        answer = await ask(both.engine, "hello", temperature=0.7, frequency_penalty=1.0)
        assert ["frequency_penalty" in body for body in both.stub.bodies] == [True, False]
    assert [warning.split()[0] for warning in answer.finished.warnings] == ["frequency_penalty"]


@BOTH
async def test_thinking_is_kept_apart_from_the_answer(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(words=["So ", "four."], thinking=("two ", "and two"))) as both:
        answer = await ask(both.engine, "2 + 2?")
        assert (thinking_of(answer), answer.text) == ("two and two", "So four.")


@BOTH
async def test_what_is_used_is_what_the_upstream_says(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(words=["a ", "b ", "c"], cached=2)) as both:
        answer = await ask(both.engine, "count")
        usage = answer.finished.usage
        assert (usage.cached_tokens, usage.completion_tokens) == (2, 3)
        assert usage.prompt_tokens > 2
        stats = await both.engine.stats()
        assert stats.prompt_tokens_evaluated == usage.prompt_tokens - 2
        assert stats.tokens_generated == 3


@BOTH
async def test_the_tokens_of_an_upstream_that_does_not_count_are_estimated(kind: UpstreamKind) -> None:
    """By their size, and not by the pieces in which they come: these may have any size."""
    prompt, reply = "count " * 600, ["0123456789" * 360, "x"]
    async with pair(kind, Speech(words=reply, usage=False)) as both:
        usage = (await ask(both.engine, prompt)).finished.usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (1004, 0, 1001)


@BOTH
async def test_signs_of_life_are_no_text(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(pings=True)) as both:
        assert (await ask(both.engine, "alive and well")).text == "alive and well"


@BOTH
async def test_a_connection_is_used_again(kind: UpstreamKind) -> None:
    async with pair(kind) as both:
        for number in range(5):
            await ask(both.engine, f"number {number}")
        assert len(both.stub.connections) == 1


@BOTH
async def test_a_conversation_that_is_too_long_is_told_as_that(kind: UpstreamKind) -> None:
    async with pair(kind) as both:
        with pytest.raises(ContextTooLong, match="4096"):
            await ask(both.engine, "word " * 5000)
        assert both.naps.taken == []


@BOTH
async def test_a_model_that_declines_fails_the_turn(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(stop="content_filter" if kind == "openai" else "refusal")) as both:
        with pytest.raises(EngineError, match=r"filter|declined"):
            await ask(both.engine, "do it")


@BOTH
async def test_cancel_closes_the_connection(kind: UpstreamKind) -> None:
    async with pair(kind) as both:
        wanted = request("endless", max_tokens=100_000)
        stream = both.engine.generate(wanted)
        first = await anext(stream)
        assert isinstance(first, Delta)
        both.engine.cancel(wanted.id)
        rest = [item async for item in stream]
        assert isinstance(rest[-1], Finished)
        assert rest[-1].reason == "cancelled"
        assert (await both.settled()).running == 0
        assert both.stub.left_early == 1


@BOTH
async def test_a_turn_that_waits_for_its_first_word_can_be_cancelled(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(gate=asyncio.Event())) as both:
        wanted = request("hello")
        reading = asyncio.create_task(collect(both.engine, wanted))
        await both.stub.until(lambda stub: stub.streaming == 1)
        both.engine.cancel(wanted.id)
        assert (await reading).finished.reason == "cancelled"
        await both.settled()
        assert both.stub.left_early == 1


@BOTH
async def test_more_turns_than_places_wait_and_can_be_cancelled(kind: UpstreamKind) -> None:
    gate = asyncio.Event()
    async with pair(kind, Speech(gate=gate), parallel=1) as both:
        first, second, third = (request("one"), request("two"), request("three"))
        reading = [asyncio.create_task(collect(both.engine, wanted)) for wanted in (first, second, third)]
        await both.stub.until(lambda stub: stub.streaming == 1)
        stats = await both.engine.stats()
        assert (stats.running, stats.waiting) == (1, 2)
        both.engine.cancel(second.id)
        assert (await reading[1]).finished.reason == "cancelled"
        gate.set()
        assert [(await each).text for each in (reading[0], reading[2])] == ["one", "three"]
        assert len(both.stub.bodies) == 2


@BOTH
async def test_stopping_ends_everything(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(gate=asyncio.Event())) as both:
        reading = asyncio.create_task(collect(both.engine, request("hello")))
        await both.stub.until(lambda stub: stub.streaming == 1)
        await both.engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await reading
        with pytest.raises(EngineError, match="is not running"):
            await ask(both.engine, "too late")
        await both.settled()
        assert not both.engine.ready


@BOTH
async def test_two_turns_of_one_id_are_a_mistake(kind: UpstreamKind) -> None:
    async with pair(kind) as both:
        wanted = request("endless", max_tokens=1000)
        stream = cast("AsyncGenerator[Delta | Finished]", both.engine.generate(wanted))
        await anext(stream)
        with pytest.raises(EngineError, match="already running"):
            await collect(both.engine, wanted)
        await stream.aclose()
