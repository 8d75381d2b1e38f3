"""Programs that speak to Ollama speak to this server: its protocol, by the official client (H8)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from ollama import AsyncClient, Client, ResponseError

from cfs.errors import EngineError
from cfs.wire import Message
from cfs_server.engine.contract.interface import GenerationRequest
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.protocols.ollama_context import read_context, write_context
from tests.filesystem.support import grant
from tests.protocols.scripts import COLOUR, PARAMETERS, obedient
from tests.server.guests import guests
from tests.server.support import ServerHarness, running_server, until

USER: Any = {"role": "user", "content": "one two three"}
ASK: Any = {"role": "user", "content": "what is the weather in Oslo"}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell it.", "parameters": PARAMETERS},
}


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


def speaking(url: str, **headers: str) -> AsyncClient:
    """Make the client. Proxies of the environment are not for it."""
    return AsyncClient(host=url, headers=headers, trust_env=False)


@pytest.fixture
async def client(server: ServerHarness) -> AsyncIterator[AsyncClient]:
    async with speaking(server.url) as here:
        yield here


async def asked(server: ServerHarness, **members: Any) -> list[Any]:
    """Send a chat without the official client, which would not send everything; read its lines."""
    answer = await server.client.post("/api/chat", json={"model": "x", "messages": [USER]} | members)
    return [json.loads(line) for line in answer.text.splitlines()]


# -- chats ------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("ollama", "/api/chat", "chat", "usage")
async def test_a_chat_has_all_members_of_the_protocol(client: AsyncClient) -> None:
    found = await client.chat(model="llama3", messages=[USER])
    assert (found.message.role, found.message.content, found.message.tool_calls) == ("assistant", "one two three", None)
    assert (found.model, found.done, found.done_reason) == ("scripted", True, "stop")
    assert (found.prompt_eval_count, found.eval_count, found.load_duration) == (3, 3, 0)
    assert (found.total_duration or 0) >= (found.eval_duration or 0) > 0
    assert (found.created_at or "").endswith("Z")


async def test_settings_and_messages_reach_the_engine(server: ServerHarness, client: AsyncClient) -> None:
    """Options that load a model are ignored, and calls get the ids that the protocol lacks."""
    call: Any = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    await client.chat(
        model="x",
        messages=[
            {"role": "system", "content": "Be brief."},
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [call, call], "thinking": "hm"},
            {"role": "tool", "tool_name": "weather", "content": "rain"},
            {"role": "tool", "tool_name": "weather", "content": "snow"},
        ],
        tools=[WEATHER],
        options={
            "temperature": 0.5, "num_predict": 7, "stop": ["END"], "seed": -1, "top_k": 5, "top_p": 0, "min_p": 0.1,
            "num_ctx": 4096, "repeat_penalty": 1.3, "repeat_last_n": -1, "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
        },
        keep_alive="5m",
    )  # fmt: skip
    (request,) = server.engine.requests
    said = [(message.role, message.content) for message in request.messages[2:]]
    assert said == [("assistant", ""), ("tool", "rain"), ("tool", "snow")]
    ids = [call.id for call in request.messages[2].tool_calls]
    assert ids == [message.tool_call_id for message in request.messages[3:]]
    assert len(set(ids)) == 2
    assert (request.messages[2].thinking, request.messages[3].name) == ("hm", "weather")
    settings = request.settings
    assert (settings.max_tokens, settings.temperature, settings.stop, settings.seed) == (7, 0.5, ("END",), 2**32 - 1)
    assert (settings.top_k, settings.top_p, settings.min_p) == (5, 1e-6, 0.1)
    assert (settings.repeat_penalty, settings.repeat_last_n) == (1.3, -1)
    assert (settings.presence_penalty, settings.frequency_penalty) == (0.5, 0.25)
    assert request.options.tools[0]["function"]["name"] == "weather"
    await client.chat(model="x", messages=[USER], options={"num_predict": -1, "repeat_penalty": 0})
    settings = server.engine.requests[1].settings
    assert (settings.max_tokens, settings.repeat_penalty) == (8192, 1)


@pytest.mark.feature("ollama", "/api/chat", "stream")
async def test_a_chat_streams_as_lines_of_json(server: ServerHarness, client: AsyncClient) -> None:
    parts = [part async for part in await client.chat(model="x", messages=[USER], stream=True)]
    assert "".join(part.message.content or "" for part in parts) == "one two three"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == "stop"
    answer = await server.client.post("/api/chat", json={"messages": [USER]})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert all(json.loads(line)["model"] == "scripted" for line in answer.text.splitlines())


@pytest.mark.feature("ollama", "/api/chat", "tools")
@pytest.mark.parametrize("streams", [True, False])
async def test_calls_of_tools_are_whole(server: ServerHarness, client: AsyncClient, streams: bool) -> None:
    """Arguments are an object; thinking has a place of its own."""
    if streams:
        parts = [part.message async for part in await client.chat("x", [ASK], tools=[WEATHER], stream=True)]
    else:
        parts = [(await client.chat("x", [ASK], tools=[WEATHER])).message]
    calls = [call.function for part in parts for call in part.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [("weather", {"city": "Oslo"})]
    assert "".join(part.thinking or "" for part in parts) == "hm"
    assert "".join(part.content or "" for part in parts) == "I look."
    hidden = await client.chat("x", [ASK], tools=[WEATHER], think=False)
    assert hidden.message.thinking is None


@pytest.mark.feature("ollama", "/api/chat", "schema", "stop")
async def test_a_reply_has_a_form_and_an_end(server: ServerHarness, client: AsyncClient) -> None:
    form: Any
    for form in (COLOUR, "json", ""):
        await client.chat(model="x", messages=[USER], format=form)
    assert [request.options.json_schema for request in server.engine.requests] == [COLOUR, {"type": "object"}, None]
    cut = await client.chat(model="x", messages=[USER], options={"num_predict": 2})
    assert (cut.message.content, cut.done_reason, cut.eval_count) == ("one two", "length", 2)
    stopped = await client.chat(model="x", messages=[{"role": "user", "content": "stop"}], options={"stop": ["END"]})
    assert (stopped.message.content, stopped.done_reason) == ("one", "stop")


async def test_log_probabilities(client: AsyncClient) -> None:
    found = await client.chat(model="x", messages=[USER], logprobs=True, top_logprobs=2)
    assert [token.token for token in found.logprobs or ()] == ["one", " two", " three"]


async def test_a_request_without_messages_loads_the_model(server: ServerHarness, client: AsyncClient) -> None:
    assert (await client.chat(model="x", messages=[])).done_reason == "load"
    assert (await client.generate(model="x", keep_alive=0)).done_reason == "unload"
    assert server.engine.requests == []


async def test_the_content_type_of_a_body_does_not_matter(server: ServerHarness) -> None:
    """As in Ollama's own examples with curl, which says that it sends a form."""
    body = json.dumps({"model": "x", "messages": [USER], "stream": False})
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = await server.client.post("/api/chat", content=body, headers=headers)
        assert answer.json()["message"]["content"] == "one two three"
    answer = await server.client.post("/api/chat", content="model=x")
    assert (answer.status_code, "no JSON" in answer.json()["error"]) == (400, True)


@pytest.mark.feature("ollama", "/api/chat", "cancel")
async def test_a_client_that_goes_away_ends_its_chat() -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        stream = await client.chat(model="x", messages=[USER], stream=True)
        engine.step(2)
        first: Any = await anext(stream)
        assert (first.message.content, server.parts.completions.running) == ("x", 1)
        await stream.aclose()
        await until(lambda: server.parts.completions.running == 0)
        waiting = asyncio.create_task(client.chat(model="x", messages=[USER]))
        await until(lambda: server.parts.completions.running == 1)
        waiting.cancel()
        await until(lambda: server.parts.completions.running == 0)
        await until(lambda: server.parts.streams.open == 0)


# -- generations ------------------------------------------------------------------------------------------------------


@pytest.mark.feature("ollama", "/api/generate", "chat", "usage", "resume")
async def test_a_context_continues_a_conversation(server: ServerHarness, client: AsyncClient) -> None:
    first = await client.generate(model="x", prompt="one two", system="Be brief.")
    assert (first.response, first.done_reason, first.prompt_eval_count) == ("one two", "stop", 4)
    second = await client.generate(model="x", prompt="more", context=first.context)
    told = [(message.role, message.content) for message in server.engine.requests[-1].messages]
    assert told == [("system", "Be brief."), ("user", "one two"), ("assistant", "one two"), ("user", "more")]
    await client.generate(model="x", prompt="again", context=second.context, system="Be kind.")
    told = [(message.role, message.content) for message in server.engine.requests[-1].messages]
    assert [content for role, content in told if role == "system"] == ["Be kind."]
    assert len(told) == 6


@pytest.mark.feature("ollama", "/api/generate", "stream", "schema")
async def test_a_generation_streams(server: ServerHarness, client: AsyncClient) -> None:
    parts = [part async for part in await client.generate(model="x", prompt="one two", stream=True)]
    assert "".join(part.response or "" for part in parts) == "one two"
    assert [bool(part.context) for part in parts] == [False] * (len(parts) - 1) + [True]
    await client.generate(model="x", prompt="one two", format=COLOUR)
    assert server.engine.requests[-1].options.json_schema == COLOUR


def test_a_context_is_read_as_it_was_written() -> None:
    said = (Message(role="user", content="é 深"), Message(role="assistant", content="x", thinking="y"))
    assert read_context(write_context(said)) == said


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.feature("ollama", "/api/chat", "resume")
async def test_a_session_records_a_chat_with_calls_that_have_no_ids(server: ServerHarness) -> None:
    """The ids are those that the session knows, so its history is not replaced."""
    async with speaking(server.url, **{"X-CFS-Session": "oslo"}) as client:
        first = await client.chat(model="x", messages=[ASK], tools=[WEATHER])
        result: Any = {"role": "tool", "tool_name": "weather", "content": "rain"}
        second = await client.chat(model="x", messages=[ASK, first.message, result], tools=[WEATHER])
        messages: Any = [ASK, first.message, result, second.message, USER]
        await client.chat(model="x", messages=messages, tools=[WEATHER])
    session = server.store.get("oslo")
    history = session.history.messages
    assert [message.role for message in history] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert history[2].tool_call_id == history[1].tool_calls[0].id
    events = session.log.since(0)
    assert isinstance(events, list)
    assert "history.replaced" not in {event.type for event in events}


@pytest.mark.feature("ollama", "/api/generate", "resume")
async def test_a_prompt_continues_a_session(server: ServerHarness) -> None:
    """Whoever wrote the messages before it."""
    await server.say("talk", "one", wait="true")
    async with speaking(server.url, **{"X-CFS-Session": "talk"}) as client:
        found = await client.generate(model="x", prompt="two", system="Be brief.")
        assert (found.response, found.context) == ("two", None)
    assert await server.text("talk") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    assert server.engine.requests[-1].settings.system == "Be brief."
    assert server.store.get("talk").settings.system is None


async def test_a_recorded_chat_goes_on_without_its_client_and_is_resumed_by_its_key(server: ServerHarness) -> None:
    server.engine.hold()
    headers = {"X-CFS-Session": "a", "Idempotency-Key": "k"}
    async with server.client.stream("POST", "/api/chat", json={"messages": [USER]}, headers=headers) as answer:
        server.engine.step()
        line = await anext(answer.aiter_lines())
    assert json.loads(line)["message"]["content"] == "one"
    server.engine.release()
    again = await server.client.post("/api/chat", json={"messages": [USER]}, headers=headers)
    lines = [json.loads(line) for line in again.text.splitlines()]
    assert "".join(each["message"]["content"] for each in lines) == "one two three"
    assert lines[-1]["cfs"]["session"] == "a"
    assert len(server.engine.requests) == 1


# -- models -----------------------------------------------------------------------------------------------------------


async def test_the_model_is_listed_and_described(server: ServerHarness, client: AsyncClient) -> None:
    (listed,) = (await client.list()).models
    (loaded,) = (await client.ps()).models
    assert listed.model == loaded.model == "scripted"
    for name in ("scripted", "scripted:latest", "llama3.2", "qwen3:8b"):  # the one model answers by any name
        shown = await client.show(name)
        assert (shown.modelinfo or {})["general.architecture"] == "unknown"
        assert "tools" in (shown.capabilities or [])
    assert (await server.client.post("/api/show", json={"name": "any"})).json()["model_info"] == shown.modelinfo
    assert (await server.client.get("/api/version")).json()["version"].count(".") == 2
    for path in ("/", "/api/tags", "/api/version"):  # Ollama's command looks whether a server is there
        assert (await server.client.head(path)).status_code == 200


async def test_what_only_ollama_can_do_is_refused(client: AsyncClient) -> None:
    for call in (client.pull("x"), client.push("x"), client.delete("x"), client.create("x", from_="y")):
        with pytest.raises(ResponseError, match="cfs model") as caught:
            await call
        assert caught.value.status_code == 501
    with pytest.raises(ResponseError, match="no embeddings"):
        await client.embed("x", "text")


# -- errors -----------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aaaa"]}]}, "pictures are not read here"),
    ("chat", {"messages": [{"role": "user", "content": "x", "images": {}}]}, "pictures are not read here"),
    ("chat", {"messages": [], "options": {"mirostat": 2}}, "mirostat"),
    ("chat", {"messages": [{"role": "wizard", "content": "x"}]}, "'system', 'user'"),
    ("chat", {"messages": "hello"}, "messages"),
    ("chat", {"options": {"repeat_penalty": -1}}, "repeat_penalty"),
    ("chat", {"options": {"presence_penalty": 3}}, "presence_penalty"),
    ("chat", {"options": {"mirostat": 2}}, "mirostat"),
    ("chat", {"options": {"temperature": "hot"}}, "temperature"),
    ("chat", {"options": {"stop": ["x" * 300]}}, "256 characters"),
    ("chat", {"format": "xml"}, "format"),
    ("chat", {"tools": [WEATHER, WEATHER]}, "two tools are called"),
    ("chat", {"top_logprobs": 3}, "logprobs"),
    ("generate", {"prompt": "x", "raw": True}, "raw"),
    ("generate", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("generate", {"prompt": "x", "template": "y"}, "template"),
    ("generate", {"prompt": "", "template": "y"}, "template"),
    ("generate", {"prompt": "", "raw": True}, "raw"),
    ("generate", {"prompt": "", "context": [1, 2, 3]}, "it is not the context"),
    ("generate", {"prompt": "x", "context": [1, 2, 3]}, "it is not the context"),
    ("generate", {"prompt": "x", "context": [1 << 30]}, "context"),
    ("generate", {"prompt": 5}, "prompt"),
]


@pytest.mark.parametrize(("route", "members", "reason"), REFUSED)
async def test_what_cannot_be_done_is_refused_in_the_shape_of_the_protocol(
    server: ServerHarness, route: str, members: dict[str, Any], reason: str
) -> None:
    body = {"model": "x", "messages": [USER]} | members
    answer = await server.client.post(f"/api/{route}", json=body, headers={"X-CFS-Session": "nothing"})
    assert answer.status_code == 400
    assert reason in answer.json()["error"]
    assert (server.engine.requests, len(server.store)) == ([], 0)


@pytest.mark.feature("ollama", "/api/chat", "error")
async def test_errors_become_exceptions_also_in_a_stream(client: AsyncClient) -> None:
    def breaking(_: GenerationRequest) -> Iterable[str]:
        yield "one"
        raise EngineError("the engine broke")

    with pytest.raises(ResponseError, match="prompt is too long") as caught:
        await client.chat(model="x", messages=[{"role": "user", "content": "too long"}])
    assert caught.value.status_code == 400
    async with running_server(breaking, may_block=True) as server, speaking(server.url) as other:
        with pytest.raises(ResponseError, match="the engine broke"):
            async for _ in await other.chat(model="x", messages=[USER], stream=True):
                pass


async def test_large_requests_are_refused_as_such() -> None:
    """A body of 10 MB, a long message, and thousands of tools, which are none too many."""
    async with running_server(obedient, may_block=True, max_body_bytes=3_000_000, max_message_bytes=1000) as server:
        async with speaking(server.url) as client:
            for content in ("x" * 10_000_000, "x" * 2000):
                with pytest.raises(ResponseError) as caught:
                    await client.chat(model="x", messages=[{"role": "user", "content": content}])
                assert caught.value.status_code == 413
            described: Any = [
                {"type": "function", "function": WEATHER["function"] | {"name": f"weather_{number}"}}
                for number in range(3000)
            ]
            assert (await client.chat(model="x", messages=[USER], tools=described)).message.content == "one two three"
        assert len(server.store) == 0


async def test_a_token_has_its_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads it from the environment."""
    async with running_server(obedient, may_block=True) as server, guests(server, bob=[grant("/sessions/bobs")]) as who:
        async with speaking(server.url) as nobody:
            with pytest.raises(ResponseError, match="token") as caught:
                await nobody.list()
            assert caught.value.status_code == 401
        token = who["bob"].client.headers["authorization"].removeprefix("Bearer ")
        monkeypatch.setenv("OLLAMA_API_KEY", token)
        async with speaking(server.url, **{"X-CFS-Session": "alices"}) as client:
            with pytest.raises(ResponseError) as caught:
                await client.chat(model="x", messages=[USER])
            assert caught.value.status_code == 404
        async with speaking(server.url, **{"X-CFS-Session": "bobs"}) as client:
            await client.chat(model="x", messages=[USER])
        assert server.store.get("bobs").account.owner == "bob"


async def test_the_client_without_coroutines(server: ServerHarness) -> None:
    def chat() -> str:
        with Client(host=server.url, trust_env=False) as client:
            return "".join(part.message.content or "" for part in client.chat("x", [USER], stream=True))

    assert await asyncio.to_thread(chat) == "one two three"
