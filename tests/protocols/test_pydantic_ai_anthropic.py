"""Agents of pydantic-ai that speak to Anthropic speak to this server: its own package, unchanged (H8)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelAPIError, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider

from cfs_server.engine.host.scripted import ScriptedEngine
from tests.protocols.scripts import obedient
from tests.server.support import ServerHarness, running_server, until

Models = Callable[..., AnthropicModel]


class Colour(BaseModel):
    """A form for replies."""

    colour: str


class City(BaseModel):
    """What the model of these tests sends to the tool that it is given."""

    city: str


@pytest.fixture
async def model_at() -> AsyncIterator[Models]:
    """Make models by a URL and headers.

    pydantic-ai knows the abilities of a model by its name. The server answers by its own.
    """
    async with anthropic.DefaultAsyncHttpxClient(trust_env=False) as http:

        def make(url: str, **headers: str) -> AnthropicModel:
            options: Any = {"max_retries": 0, "default_headers": headers, "http_client": http}
            client = anthropic.AsyncAnthropic(base_url=url, api_key="any", **options)
            return AnthropicModel("claude-opus-4-5", provider=AnthropicProvider(anthropic_client=client))

        yield make


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.mark.feature("pydantic-ai-slim", "messages", "chat", "usage")
async def test_a_run_and_what_it_cost(server: ServerHarness, model_at: Models) -> None:
    found = await Agent(model_at(server.url), instructions="Be brief.").run("one two three")
    assert found.output == "one two three"
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.requests) == (5, 3, 1)
    assert server.engine.requests[-1].messages[0].content == "Be brief."


@pytest.mark.feature("pydantic-ai-slim", "messages", "stream")
async def test_a_run_streams(server: ServerHarness, model_at: Models) -> None:
    async with Agent(model_at(server.url)).run_stream("one two three") as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert pieces == ["one", " two", " three"]
    assert run.usage.output_tokens == 3


@pytest.mark.feature("pydantic-ai-slim", "messages", "tools")
async def test_an_agent_calls_its_tool_and_reads_the_result(server: ServerHarness, model_at: Models) -> None:
    agent = Agent(model_at(server.url))

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    found = await agent.run("what is the weather in Oslo")
    assert found.output == "rain in Oslo"
    assert [message.role for message in server.engine.requests[-1].messages] == ["user", "assistant", "tool"]


@pytest.mark.feature("pydantic-ai-slim", "messages", "forced tool")
async def test_a_tool_for_the_output_is_forced(server: ServerHarness, model_at: Models) -> None:
    """An agent whose output is no text requires a call of the tool for it."""
    found = await Agent(model_at(server.url), output_type=ToolOutput(City, name="weather")).run("any")
    assert found.output == City(city="Oslo")
    request = server.engine.requests[-1]
    assert (request.options.tool_choice, len(request.options.tools)) == ("required", 1)


@pytest.mark.feature("pydantic-ai-slim", "messages", "schema")
async def test_an_output_has_the_form_of_a_class(server: ServerHarness, model_at: Models) -> None:
    found = await Agent(model_at(server.url), output_type=NativeOutput(Colour)).run("any")
    assert found.output == Colour(colour="red")
    schema = server.engine.requests[-1].options.json_schema
    assert schema is not None
    assert schema["required"] == ["colour"]


@pytest.mark.feature("pydantic-ai-slim", "messages", "stop")
async def test_why_a_reply_ended(server: ServerHarness, model_at: Models) -> None:
    settings = AnthropicModelSettings(stop_sequences=["END"], temperature=0.5, max_tokens=2)
    await Agent(model_at(server.url), model_settings=settings).run("stop")
    asked = server.engine.requests[-1].settings
    assert (asked.stop, asked.temperature, asked.max_tokens) == (("END",), 0.5, 2)
    found = await Agent(model_at(server.url), model_settings=settings).run("one two three")
    last: Any = found.all_messages()[-1]
    assert isinstance(last, ModelResponse)
    assert (found.output, last.finish_reason, last.model_name) == ("one two", "length", "scripted")


@pytest.mark.feature("pydantic-ai-slim", "messages", "error")
async def test_errors_are_those_of_pydantic_ai(server: ServerHarness, model_at: Models) -> None:
    with pytest.raises(ModelHTTPError, match="the prompt is too long") as caught:
        await Agent(model_at(server.url)).run("too long")
    assert caught.value.status_code == 400
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(model_at(server.url)).run("break")
    assert caught.value.status_code >= 500
    with pytest.raises(ModelAPIError):
        await Agent(model_at(server.url), model_settings=AnthropicModelSettings(temperature=9)).run("any")
    assert len(server.store) == 0


@pytest.mark.feature("pydantic-ai-slim", "messages", "cancel")
async def test_a_run_that_is_cancelled_ends_its_message(model_at: Models) -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server:
        run = asyncio.create_task(Agent(model_at(server.url)).run("any"))
        await until(lambda: server.parts.completions.running == 1)
        run.cancel()
        await until(lambda: server.parts.completions.running == 0)


@pytest.mark.feature("pydantic-ai-slim", "messages", "resume")
async def test_a_session_records_the_runs_of_an_agent(server: ServerHarness, model_at: Models) -> None:
    """A new agent goes on with the messages of the first, and the history is never replaced."""
    headers = {"X-CFS-Session": "talk"}
    first = await Agent(model_at(server.url, **headers)).run("one")
    await Agent(model_at(server.url, **headers)).run("two", message_history=first.all_messages())
    assert await server.text("talk") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    events = server.store.get("talk").log.since(0)
    assert isinstance(events, list)
    assert "history.replaced" not in {event.type for event in events}
