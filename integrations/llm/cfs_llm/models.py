"""The models: `cfs` is whatever the server runs, `cfs/NAME` is the model of that name."""

import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Annotated, Any
from urllib.parse import urlsplit

import llm
from llm.parts import StreamEvent
from pydantic import Field

from cfs import api
from cfs.contract.transcript import TranscriptMessage
from cfs.errors import AlreadyExists, CfsError
from cfs.state import TurnReader
from cfs.state.replies import MessageOutcome
from cfs.state.stream import StreamEvent as SessionEvent
from cfs.transports.async_http import AsyncClient
from cfs.transports.base import TOKEN_VARIABLE, URL_VARIABLE
from cfs.transports.http import Client
from cfs.wire import SettingsPatch
from cfs_llm.chain import ChainRequest, ChainSession, answerable, plan

DEFAULT_URL = "http://127.0.0.1:8000"
_KEY = "cfs"
_LOOK_SECONDS = 0.3
"""How long any command of `llm` may wait for a server that does not answer."""


class CFSOptions(llm.Options):  # type: ignore[misc] # llm is not followed (pyproject.toml)
    """Settings of one reply; what is not given is as the session's settings say."""

    session: Annotated[str | None, Field(description="Session that records the conversation")] = None
    temperature: Annotated[float | None, Field(ge=0, le=5, description="Randomness; 0 takes the likeliest token")] = (
        None
    )
    max_tokens: Annotated[int | None, Field(ge=1, le=1_000_000, description="Maximum tokens of the reply")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Sample from this part of the probability")] = None
    top_k: Annotated[int | None, Field(ge=0, description="Sample from this many tokens; 0 is all")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, description="Leave out tokens less likely than this part")] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**32, description="Seed of the random numbers")] = None
    stop: Annotated[str | None, Field(min_length=1, max_length=256, description="Text that ends the reply")] = None

    def settings(self) -> dict[str, Any]:
        """Return what was given, as the settings of a turn."""
        settings: dict[str, Any] = self.model_dump(exclude_none=True, exclude={"session"})
        if "stop" in settings:
            settings["stop"] = (settings["stop"],)
        return settings


class _Shared:
    """What the models with and without coroutines have in common."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    needs_key = None
    Options = CFSOptions

    def __init__(self, name: str | None = None) -> None:
        self.model_id = "cfs" if name is None else f"cfs/{name}"
        self.name = name

    def get_key(self, explicit_key: str | None = None) -> str | None:
        """Return the access token, if there is one: `--key`, `llm keys set cfs`, or `CFS_TOKEN`."""
        key: str | None = llm.get_key(input=explicit_key, alias=_KEY, env=TOKEN_VARIABLE)
        return key

    def __str__(self) -> str:
        return f"CFS: {self.model_id}"


class CFS(_Shared, llm.KeyModel):  # type: ignore[misc]
    """A model that a CFS server runs. Each conversation is a session of the server."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002 - a reply always comes as a stream; `llm` waits for its end
        response: llm.Response,
        conversation: llm.Conversation | None = None,
        key: str | None = None,
    ) -> Iterator[str | StreamEvent]:
        """Send what is new to the session, and yield the reply."""
        with _errors():
            request = _plan(prompt, response, conversation)
            with Client(_url(), key) as client:
                for call in _preparations(request):
                    with contextlib.suppress(AlreadyExists):
                        client.call(request.guard.call(call))
                message = _asked(prompt, request)
                reader = _ReplyReader(request)
                with closing(client.events(request.guard.stream(api.converse(request.session, message)))) as events:
                    for event in events:
                        yield from reader.feed(event)
                        if reader.caught_up:
                            break
            yield from reader.end(response, self.name)


class AsyncCFS(_Shared, llm.AsyncKeyModel):  # type: ignore[misc]
    """The same with coroutines."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None = None,
        key: str | None = None,
    ) -> AsyncGenerator[str | StreamEvent, None]:
        """Send what is new to the session, and yield the reply."""
        with _errors():
            request = _plan(prompt, response, conversation)
            async with AsyncClient(_url(), key) as client:
                for call in _preparations(request):
                    with contextlib.suppress(AlreadyExists):
                        await client.call(request.guard.call(call))
                message = _asked(prompt, request)
                reader = _ReplyReader(request)
                stream_ = request.guard.stream(api.converse(request.session, message))
                async with aclosing(client.events(stream_)) as events:
                    async for event in events:
                        for piece in reader.feed(event):
                            yield piece
                        if reader.caught_up:
                            break
            for piece in reader.end(response, self.name):
                yield piece


class _ReplyReader:
    """Turns the events of a reply into those of `llm`."""

    def __init__(self, request: ChainRequest) -> None:
        self._session = request.session
        self._guard = request.guard
        self._turn = TurnReader(request.session, TranscriptMessage(request.asked.role, request.asked.content))

    @property
    def caught_up(self) -> bool:
        """Whether no other event will come, although the stream has not ended."""
        return self._turn.caught_up

    def feed(self, event: SessionEvent) -> Iterator[StreamEvent]:
        """Yield what an event adds to the reply."""
        self._guard.saw(event.id)
        text = self._turn.feed(event)
        if thinking := event.data.get("thinking") if event.type == "token" else None:
            yield StreamEvent(type="reasoning", chunk=thinking)
        if text:
            yield StreamEvent(type="text", chunk=text, provider_metadata=self._metadata)

    def end(self, response: Any, model: str | None) -> Iterator[StreamEvent]:
        """Yield the calls of tools, and note what the reply has cost; raises the error of a failed turn."""
        outcome: MessageOutcome = self._turn.outcome(())
        if outcome.error is not None:
            raise llm.ModelError(outcome.error)
        for call in outcome.calls:
            response.add_tool_call(llm.ToolCall(name=call.name, arguments=call.arguments, tool_call_id=call.id))
            written = json.dumps(call.arguments, ensure_ascii=False)
            yield StreamEvent("tool_call_name", call.name, tool_call_id=call.id, provider_metadata=self._metadata)
            yield StreamEvent("tool_call_args", written, tool_call_id=call.id)
        response.response_json = {"session": self._session, "finish_reason": outcome.finish_reason}
        if outcome.usage is not None:
            cached = outcome.usage.cached_tokens
            response.set_usage(
                input=outcome.usage.prompt_tokens,
                output=outcome.usage.completion_tokens,
                details={"cached_tokens": cached} if cached else None,
            )
        if model is not None:
            response.set_resolved_model(model)

    @property
    def _metadata(self) -> dict[str, Any]:
        return ChainSession(self._session, self._guard.nonce).metadata


@llm.hookimpl  # type: ignore[untyped-decorator]
def register_models(register: Callable[..., None]) -> None:
    """Register `cfs`, and the model of the server by its name if the server answers at once."""
    register(CFS(), AsyncCFS())
    for name in _names():
        register(CFS(name), AsyncCFS(name))


def _names() -> list[str]:
    """Return the names of the server's models; none if it is away, because `llm` starts without it, too."""
    parts = urlsplit(_url())
    try:
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        socket.create_connection(address, _LOOK_SECONDS).close()
        with Client(_url(), _Shared().get_key(), timeout=_LOOK_SECONDS) as client:
            return [card.id for card in client.call(api.models()).data]
    except (OSError, ValueError, CfsError):
        return []


def _url() -> str:
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def _plan(prompt: llm.Prompt, response: Any, conversation: Any) -> ChainRequest:
    fallback = f"llm-{response.id if conversation is None else conversation.id}"
    return plan(prompt.messages, prompt.options.session, fallback, prompt.system or None)


def _preparations(request: ChainRequest) -> Iterator[api.Call[Any]]:
    """Yield the calls before the message: the session with its system prompt, and what it has not seen."""
    if request.system is not None:
        patch = SettingsPatch(system=request.system)
        if not request.guard.nonce:
            yield api.create(request.session)
        yield api.configure(request.session, patch)
    for message in request.kept:
        yield api.post(request.session, message)


def _asked(prompt: llm.Prompt, request: ChainRequest) -> Any:
    tools = [tool for tool in prompt.tools if isinstance(tool, llm.Tool)]
    return answerable(request.asked, prompt.options.settings(), tools, prompt.schema)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise errors as `llm` expects them of models."""
    try:
        yield
    except CfsError as error:
        raise llm.ModelError(str(error)) from error
