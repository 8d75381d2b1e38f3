"""An upstream's errors keep their meaning for clients: their status, in the form and words of each protocol (H4, H8).

The official clients raise the class that they would raise at the service, and send a request without hope once.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import anthropic
import ollama
import openai
import pytest

from cfs.errors import EngineError, UpstreamRefused
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message
from cfs_agents.model import Retries as AgentRetries
from cfs_agents.model import ServerModel
from cfs_server.engine.contract.interface import UpstreamKind
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.engine.upstream.engine import UpstreamEngine
from cfs_server.engine.upstream.failures import RetryPolicy
from cfs_server.http import generation
from tests.server.guests import guests
from tests.server.support import ServerHarness, running_server
from tests.upstream.stub import KEY, Act, Raw, Refusal, Speech, Stub, served
from tests.upstream.support import STUBS, Naps, options

USER: Any = {"role": "user", "content": "hello"}
TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens."
STATUSES = [400, 401, 403, 404, 413, 422]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams wait for the upstream's refusal, however busy the machine is, and then have a status."""
    monkeypatch.setattr(generation, "_PATIENCE", 60.0)


class _Engine(UpstreamEngine):
    def release(self) -> None:
        """Nothing is held here."""


@dataclass(frozen=True)
class Gateway:
    """A server in front of an upstream."""

    server: ServerHarness
    stub: Stub


@asynccontextmanager
async def gateway(*acts: Act, kind: UpstreamKind = "openai", **changes: Any) -> AsyncIterator[Gateway]:
    stub = STUBS[kind](*acts)
    async with served(stub) as url:
        engine = _Engine(options(url, kind, retries=RetryPolicy(most=2, sleep=Naps()), **changes))
        async with running_server(engine=cast("ScriptedEngine", engine), may_block=True) as server:
            try:
                yield Gateway(server, stub)
            finally:
                await engine.stop()


async def by_openai(url: str, *, stream: bool) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        found: Any = await client.chat.completions.create(model="m", messages=[USER], stream=stream)
        return [piece async for piece in found] if stream else found


async def by_responses(url: str, *, stream: bool) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        found: Any = await client.responses.create(model="m", input="hello", stream=stream, store=False)
        return [piece async for piece in found] if stream else found


async def by_text(url: str, *, stream: bool) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        found: Any = await client.completions.create(model="m", prompt="hello", stream=stream)
        return [piece async for piece in found] if stream else found


async def by_anthropic(url: str, *, stream: bool) -> Any:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="-") as client:
        found: Any = await client.messages.create(model="m", max_tokens=9, messages=[USER], stream=stream)
        return [piece async for piece in found] if stream else found


async def by_ollama(url: str, *, stream: bool) -> Any:
    async with ollama.AsyncClient(host=url, trust_env=False) as client:
        found: Any = await client.chat(model="m", messages=[USER], stream=stream)
        return [piece async for piece in found] if stream else found


ALL = pytest.mark.parametrize("send", [by_openai, by_responses, by_text, by_anthropic, by_ollama])
OPENAI = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    413: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}
ANTHROPIC = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    413: anthropic.APIStatusError,
    422: anthropic.UnprocessableEntityError,
    429: anthropic.RateLimitError,
}


def class_of(send: Any, status: int) -> type[Exception]:
    if send is by_ollama:
        return ollama.ResponseError
    expected: type[Exception] = (ANTHROPIC if send is by_anthropic else OPENAI)[status]
    return expected


@ALL
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_without_hope_has_its_status_and_is_sent_once(send: Any, stream: bool) -> None:
    """The words say that it is the upstream that refuses: the caller's own token is good."""
    async with gateway(*[Refusal(status, message="not this") for status in STATUSES]) as here:
        for count, status in enumerate(STATUSES, 1):
            with pytest.raises(class_of(send, status), match=r"upstream.*not this") as caught:
                await send(here.server.url, stream=stream)
            error: Any = caught.value
            assert error.status_code == status
            assert len(here.stub.bodies) == count


@ALL
async def test_an_upstream_that_is_busy_is_asked_again_in_one_place(send: Any) -> None:
    """Three requests, all of them by the server: retries of client and server would make nine."""
    busy = Refusal(429, "rate_limit_error", "slow down", headers={"retry-after": "7"})
    async with gateway(*[busy] * 3) as here:
        with pytest.raises(class_of(send, 429), match="slow down") as caught:
            await send(here.server.url, stream=False)
        error: Any = caught.value
        assert error.status_code == 429
        assert len(here.stub.bodies) == 3
        if send is not by_ollama:  # its error has no headers
            assert (error.response.headers["retry-after"], error.response.headers["x-should-retry"]) == ("7", "false")


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_prompt_that_is_too_long_is_told_in_the_words_of_each_protocol(kind: UpstreamKind) -> None:
    """Claude Code compacts after "prompt is too long: N tokens > M maximum", others after OpenAI's code."""
    refusal = Refusal(400, "invalid_request_error", TOO_LONG, extra={"code": "context_length_exceeded"})
    async with gateway(*[refusal] * 4, kind=kind) as here:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as caught:
            await by_openai(here.server.url, stream=True)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as caught:
            await by_responses(here.server.url, stream=True)
        assert caught.value.code == "context_length_exceeded"
        words = "prompt is too long: 9000 tokens > 4096 maximum"
        with pytest.raises(anthropic.BadRequestError, match=words) as refused:
            await by_anthropic(here.server.url, stream=True)
        said: Any = refused.value.body
        assert said["error"]["type"] == "invalid_request_error"
        with pytest.raises(ollama.ResponseError, match="maximum context length"):
            await by_ollama(here.server.url, stream=True)
        assert len(here.stub.bodies) == 4


async def test_an_error_in_a_stream_is_its_last_event_in_every_protocol() -> None:
    failing = Speech(words=["well "], failing=("invalid_request_error", "not this"))
    async with gateway(*[failing] * 5) as here:
        url = here.server.url
        with pytest.raises(openai.APIError, match="not this"):
            await by_openai(url, stream=True)
        with pytest.raises(openai.APIError, match="not this"):
            await by_text(url, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="not this"):
            await by_anthropic(url, stream=True)
        with pytest.raises(ollama.ResponseError, match="not this"):
            await by_ollama(url, stream=True)
        *_, last = await by_responses(url, stream=True)
        assert (last.type, last.response.error.code) == ("response.failed", "invalid_prompt")
        assert len(here.stub.bodies) == 5


async def test_a_wrong_token_ends_a_client_at_once() -> None:
    """The clients here send the token "-", which nobody has."""
    async with running_server(may_block=True) as server, guests(server):
        for send in (by_openai, by_anthropic):
            with pytest.raises(class_of(send, 401)) as caught:
                await send(server.url, stream=True)
            error: Any = caught.value
            assert error.response.headers["x-should-retry"] == "false"
            assert "www-authenticate" in error.response.headers


async def test_the_refusal_of_an_upstream_asks_nobody_for_a_token() -> None:
    async with gateway(Refusal(401, message=f"no such key: {KEY}")) as here:
        body = {"messages": [USER], "model": "m"}
        answer = await here.server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 401
        assert "www-authenticate" not in answer.headers
        assert KEY not in answer.text
        assert answer.json()["type"] == "urn:cfs:error:upstream-refused"


async def test_a_stop_string_that_the_upstream_refuses_ends_the_reply_here() -> None:
    """The text that may begin one is held back, and the request to the upstream ends with it."""
    refusal = Refusal(400, message="Unsupported parameter: 'stop' is not supported with this model.")
    words = ["one E", "N", "ough EN", "D", *(["more "] * 5000)]
    async with gateway(refusal, Speech(words=words)) as here:
        async with openai.AsyncOpenAI(base_url=f"{here.server.url}/v1", api_key="-") as client:
            found = await client.chat.completions.create(model="m", messages=[USER], stop=["END"])
        assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("one ENough ", "stop")
        assert ["stop" in body for body in here.stub.bodies] == [True, False]
        await here.stub.until(lambda stub: stub.streaming == 0)
        assert here.stub.left_early == 1


async def test_what_the_upstream_does_not_take_is_told() -> None:
    """In the reply of each protocol; a setting at its default was not asked for."""
    refusal = Refusal(400, message="`temperature` is deprecated for this model.")
    async with gateway(refusal) as here:
        asked = {"messages": [USER], "model": "m", "temperature": 0.1, "max_tokens": 9}
        answers = [
            await here.server.client.post(path, json=asked | more)
            for path, more in (
                ("/v1/chat/completions", {"top_k": 3, "logprobs": True}),
                ("/v1/messages", {}),
                ("/v1/completions", {"prompt": "hello"}),
                ("/v1/responses", {"input": "hello", "store": False}),
                ("/api/chat", {"options": {"temperature": 0.1}, "stream": False}),
            )
        ]
        told = "temperature had no effect: the model's server does not get it or does not take it"
        first, *others = (answer.json()["warnings"] for answer in answers)
        assert first == [
            told,
            told.replace("temperature", "top_k"),
            "there are no logprobs: those of the model's server are not read",
        ]
        assert others == [[told]] * 4
        plain = await here.server.client.post("/v1/chat/completions", json={"messages": [USER], "model": "m"})
        assert "warnings" not in plain.json()
        await here.server.client.post("/v1/sessions", json={"id": "s", "settings": {"temperature": 0.1}})
        await here.server.client.post("/v1/sessions/s/messages?wait=30", json={"content": "hello"})
        events = here.server.store.get("s").log.since(0)
        assert isinstance(events, list)
        ends = [event.data for event in events if event.type == "turn.finished"]
        assert [end["warnings"] for end in ends] == [[told]]


async def test_a_required_call_fails_where_it_cannot_be_required() -> None:
    refusal = Refusal(400, message="tool_choice is not supported")
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with gateway(refusal) as here:
        async with openai.AsyncOpenAI(base_url=f"{here.server.url}/v1", api_key="-") as client:
            asked: Any = {"model": "m", "messages": [USER], "tools": [tool]}
            with pytest.raises(openai.BadRequestError, match="takes no tool_choice"):
                await client.chat.completions.create(**asked, tool_choice="required")
            assert (await client.chat.completions.create(**asked)).choices[0].message.content == "hello"
            assert "tools" in here.stub.bodies[-1]
            await client.chat.completions.create(**asked, tool_choice="none")
            assert "tools" not in here.stub.bodies[-1]
        assert ["tool_choice" in body for body in here.stub.bodies] == [True, False, False]


async def test_one_call_is_made_where_one_is_allowed() -> None:
    calls = (("f", ('{"a": 1}',)), ("f", ('{"a": 2}',)))
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with gateway(Speech(words=[], calls=calls)) as here:
        async with openai.AsyncOpenAI(base_url=f"{here.server.url}/v1", api_key="-") as client:
            found = await client.chat.completions.create(
                model="m", messages=[USER], tools=[tool], parallel_tool_calls=False
            )
        assert [call.to_dict() for call in found.choices[0].message.tool_calls or ()] == [
            {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ]


async def test_two_calls_in_a_burst_are_two_calls_on_every_interface() -> None:
    """As one body, so that all pieces come together (ollama/ollama#15457)."""
    pieces = "".join(
        f'data: {{"choices": [{{"index": 0, "delta": {delta}, "finish_reason": {reason}}}]}}\n\n'
        for delta, reason in (
            ('{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}', "null"),
            ('{"tool_calls": [{"index": 0, "function": {"arguments": "{\\"a\\":"}}]}', "null"),
            ('{"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}', "null"),
            ('{"tool_calls": [{"index": 1, "id": "b", "function": {"name": "f", "arguments": ""}}]}', "null"),
            ('{"tool_calls": [{"index": 1, "function": {"arguments": "{\\"a\\": 2}"}}]}', "null"),
            ("{}", '"tool_calls"'),
        )
    )
    async with gateway(*[Raw(pieces.encode())] * 4) as here:
        client, body = here.server.client, {"model": "m", "messages": [USER], "max_tokens": 9}
        chat = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["tool_calls"]
        message = (await client.post("/v1/messages", json=body)).json()["content"]
        local = (await client.post("/api/chat", json=body | {"stream": False})).json()["message"]["tool_calls"]
        response = (await client.post("/v1/responses", json={"input": "x", "store": False})).json()["output"]
        assert [call["function"]["arguments"] for call in chat] == ['{"a": 1}', '{"a": 2}']
        assert [block["input"] for block in message] == [{"a": 1}, {"a": 2}]
        assert [call["function"]["arguments"] for call in local] == [{"a": 1}, {"a": 2}]
        assert [item["arguments"] for item in response] == ['{"a": 1}', '{"a": 2}']


@pytest.mark.parametrize(("refusal", "count"), [(Refusal(400), 1), (Refusal(401), 1), (Refusal(500), 3)])
async def test_an_agent_repeats_nothing_that_the_server_has_repeated(refusal: Refusal, count: int) -> None:
    """So the summary of a step is asked for once, too, if it is refused."""
    async with gateway(*[refusal] * 9) as here, AsyncClient(here.server.url, None) as client:
        model = ServerModel(client, retries=AgentRetries(sleep=Naps()))
        with pytest.raises(EngineError) as caught:
            async for _ in model.stream([Message(role="user", content="hello")]):
                pass
        assert isinstance(caught.value, UpstreamRefused) is (count == 1)
        assert (len(here.stub.bodies), caught.value.should_retry) == (count, False)
