"""Programs that use the older completions of OpenAI, of one prompt, by the official client (H8)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from cfs_server.engine.host.scripted import ScriptedEngine
from tests.protocols.scripts import obedient
from tests.server.openai_client import speaking
from tests.server.support import ServerHarness, running_server, until


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.fixture
async def client(server: ServerHarness) -> AsyncIterator[AsyncOpenAI]:
    async with speaking(server.url) as here:
        yield here


@pytest.mark.feature("openai", "completions", "chat", "usage")
async def test_a_prompt_is_answered_with_all_members_of_the_protocol(client: AsyncOpenAI) -> None:
    """A list with one prompt is that prompt."""
    prompts: Any = ("one two three", ["one two three"])
    for prompt in prompts:
        found = await client.completions.create(model="davinci", prompt=prompt)
        assert found.id.startswith("cmpl-")
        assert (found.object, found.model) == ("text_completion", "scripted")
        (choice,) = found.choices
        assert (choice.text, choice.index, choice.finish_reason, choice.logprobs) == ("one two three", 0, "stop", None)
        assert found.usage is not None
        assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (3, 3, 6)


async def test_settings_reach_the_engine(server: ServerHarness, client: AsyncOpenAI) -> None:
    await client.completions.create(
        model="x", prompt="a", max_tokens=7, temperature=0.5, top_p=0.9, seed=5, stop=["END"], user="u", n=1, echo=False
    )
    (request,) = server.engine.requests
    settings = request.settings
    assert (settings.max_tokens, settings.temperature, settings.top_p, settings.seed) == (7, 0.5, 0.9, 5)
    assert (settings.stop, request.account) == (("END",), "u")
    assert [(message.role, message.content) for message in request.messages] == [("user", "a")]


@pytest.mark.feature("openai", "completions", "stream")
async def test_a_completion_streams_in_pieces(server: ServerHarness, client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="x", prompt="one two three", stream=True, stream_options={"include_usage": True}
    )
    pieces = [piece async for piece in stream]
    assert [choice.text for piece in pieces for choice in piece.choices] == ["one", " two", " three", ""]
    assert pieces[-2].choices[0].finish_reason == "stop"
    assert pieces[-1].choices == []
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 3
    raw = await server.client.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert raw.text.endswith("data: [DONE]\n\n")
    assert "usage" not in raw.text


@pytest.mark.feature("openai", "completions", "stop")
async def test_it_is_said_why_a_text_ended(client: AsyncOpenAI) -> None:
    cut = await client.completions.create(model="x", prompt="one two three", max_tokens=2)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("one two", "length")
    stopped = await client.completions.create(model="x", prompt="stop", stop="END")
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("one", "stop")


async def test_log_probabilities(client: AsyncOpenAI) -> None:
    """Offsets are places in the text; those of a stream go on from piece to piece."""
    found = await client.completions.create(model="x", prompt="one two three", logprobs=2)
    ranked = found.choices[0].logprobs
    assert ranked is not None
    assert ranked.tokens == ["one", " two", " three"]
    assert ranked.text_offset == [0, 3, 7]
    assert len(ranked.token_logprobs or ()) == len(ranked.top_logprobs or ()) == 3
    stream = await client.completions.create(model="x", prompt="one two three", logprobs=2, stream=True)
    offsets = [
        offset
        async for piece in stream
        for choice in piece.choices
        if choice.logprobs
        for offset in choice.logprobs.text_offset or ()
    ]
    assert offsets == [0, 3, 7]


@pytest.mark.feature("openai", "completions", "resume")
async def test_a_session_goes_on_with_each_prompt(server: ServerHarness, client: AsyncOpenAI) -> None:
    headers = {"X-CFS-Session": "texts"}
    for prompt in ("one", "two"):
        found: Any = await client.completions.create(model="x", prompt=prompt, extra_headers=headers)
        assert found.cfs["session"] == "texts"
    assert await server.text("texts") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    assert len(server.engine.requests[-1].messages) == 3


@pytest.mark.feature("openai", "completions", "cancel")
async def test_a_client_that_leaves_its_stream_ends_its_completion() -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server, speaking(server.url) as client:
        asking = asyncio.create_task(client.completions.create(model="x", prompt="x", stream=True))
        await until(lambda: server.parts.completions.running == 1)
        engine.step(2)
        stream = await asking
        assert (await anext(aiter(stream))).choices[0].text == "x"
        await stream.close()
        await until(lambda: server.parts.completions.running == 0)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("n", 2),
        ("best_of", 3),
        ("echo", True),
        ("suffix", "end"),
        ("prompt", ["a", "b"]),
        ("prompt", [1, 2]),
        ("prompt", []),
        ("logprobs", 6),
        ("max_tokens", 0),
        ("stream", "yes"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_name(client: AsyncOpenAI, member: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(**{"model": "x", "prompt": "a", member: value})
    assert caught.value.param == member


@pytest.mark.feature("openai", "completions", "error")
async def test_errors_are_those_of_the_client() -> None:
    """A large body, a missing one, a broken engine, an error in a stream: the shape is OpenAI's, nothing is stored."""
    async with running_server(obedient, may_block=True, max_body_bytes=3_000_000) as server:
        async with speaking(server.url) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.completions.create(model="x", prompt="x" * 10_000_000)
            assert (caught.value.status_code, caught.value.code) == (413, "too_large")
            with pytest.raises(openai.BadRequestError, match="too long"):
                await client.completions.create(model="x", prompt="too long")
            with pytest.raises(openai.InternalServerError, match="the engine broke"):
                await client.completions.create(model="x", prompt="break", stream=True)
        answer = await server.client.post("/v1/completions", content=b"")
        assert (answer.status_code, json.loads(answer.text)["error"]["param"]) == (400, "prompt")
        assert len(server.store) == 0


@pytest.mark.feature("openai", "embeddings", "error")
async def test_embeddings_are_refused_in_words_that_the_client_shows(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="no embeddings") as caught:
        await client.embeddings.create(model="x", input="hello")
    assert (caught.value.status_code, caught.value.type) == (501, "server_error")
