"""The model behind a server: real servers that answer, refuse, break off and garble (A7, H4)."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from cfs.errors import (
    CfsError,
    ContextTooLong,
    EngineError,
    InvalidRequest,
    ServerError,
    TooMany,
    Unauthorized,
    Unreachable,
)
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall
from cfs_agents.base.events import Retrying
from cfs_agents.context.tokens import CachedCounter
from cfs_agents.loop.model import Chunk, CompleteResponse, Item, Model
from cfs_agents.loop.retries import Outages, Retries, seconds_of
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel
from cfs_agents.main.testing import ManualClock
from cfs_agents.tools import Registry, tool
from cfs_server.engine.contract.interface import CallDelta, Delta
from cfs_server.engine.host.scripted import failing
from ports import free_port
from tests.server.support import Process, ServerHarness, running_server, until
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, MODEL, Act, Refusal, Speech, served

USER = Message(role="user", content="one two three")
SMALL = ModelSettings(name=MODEL, max_tokens=500)


@tool("Write a file.")
def write_file(path: str, content: str) -> str:
    return f"{path}: {content}"


TOOLS = Registry([write_file]).schemas()
CALL = '<tool_call>{"name": "write_file", "arguments": {"path": "a", "content": "hello"}}</tool_call>'


async def answer(
    model: Model,
    messages: Sequence[Message] = (USER,),
    tools: Sequence[dict[str, Any]] = (),
    into: list[Item] | None = None,
) -> list[Item]:
    """All that a stream brings; `into` a list, where it is also after an error."""
    items = [] if into is None else into
    async for item in model.stream(messages, tools):
        items.append(item)
    return items


def reply_in(items: Sequence[Item]) -> CompleteResponse:
    """The reply, which comes last and once."""
    *rest, last = items
    assert isinstance(last, CompleteResponse)
    assert not any(isinstance(item, CompleteResponse) for item in rest)
    return last


def text_of(items: Sequence[Item]) -> str:
    return "".join(item.text for item in items if isinstance(item, Chunk))


@asynccontextmanager
async def misbehaving(*acts: Act) -> AsyncIterator[tuple[OpenAIStub, ServerModel, ManualClock]]:
    """A server that plays these acts, and a model that asks it and never really waits."""
    stub = OpenAIStub(*acts)
    clock = ManualClock(jumps=True)
    async with served(stub) as url, AsyncClient(url.removesuffix("/v1"), KEY) as client:
        yield stub, ServerModel(client, SMALL, retries=Retries(sleep=clock.sleep)), clock


# -- what is asked and answered ---------------------------------------------------------------------------------------


async def test_text_comes_in_pieces_and_then_whole_with_its_cost(server: ServerHarness) -> None:
    async with AsyncClient(server.url) as client:
        items = await answer(ServerModel(client))
    assert [item.text for item in items if isinstance(item, Chunk)] == ["one", " two", " three"]
    reply = reply_in(items)
    assert reply.message == Message(role="assistant", content="one two three")
    assert (reply.finish_reason, reply.broken) == ("stop", {})
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 3)


async def test_a_whole_conversation_reaches_the_engine_as_it_is() -> None:
    """Calls, results and thinking go out as they came in; settings and tools go with them."""
    call = ToolCall(id="c1", name="write_file", arguments={"path": "ä", "content": "1\n2"})
    conversation = [
        Message(role="system", content="Be brief."),
        USER,
        Message(role="assistant", content="I write.", tool_calls=(call,), thinking="A file, then."),
        Message(role="tool", content="done", tool_call_id="c1", name="write_file"),
    ]
    async with running_server() as server, AsyncClient(server.url) as client:
        settings = ModelSettings(temperature=0.25, max_tokens=77, seed=5)
        await answer(ServerModel(client, settings), conversation, TOOLS)
        asked = server.engine.requests[0]
    assert list(asked.messages) == conversation
    assert [found["function"]["name"] for found in asked.options.tools] == ["write_file"]
    assert asked.options.tools[0]["function"]["parameters"] == TOOLS[0]["function"]["parameters"]
    assert (asked.settings.temperature, asked.settings.max_tokens, asked.settings.seed) == (0.25, 77, 5)


async def test_thinking_and_calls_are_apart_from_text() -> None:
    script: list[str | Delta] = [Delta("", 1, thinking="Well, "), Delta("", 1, thinking="a file."), "I write.\n", CALL]
    async with running_server(lambda _: script) as server, AsyncClient(server.url) as client:
        items = await answer(ServerModel(client), tools=TOOLS)
    reply = reply_in(items)
    assert reply.message.thinking == "Well, a file."
    assert reply.message.content.strip() == "I write."
    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments, bool(call.id)) == ("write_file", {"path": "a", "content": "hello"}, True)
    assert (reply.finish_reason, reply.broken) == ("tool_calls", {})
    pieces = [piece for item in items if isinstance(item, Chunk) for piece in item.calls]
    assert pieces[0].name == "write_file"
    assert pieces[0].id == call.id
    assert "".join(item.thinking for item in items if isinstance(item, Chunk)) == "Well, a file."


async def test_pieces_come_while_the_reply_is_being_made(server: ServerHarness) -> None:
    server.engine.hold()
    async with AsyncClient(server.url) as client, aclosing(ServerModel(client).stream([USER])) as items:
        server.engine.step()
        assert await anext(items) == Chunk("one")
        server.engine.release()
        assert await anext(items) == Chunk(" two")


async def test_closing_the_iterator_ends_the_reply(server: ServerHarness) -> None:
    """Nothing is computed for a reader that has left."""
    server.engine.hold()
    async with AsyncClient(server.url) as client:
        async with aclosing(ServerModel(client).stream([USER])) as items:
            server.engine.step()
            await anext(items)
        stats = await server.engine.stats()
        while stats.running:
            await asyncio.sleep(0.001)
            stats = await server.engine.stats()
    assert stats.running == 0


async def test_cancelling_the_task_ends_the_reply(server: ServerHarness) -> None:
    """The cancellation is not taken for a failure of the model."""
    server.engine.hold()
    async with AsyncClient(server.url) as client:
        asking = asyncio.create_task(answer(ServerModel(client)))
        await until(lambda: server.engine.requests)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert len(server.engine.requests) == 1


async def test_cached_tokens_are_told() -> None:
    async with misbehaving(Speech(("hi",), cached=3)) as (_, model, _clock):
        usage = reply_in(await answer(model)).usage
    assert usage.cached_tokens == 3
    assert usage.prompt_tokens > 3


# -- calls that cannot be made ----------------------------------------------------------------------------------------


async def test_malformed_arguments_are_told_and_no_error() -> None:
    """The reply has the call as the model wrote it, and says what is wrong with it."""
    calls = (("write_file", ('{"path": ', "oops}")), ("write_file", ('{"path": "b", "content": ""}',)))
    async with misbehaving(Speech((), calls=calls), Speech()) as (_, model, clock):
        reply = reply_in(await answer(model, tools=TOOLS))
    bad, good = reply.message.tool_calls
    assert set(reply.broken) == {bad.id}
    assert "no JSON object" in reply.broken[bad.id]
    assert '{"path": oops}' in reply.broken[bad.id]
    assert good.arguments == {"path": "b", "content": ""}
    assert clock.slept == [], "it is not asked for again"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[1, 2]", "this is a list"), ('{"a": NaN}', "JSON does not have"), ('{"a": 1', "Expecting")],
)
async def test_what_is_wrong_with_arguments_is_said(text: str, reason: str) -> None:
    async with misbehaving(Speech((), calls=(("write_file", (text,)),))) as (_, model, _clock):
        (told,) = reply_in(await answer(model, tools=TOOLS)).broken.values()
    assert reason in told
    assert text in told


async def test_a_call_that_the_limit_cut_off_says_so_and_not_at_length() -> None:
    text = '{"path": "a", "content": "' + "x" * 5000
    speech = Speech((), calls=(("write_file", (text,)),), stop="length")
    async with misbehaving(speech) as (_, model, _clock):
        reply = reply_in(await answer(model, tools=TOOLS))
    (told,) = reply.broken.values()
    assert "limit of tokens" in told
    assert len(told) < 400
    assert reply.finish_reason == "length"


async def test_broken_calls_go_back_to_the_server_as_they_were_written() -> None:
    """So the model sees what it wrote, next to what was wrong with it."""
    async with running_server(lambda _: [Delta("", 1, calls=(CallDelta(0, "c1", "write_file", "{oops"),))]) as server:
        async with AsyncClient(server.url) as client:
            model = ServerModel(client)
            reply = reply_in(await answer(model, tools=TOOLS))
            result = Message(role="tool", content=reply.broken["c1"], tool_call_id="c1", name="write_file")
            await answer(model, [USER, reply.message, result], TOOLS)
        assert server.engine.requests[1].messages[1] == reply.message


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        Refusal(500),
        Refusal(503),
        Refusal(502),
        Refusal(504),
        Refusal(429),
        Speech(("never", " heard"), cut=2, how="hard"),
        Speech(("never", " heard"), cut=2, how="clean"),
        Speech(("never",), marker=False),
        Speech(("never",), failing=("server_error", "the engine died")),
        Speech(("never",), junk=(1, "data: {no json\n\n")),
    ],
    ids=["500", "503", "502", "504", "429", "hung up", "ended early", "no end", "error inside", "junk"],
)
async def test_a_passing_failure_is_told_and_the_reply_asked_for_again(act: Act) -> None:
    async with misbehaving(act, Speech(("all", " well"))) as (stub, model, clock):
        items = await answer(model)
    (place,) = [place for place, item in enumerate(items) if isinstance(item, Retrying)]
    retrying = items[place]
    assert isinstance(retrying, Retrying)
    assert retrying.reason
    assert clock.slept == [retrying.seconds]
    assert 0 <= retrying.seconds <= 1
    assert text_of(items[place:]) == "all well"
    assert reply_in(items).message.content == "all well"
    assert stub.bodies[0] == stub.bodies[1]
    assert stub.refused == []


async def test_a_stream_that_is_cut_in_a_call_is_asked_for_whole_again() -> None:
    """No half of a call gets into the reply, whatever was shown of it."""
    cut = Speech((), calls=(("write_file", ('{"path": "wrong', '", "content": ""}')),), cut=3)
    whole = Speech((), calls=(("write_file", ('{"path": "right", "content": ""}',)),))
    async with misbehaving(cut, whole) as (_, model, _clock):
        items = await answer(model, tools=TOOLS)
    begun = [item for item in items[: [type(item) for item in items].index(Retrying)] if isinstance(item, Chunk)]
    assert begun[-1].calls[0].arguments == '{"path": "wrong'
    (call,) = reply_in(items).message.tool_calls
    assert call.arguments == {"path": "right", "content": ""}
    assert reply_in(items).broken == {}


async def test_the_third_failure_in_a_row_is_raised() -> None:
    """The pauses grow: their bounds are one second, then two (A7)."""
    heard: list[Item] = []
    async with misbehaving(*[Refusal(500)] * 4) as (stub, model, clock):
        with pytest.raises(ServerError):
            await answer(model, into=heard)
    assert [type(item) for item in heard] == [Retrying, Retrying]
    assert len(stub.bodies) == 3
    assert clock.slept[0] <= 1
    assert clock.slept[1] <= 2


async def test_the_time_that_a_server_names_is_kept() -> None:
    async with misbehaving(Refusal(429, headers={"retry-after": "7"}), Speech()) as (_, model, clock):
        await answer(model)
    assert clock.slept == [7]


async def test_a_server_of_ours_names_its_time_too() -> None:
    """Its problem document says it, to the fraction of a second."""
    clock = ManualClock(jumps=True)
    async with running_server() as server, AsyncClient(server.url) as client:
        server.engine.wait = 100_000.0
        model = ServerModel(client, retries=Retries(longest=1e9, sleep=clock.sleep))
        with pytest.raises(TooMany) as raised:
            await answer(model)
    assert raised.value.retry_after is not None
    assert clock.slept == [raised.value.retry_after] * 2


async def test_who_asks_for_too_much_time_is_not_asked_again() -> None:
    async with misbehaving(Refusal(429, headers={"retry-after": "3600"})) as (stub, model, clock):
        with pytest.raises(TooMany) as raised:
            await answer(model)
    assert raised.value.retry_after == 3600
    assert (len(stub.bodies), clock.slept) == (1, [])


async def test_a_retry_is_told_before_its_pause() -> None:
    """The console can say that nothing happens for a while, and why."""
    clock = ManualClock()
    stub = OpenAIStub(Refusal(429, headers={"retry-after": "7"}))
    async with served(stub) as url, AsyncClient(url.removesuffix("/v1"), KEY) as client:
        model = ServerModel(client, SMALL, retries=Retries(sleep=clock.sleep))
        async with aclosing(model.stream([USER])) as items:
            first = await anext(items)
            assert isinstance(first, Retrying)
            assert first.seconds == 7
            assert clock.sleepers == 0
            following = asyncio.create_task(anext(items))
            await clock.until_asleep()
            assert len(stub.bodies) == 1
            clock.advance(7)
            assert await following == Chunk("one")


async def test_what_the_request_is_to_blame_for_is_raised_at_once() -> None:
    async with misbehaving(Refusal(401)) as (stub, model, clock):
        with pytest.raises(Unauthorized):
            await answer(model)
    assert (len(stub.bodies), clock.slept) == (1, [])


@pytest.mark.parametrize("after", [[], ["so", " far"]], ids=["at once", "in the middle"])
async def test_a_conversation_that_is_too_long_is_a_failure_of_its_own(after: list[str]) -> None:
    """It must become shorter, so asking again would be in vain."""

    def too_long(_: object) -> Any:
        yield from after
        raise ContextTooLong("the prompt has 9,000 tokens, the context 2,048")

    async with running_server(too_long) as server, AsyncClient(server.url) as client:
        with pytest.raises(ContextTooLong, match="9,000 tokens"):
            await answer(ServerModel(client))
        assert len(server.engine.requests) == 1


async def test_a_failing_engine_is_an_engine_error_after_three_tries() -> None:
    clock = ManualClock(jumps=True)
    async with running_server(failing("out of memory", ["so"])) as server, AsyncClient(server.url) as client:
        with pytest.raises(EngineError, match="out of memory"):
            await answer(ServerModel(client, retries=Retries(sleep=clock.sleep)))
        assert len(server.engine.requests) == 3


async def test_nobody_there_is_unreachable() -> None:
    clock = ManualClock(jumps=True)
    async with AsyncClient(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unreachable, match="no server answers"):
            await answer(ServerModel(client, retries=Retries(patience=0, sleep=clock.sleep)))
    assert len(clock.slept) == 2


async def test_an_outage_is_waited_out_as_long_as_patience_lasts() -> None:
    """The pauses grow to ten seconds; the wait is reported once."""
    clock, begun = ManualClock(jumps=True), list[CfsError]()
    retries = Retries(patience=300, sleep=clock.sleep, outages=Outages(begun.append))
    async with AsyncClient(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unreachable):
            await answer(ServerModel(client, retries=retries))
    assert 280 <= sum(clock.slept) <= 300
    assert max(clock.slept) <= 10
    assert len(begun) == 1


async def test_a_fault_is_no_outage_however_long_patience_is() -> None:
    """Three faults of a server are three faults, with outages between them or without."""
    acts: list[Act] = [Refusal(500), Refusal(503), Refusal(503), Refusal(500), Refusal(503), Refusal(500), Speech()]
    async with misbehaving(*acts) as (stub, model, _clock):
        with pytest.raises(ServerError):
            await answer(model)
    assert len(stub.bodies) == 6


async def test_a_reply_that_breaks_off_again_and_again_is_given_up() -> None:
    async with misbehaving(*[Speech(("never", " heard"), cut=2, how="hard")] * 40) as (stub, model, _clock):
        with pytest.raises(Unreachable):
            await answer(model)
    assert len(stub.bodies) == 31


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("0", 0), ("2.5", 2.5), (" 3 ", 3), ("forever", math.inf)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1d", "-1", "1m30s", "nan", "1e9"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidRequest):
        seconds_of(text)


async def test_the_server_is_the_one_of_the_environment(server: ServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFS_URL", server.url)
    async with AsyncClient() as client:
        assert text_of(await answer(ServerModel(client))) == "one two three"


# -- counting ---------------------------------------------------------------------------------------------------------


async def test_the_counter_asks_the_server(server: ServerHarness) -> None:
    """The scripted engine guesses, by the same rule for each text, in their order."""
    async with AsyncClient(server.url) as client:
        counter = ServerCounter(client)
        one, long, empty = await counter.count(["a", "a" * 400, ""])
        assert one < long
        assert empty == 0
        assert await counter.count([]) == []


async def test_many_long_texts_are_counted_in_requests_that_a_server_takes(server: ServerHarness) -> None:
    """Together they are more than the largest body."""
    text = "\x01" * 900_000
    async with AsyncClient(server.url) as client:
        counts = await ServerCounter(client).count([text, text, "a", text])
    assert counts[0] == counts[1] == counts[3] > counts[2]


async def test_a_counter_without_a_server_is_replaced_by_a_guess() -> None:
    async with AsyncClient(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(CfsError):
            await ServerCounter(client).count(["four"])
        assert await CachedCounter(ServerCounter(client)).count(["four"]) == [1]


# -- the embedded model -----------------------------------------------------------------------------------------------


async def test_the_embedded_model_answers_calls_and_counts(model_server: Process) -> None:
    """A real worker: pieces, a call that can be made, the cost, and a prefix that is computed once."""
    ask = Message(role="user", content="Write 'hello' to the file notes.txt.")
    async with AsyncClient(model_server.url) as client:
        model = ServerModel(client, ModelSettings(temperature=0, max_tokens=80))
        reply = reply_in(await answer(model, [ask], TOOLS))
        again = reply_in(await answer(model, [ask], TOOLS))
        (count,) = await ServerCounter(client).count(["Write 'hello' to the file notes.txt."])
    assert reply.finish_reason in ("stop", "tool_calls", "length")
    assert reply.message.content or reply.message.tool_calls
    assert 0 < count < reply.usage.prompt_tokens
    assert again.message.content == reply.message.content
    assert again.usage.cached_tokens > 0
