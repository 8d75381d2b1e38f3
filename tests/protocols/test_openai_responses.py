"""Programs that use the responses of OpenAI, by the official client: each stored response is a turn (H8)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from cfs_server.engine.host.scripted import ScriptedEngine
from tests.filesystem.support import grant
from tests.protocols.scripts import COLOUR, PARAMETERS, obedient
from tests.server.guests import Guest, guests
from tests.server.openai_client import blocking, speaking
from tests.server.restarting import Restarting
from tests.server.support import ServerHarness, running_server, until

WEATHER: Any = {"type": "function", "name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS}
OTHER: Any = {"type": "function", "name": "other", "parameters": {"type": "object"}}
ASK = "what is the weather in Oslo"


class Colour(BaseModel):
    """A form for replies."""

    colour: str


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.fixture
async def client(server: ServerHarness) -> AsyncIterator[AsyncOpenAI]:
    async with speaking(server.url) as here:
        yield here


def recorded(response: Any) -> str:
    """Return the session of a response."""
    return str(response.cfs["session"])


# -- whole responses --------------------------------------------------------------------------------------------------


@pytest.mark.feature("openai", "responses", "chat", "usage")
async def test_a_response_has_all_members_of_the_protocol(client: AsyncOpenAI) -> None:
    found = await client.responses.create(model="gpt-any", input="one two three", metadata={"a": "b"})
    assert found.id.startswith("resp_")
    assert (found.object, found.status, found.model) == ("response", "completed", "scripted")
    assert (found.output_text, found.metadata, found.error) == ("one two three", {"a": "b"}, None)
    (message,) = found.output
    assert message.type == "message"
    assert (message.role, message.status, message.content[0].type) == ("assistant", "completed", "output_text")
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (3, 3, 6)


async def test_settings_items_and_tools_reach_the_engine(server: ServerHarness, client: AsyncOpenAI) -> None:
    """Neighbouring items of the model are one message; instructions are the system prompt of this turn only."""
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call", "call_id": "2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "snow"}]},
    ]
    await client.responses.create(
        model="x",
        input=items,
        instructions="Be kind.",
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        tools=[WEATHER],
        parallel_tool_calls=False,
        user="the-account",
        store=False,
        extra_body={"stop": ["END"], "service_tier": "auto"},
    )
    (request,) = server.engine.requests
    said = [(message.role, message.content) for message in request.messages]
    assert said == [
        ("system", "Be brief."),
        ("user", "ab"),
        ("assistant", "I look."),
        ("tool", "rain"),
        ("tool", "snow"),
    ]
    assert [(call.id, call.arguments) for call in request.messages[2].tool_calls] == [
        ("1", {"city": "Oslo"}),
        ("2", {}),
    ]
    assert request.messages[2].thinking == "hm"
    settings = request.settings
    assert (settings.system, settings.max_tokens, settings.temperature, settings.top_p) == ("Be kind.", 7, 0.5, 0.9)
    assert (settings.stop, request.options.parallel_calls, request.account) == (("END",), False, "the-account")
    function = {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS}
    assert request.options.tools == ({"type": "function", "function": function},)
    assert len(server.store) == 0


@pytest.mark.feature("openai", "responses", "tools", "resume")
async def test_a_call_and_its_result_by_the_id_of_the_response(server: ServerHarness, client: AsyncOpenAI) -> None:
    """The second request has the result only: the session has the rest."""
    first = await client.responses.create(model="x", input=ASK, tools=[WEATHER])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[2]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = await client.responses.create(model="x", input=[result], previous_response_id=first.id, tools=[WEATHER])
    assert (second.output_text, recorded(second)) == ("rain", recorded(first))
    roles = [message.role for message in server.store.get(recorded(first)).history.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_a_conversation_that_is_sent_as_items_stays_as_it_was_recorded(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    """The items of a response, sent back as they came, are the messages that its session has."""
    named = {"X-CFS-Session": "whole"}
    items: Any = [{"role": "user", "content": ASK}]
    first = await client.responses.create(model="x", input=items, tools=[WEATHER], extra_headers=named)
    before = server.store.get("whole").history.messages
    call: Any = first.output[2]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    await client.responses.create(model="x", input=items, tools=[WEATHER], extra_headers=named, store=False)
    history = server.store.get("whole").history
    assert history.messages[:2] == before
    assert history.version == len(history.messages) == 4


@pytest.mark.feature("openai", "responses", "forced tool")
async def test_a_tool_can_be_forced_or_forbidden(server: ServerHarness, client: AsyncOpenAI) -> None:
    choices: Any = [
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
        "required",
        "none",
    ]
    for choice in choices:
        found = await client.responses.create(model="x", input="a", tools=[OTHER, WEATHER], tool_choice=choice)
        assert found.tool_choice is not None
    told = [(len(request.options.tools), request.options.tool_choice) for request in server.engine.requests]
    assert told == [(1, "required"), (1, "required"), (2, "required"), (2, "none")]


@pytest.mark.feature("openai", "responses", "schema")
async def test_a_reply_can_have_a_form(server: ServerHarness, client: AsyncOpenAI) -> None:
    found = await client.responses.parse(model="x", input="a", text_format=Colour)
    assert found.output_parsed == Colour(colour="red")
    forms: Any = [{"type": "json_schema", "name": "c", "schema": COLOUR}, {"type": "json_object"}, {"type": "text"}]
    for form in forms:
        await client.responses.create(model="x", input="a", text={"format": form, "verbosity": "low"})
    assert [request.options.json_schema for request in server.engine.requests[1:]] == [COLOUR, {"type": "object"}, None]


@pytest.mark.feature("openai", "responses", "stop")
async def test_it_is_said_why_a_response_ended(client: AsyncOpenAI) -> None:
    cut: Any = await client.responses.create(model="x", input="one two three", max_output_tokens=2)
    assert (cut.output_text, cut.status, cut.output[0].status) == ("one two", "incomplete", "incomplete")
    assert cut.incomplete_details.reason == "max_output_tokens"
    stopped = await client.responses.create(model="x", input="stop", extra_body={"stop": "END"})
    assert (stopped.output_text, stopped.status) == ("one", "completed")


async def test_log_probabilities(client: AsyncOpenAI) -> None:
    found = await client.responses.create(
        model="x", input="one two three", include=["message.output_text.logprobs"], top_logprobs=2
    )
    message: Any = found.output[0]
    assert [token.token for token in message.content[0].logprobs] == ["one", " two", " three"]


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("openai", "responses", "stream")
async def test_a_stream_has_the_events_of_the_protocol_in_their_order(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    """The client's own helper puts them together, and its result is that of the stored response."""
    async with client.responses.stream(model="x", input=ASK, tools=[WEATHER]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.usage is not None
    stored = await client.responses.retrieve(final.id)
    assert [item.model_dump() for item in stored.output] == [
        {key: value for key, value in item.model_dump().items() if key not in ("parsed", "parsed_arguments")}
        | ({"content": [_unparsed(part) for part in item.content]} if item.type == "message" else {})
        for item in final.output
    ]
    raw = await server.client.post("/v1/responses", json={"input": "x", "stream": True})
    frames = [frame.split("\n") for frame in raw.text.strip().split("\n\n")]
    named = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))["type"]) for name, data in frames]
    assert all(name == kind for name, kind in named)


def _unparsed(part: Any) -> dict[str, Any]:
    return {key: value for key, value in part.model_dump().items() if key != "parsed"}


async def test_calls_whose_pieces_come_by_turns_are_put_together() -> None:
    def calling(_: GenerationRequest) -> Iterable[Delta]:
        yield Delta("", 1, calls=(CallDelta(0, "1", "weather", '{"city": '), CallDelta(1, "2", "weather", "{")))
        yield Delta("", 1, calls=(CallDelta(1, arguments="}"), CallDelta(0, arguments='"Oslo"}')))

    async with running_server(calling, may_block=True) as server, speaking(server.url) as client:
        async with client.responses.stream(model="x", input="a", tools=[WEATHER]) as stream:
            found = await stream.get_final_response()
        calls: Any = found.output
        assert [(call.call_id, call.arguments) for call in calls] == [("1", '{"city": "Oslo"}'), ("2", "{}")]


async def test_a_failure_in_a_stream_is_an_event_and_is_stored() -> None:
    def breaking(_: GenerationRequest) -> Iterable[str]:
        yield "one"
        raise EngineError("the engine broke")

    async with running_server(breaking, may_block=True) as server, speaking(server.url) as client:
        stream = await client.responses.create(model="x", input="a", stream=True)
        last: Any = [event async for event in stream][-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert last.response.error.message == "the engine broke"
        assert last.response.output_text == "one"
        again = await client.responses.retrieve(last.response.id)
        assert again.error is not None
        assert (again.status, again.error.message, again.output_text) == ("failed", "the engine broke", "one")
        followed: Any = [event async for event in await client.responses.retrieve(last.response.id, stream=True)][-1]
        assert (followed.type, followed.sequence_number) == ("response.failed", last.sequence_number)


async def test_a_stream_that_was_cut_is_read_on_from_its_number() -> None:
    """While the response grows, and after its end: the events are the same."""
    engine = ScriptedEngine(lambda _: [f"{number} " for number in range(9)])
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        asking = asyncio.create_task(client.responses.create(model="x", input="a", stream=True, background=True))
        await until(lambda: engine.requests)
        engine.step(3)
        stream = await asking
        events = aiter(stream)
        seen = [await anext(events) for _ in range(6)]
        assert seen[-1].type == "response.output_text.delta"
        await stream.close()
        name: str = seen[0].response.id
        following = await client.responses.retrieve(name, stream=True, starting_after=5)
        engine.release()
        rest = [event async for event in following]
        later = [event async for event in await client.responses.retrieve(name, stream=True, starting_after=5)]
    assert [event.sequence_number for event in rest] == list(range(6, 6 + len(rest)))
    assert rest[-1].type == "response.completed"
    whole = [event.model_dump() for event in rest]
    assert [event.model_dump() for event in later][:-1] == whole[:-1]
    assert rest[-1].response.output_text == "0 1 2 3 4 5 6 7 8 "


@pytest.mark.feature("openai", "responses", "cancel")
async def test_a_response_in_the_background_is_polled_and_cancelled() -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        made = await client.responses.create(model="x", input="a", background=True)
        assert (made.status, made.background, made.output) == ("in_progress", True, [])
        waiting = await client.responses.create(model="x", input="b", conversation=recorded(made), background=True)
        assert waiting.status == "queued"
        engine.step(2)
        await server.until(recorded(made), "token", 2)
        assert (await client.responses.retrieve(made.id)).status == "in_progress"
        assert (await client.responses.cancel(waiting.id)).status == "cancelled"
        cancelled = await client.responses.cancel(made.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "xx")
        assert (await client.responses.cancel(made.id)).output_text == "xx"
        assert server.store.get(recorded(made)).idle


async def leave_a_stream(client: AsyncOpenAI, engine: ScriptedEngine, *, stores: bool) -> None:
    """Ask for a stream, read its beginning, and close it."""
    before = len(engine.requests)
    asking = asyncio.create_task(client.responses.create(model="x", input="a", stream=True, store=stores))
    await until(lambda: len(engine.requests) > before)
    engine.step(2)
    stream = await asking
    await anext(aiter(stream))
    await stream.close()


async def test_a_client_that_leaves_ends_its_response_stored_or_not() -> None:
    """As at OpenAI, where a response that is not made in the background ends with its connection."""
    engine = ScriptedEngine(lambda _: ["x"] * 5)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        await leave_a_stream(client, engine, stores=False)
        await until(lambda: server.parts.completions.running == 0)
        await leave_a_stream(client, engine, stores=True)
        (session,) = server.store
        await until(lambda: session.idle)
        assert session.history.messages[-1].content == "xx [Cancelled]"


# -- what is stored ---------------------------------------------------------------------------------------------------


async def test_responses_go_on_or_branch(server: ServerHarness, client: AsyncOpenAI) -> None:
    """After the last response its session goes on; after an older one a copy of the session does."""
    first = await client.responses.create(model="x", input="one")
    second = await client.responses.create(model="x", input="two", previous_response_id=first.id)
    assert recorded(second) == recorded(first)
    assert second.previous_response_id == first.id
    branch = await client.responses.create(model="x", input="other", previous_response_id=first.id)
    text = await server.text(recorded(branch))
    assert text == "User: one\nAssistant: one\nUser: other\nAssistant: other\n"
    assert server.store.get(recorded(branch)).origin is not None
    named = await client.responses.create(
        model="x", input="third", previous_response_id=second.id, extra_headers={"X-CFS-Session": "named"}
    )
    assert (recorded(named), len(server.store.get("named").history)) == ("named", 6)
    aside: Any = await client.responses.create(model="x", input="aside", previous_response_id=first.id, store=False)
    assert (aside.store, len(server.engine.requests[-1].messages)) == (False, 3)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(aside.id)
    with pytest.raises(openai.ConflictError, match="has gone on"):
        await client.responses.create(
            model="x", input="x", previous_response_id=first.id, extra_headers={"X-CFS-Session": recorded(first)}
        )
    assert len(server.store) == 3


async def test_a_response_is_found_by_its_id_after_its_session_was_renamed(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    made = await client.responses.create(model="x", input="one two")
    await server.client.post(f"/v1/sessions/{recorded(made)}/rename", json={"id": "renamed"})
    found = await client.responses.retrieve(made.id)
    assert (found.output_text, recorded(found), found.created_at) == ("one two", "renamed", made.created_at)
    assert found.usage == made.usage


async def test_what_was_edited_is_not_gone_on_with(server: ServerHarness, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="x", input="one")
    await server.client.put(
        f"/v1/sessions/{recorded(made)}/transcript", content=b"User: a\nAssistant: b\n", headers={"If-Match": "*"}
    )
    with pytest.raises(openai.ConflictError, match="edited"):
        await client.responses.create(model="x", input="two", previous_response_id=made.id)
    assert (await client.responses.retrieve(made.id)).output_text == "one"


async def test_a_response_is_deleted_with_its_session_if_it_is_alone_there(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    alone = await client.responses.create(model="x", input="one")
    await client.responses.delete(alone.id)
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            await call(alone.id)
    first = await client.responses.create(model="x", input="one")
    await client.responses.create(model="x", input="two", previous_response_id=first.id)
    with pytest.raises(openai.ConflictError, match="part of a conversation"):
        await client.responses.delete(first.id)
    assert len(server.store) == 1


async def test_the_input_of_a_response_is_what_it_added(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="x", input="one")
    items: Any = [{"role": "developer", "content": "d"}, {"role": "user", "content": "two"}]
    second = await client.responses.create(model="x", input=items, previous_response_id=first.id)
    found: Any = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]
    assert [(item.role, item.content[0].text) for item in found] == [("system", "d"), ("user", "two")]


@pytest.mark.feature("openai", "conversations", "chat", "resume")
async def test_a_conversation_is_a_session(server: ServerHarness, client: AsyncOpenAI) -> None:
    items: Any = [{"role": "user", "content": "zero"}]
    made = await client.conversations.create(items=items)
    assert server.engine.requests == []
    for text in ("one", "two"):
        found = await client.responses.create(model="x", input=text, conversation=made.id)
        assert found.conversation is not None
        assert found.conversation.id == recorded(found) == made.id
    assert [message.content for message in server.engine.requests[-1].messages] == ["zero", "one", "one", "two"]
    added: Any = await client.conversations.items.create(
        made.id, items=[{"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": "b"}]
    )
    assert [item.content[0].text for item in added.data] == ["a", "b"]
    listed: Any = [item async for item in client.conversations.items.list(made.id, order="asc", limit=2)]
    assert [item.content[0].text for item in listed] == ["zero", "one", "one", "two", "two", "a", "b"]
    again: Any = await client.conversations.items.retrieve(listed[2].id, conversation_id=made.id)
    assert (again.role, again.content[0].text) == ("assistant", "one")
    assert (await client.conversations.retrieve(made.id)).created_at == made.created_at
    with pytest.raises(openai.APIStatusError, match="not possible"):
        await client.conversations.items.delete(listed[2].id, conversation_id=made.id)
    assert (await client.conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="x", input="x", conversation=made.id)
    assert len(server.store) == 0


async def test_a_text_goes_on_with_a_named_session_and_items_are_its_whole_conversation(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    named = {"X-CFS-Session": "mine"}
    items: Any = [{"role": "user", "content": "new"}]
    for given in ("one", "two", items):
        await client.responses.create(model="x", input=given, extra_headers=named)
    assert [len(request.messages) for request in server.engine.requests] == [1, 3, 1]
    assert await server.text("mine") == "User: new\nAssistant: new\n"


async def test_a_response_sent_again_with_its_key_is_made_once(server: ServerHarness, client: AsyncOpenAI) -> None:
    keyed = {"Idempotency-Key": "k"}
    first = await client.responses.create(model="x", input="one two", extra_headers=keyed)
    second = await client.responses.create(model="x", input="one two", extra_headers=keyed)
    assert first == second
    assert len(server.engine.requests) == len(server.store) == 1
    for path in (f"/v1/responses/{first.id}/cancel", f"/v1/responses/{first.id}"):
        method = "POST" if path.endswith("cancel") else "DELETE"
        answers = [await server.client.request(method, path, headers={"Idempotency-Key": path}) for _ in range(2)]
        assert answers[0].status_code == 200
        assert answers[0].content == answers[1].content


# -- rights and errors ------------------------------------------------------------------------------------------------


async def test_a_token_for_named_sessions_gets_answers_that_are_not_stored() -> None:
    """It finds no response of others by an id that it knows."""
    async with (
        running_server(obedient, may_block=True) as server,
        guests(server, alice=[grant("/")], bob=[grant("/sessions/bobs")]) as who,
        speaking(server.url, _token(who["alice"])) as alice,
        speaking(server.url, _token(who["bob"])) as bob,
    ):
        theirs = await alice.responses.create(model="x", input="secret")
        free: Any = await bob.responses.create(model="x", input="one")
        assert (free.output_text, free.store) == ("one", False)
        with pytest.raises(openai.BadRequestError) as refused:
            await bob.responses.create(model="x", input="one", background=True)
        assert refused.value.param == "background"
        mine = await bob.responses.create(model="x", input="one", extra_headers={"X-CFS-Session": "bobs"})
        assert (await bob.responses.retrieve(mine.id)).output_text == "one"
        items: Any = [{"type": "item_reference", "id": theirs.output[0].id}, {"role": "user", "content": "one"}]
        for stored in (True, False):
            with pytest.raises(openai.NotFoundError, match="there is no item"):
                await bob.responses.create(model="x", input=items, store=stored)
        for call in (bob.responses.retrieve, bob.responses.cancel, bob.responses.delete):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                await call(theirs.id)
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            await bob.responses.create(model="x", input="x", previous_response_id=theirs.id)
        assert {session.account.owner for session in server.store} == {"alice", "bob"}


def _token(guest: Guest) -> str:
    return guest.client.headers["authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "assistant", "content": "a"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"conversation": "a", "previous_response_id": "b"}, "conversation"),
        ({"conversation": "a", "store": False}, "store"),
        ({"background": True, "store": False}, "store"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_name(
    server: ServerHarness, client: AsyncOpenAI, members: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="x", input="a", extra_body=members)
    assert (caught.value.param or "").split(".")[0] == param.split(".")[0]
    assert len(server.store) == 0


@pytest.mark.feature("openai", "responses", "error")
async def test_errors_are_those_of_the_client_and_store_nothing() -> None:
    """A body of 10 MB, thousands of tools, ids of nothing, a body that is cut, an engine that is busy or broken."""
    engine = ScriptedEngine(obedient)
    async with (
        running_server(engine=engine, may_block=True, max_body_bytes=3_000_000) as server,
        speaking(server.url) as client,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(model="x", input="x" * 10_000_000)
        assert (caught.value.status_code, caught.value.code) == (413, "too_large")
        for name in ("resp_x", f"resp_{'0' * 65}"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(name)
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="x", input="x", previous_response_id=name)
        engine.wait = 10_000.0
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="x", input="x")
        engine.wait = 0.0
        for body in (b"{", b"[]", b'{"input": "x"', b""):
            answer = await server.client.post(
                "/v1/responses", content=body, headers={"Content-Type": "application/json"}
            )
            assert (answer.status_code, "error" in answer.json()) == (400, True)
        assert len(server.store) == 0
        tools: Any = [WEATHER | {"name": f"weather_{number}"} for number in range(3000)]
        found = await client.responses.create(model="x", input="one", tools=tools, store=False)
        assert (found.output_text, len(found.tools)) == ("one", 3000)
        with pytest.raises(openai.InternalServerError, match="the engine broke"):
            await client.responses.create(model="x", input="break", store=False)
        assert len(server.store) == 0


async def test_a_branch_that_is_refused_leaves_no_copy() -> None:
    engine = ScriptedEngine(obedient)
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        first = await client.responses.create(model="x", input="one")
        await client.responses.create(model="x", input="two", previous_response_id=first.id)
        engine.wait = 10_000.0
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="x", input="other", previous_response_id=first.id)
        assert len(server.store) == 1


def test_responses_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    """They are the same by their ids, their streams have the same events, and their conversations go on."""
    with ExitStack() as stack:
        server = Restarting(tmp_path, stack)
        client = stack.enter_context(blocking(server.process.url))
        first: Any = client.responses.create(model="x", input="one two")
        stream: Any = client.responses.create(model="x", input="three", previous_response_id=first.id, stream=True)
        events = list(stream)
        server.kill()
        server.start()
        found: Any = client.responses.retrieve(first.id)
        assert (found.output, found.usage, found.created_at) == (first.output, first.usage, first.created_at)
        again: Any = client.responses.retrieve(events[-1].response.id, stream=True, starting_after=2)
        assert [event.type for event in again] == [event.type for event in events[3:]]
        items: Any = [{"role": "user", "content": "one two"}, {"id": first.output[0].id, "type": "item_reference"}]
        items += [{"role": "user", "content": "three"}, events[-1].response.output[0], {"role": "user", "content": "5"}]
        by_ids: Any = client.responses.create(model="x", input=items)
        assert (by_ids.output_text, recorded(by_ids)) == ("5", recorded(first))
        third: Any = client.responses.create(
            model="x", input="four", previous_response_id=events[-1].response.id, extra_headers={"X-CFS-Session": "new"}
        )
        assert third.cfs["session"] == "new"
        branch: Any = client.responses.create(model="x", input="five", previous_response_id=first.id)
        items = client.conversations.items.list(recorded(branch), order="asc").data
        assert len(items) == 4
