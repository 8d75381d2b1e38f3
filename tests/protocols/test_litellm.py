"""Programs of litellm reach this server as Anthropic, as Ollama and as OpenAI: its own package, unchanged (H8).

litellm asks for the abilities of an Ollama model by calls that block, so its functions run in a thread of their own. To
import it takes three seconds, so only the process does that runs these tests.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from cfs_server.engine.host.scripted import ScriptedEngine
from tests.protocols.scripts import PARAMETERS, obedient
from tests.server.support import ServerHarness, running_server, until

ANTHROPIC = "anthropic/any"
OLLAMA = "ollama_chat/any"
OPENAI = "openai/any"
USER: Any = {"role": "user", "content": "one two three"}
ASK: Any = {"role": "user", "content": "what is the weather in Oslo"}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS},
}

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")  # by litellm, of pydantic
each = pytest.mark.parametrize("model", [ANTHROPIC, OLLAMA, OPENAI])


class Colour(BaseModel):
    """A form for replies."""

    colour: str


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


def base_of(server: ServerHarness, model: str) -> str:
    """Return the base URL of a protocol."""
    return f"{server.url}/v1" if model == OPENAI else server.url


def complete(server: ServerHarness, model: str, messages: list[Any], **options: Any) -> Any:
    """Call litellm as a program would, in a thread."""
    options = {"api_base": base_of(server, model), "api_key": "any", "max_retries": 0, "timeout": 60} | options
    return asyncio.to_thread(partial(_complete, model=model, messages=messages, **options))


def _complete(**options: Any) -> Any:
    import litellm

    found = litellm.completion(**options)
    return list(found) if options.get("stream") else found


@each
@pytest.mark.feature("litellm", "messages", "chat", "usage")
@pytest.mark.feature("litellm", "/api/chat", "chat", "usage")
@pytest.mark.feature("litellm", "chat completions", "chat", "usage")
async def test_a_message_and_what_it_cost(server: ServerHarness, model: str) -> None:
    found = await complete(server, model, [USER])
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("one two three", "stop")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 3)


@each
@pytest.mark.feature("litellm", "messages", "stream")
@pytest.mark.feature("litellm", "/api/chat", "stream")
@pytest.mark.feature("litellm", "chat completions", "stream")
async def test_a_stream(server: ServerHarness, model: str) -> None:
    pieces = await complete(server, model, [USER], stream=True, stream_options={"include_usage": True})
    texts = [piece.choices[0].delta.content for piece in pieces if piece.choices]
    assert [text for text in texts if text] == ["one", " two", " three"]
    assert pieces[-1].usage.completion_tokens == 3


@each
@pytest.mark.feature("litellm", "messages", "tools")
@pytest.mark.feature("litellm", "/api/chat", "tools")
@pytest.mark.feature("litellm", "chat completions", "tools")
async def test_a_call_and_its_result(server: ServerHarness, model: str) -> None:
    """As Ollama, litellm sends the result without the call before it. It is read all the same."""
    first = await complete(server, model, [ASK], tools=[WEATHER])
    said = first.choices[0].message
    (call,) = said.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
    assert (first.choices[0].finish_reason, said.reasoning_content) == ("tool_calls", "hm")
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
    second = await complete(server, model, [ASK, said.model_dump(), result], tools=[WEATHER])
    assert second.choices[0].message.content == "rain"
    told = server.engine.requests[-1].messages
    assert [message.role for message in told] == ["user", "assistant", "tool"]
    if model != OLLAMA:
        assert told[1].tool_calls[0].id == told[2].tool_call_id == call.id


@pytest.mark.parametrize("model", [ANTHROPIC, OPENAI])
@pytest.mark.feature("litellm", "messages", "forced tool")
@pytest.mark.feature("litellm", "chat completions", "forced tool")
async def test_a_tool_is_forced(server: ServerHarness, model: str) -> None:
    """Ollama's protocol has no way to say this."""
    choice = {"type": "function", "function": {"name": "weather"}}
    found = await complete(server, model, [USER], tools=[WEATHER], tool_choice=choice)
    assert found.choices[0].message.tool_calls[0].function.name == "weather"
    assert server.engine.requests[-1].options.tool_choice == "required"


@each
@pytest.mark.feature("litellm", "messages", "schema")
@pytest.mark.feature("litellm", "/api/chat", "schema")
@pytest.mark.feature("litellm", "chat completions", "schema")
async def test_a_reply_has_the_form_of_a_class(server: ServerHarness, model: str) -> None:
    """For Anthropic, litellm knows by the model's name that it can."""
    name = "anthropic/claude-sonnet-4-5" if model == ANTHROPIC else model
    found = await complete(server, name, [USER], response_format=Colour)
    assert Colour.model_validate_json(found.choices[0].message.content) == Colour(colour="red")
    schema = server.engine.requests[-1].options.json_schema
    assert schema is not None
    assert schema["required"] == ["colour"]


@each
@pytest.mark.feature("litellm", "messages", "stop")
@pytest.mark.feature("litellm", "/api/chat", "stop")
@pytest.mark.feature("litellm", "chat completions", "stop")
async def test_settings_and_why_a_reply_ended(server: ServerHarness, model: str) -> None:
    asked = {"max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "stop": ["END"]}
    found = (await complete(server, model, [USER], **asked)).choices[0]
    assert found.message.content == "one two"
    assert found.finish_reason == ("stop" if model == OLLAMA else "length")  # litellm says so of all from Ollama
    settings = server.engine.requests[-1].settings
    assert (settings.max_tokens, settings.temperature, settings.top_p, settings.stop) == (2, 0.5, 0.9, ("END",))
    found = await complete(server, model, [{"role": "user", "content": "stop"}], stop=["END"])
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("one", "stop")


@pytest.mark.feature("litellm", "messages", "error")
async def test_errors_of_anthropic_are_those_of_litellm(server: ServerHarness) -> None:
    import litellm

    with pytest.raises(litellm.ContextWindowExceededError, match="the prompt is too long"):
        await complete(server, ANTHROPIC, [{"role": "user", "content": "too long"}])
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        await complete(server, ANTHROPIC, [USER], temperature=9)
    with pytest.raises(litellm.BadGatewayError, match="the engine broke"):
        await complete(server, ANTHROPIC, [{"role": "user", "content": "break"}])
    assert len(server.store) == 0


@pytest.mark.feature("litellm", "chat completions", "error")
async def test_errors_of_openai_are_those_of_litellm(server: ServerHarness) -> None:
    import litellm

    with pytest.raises(litellm.ContextWindowExceededError, match="the prompt is too long"):
        await complete(server, OPENAI, [{"role": "user", "content": "too long"}])
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        await complete(server, OPENAI, [USER], temperature=9)
    with pytest.raises(litellm.BadGatewayError, match="the engine broke"):
        await complete(server, OPENAI, [{"role": "user", "content": "break"}])
    assert len(server.store) == 0


@pytest.mark.feature("litellm", "/api/chat", "error")
async def test_errors_of_ollama_are_those_of_litellm(server: ServerHarness) -> None:
    """It has one class for all of Ollama's errors, with the server's words in it."""
    import litellm

    for members, words in (
        ({"messages": [{"role": "user", "content": "too long"}]}, "the prompt is too long"),
        ({"messages": [USER], "temperature": 9}, "options.temperature"),
    ):
        with pytest.raises(litellm.APIConnectionError, match=words):
            await complete(server, OLLAMA, **members)
    assert len(server.store) == 0


@each
@pytest.mark.feature("litellm", "messages", "cancel")
@pytest.mark.feature("litellm", "/api/chat", "cancel")
@pytest.mark.feature("litellm", "chat completions", "cancel")
async def test_a_call_that_is_cancelled_ends_its_message(model: str) -> None:
    import litellm

    engine = ScriptedEngine(lambda _: ["x"] * 1000)
    engine.hold()
    async with running_server(engine=engine, may_block=True) as server:
        call = asyncio.create_task(
            litellm.acompletion(
                model=model, messages=[USER], api_base=base_of(server, model), api_key="any", max_retries=0
            )
        )
        await until(lambda: server.parts.completions.running == 1)
        call.cancel()
        await until(lambda: server.parts.completions.running == 0)
        await litellm.close_litellm_async_clients()


@each
@pytest.mark.feature("litellm", "messages", "resume")
@pytest.mark.feature("litellm", "/api/chat", "resume")
@pytest.mark.feature("litellm", "chat completions", "resume")
async def test_a_session_records_the_conversation(server: ServerHarness, model: str) -> None:
    """The program sends all that was said before; the history is never replaced."""
    said: list[Any] = []
    for text in ("one", "two"):
        said.append({"role": "user", "content": text})
        found = await complete(server, model, said, extra_headers={"X-CFS-Session": "talk"})
        said.append(found.choices[0].message.model_dump())
    assert await server.text("talk") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    events = server.store.get("talk").log.since(0)
    assert isinstance(events, list)
    assert "history.replaced" not in {event.type for event in events}
