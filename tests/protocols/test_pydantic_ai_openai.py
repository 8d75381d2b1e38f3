"""Agents of pydantic-ai speak to this server by both of OpenAI's protocols: its own package, unchanged (H4, H8)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from cfs_server.engine.host.scripted import ScriptedEngine
from tests.protocols.scripts import obedient
from tests.server.support import ServerHarness, running_server, until

Models = Callable[..., Model]


class Colour(BaseModel):
    """A form for replies."""

    colour: str


class City(BaseModel):
    """What the model of these tests sends to the tool that it is given."""

    city: str


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
async def model_at(request: pytest.FixtureRequest) -> AsyncIterator[Models]:
    """Make models by a URL and headers.

    pydantic-ai knows the abilities of a model by its name. The server answers by its own.
    """
    async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:

        def make(url: str, **headers: str) -> Model:
            options: Any = {"max_retries": 0, "default_headers": headers, "http_client": http}
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", **options)
            model: Model = request.param("gpt-4o", provider=OpenAIProvider(openai_client=client))
            return model

        yield make


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "chat", "usage")
@pytest.mark.feature("pydantic-ai-slim", "responses", "chat", "usage")
async def test_a_run_and_what_it_cost(server: ServerHarness, model_at: Models) -> None:
    found = await Agent(model_at(server.url), instructions="Be brief.").run("one two three")
    assert found.output == "one two three"
    assert (found.usage.output_tokens, found.usage.requests) == (3, 1)
    request = server.engine.requests[-1]
    assert "Be brief." in (request.messages[0].content, request.settings.system)


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "stream")
@pytest.mark.feature("pydantic-ai-slim", "responses", "stream")
async def test_a_run_streams(server: ServerHarness, model_at: Models) -> None:
    async with Agent(model_at(server.url)).run_stream("one two three") as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert pieces == ["one", " two", " three"]
    assert run.usage.output_tokens == 3


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "tools")
@pytest.mark.feature("pydantic-ai-slim", "responses", "tools")
async def test_an_agent_calls_its_tool_and_reads_the_result(server: ServerHarness, model_at: Models) -> None:
    agent = Agent(model_at(server.url))

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    found = await agent.run("what is the weather in Oslo")
    assert found.output == "rain in Oslo"
    told = server.engine.requests[-1].messages
    assert [(message.role, message.content) for message in told[1:]] == [
        ("assistant", "I look."),
        ("tool", "rain in Oslo"),
    ]
    assert (told[1].tool_calls[0].id, told[1].thinking) == (told[2].tool_call_id, "hm")


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "forced tool")
@pytest.mark.feature("pydantic-ai-slim", "responses", "forced tool")
async def test_a_tool_for_the_output_is_forced(server: ServerHarness, model_at: Models) -> None:
    """An agent whose output is no text requires a call of the tool for it."""
    found = await Agent(model_at(server.url), output_type=ToolOutput(City, name="weather")).run("any")
    assert found.output == City(city="Oslo")
    request = server.engine.requests[-1]
    assert (request.options.tool_choice, len(request.options.tools)) == ("required", 1)


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "schema")
@pytest.mark.feature("pydantic-ai-slim", "responses", "schema")
async def test_an_output_has_the_form_of_a_class(server: ServerHarness, model_at: Models) -> None:
    found = await Agent(model_at(server.url), output_type=NativeOutput(Colour)).run("any")
    assert found.output == Colour(colour="red")
    schema = server.engine.requests[-1].options.json_schema
    assert schema is not None
    assert schema["required"] == ["colour"]


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "stop")
async def test_settings_and_why_a_reply_ended(server: ServerHarness, model_at: Models) -> None:
    """OpenAI's responses have no stop strings, and pydantic-ai warns of them there."""
    model = model_at(server.url)
    settings = ModelSettings(temperature=0.5, max_tokens=2)
    if isinstance(model, OpenAIChatModel):
        settings["stop_sequences"] = ["END"]
    found = await Agent(model, model_settings=settings).run("one two three")
    last: Any = found.all_messages()[-1]
    assert isinstance(last, ModelResponse)
    assert (found.output, last.finish_reason, last.model_name) == ("one two", "length", "scripted")
    asked = server.engine.requests[-1].settings
    assert (asked.temperature, asked.max_tokens) == (0.5, 2)
    assert asked.stop == (("END",) if isinstance(model, OpenAIChatModel) else None)


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "error")
@pytest.mark.feature("pydantic-ai-slim", "responses", "error")
async def test_errors_are_those_of_pydantic_ai(server: ServerHarness, model_at: Models) -> None:
    with pytest.raises(ModelHTTPError, match="temperature"):
        await Agent(model_at(server.url), model_settings=ModelSettings(temperature=9)).run("any")
    assert len(server.store) == 0
    with pytest.raises(ModelHTTPError, match="the prompt is too long") as caught:
        await Agent(model_at(server.url)).run("too long")
    assert caught.value.status_code == 400
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(model_at(server.url)).run("break")
    assert caught.value.status_code >= 500


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "cancel")
@pytest.mark.feature("pydantic-ai-slim", "responses", "cancel")
async def test_a_run_that_is_cancelled_ends_what_is_not_stored(model_at: Models) -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server:
        agent = Agent(model_at(server.url), model_settings=OpenAIResponsesModelSettings(openai_store=False))
        run = asyncio.create_task(agent.run("any"))
        await until(lambda: server.parts.completions.running == 1)
        run.cancel()
        await until(lambda: server.parts.completions.running == 0)


@pytest.mark.feature("pydantic-ai-slim", "chat completions", "resume")
@pytest.mark.feature("pydantic-ai-slim", "responses", "resume")
async def test_a_session_records_the_runs_of_an_agent(server: ServerHarness, model_at: Models) -> None:
    """A new agent goes on with the messages of the first, and the history is never replaced."""
    headers = {"X-CFS-Session": "talk"}
    first = await Agent(model_at(server.url, **headers)).run("one")
    await Agent(model_at(server.url, **headers)).run("two", message_history=first.all_messages())
    assert await server.text("talk") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    events = server.store.get("talk").log.since(0)
    assert isinstance(events, list)
    assert "history.replaced" not in {event.type for event in events}


@pytest.mark.parametrize("model_at", [OpenAIResponsesModel], indirect=True)
async def test_an_agent_goes_on_by_the_id_of_the_last_response(server: ServerHarness, model_at: Models) -> None:
    """pydantic-ai finds it in the messages, also between a call and its result."""
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    agent = Agent(model_at(server.url), model_settings=settings)

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    first = await agent.run("what is the weather in Oslo")
    second = await agent.run("two", message_history=first.all_messages())
    assert (first.output, second.output) == ("rain in Oslo", "two")
    (session,) = server.store
    roles = [message.role for message in session.history.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
