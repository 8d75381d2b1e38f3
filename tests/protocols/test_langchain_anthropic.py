"""LangChain's model of Anthropic speaks to this server: its own package, unchanged (H8)."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, SecretStr

from cfs_server.engine.host.scripted import ScriptedEngine
from tests.protocols.scripts import PARAMETERS, obedient
from tests.server.support import ServerHarness, running_server, until

WEATHER: dict[str, Any] = {"name": "weather", "description": "Tell the weather.", "input_schema": PARAMETERS}
ASK = HumanMessage("what is the weather in Oslo")
Models = Callable[..., ChatAnthropic]


class Colour(BaseModel):
    """A form for replies."""

    colour: str


@pytest.fixture
async def model_at() -> AsyncIterator[Models]:
    """Make models as a program would, by a base URL and a key; their connections are closed in the end."""
    made: list[ChatAnthropic] = []

    def make(url: str, **options: Any) -> ChatAnthropic:
        options = {"api_key": SecretStr("any"), "max_retries": 0, "timeout": 60} | options
        made.append(ChatAnthropic(model_name="claude-whatever", base_url=url, **options))
        return made[-1]

    yield make
    for model in made:
        await model._async_client.close()


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


@pytest.mark.feature("langchain-anthropic", "messages", "chat", "usage")
async def test_a_message_and_what_it_cost(server: ServerHarness, model_at: Models) -> None:
    found = await model_at(server.url).ainvoke("one two three")
    assert found.text == "one two three"
    assert found.usage_metadata is not None
    assert (found.usage_metadata["input_tokens"], found.usage_metadata["output_tokens"]) == (3, 3)
    assert (found.response_metadata["model"], found.response_metadata["stop_reason"]) == ("scripted", "end_turn")


@pytest.mark.feature("langchain-anthropic", "messages", "stream")
async def test_a_stream_adds_up_to_the_message(server: ServerHarness, model_at: Models) -> None:
    pieces = [piece async for piece in model_at(server.url).astream("one two three")]
    assert [piece.text for piece in pieces if piece.text] == ["one", " two", " three"]
    whole = AIMessageChunk(content="")
    for piece in pieces:
        whole += piece
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 3
    called: Any = model_at(server.url).bind_tools([WEATHER]).astream([ASK])
    calls = [call async for piece in called for call in piece.tool_call_chunks]
    assert "".join(call["args"] or "" for call in calls) == '{"city": "Oslo"}'


@pytest.mark.feature("langchain-anthropic", "messages", "tools", "forced tool")
async def test_calls_of_tools(server: ServerHarness, model_at: Models) -> None:
    """A call and its result, and a call that is forced."""
    model = model_at(server.url).bind_tools([WEATHER])
    first = await model.ainvoke([ASK])
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    said: list[BaseMessage] = [ASK, first, ToolMessage("rain", tool_call_id=call["id"] or "")]
    assert (await model.ainvoke(said)).text == "rain"
    told = server.engine.requests[-1].messages
    assert told[1].tool_calls[0].id == told[2].tool_call_id == call["id"]
    forced = await model_at(server.url).bind_tools([WEATHER], tool_choice="weather").ainvoke("hello")
    assert [call["name"] for call in forced.tool_calls] == ["weather"]
    assert server.engine.requests[-1].options.tool_choice == "required"


@pytest.mark.feature("langchain-anthropic", "messages", "schema")
async def test_a_reply_has_the_form_of_a_class(server: ServerHarness, model_at: Models) -> None:
    model = model_at(server.url).with_structured_output(Colour, method="json_schema")
    assert await model.ainvoke("any") == Colour(colour="red")
    schema = server.engine.requests[-1].options.json_schema
    assert schema is not None
    assert schema["required"] == ["colour"]


@pytest.mark.feature("langchain-anthropic", "messages", "stop")
async def test_why_a_reply_ended(server: ServerHarness, model_at: Models) -> None:
    found = await model_at(server.url).ainvoke("stop", stop=["END"])
    assert (found.response_metadata["stop_reason"], found.response_metadata["stop_sequence"]) == (
        "stop_sequence",
        "END",
    )
    found = await model_at(server.url, max_tokens_to_sample=2).ainvoke("one two three")
    assert (found.text, found.response_metadata["stop_reason"]) == ("one two", "max_tokens")


@pytest.mark.feature("langchain-anthropic", "messages", "error")
async def test_errors_are_the_exceptions_of_langchain(server: ServerHarness, model_at: Models) -> None:
    """A prompt that is too long has one of its own, which LangChain finds by the words of the error."""
    with pytest.raises(ContextOverflowError, match="the prompt is too long"):
        await model_at(server.url).ainvoke("too long")
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await model_at(server.url, temperature=9).ainvoke("any")
    with pytest.raises(anthropic.InternalServerError, match="the engine broke"):
        await model_at(server.url).ainvoke("break")
    assert len(server.store) == 0


@pytest.mark.feature("langchain-anthropic", "messages", "cancel")
async def test_a_stream_that_is_left_ends_its_message(model_at: Models) -> None:
    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server:
        stream: Any = model_at(server.url).astream("any")
        engine.step(2)
        while not (await anext(stream)).text:
            assert server.parts.completions.running == 1
        await stream.aclose()
        await until(lambda: server.parts.completions.running == 0)


@pytest.mark.feature("langchain-anthropic", "messages", "resume")
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
