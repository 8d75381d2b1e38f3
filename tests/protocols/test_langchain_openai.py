"""LangChain's model of OpenAI speaks to this server by both of OpenAI's protocols: its package, unchanged (H4, H8)."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from cfs_server.engine.host.scripted import ScriptedEngine
from tests.protocols.scripts import PARAMETERS, obedient
from tests.server.support import ServerHarness, running_server, until

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS},
}
ASK = HumanMessage("what is the weather in Oslo")
Models = Callable[..., ChatOpenAI]


class Colour(BaseModel):
    """A form for replies."""

    colour: str


@pytest.fixture(params=["chat completions", "responses"])
async def model_at(request: pytest.FixtureRequest) -> AsyncIterator[Models]:
    """Make models as a program would, by a base URL and a key; their connections are closed in the end."""
    made: list[ChatOpenAI] = []

    def make(url: str, **options: Any) -> ChatOpenAI:
        options = {"api_key": SecretStr("any"), "max_retries": 0, "timeout": 60} | options
        options["use_responses_api"] = request.param == "responses"
        made.append(ChatOpenAI(model="gpt-whatever", base_url=f"{url}/v1", **options))
        return made[-1]

    yield make
    for model in made:
        await model.root_async_client.close()
        model.root_client.close()


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.mark.feature("langchain-openai", "chat completions", "chat", "usage")
@pytest.mark.feature("langchain-openai", "responses", "chat", "usage")
async def test_a_message_and_what_it_cost(server: ServerHarness, model_at: Models) -> None:
    found = await model_at(server.url).ainvoke("one two three")
    assert found.text == "one two three"
    assert found.usage_metadata is not None
    assert (found.usage_metadata["input_tokens"], found.usage_metadata["output_tokens"]) == (3, 3)
    assert found.response_metadata["model_name"] == "scripted"


@pytest.mark.feature("langchain-openai", "chat completions", "stream")
@pytest.mark.feature("langchain-openai", "responses", "stream")
async def test_a_stream_adds_up_to_the_message(server: ServerHarness, model_at: Models) -> None:
    model = model_at(server.url, stream_usage=True)
    pieces = [piece async for piece in model.astream("one two three")]
    assert [piece.text for piece in pieces if piece.text] == ["one", " two", " three"]
    whole = AIMessageChunk(content="")
    for piece in pieces:
        whole += piece
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 3
    called: Any = model.bind_tools([WEATHER]).astream([ASK])
    calls = [call async for piece in called for call in piece.tool_call_chunks]
    assert "".join(call["args"] or "" for call in calls) == '{"city": "Oslo"}'


@pytest.mark.feature("langchain-openai", "chat completions", "tools", "forced tool")
@pytest.mark.feature("langchain-openai", "responses", "tools", "forced tool")
async def test_calls_of_tools(server: ServerHarness, model_at: Models) -> None:
    """A call and its result, and a call that is forced."""
    model = model_at(server.url).bind_tools([WEATHER])
    first = await model.ainvoke([ASK])
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    said: list[BaseMessage] = [ASK, first, ToolMessage("rain", tool_call_id=call["id"] or "")]
    assert (await model.ainvoke(said)).text == "rain"
    told = server.engine.requests[-1].messages
    assert [message.role for message in told] == ["user", "assistant", "tool"]
    assert told[1].tool_calls[0].id == told[2].tool_call_id == call["id"]
    forced = await model_at(server.url).bind_tools([WEATHER], tool_choice="weather").ainvoke("hello")
    assert [call["name"] for call in forced.tool_calls] == ["weather"]
    assert server.engine.requests[-1].options.tool_choice == "required"


@pytest.mark.feature("langchain-openai", "chat completions", "schema")
@pytest.mark.feature("langchain-openai", "responses", "schema")
async def test_a_reply_has_the_form_of_a_class(server: ServerHarness, model_at: Models) -> None:
    model = model_at(server.url).with_structured_output(Colour, method="json_schema")
    assert await model.ainvoke("any") == Colour(colour="red")
    schema = server.engine.requests[-1].options.json_schema
    assert schema is not None
    assert schema["required"] == ["colour"]


@pytest.mark.feature("langchain-openai", "chat completions", "stop")
async def test_settings_and_why_a_reply_ended(server: ServerHarness, model_at: Models) -> None:
    """LangChain leaves stop strings out of responses, as OpenAI has none there."""
    model = model_at(server.url, max_tokens=2, temperature=0.5)
    found = await model.ainvoke("one two three", stop=["END"])
    assert found.text == "one two"
    metadata = found.response_metadata
    ends: Any = metadata.get("finish_reason") or (metadata["status"], metadata["incomplete_details"]["reason"])
    assert ends in ("length", ("incomplete", "max_output_tokens"))
    settings = server.engine.requests[-1].settings
    assert (settings.max_tokens, settings.temperature) == (2, 0.5)
    assert settings.stop == (("END",) if ends == "length" else None)


@pytest.mark.feature("langchain-openai", "chat completions", "error")
@pytest.mark.feature("langchain-openai", "responses", "error")
async def test_errors_are_those_of_the_client(server: ServerHarness, model_at: Models) -> None:
    headers = {"X-CFS-Session": "%"}
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await model_at(server.url, temperature=9).ainvoke("any")
    with pytest.raises(openai.BadRequestError, match="percent-encoded"):
        await model_at(server.url, default_headers=headers).ainvoke("any")
    assert len(server.store) == 0
    with pytest.raises(ContextOverflowError, match="the prompt is too long"):
        await model_at(server.url).ainvoke("too long")
    with pytest.raises(openai.InternalServerError, match="the engine broke"):
        await model_at(server.url).ainvoke("break")


@pytest.mark.feature("langchain-openai", "chat completions", "cancel")
@pytest.mark.feature("langchain-openai", "responses", "cancel")
async def test_a_stream_that_is_left_ends_what_is_not_stored(model_at: Models) -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server:
        stream: Any = model_at(server.url, store=False).astream("any")
        engine.step(2)
        while not (await anext(stream)).text:
            assert server.parts.completions.running == 1
        await stream.aclose()
        await until(lambda: server.parts.completions.running == 0)


@pytest.mark.feature("langchain-openai", "chat completions", "resume")
@pytest.mark.feature("langchain-openai", "responses", "resume")
async def test_a_session_records_the_conversation(server: ServerHarness, model_at: Models) -> None:
    """A new object of the program continues it, and the history is never replaced."""

    def recorded() -> Any:
        return model_at(server.url, default_headers={"X-CFS-Session": "oslo"}).bind_tools([WEATHER])

    said: list[BaseMessage] = [ASK]
    first = await recorded().ainvoke(said)
    said += [first, ToolMessage("rain", tool_call_id=first.tool_calls[0]["id"])]
    await recorded().ainvoke(said)
    session = server.store.get("oslo")
    assert [message.role for message in session.history.messages] == ["user", "assistant", "tool", "assistant"]
    events = session.log.since(0)
    assert isinstance(events, list)
    assert "history.replaced" not in {event.type for event in events}


async def test_a_program_goes_on_by_the_id_of_the_last_response(server: ServerHarness) -> None:
    """LangChain finds it in the last answer, and sends what came after it only."""
    model = ChatOpenAI(model="x", base_url=f"{server.url}/v1", api_key=SecretStr("any"), use_previous_response_id=True)
    said: list[BaseMessage] = [HumanMessage("one")]
    said.append(await model.ainvoke(said))
    said.append(HumanMessage("two"))
    assert (await model.ainvoke(said)).text == "two"
    (session,) = server.store
    assert await server.text(session.id) == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    await model.root_async_client.close()
    model.root_client.close()
