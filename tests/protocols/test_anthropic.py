"""Programs that speak to Anthropic speak to this server: its protocol, by the official client (H8)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from cfs_server.engine.host.scripted import ScriptedEngine
from tests.filesystem.support import grant
from tests.protocols.scripts import COLOUR, PARAMETERS, obedient
from tests.server.guests import guests
from tests.server.support import ServerHarness, running_server, until

USER: Any = {"role": "user", "content": "one two three"}
WEATHER: Any = {"name": "weather", "description": "Tell the weather.", "input_schema": PARAMETERS}
ASK: Any = {"role": "user", "content": "what is the weather in Oslo"}


class Colour(BaseModel):
    """A form for replies."""

    colour: str


@asynccontextmanager
async def speaking(url: str, key: str = "any", **options: Any) -> AsyncIterator[AsyncAnthropic]:
    """Open the client; it does not retry by default."""
    options = {"max_retries": 0, "timeout": 60} | options
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False, verify=False)
    async with AsyncAnthropic(base_url=url, api_key=key, http_client=http, **options) as client:
        yield client


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.fixture
async def client(server: ServerHarness) -> AsyncIterator[AsyncAnthropic]:
    async with speaking(server.url) as here:
        yield here


# -- whole messages ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("anthropic", "messages", "chat", "usage")
async def test_a_message_has_all_members_of_the_protocol(client: AsyncAnthropic) -> None:
    found = await client.messages.create(model="claude-whatever", max_tokens=100, messages=[USER])
    assert found.id.startswith("msg_")
    assert (found.type, found.role, found.model) == ("message", "assistant", "scripted")
    (block,) = found.content
    assert block.type == "text"
    assert block.text == "one two three"
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    usage = found.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (3, 3, 0)
    assert found._request_id


async def test_settings_messages_and_tools_reach_the_engine(server: ServerHarness, client: AsyncAnthropic) -> None:
    """Each member has its effect; results of tools become messages of their own."""
    await client.messages.create(
        model="x",
        max_tokens=7,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "any"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Oslo"}},
                    {"type": "tool_use", "id": "2", "name": "weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "2", "content": "no city", "is_error": True},
                    {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ],
        stop_sequences=["END"],
        tools=[WEATHER],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        metadata={"user_id": "the-account"},
        service_tier="auto",
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5},
    )
    (request,) = server.engine.requests
    said = [(message.role, message.content) for message in request.messages]
    assert said == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "a\n\nb"),
        ("assistant", "I look."),
        ("tool", "rain"),
        ("tool", "Error: no city"),
        ("user", "go on"),
    ]
    assert [call.id for call in request.messages[2].tool_calls] == ["1", "2"]
    assert request.messages[2].thinking == "hm"
    assert [message.tool_call_id for message in request.messages[3:5]] == ["1", "2"]
    settings = request.settings
    assert (settings.max_tokens, settings.temperature, settings.top_p, settings.top_k) == (7, 0.5, 0.9, 5)
    assert settings.stop == ("END",)
    function = {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS}
    assert request.options.tools == ({"type": "function", "function": function},)
    assert (request.options.tool_choice, request.options.parallel_calls) == ("auto", False)
    assert request.account == "the-account"


@pytest.mark.feature("anthropic", "messages", "tools")
async def test_a_call_and_its_result(server: ServerHarness, client: AsyncAnthropic) -> None:
    """The reply of the model is sent back as it came, with the result of its call."""
    first = await client.messages.create(model="x", max_tokens=99, messages=[ASK], tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    thinking, text, call = first.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("hm", True)
    assert (text.type, call.type) == ("text", "tool_use")
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("weather", {"city": "Oslo"})
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}
    messages: Any = [ASK, first.to_param(), result]
    second = await client.messages.create(model="x", max_tokens=99, messages=messages, tools=[WEATHER])
    assert second.content[0].type == "text"
    assert second.content[0].text == "rain"
    said = server.engine.requests[-1].messages
    assert said[1].tool_calls[0].id == said[2].tool_call_id == call.id


@pytest.mark.feature("anthropic", "messages", "forced tool")
async def test_a_tool_can_be_forced_or_forbidden(server: ServerHarness, client: AsyncAnthropic) -> None:
    other: Any = {"name": "other", "input_schema": {"type": "object"}}
    tools: Any = [other, WEATHER]
    choices: Any = [{"type": "tool", "name": "weather"}, {"type": "any"}, {"type": "none"}]
    for choice in choices:
        await client.messages.create(model="x", max_tokens=99, messages=[USER], tools=tools, tool_choice=choice)
    told = [(len(request.options.tools), request.options.tool_choice) for request in server.engine.requests]
    assert told == [(1, "required"), (2, "required"), (2, "none")]
    assert server.engine.requests[0].options.tools[0]["function"]["name"] == "weather"


@pytest.mark.feature("anthropic", "messages", "schema")
async def test_a_reply_can_have_a_form(server: ServerHarness, client: AsyncAnthropic) -> None:
    """By a class of the program, and by a schema."""
    found = await client.messages.parse(model="x", max_tokens=99, messages=[USER], output_format=Colour)
    assert found.parsed_output == Colour(colour="red")
    schema = server.engine.requests[0].options.json_schema
    assert schema is not None
    assert schema["required"] == ["colour"]
    await client.messages.create(
        model="x",
        max_tokens=99,
        messages=[USER],
        output_config={"format": {"type": "json_schema", "schema": COLOUR}, "effort": "low"},
    )
    assert server.engine.requests[1].options.json_schema == COLOUR


@pytest.mark.feature("anthropic", "messages", "stop")
async def test_it_is_told_why_a_reply_ended(client: AsyncAnthropic) -> None:
    stop: Any = {"role": "user", "content": "stop"}
    found = await client.messages.create(model="x", max_tokens=9, messages=[stop], stop_sequences=["END"])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "END")
    found = await client.messages.create(model="x", max_tokens=2, messages=[USER])
    assert (found.stop_reason, found.stop_sequence) == ("max_tokens", None)


async def test_thinking_can_be_hidden(client: AsyncAnthropic) -> None:
    found = await client.messages.create(
        model="x", max_tokens=9, messages=[ASK], tools=[WEATHER], thinking={"type": "disabled"}
    )
    assert [block.type for block in found.content] == ["text", "tool_use"]


async def test_tokens_are_counted_and_nothing_is_generated(server: ServerHarness, client: AsyncAnthropic) -> None:
    short = await client.messages.count_tokens(model="x", messages=[USER])
    long = await client.messages.count_tokens(model="x", messages=[USER], system="Be brief.", tools=[WEATHER])
    assert 0 < short.input_tokens < long.input_tokens
    assert server.engine.requests == []


async def test_models_are_listed_in_the_form_of_the_protocol(client: AsyncAnthropic) -> None:
    found = [model async for model in client.models.list()]
    assert [(model.id, model.type, model.display_name, model.lifecycle) for model in found] == [
        ("scripted", "model", "scripted", "active")
    ]
    assert (await client.models.retrieve("scripted")).created_at == found[0].created_at
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("other")


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("anthropic", "messages", "stream")
async def test_a_stream_has_the_events_of_the_protocol_in_their_order(client: AsyncAnthropic) -> None:
    """The client's own helper puts them together."""
    async with client.messages.stream(model="x", max_tokens=99, messages=[ASK], tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        found = await stream.get_final_message()
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    sent = [kind for kind in kinds if kind in (*block, "message_start", "message_delta", "message_stop")]
    assert sent[0] == "message_start"
    assert sent[-2:] == ["message_delta", "message_stop"]
    assert [kind for kind in sent if kind != "content_block_delta"][1:-2] == [block[0], block[2]] * 3
    assert [each.type for each in found.content] == ["thinking", "text", "tool_use"]
    assert (found.stop_reason, found.usage.output_tokens, found.usage.input_tokens) == ("tool_use", 3, 6)


async def test_the_raw_stream_is_as_documented(server: ServerHarness) -> None:
    """The name of each event is the type of its data, and a ping follows the start."""
    body = {"messages": [USER], "max_tokens": 9, "stream": True}
    answer = await server.client.post("/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in events]
    assert [event["type"] for event in events[:3]] == ["message_start", "ping", "content_block_start"]
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(texts) == "one two three"
    assert {event["index"] for event in events if "index" in event} == {0}


async def test_calls_stream_in_blocks_of_their_own() -> None:
    pieces = [
        Delta("Look. ", 1),
        Delta("", 1, calls=(CallDelta(0, "a1", "weather", ""),)),
        Delta("", 1, calls=(CallDelta(0, arguments='{"city"'), CallDelta(0, arguments=': "Oslo"}'))),
        Delta("", 1, calls=(CallDelta(1, "a2", "weather", ""),)),
        Delta("So.", 1),
    ]
    async with (
        running_server(lambda _: pieces, may_block=True) as server,
        speaking(server.url) as client,
        client.messages.stream(model="x", max_tokens=99, messages=[ASK], tools=[WEATHER]) as stream,
    ):
        found = await stream.get_final_message()
    kinds = [block.type for block in found.content]
    assert kinds == ["text", "tool_use", "tool_use", "text"]
    calls = [(block.id, block.input) for block in found.content if block.type == "tool_use"]
    assert calls == [("a1", {"city": "Oslo"}), ("a2", {})]


@pytest.mark.feature("anthropic", "messages", "cancel")
async def test_a_client_that_goes_away_ends_its_message() -> None:
    """In the middle of a stream, and while it waits for the whole."""
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        asked: Any = {"model": "x", "max_tokens": 5000, "messages": [USER]}
        stream = await client.messages.create(**asked, stream=True)
        engine.step(2)
        async for event in stream:
            if event.type == "content_block_delta":
                break
        assert server.parts.completions.running == 1
        await stream.close()
        await until(lambda: server.parts.completions.running == 0)
        waiting = asyncio.create_task(client.messages.create(**asked))
        await until(lambda: server.parts.completions.running == 1)
        waiting.cancel()
        await until(lambda: server.parts.completions.running == 0)
        await until(lambda: server.parts.streams.open == 0)


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.feature("anthropic", "messages", "resume")
async def test_a_session_records_the_conversation(server: ServerHarness, client: AsyncAnthropic) -> None:
    """Turn by turn, with calls of tools; the history that the program sends is the one that the session has."""
    options: Any = {"model": "x", "max_tokens": 99, "tools": [WEATHER], "extra_headers": {"X-CFS-Session": "oslo"}}
    first = await client.messages.create(messages=[ASK], **options)
    (call,) = (block for block in first.content if block.type == "tool_use")
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}
    await client.messages.create(messages=[ASK, first.to_param(), result], **options)
    session = server.store.get("oslo")
    assert [message.role for message in session.history.messages] == ["user", "assistant", "tool", "assistant"]
    events = session.log.since(0)
    assert isinstance(events, list)
    assert "history.replaced" not in {event.type for event in events}
    extra: Any = first.model_extra
    assert (extra["cfs"]["session"], extra["cfs"]["finish_reason"]) == ("oslo", "tool_calls")


async def test_a_recorded_message_goes_on_without_its_client_and_is_resumed_by_its_key(server: ServerHarness) -> None:
    server.engine.hold()
    headers = {"X-CFS-Session": "a", "Idempotency-Key": "k"}
    body = {"messages": [USER], "max_tokens": 9, "stream": True}
    async with server.client.stream("POST", "/v1/messages", json=body, headers=headers) as answer:
        server.engine.step()
        async for line in answer.aiter_lines():
            if "one" in line:
                break
    assert (await server.client.get("/v1/sessions/a")).json()["partial"] == "one"
    server.engine.release()
    again = await server.client.post("/v1/messages", json=body, headers=headers)
    assert "".join(_texts(again.text)) == "one two three"
    assert len(server.engine.requests) == 1
    assert await server.text("a") == "User: one two three\nAssistant: one two three\n"


def _texts(stream: str) -> list[str]:
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    return [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]


# -- what clients send by default -------------------------------------------------------------------------------------

CODING_AGENT: dict[str, Any] = {
    "betas": ["claude-code-20250219", "context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
    "system": [{"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "tools": [WEATHER | {"cache_control": {"type": "ephemeral"}, "defer_loading": False, "strict": True}],
    "metadata": {"user_id": "user_1_account__session_1"},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 9000}},
}
"""What a coding agent adds to its requests, with the betas that its headers name."""
EMPTY: dict[str, Any] = {"mcp_servers": [], "container": None, "compaction": None, "thread": None}
NEW: dict[str, Any] = {"service_tier": "auto", "speed": "fast", "nobody_knows": {"deep": [1]}, "cache_control": {}}


@pytest.mark.parametrize("extra", [{}, EMPTY, NEW], ids=["plain", "empty", "new"])
async def test_what_a_coding_agent_sends_is_answered_and_counted(
    server: ServerHarness, client: AsyncAnthropic, extra: dict[str, Any]
) -> None:
    said: Any = [{"role": "user", "content": [{"type": "text", "text": "one two", "cache_control": {"type": "x"}}]}]
    async with client.beta.messages.stream(
        model="x", max_tokens=9, messages=said, extra_body=extra, **CODING_AGENT
    ) as stream:
        assert (await stream.get_final_message()).stop_reason == "end_turn"
    (request,) = server.engine.requests
    assert [message.content for message in request.messages] == ["You code.", "one two"]
    assert request.account == "user_1_account__session_1"
    members = {name: value for name, value in CODING_AGENT.items() if name != "metadata"}
    counted = await client.beta.messages.count_tokens(model="x", messages=said, extra_body=extra, **members)
    assert counted.input_tokens > 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_tool_runner_goes_on_without_a_thread(server: ServerHarness, stream: bool) -> None:
    """It asks for one, is told that there is none, and sends the whole conversation from then on."""

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"sunny in {city}"

    async with speaking(server.url, default_headers={"X-CFS-Session": "run"}) as client:
        runner = client.beta.messages.tool_runner(
            model="x", max_tokens=99, tools=[weather], messages=[ASK], stream=stream
        )
        last = await runner.until_done()
    assert last.content[0].text == "sunny in Oslo"
    assert [len(request.messages) for request in server.engine.requests] == [1, 3]
    assert len(server.store.get("run").history) == 4


# -- errors -----------------------------------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "at least 1 item"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "blocks of the type 'image' are not read here"),
    ({"messages": [{"role": "user", "content": [{"type": {"a": 1}}]}]}, "are not read here"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "'document'"),
    ({"messages": [{"role": "user", "content": []}]}, "must not be empty"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "'user', 'assistant'"),
    ({"messages": [USER, {"role": "assistant", "content": "The"}]}, "the last message is the user's"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "x", "input": {}}]}]},
     "has no blocks of the type 'tool_use'"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"temperature": 9}, "temperature"),
    ({"top_k": "many"}, "top_k"),
    ({"mcp_servers": [{"type": "url", "name": "x", "url": "http://x"}]}, "mcp_servers: only the service"),
    ({"container": {"skills": [{"type": "anthropic", "skill_id": "pdf"}]}}, "container: there are no containers"),
    ({"compaction": {"type": "compaction"}}, "compaction: conversations are summarized"),
    ({"thread": {"type": "create"}}, "thread: conversations are not held here"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "belongs to the service of"),
    ({"tools": [WEATHER, WEATHER]}, "two tools are called 'weather'"),
    ({"tool_choice": {"type": "any"}}, "there are no tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "there is no tool 'x'"),
    ({"stop_sequences": ["x" * 300]}, "256 characters"),
    ({"output_config": {"format": {"type": "xml"}}}, "json_schema"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "reason"), REFUSED)
async def test_what_cannot_be_done_is_refused_in_the_shape_of_the_protocol(
    server: ServerHarness, client: AsyncAnthropic, members: dict[str, Any], reason: str
) -> None:
    body = {"model": "x", "max_tokens": 9, "messages": [USER]} | members
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.post("/v1/messages", body=body, cast_to=object, options={"headers": {"X-CFS-Session": "nothing"}})
    said: Any = caught.value.body
    assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")
    assert reason in said["error"]["message"]
    assert (server.engine.requests, len(server.store)) == ([], 0)


@pytest.mark.feature("anthropic", "messages", "error")
async def test_errors_become_the_right_exceptions(client: AsyncAnthropic) -> None:
    async def ask(content: str) -> None:
        await client.messages.create(model="x", max_tokens=9, messages=[{"role": "user", "content": content}])

    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await ask("too long")
    with pytest.raises(anthropic.InternalServerError) as caught:
        await ask("break")
    assert (caught.value.type, caught.value.request_id is not None) == ("api_error", True)
    with pytest.raises(anthropic.NotFoundError):
        await client.post("/v1/messages/batches", cast_to=object)


async def test_an_error_in_a_stream_is_an_event() -> None:
    def breaking(_: GenerationRequest) -> Iterable[str]:
        yield "one"
        raise EngineError("the engine broke")

    async with running_server(breaking, may_block=True) as server, speaking(server.url) as client:
        stream = await client.messages.create(model="x", max_tokens=9, messages=[USER], stream=True)
        with pytest.raises(anthropic.APIStatusError, match="the engine broke") as caught:
            async for _ in stream:
                pass
    assert caught.value.type == "api_error"


@pytest.mark.parametrize(("status", "kind"), [(401, "authentication_error"), (404, "not_found_error")])
async def test_a_key_is_a_token_and_has_its_rights(status: int, kind: str) -> None:
    """In `X-Api-Key`, as the client sends it; a token that may not write to a session learns nothing of it."""
    async with running_server(obedient, may_block=True) as server, guests(server, bob=[grant("/sessions/bobs")]) as who:
        token = who["bob"].client.headers["authorization"].removeprefix("Bearer ")
        wrong = status == 401
        async with speaking(server.url, "wrong" if wrong else token) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(
                    model="x", max_tokens=9, messages=[USER], extra_headers={"X-CFS-Session": "alices"}
                )
            said: Any = caught.value.body
            assert (caught.value.status_code, said["error"]["type"]) == (status, kind)
            if not wrong:
                named = {"X-CFS-Session": "bobs"}
                await client.messages.create(model="x", max_tokens=9, messages=[USER], extra_headers=named)
                assert server.store.get("bobs").account.owner == "bob"


async def test_large_requests_are_refused_as_such() -> None:
    """A body of 10 MB, a long message, and thousands of tools."""
    async with running_server(obedient, may_block=True, max_body_bytes=3_000_000, max_message_bytes=1000) as server:
        async with speaking(server.url) as client:
            for content in ("x" * 10_000_000, "x" * 2000):
                with pytest.raises(anthropic.RequestTooLargeError) as caught:
                    await client.messages.create(
                        model="x", max_tokens=9, messages=[{"role": "user", "content": content}]
                    )
                said: Any = caught.value.body
                assert said["error"]["type"] == "request_too_large"
            tools: Any = [WEATHER | {"name": f"weather_{number}"} for number in range(3000)]
            found = await client.messages.create(model="x", max_tokens=9, messages=[USER], tools=tools)
            assert found.content[0].type == "text"
            assert len(server.engine.requests[-1].options.tools) == 3000
        assert len(server.store) == 0


async def test_too_many_requests_and_a_busy_server_are_told_apart() -> None:
    engine = ScriptedEngine(obedient)
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        engine.wait = 10_000.0
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(model="x", max_tokens=9, messages=[USER])
        assert (caught.value.type, "retry-after" in caught.value.response.headers) == ("rate_limit_error", True)
        engine.wait = 0.0
        await server.parts.completions.drain(0)
        with pytest.raises(anthropic.APIStatusError) as refused:
            await client.messages.create(model="x", max_tokens=9, messages=[USER])
        assert refused.value.type == "overloaded_error"
