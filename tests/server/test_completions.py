"""Programs that speak to OpenAI speak to this server: its protocol, by the official client (H4)."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from cfs.completions import ChatMessage
from cfs.errors import ContextTooLong, EngineError
from cfs.wire import Message
from cfs_server.completions.requests import DEFAULT_TOKENS, Conversations
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.engine.host.scripted import Script, ScriptedEngine
from tests.server.openai_client import READ, speaking
from tests.server.support import ServerHarness, running_server, until

USER: Any = {"role": "user", "content": "one two three"}
CALL = '<tool_call>{"name": "read_file", "arguments": {"path": "a", "count": 2}}</tool_call>'


def saying(*pieces: str | Delta) -> Script:
    """Make a script that says the same to all."""
    return lambda _: pieces


async def asked(server: ServerHarness, **members: Any) -> httpx.Response:
    """Send a request without the official client, which would not send everything."""
    return await server.client.post("/v1/chat/completions", json={"messages": [USER], **members})


# -- whole completions ------------------------------------------------------------------------------------------------


@pytest.mark.feature("openai", "chat completions", "chat", "usage")
async def test_a_completion_has_all_members_of_the_protocol(server: ServerHarness) -> None:
    async with speaking(server.url) as client:
        found = await client.chat.completions.create(model="gpt-whatever", messages=[USER])
    assert found.id.startswith("chatcmpl-")
    assert (found.object, found.model) == ("chat.completion", "scripted")
    assert found.created > 1_600_000_000
    choice = found.choices[0]
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == (
        "assistant",
        "one two three",
        None,
    )
    usage = found.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.feature("openai", "chat completions", "stop")
async def test_settings_messages_and_tools_reach_the_engine(server: ServerHarness) -> None:
    """Every member that is known has its effect; `developer` is the system, parts of text are joined."""
    async with speaking(server.url) as client:
        await client.chat.completions.create(
            model="x",
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
                    ],
                },
                {"role": "tool", "content": "found", "tool_call_id": "1"},
            ],
            temperature=0.5,
            top_p=0,
            max_completion_tokens=7,
            stop="END",
            seed=-1,
            tools=[READ],
            tool_choice="required",
            parallel_tool_calls=False,
            presence_penalty=0,
            frequency_penalty=0.5,
            logit_bias={"17": -100},
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}},
            user="the-account",
            extra_body={
                "top_k": -1,
                "min_p": 0.1,
                "nobody_knows": {"this": 1},
                "repeat_penalty": 1.1,
                "repeat_last_n": 9,
                "min_tokens": 3,
            },
        )
    (request,) = server.engine.requests
    roles = [(message.role, message.content) for message in request.messages]
    assert roles == [("system", "Be brief."), ("user", "ab"), ("assistant", ""), ("tool", "found")]
    assert request.messages[2].tool_calls[0].arguments == {"path": "a"}
    assert request.messages[3].tool_call_id == "1"
    settings = request.settings
    assert (settings.temperature, settings.max_tokens, settings.stop, settings.seed) == (0.5, 7, ("END",), 2**32 - 1)
    assert (settings.top_k, settings.min_p, settings.top_p) == (0, 0.1, 1e-6)
    assert (settings.presence_penalty, settings.frequency_penalty, settings.logit_bias) == (0, 0.5, {"17": -100})
    assert (settings.repeat_penalty, settings.repeat_last_n, settings.min_tokens) == (1.1, 9, 3)
    assert request.options == ReplyOptions({"type": "array"}, None, (READ,), "required", parallel_calls=False)
    assert (request.owner, request.account, request.kind) == ("local", "the-account", "agent")


async def test_a_reply_without_end_has_all_its_tokens(server: ServerHarness) -> None:
    """Load generators ask for replies of a given length by `ignore_eos`, in chats and in texts."""
    chat: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    async with speaking(server.url) as client:
        for ignores in (True, False):
            ignore = {"ignore_eos": ignores}
            await client.chat.completions.create(**chat, max_tokens=7, extra_body=ignore)
            await client.chat.completions.create(**chat, extra_body=ignore)
            await client.completions.create(model="scripted", prompt="hi", max_tokens=9, extra_body=ignore)
    assert [request.settings.min_tokens for request in server.engine.requests] == [7, DEFAULT_TOKENS, 9, 0, 0, 0]


async def test_one_named_tool_is_the_only_one(server: ServerHarness) -> None:
    """What the model must call is what it is told of."""
    other = {"type": "function", "function": {"name": "other"}}
    chosen = {"type": "function", "function": {"name": "read_file"}}
    answer = await asked(server, tools=[other, READ], tool_choice=chosen)
    assert answer.status_code == 200
    assert server.engine.requests[0].options == ReplyOptions(tools=(READ,), tool_choice="required")


async def test_a_message_that_only_calls_tools_has_no_content() -> None:
    """Arguments are JSON text, and each call has an id of its own."""
    async with running_server(saying("<think>so</think>", CALL, CALL)) as server, speaking(server.url) as client:
        found = await client.chat.completions.create(model="x", messages=[USER], tools=[READ])
        raw = (await asked(server, tools=[READ])).json()
    choice = found.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert raw["choices"][0]["message"]["content"] is None
    assert raw["choices"][0]["message"]["reasoning_content"] == "so"
    calls = choice.message.tool_calls or []
    functions = [call.function for call in calls if call.type == "function"]
    assert [(each.name, json.loads(each.arguments)) for each in functions] == [
        ("read_file", {"path": "a", "count": 2})
    ] * 2
    assert calls[0].id != calls[1].id


async def test_without_a_limit_a_reply_may_be_long() -> None:
    """Unlike in a session, whose replies have 512 tokens unless it says otherwise."""
    async with running_server(saying(*["x"] * 600)) as server:
        found = (await asked(server)).json()
        cut = (await asked(server, max_tokens=5)).json()
    assert (found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]) == (600, "stop")
    assert (cut["choices"][0]["message"]["content"], cut["choices"][0]["finish_reason"]) == ("xxxxx", "length")


async def test_a_conversation_keeps_its_key_and_others_have_their_own(server: ServerHarness) -> None:
    """What was computed for the first turn is there for the second."""
    later = [USER, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    for messages in ([USER], later, [{"role": "user", "content": "another"}]):
        await asked(server, messages=messages)
    first, second, other = (request.cache_key for request in server.engine.requests)
    assert first == second != other


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_says_role_then_text_then_the_reason() -> None:
    async with running_server(saying("one", " two")) as server, speaking(server.url) as client:
        stream = await client.chat.completions.create(model="x", messages=[USER], stream=True)
        chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == ["", "one", " two"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]


@pytest.mark.feature("openai", "chat completions", "stream", "usage")
async def test_a_stream_ends_with_the_usage_if_asked_and_with_done() -> None:
    async with running_server(saying("one", " two")) as server:
        answer = await asked(server, stream=True, stream_options={"include_usage": True})
        async with speaking(server.url) as client:
            stream = await client.chat.completions.create(
                model="x", messages=[USER], stream=True, stream_options={"include_usage": True}
            )
            last = [chunk async for chunk in stream][-1]
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[1].removeprefix("data: "))["usage"] is None
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 5


async def test_calls_stream_as_openai_sends_them() -> None:
    """Index, id, type and name first, with empty arguments; then the arguments piece by piece."""
    upstream = [
        Delta("", 1, thinking="hm"),
        Delta("Look. ", 1),
        Delta("", 1, calls=(CallDelta(0, "a1", "read_file", ""),)),
        Delta("", 1, calls=(CallDelta(0, arguments='{"path"'), CallDelta(0, arguments=': "a"}'))),
        Delta("", 1, calls=(CallDelta(1, "a2", "read_file", "{}"),)),
    ]
    async with running_server(saying(*upstream)) as server, speaking(server.url) as client:
        stream = await client.chat.completions.create(model="x", messages=[USER], tools=[READ], stream=True)
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in chunks]
    head = {"type": "function", "function": {"name": "read_file", "arguments": ""}}
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Look. "},
        {"tool_calls": [{"index": 0, "id": "a1", **head}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "a"}'}}]},
        {"tool_calls": [{"index": 1, "id": "a2", **head}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]  # fmt: skip


async def test_calls_of_a_model_are_read_while_they_stream() -> None:
    """The official client's own helper puts them together."""
    script = saying("I look. ", *CALL)
    async with (
        running_server(script) as server,
        speaking(server.url) as client,
        client.chat.completions.stream(model="x", messages=[USER], tools=[READ]) as stream,
    ):
        async for _ in stream:
            pass
        found = await stream.get_final_completion()
    message = found.choices[0].message
    assert (message.content, found.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"path": "a", "count": 2}


async def test_heartbeats_are_comments() -> None:
    """They keep the connection alive while the model reads, and no client minds them."""
    engine = ScriptedEngine(saying("late"))
    engine.hold()
    async with running_server(engine=engine, ping=0.01) as server, speaking(server.url) as client:
        request = server.client.build_request(
            "POST", "/v1/chat/completions", json={"messages": [USER], "stream": True, "model": "x"}
        )
        answer = await server.client.send(request, stream=True)
        pieces = answer.aiter_bytes()
        text = b""
        while b": ping" not in text:
            text += await anext(pieces)
        engine.release()
        async for piece in pieces:
            text += piece
        stream = await client.chat.completions.create(model="x", messages=[USER], stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "late"
    assert text.endswith(b"data: [DONE]\n\n")


async def test_the_longest_life_of_streams_is_not_for_completions() -> None:
    """It could not be resumed."""
    engine = ScriptedEngine(saying("late"))
    engine.hold()
    async with running_server(engine=engine, stream_seconds=0.01, ping=0.01) as server:
        body = {"messages": [USER], "stream": True}
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.aiter_bytes()
            text = b""
            while text.count(b": ping") < 5:
                text += await anext(pieces)
            engine.release()
            async for piece in pieces:
                text += piece
    assert text.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_goes_away_ends_its_completion() -> None:
    """In the middle of a stream, before it, and while it waits for the whole: nothing is computed in vain."""
    engine = ScriptedEngine(saying(*["x"] * 1000))
    engine.hold()
    async with running_server(engine=engine) as server:
        async with server.client.stream(
            "POST", "/v1/chat/completions", json={"messages": [USER], "stream": True}
        ) as answer:
            engine.step(2)
            await anext(answer.aiter_bytes())
            assert server.parts.completions.running == 1
        await until(lambda: server.parts.completions.running == 0)
        for stream in (True, False):
            waiting = asyncio.create_task(asked(server, stream=stream))
            await until(lambda: server.parts.completions.running == 1)
            waiting.cancel()
            await until(lambda: server.parts.completions.running == 0)
        await until(lambda: server.parts.streams.open == 0)
        assert (await engine.stats()).running == 0


# -- errors -----------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages.0.content", "only parts of the type 'text'"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "'developer'"),
    ({"n": 2}, "n", "one completion"),
    ({"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "greater than or equal to -2"),
    ({"repeat_penalty": 0}, "repeat_penalty", "greater than 0"),
    ({"repeat_last_n": -2}, "repeat_last_n", "greater than or equal to -1"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "less than or equal to 100"),
    ({"logit_bias": {"the": 5}}, "logit_bias.the.[key]", "'the' is no number of a token"),
    ({"logit_bias": [[1, 5]]}, "logit_bias", "an object"),
    ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
    ({"min_tokens": 8, "max_tokens": 7}, "min_tokens", "more than the 7 tokens"),
    ({"top_logprobs": 3}, "top_logprobs", "`logprobs`"),
    ({"functions": [{"name": "x"}]}, "functions", "`tools`"),
    ({"temperature": 9}, "temperature", "less than or equal to 5"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": [READ], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "no tool 'x'"),
    ({"tools": [READ, READ]}, "tools", "two tools are called 'read_file'"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"stop": ["x" * 300]}, "stop", "256 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "param", "reason"), REFUSED)
async def test_what_cannot_be_done_is_refused(
    server: ServerHarness, members: dict[str, Any], param: str | None, reason: str
) -> None:
    """As a bad request that names the member, and says what to do."""
    body: dict[str, Any] = {"model": "x", "messages": [USER]} | members
    async with speaking(server.url) as client:
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await client.post("/chat/completions", body=body, cast_to=object)
    assert (caught.value.param, caught.value.code) == (param, "invalid_parameters")
    assert caught.value.response.headers["content-type"] == "application/problem+json"
    assert server.engine.requests == []


@pytest.mark.feature("openai", "chat completions", "error")
async def test_errors_become_the_right_exceptions() -> None:
    """Also those that no route of ours has seen."""

    def failing(request: GenerationRequest) -> Iterable[str]:
        raise {"long": ContextTooLong("the prompt is too long"), "bad": EngineError("it broke")}[
            request.messages[-1].content
        ]

    async def ask(client: AsyncOpenAI, content: str) -> None:
        await client.chat.completions.create(model="x", messages=[{"role": "user", "content": content}])

    async with (
        running_server(failing, max_message_bytes=1000, max_body_bytes=3000) as server,
        speaking(server.url) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="the prompt is too long") as long:
            await ask(client, "long")
        assert (long.value.code, long.value.type) == ("context_length_exceeded", "invalid_request_error")
        with pytest.raises(openai.InternalServerError, match="it broke") as broken:
            await ask(client, "bad")
        assert broken.value.type == "server_error"
        for size in (2000, 4000):  # a message, a body
            with pytest.raises(openai.APIStatusError) as large:
                await ask(client, "x" * size)
            assert (large.value.status_code, large.value.code) == (413, "too_large")
        with pytest.raises(openai.NotFoundError, match="there is 'scripted'") as unknown:
            await client.models.retrieve("gpt-whatever")
        assert unknown.value.code == "model_not_found"
        server.engine.wait = 1000.0
        with pytest.raises(openai.RateLimitError, match="about 1000 seconds") as busy:
            await ask(client, "x")
        assert busy.value.response.headers["retry-after"] == "700"
        server.engine.wait = 0.0
        await server.parts.completions.drain(0)
        with pytest.raises(openai.InternalServerError, match="shutting down") as ending:
            await ask(client, "x")
        assert ending.value.status_code == 503


async def test_an_error_before_the_first_piece_of_a_stream_has_a_status() -> None:
    def failing(_: GenerationRequest) -> Iterable[str]:
        raise ContextTooLong("the prompt is too long")

    async with running_server(failing) as server, speaking(server.url) as client:
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.chat.completions.create(model="x", messages=[USER], stream=True)
        await until(lambda: server.parts.streams.open == 0)


async def test_an_error_in_the_middle_of_a_stream_is_its_last_line() -> None:
    def failing(_: GenerationRequest) -> Iterable[str]:
        yield "one"
        raise EngineError("it broke")

    async with running_server(failing) as server, speaking(server.url) as client:
        said = []

        async def listen() -> None:
            stream = await client.chat.completions.create(model="x", messages=[USER], stream=True)
            async for chunk in stream:
                said.append(chunk.choices[0].delta.content)  # noqa: PERF401 - it is to end in the middle

        with pytest.raises(openai.APIError, match="it broke"):
            await listen()
        raw = (await asked(server, stream=True)).text
    assert said == ["", "one"]
    last = json.loads(raw.splitlines()[-2].removeprefix("data: "))
    assert (last["type"], last["error"]["message"]) == ("urn:cfs:error:engine-error", "it broke")


async def test_a_completion_that_takes_too_long_fails() -> None:
    engine = ScriptedEngine(saying("one"))
    engine.hold()
    async with running_server(engine=engine, turn_seconds=0.05) as server:
        answer = await asked(server)
    assert (answer.status_code, answer.json()["detail"]) == (502, "the turn took longer than 0.05 seconds")


@pytest.mark.parametrize(("grace", "status", "reason"), [(30.0, 200, None), (0.0, 503, "the server is shutting down")])
async def test_a_server_that_ends_lets_completions_finish_for_a_while(
    grace: float, status: int, reason: str | None
) -> None:
    engine = ScriptedEngine(saying("one"))
    engine.hold()
    async with running_server(engine=engine) as server:
        waiting = asyncio.create_task(asked(server))
        await until(lambda: server.parts.completions.running == 1)
        draining = asyncio.create_task(server.parts.completions.drain(grace))
        if grace:
            engine.release()
        answer, _ = await asyncio.gather(waiting, draining)
    assert (answer.status_code, answer.json().get("detail")) == (status, reason)


async def test_streams_are_limited_and_a_refused_one_leaves_nothing() -> None:
    engine = ScriptedEngine(saying("one"))
    engine.hold()
    async with running_server(engine=engine, max_streams=1) as server:
        body = {"messages": [USER], "stream": True}
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as first:
            assert first.status_code == 200
            second = await asked(server, stream=True)
            assert (second.status_code, second.json()["error"]["type"]) == (429, "rate_limit_error")
            await until(lambda: server.parts.completions.running == 1)
        await until(lambda: server.parts.completions.running == 0)


# -- models and tokens ------------------------------------------------------------------------------------------------


async def test_models_are_listed(server: ServerHarness) -> None:
    async with speaking(server.url) as client:
        (model,) = [each async for each in client.models.list()]
        assert await client.models.retrieve(model.id) == model
    assert (model.id, model.object, model.owned_by) == ("scripted", "model", "cfs")
    assert model.model_dump()["max_model_len"] == 2048


async def test_tokens_are_guessed_where_there_is_no_tokenizer(server: ServerHarness) -> None:
    answer = await server.client.post("/v1/tokens", json={"texts": ["", "four letters", "你好"], "messages": [USER]})
    assert answer.status_code == 200
    found = answer.json()
    assert (found["counts"], found["exact"]) == ([0, 4, 2], False)
    assert found["prompt_tokens"] > 3


async def test_no_more_is_counted_than_one_message_may_have(server: ServerHarness) -> None:
    for body in ({"texts": ["a"] * 10_001}, {"texts": ["x" * 3_000_000] * 2}):
        answer = await server.client.post("/v1/tokens", json=body)
        assert answer.status_code == 413
        assert "counted at a time" in answer.json()["detail"]


def test_the_oldest_conversations_are_forgotten() -> None:
    """An engine keeps nothing for ever, and no owner shares a key with another."""
    forgotten: list[str] = []
    known = Conversations(forgotten.append, limit=2)

    def key(owner: str, *contents: str) -> str:
        return known.key(owner, [Message(role="user", content=content) for content in contents])

    first = key("a", "x")
    assert (key("a", "x", "more"), key("b", "x") != first, forgotten) == (first, True, [])
    key("a", "y")
    assert (forgotten, len(known)) == ([first], 2)


def test_a_turn_with_other_tools_is_another_conversation() -> None:
    """Its prompt begins otherwise, so it must not take the place of what is computed."""
    known, messages = Conversations(lambda _: None), [Message(role="user", content="x")]
    keys = [known.key("a", messages, tools) for tools in ((), ({"name": "a"},), ({"name": "a"}, {"name": "b"}))]
    assert len(set(keys)) == 3
    assert known.key("a", [*messages, Message(role="assistant", content="y")], ({"name": "a"},)) == keys[1]


def test_a_message_is_the_same_in_both_forms() -> None:
    """Nothing is lost between the protocol's words and a session's, arguments that are no JSON included."""
    said: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"b": 1}'}},
            {"id": "2", "type": "function", "function": {"name": "a", "arguments": "{cut off"}},
            {"id": "3", "type": "function", "function": {"name": "a", "arguments": "[1]"}},
            {"id": "4", "type": "function", "function": {"name": "a", "arguments": '{"c": "\\ud800"}'}},
        ],
    }
    message = ChatMessage.model_validate(said).message()
    assert isinstance(message, Message)
    assert [call.arguments for call in message.tool_calls] == [
        {"b": 1},
        {"_unreadable": "{cut off"},
        {"_unreadable": "[1]"},
        {"_unreadable": '{"c": "\\ud800"}'},
    ]
    assert json.loads(ChatMessage.of(message).model_dump_json(exclude_none=True)) == said
