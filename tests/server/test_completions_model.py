"""The official client, a real server, a real worker and the embedded model (H4)."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from cfs import AsyncSession
from cfs.api import complete, complete_in_chunks, count_tokens, models
from cfs.completions import ChatMessage, ChatRequest, CompletionAccumulator, TokensRequest
from cfs.errors import InvalidParameters
from cfs.transports.async_http import AsyncClient
from cfs.transports.http import Client
from tests.server.openai_client import READ, blocking, speaking
from tests.server.support import Process

WRITE: Any = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
}
ASK: Any = [{"role": "user", "content": "Write 'hello' to the file notes.txt."}]
GREEDY: Any = {"model": "x", "temperature": 0, "max_tokens": 80}


async def test_the_official_client_talks_to_the_model(model_server: Process) -> None:
    """The second turn needs nothing again that the first has computed."""
    async with speaking(model_server.url) as client:
        messages: list[Any] = [{"role": "user", "content": "My name is Alice."}]
        first = await client.chat.completions.create(messages=messages, **GREEDY)
        assert first.model == "cfs-demo"
        assert first.choices[0].message.content
        messages += [first.choices[0].message.to_dict(), {"role": "user", "content": "What is my name?"}]
        second = await client.chat.completions.create(messages=messages, **GREEDY)
    assert "Alice" in (second.choices[0].message.content or "")
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert first.usage.prompt_tokens <= cached < second.usage.prompt_tokens


def test_the_client_without_coroutines_streams(model_server: Process) -> None:
    with blocking(model_server.url) as client:
        assert isinstance(client, OpenAI)
        whole = client.chat.completions.create(messages=[{"role": "user", "content": "Hello!"}], **GREEDY)
        stream = client.chat.completions.create(
            messages=[{"role": "user", "content": "Hello!"}],
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def _write(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(messages=ASK, tools=[WRITE, READ], **GREEDY | more)


@pytest.mark.feature("openai", "chat completions", "tools")
async def test_the_model_calls_a_tool_and_uses_its_result(model_server: Process) -> None:
    """In its own form, told by its own template; recorded, and its history goes through the template again."""
    async with speaking(model_server.url) as client:
        headers = {"X-CFS-Session": "calls-a-tool"}
        found = await _write(client, extra_headers=headers)
        choice = found.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        (call,) = choice.message.tool_calls
        assert call.function.name == "write_file"
        assert json.loads(call.function.arguments) == {"path": "notes.txt", "content": "hello"}
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
        after: Any = await client.chat.completions.create(
            messages=[*ASK, choice.message.to_dict(), result], tools=[WRITE, READ], extra_headers=headers, **GREEDY
        )
        assert after.choices[0].finish_reason == "stop"
        assert after.usage.prompt_tokens_details.cached_tokens >= found.usage.prompt_tokens
    async with AsyncSession("calls-a-tool", url=model_server.url) as session:
        lines = (await session.read()).splitlines()
    assert lines[1:3] == ["Assistant: [CALL:write_file(path='notes.txt', content='hello')]", "Tool: ok"]


@pytest.mark.feature("openai", "chat completions", "forced tool")
async def test_tools_are_called_as_the_request_wants(model_server: Process) -> None:
    """Not at all, one at least, a certain one: by grammar, whatever the model would have said."""
    async with speaking(model_server.url) as client:
        none = await _write(client, tool_choice="none")
        assert none.choices[0].message.tool_calls is None
        required: Any = await client.chat.completions.create(
            messages=[{"role": "user", "content": "Hello!"}], tools=[READ], tool_choice="required", **GREEDY
        )
        (call,) = required.choices[0].message.tool_calls
        assert (call.function.name, required.choices[0].finish_reason) == ("read_file", "tool_calls")
        assert isinstance(json.loads(call.function.arguments)["path"], str)
        named = await _write(client, tool_choice={"type": "function", "function": {"name": "read_file"}})
        assert [each.function.name for each in named.choices[0].message.tool_calls] == ["read_file"]


async def test_a_call_streams_in_pieces(model_server: Process) -> None:
    async with speaking(model_server.url) as client:
        stream = await _write(client, stream=True, parallel_tool_calls=False)
        deltas = [chunk.choices[0].delta async for chunk in stream]
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    assert (pieces[0].function.name, pieces[0].function.arguments) == ("write_file", "")
    assert json.loads("".join(piece.function.arguments for piece in pieces))["path"] == "notes.txt"
    assert "".join(delta.content or "" for delta in deltas) == ""


@pytest.mark.feature("openai", "chat completions", "schema")
async def test_a_schema_is_followed_with_and_without_tools(model_server: Process) -> None:
    """With tools the reply is JSON of the schema, or a call."""
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    async with speaking(model_server.url) as client:
        plain = await client.chat.completions.create(
            messages=[{"role": "user", "content": "Hello!"}], response_format=form, **GREEDY
        )
        assert json.loads(plain.choices[0].message.content or "")["mood"] in ("good", "bad")
        both = (await _write(client, response_format=form)).choices[0].message
        assert both.tool_calls or json.loads(both.content)["mood"] in ("good", "bad")
        anything = await client.chat.completions.create(
            messages=[{"role": "user", "content": "Hello!"}], response_format={"type": "json_object"}, **GREEDY
        )
        if anything.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(anything.choices[0].message.content or ""), dict)


async def test_a_prompt_that_is_too_long_is_a_bad_request(model_server: Process) -> None:
    async with speaking(model_server.url) as client:
        with pytest.raises(openai.BadRequestError, match="the prompt takes") as caught:
            await client.chat.completions.create(messages=[{"role": "user", "content": "word " * 5000}], **GREEDY)
    assert caught.value.code == "context_length_exceeded"


async def test_a_recorded_conversation_is_not_cut_either(model_server: Process) -> None:
    """The program decides what it sends; a message of another face in the same session has the prompt cut."""
    messages: list[Any] = []
    for number in range(60):
        messages += [{"role": "user", "content": f"word {number} " * 15}, {"role": "assistant", "content": "Well."}]
    messages.append({"role": "user", "content": "Hello!"})
    async with speaking(model_server.url) as client:
        with pytest.raises(openai.BadRequestError, match="the prompt takes") as caught:
            await client.chat.completions.create(messages=messages, **GREEDY, extra_headers={"X-CFS-Session": "whole"})
    assert caught.value.code == "context_length_exceeded"
    async with AsyncSession("whole", url=model_server.url) as session:
        assert (await session.send("Hello!")).error is None


async def test_one_owner_has_some_counts_at_a_time(model_server: Process) -> None:
    """More are refused, with the time to wait; then it goes on."""
    body = {"texts": ["some words " * 20] * 9_000}
    async with httpx.AsyncClient(base_url=model_server.url, trust_env=False, timeout=60) as client:
        answers = await asyncio.gather(*(client.post("/v1/tokens", json=body) for _ in range(24)))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 2
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert float(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await client.post("/v1/tokens", json={"texts": ["Hello"]})).status_code == 200


async def test_log_probabilities_come_with_the_tokens(model_server: Process) -> None:
    """Whole and in chunks, directly and recorded; the likeliest is the one that a greedy model takes."""
    async with speaking(model_server.url) as client:
        asked: Any = {"messages": [{"role": "user", "content": "Hello!"}], "logprobs": True, "top_logprobs": 2}
        whole = await client.chat.completions.create(**asked, **GREEDY)
        stream = await client.chat.completions.create(
            **asked, **GREEDY, stream=True, extra_headers={"X-CFS-Session": "ranked"}
        )
        pieces = [chunk.choices[0].logprobs async for chunk in stream if chunk.choices]
        none = await client.chat.completions.create(messages=asked["messages"], **GREEDY)
    assert whole.choices[0].logprobs is not None
    tokens = whole.choices[0].logprobs.content or []
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == whole.choices[0].message.content
    assert all(token.top_logprobs[0].token == token.token and len(token.top_logprobs) == 2 for token in tokens)
    assert [token.token for piece in pieces if piece for token in piece.content or ()] == [
        token.token for token in tokens
    ]
    assert none.choices[0].logprobs is None


def test_tokens_are_counted_by_the_models_tokenizer(model_server: Process) -> None:
    """A conversation has as many as the usage of its completion says."""
    messages = (ChatMessage(role="user", content="Hello, you there!"),)
    tool = ChatRequest.model_validate({"messages": messages, "tools": [READ]}).tools
    with Client(model_server.url) as client:
        found = client.call(count_tokens(TokensRequest(texts=("", "Hello"), messages=messages, tools=tool)))
        used = client.call(complete(ChatRequest(messages=messages, tools=tool, max_tokens=1))).usage
        assert client.call(models()).data[0].id == "cfs-demo"
    assert found.exact
    assert (found.counts[0], found.prompt_tokens) == (0, used.prompt_tokens)
    assert 0 < found.counts[1] < 6


async def test_a_conversation_that_cannot_be_counted_is_told(model_server: Process) -> None:
    """And hurts no other."""
    async with httpx.AsyncClient(base_url=model_server.url, trust_env=False, timeout=60) as client:
        answer = await client.post("/v1/tokens", json={"texts": ["x" * 10_000], "messages": []})
        assert answer.status_code == 200
        assert answer.json()["exact"] is True


async def test_our_own_client_reads_completions_whole_and_in_chunks(model_server: Process) -> None:
    """With and without coroutines; the chunks make the same completion."""
    asked = ChatRequest.model_validate({"messages": ASK, "tools": [WRITE, READ], "temperature": 0, "max_tokens": 60})
    assembly, again = CompletionAccumulator(), CompletionAccumulator()
    async with AsyncClient(model_server.url) as client:
        whole = await client.call(complete(asked, session="our-own"))
        async for chunk in client.chunks(complete_in_chunks(asked)):
            assembly.add(chunk)
        with pytest.raises(InvalidParameters, match="one completion"):
            async for _ in client.chunks(complete_in_chunks(asked.model_copy(update={"n": 2}))):
                pass
    with Client(model_server.url) as blocked:
        for chunk in blocked.chunks(complete_in_chunks(asked)):
            again.add(chunk)
    assert whole.cfs is not None
    assert whole.cfs.session == "our-own"
    for found in (assembly.completion(), again.completion()):
        assert found.usage.completion_tokens == whole.usage.completion_tokens
        assert [call.function for call in found.message.tool_calls or ()] == [
            call.function for call in whole.message.tool_calls or ()
        ]
    assert whole.message.message().tool_calls[0].name == "write_file"
    assert whole.usage.of(whole.usage.usage()) == whole.usage
