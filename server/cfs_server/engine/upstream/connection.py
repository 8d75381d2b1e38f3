"""The HTTP connection to the upstream: requests and event streams. The package does all its I/O here."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from cfs.contract.sse import ServerSentEvent
from cfs.errors import EngineError
from cfs.transports import tracing
from cfs.transports.proxies import connecting, proxy_of
from cfs_server.engine.contract.interface import Delta, ModelLoadError
from cfs_server.engine.upstream import failures
from cfs_server.engine.upstream.answers import AnswerDecoder
from cfs_server.engine.upstream.options import UpstreamOptions

CONNECT_SECONDS = 10.0
_REST_SECONDS = 0.2
"""How long to wait for the end of a body whose last event has come, so that the connection can be used again."""
_ERROR_BYTES = 64 << 10
_LIST_BYTES = 4 << 20
"""A list of models is read so far."""
_ESCAPED = 3
"""Bytes that a byte of a reply may take in JSON; a server may send all of it in one event."""
_CALL_BYTES = 64
"""The size of a call without its text: a million empty calls would fill the memory."""


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """The answer to a request that is not a turn."""

    status: int
    body: str
    retry_after: str | None

    def failure(self, model: str) -> failures.Failure:
        """Return the failure for a status that is no success."""
        return failures.of_status(self.status, self.body, self.retry_after, model)


class ReplyLimit:
    """Limits one answer: the bytes of its text, thinking and calls, and the bytes without any of them."""

    def __init__(self, max_bytes: int) -> None:
        self._most = max_bytes
        self.size = self._idle = 0
        """The bytes of the reply so far."""

    def received(self, data: bytes) -> None:
        """Count the received bytes; raises `Failure` for endless comments, lines and empty events."""
        self._idle += len(data)
        if self._idle > _ESCAPED * self._most + _ERROR_BYTES:
            raise failures.Failure(EngineError(f"the upstream sent {self._idle} bytes without a word of its reply"))

    def said(self, delta: Delta) -> None:
        """Count a piece of the reply; raises `Failure` beyond the limit."""
        size = _size(delta.text) + _size(delta.thinking)
        for call in delta.calls:
            size += _size(call.arguments) + (_CALL_BYTES + _size(call.id) + _size(call.name or "") if call.id else 0)
        self.size += size
        self._idle = 0 if size else self._idle
        if self.size > self._most:
            raise failures.Failure(
                EngineError(f"the upstream's reply has more than {self._most} bytes (--max-reply-bytes)")
            )


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


class Link:
    """Connections to one upstream. Every error is a `Failure`, in words without the key."""

    def __init__(self, options: UpstreamOptions, headers: Mapping[str, str]) -> None:
        """Prepare connections; with `https` this reads certificates, which takes a while.

        Raises `InvalidRequest` if the proxy or the certificates that the environment names cannot be used.
        """
        self._options = options
        with connecting(options.url):
            self._http = httpx.AsyncClient(
                base_url=options.url,
                headers=dict(headers),
                timeout=httpx.Timeout(options.silence, connect=CONNECT_SECONDS, pool=None),
                limits=httpx.Limits(max_connections=options.parallel + 2, max_keepalive_connections=options.parallel),
                verify=httpx.create_ssl_context() if options.url.startswith("https:") else False,
                proxy=proxy_of(options.url),
                trust_env=False,
            )

    async def get(self, path: str) -> UpstreamResponse:
        """Send a request that is not a turn; raises `Failure` when there is no answer."""
        with self._failures_of_library():
            async with self._http.stream("GET", path) as answer:
                return self._answer(answer, await _beginning(answer, _LIST_BYTES))

    async def post(self, path: str, body: dict[str, Any], max_bytes: int) -> UpstreamResponse:
        """Send a request that is not a turn, and read so many bytes of its answer at most.

        The request belongs to the active trace, if there is one. Raises `Failure` when there is no answer.
        """
        with self._failures_of_library():
            async with self._http.stream("POST", path, json=body, headers=tracing.propagated()) as answer:
                return self._answer(answer, await _beginning(answer, max_bytes))

    async def events(
        self,
        path: str,
        body: dict[str, Any],
        model: str,
        limit: ReplyLimit,
        headers: Mapping[str, str],
        answered: Callable[[Mapping[str, str]], None],
    ) -> AsyncGenerator[ServerSentEvent]:
        """Send a turn's request and yield the events of its answer; leave it through `contextlib.aclosing`.

        The request belongs to the active trace, if there is one. `answered` receives the headers of a success.
        """
        with self._failures_of_library():
            async with self._http.stream(
                "POST", path, json=body, headers={**headers, **tracing.propagated()}
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise self._answer(answer, await _beginning(answer, _ERROR_BYTES)).failure(model)
                if (kind := answer.headers.get("content-type", "")).startswith("text/html"):
                    raise failures.Failure(EngineError(f"the upstream does not stream: it answers with {kind}"))
                answered(answer.headers)
                decoder = AnswerDecoder()
                async for data in answer.aiter_bytes():
                    limit.received(data)
                    for event in decoder.feed(data):
                        yield self._masked(event)
                for event in decoder.finish():
                    yield self._masked(event)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _masked(self, event: ServerSentEvent) -> ServerSentEvent:
        masked = self._options.masked(event.data)
        return event if masked is event.data else replace(event, data=masked)

    def _answer(self, answer: httpx.Response, body: str) -> UpstreamResponse:
        return UpstreamResponse(answer.status_code, self._options.masked(body), answer.headers.get("retry-after"))

    @contextlib.contextmanager
    def _failures_of_library(self) -> Iterator[None]:
        """Turn the library's errors into failures."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = self._options.masked(" ".join(str(error).split())) or type(error).__name__
            unreached = EngineError(f"the upstream cannot be reached: {reason}")
            raise failures.Failure(unreached, repeat=True, lost=True) from error
        except httpx.TimeoutException as error:
            detail = f"the upstream said nothing for {self._options.silence:g} seconds"
            raise failures.Failure(EngineError(detail)) from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise failures.interrupted("the connection to the upstream was lost") from error


async def rest(events: AsyncIterator[ServerSentEvent]) -> None:
    """Read to the end of the body after the last event, so that the connection can be reused."""
    with contextlib.suppress(TimeoutError, failures.Failure):
        async with asyncio.timeout(_REST_SECONDS):
            async for _ in events:
                pass


async def _beginning(answer: httpx.Response, max_bytes: int) -> str:
    body = b""
    async for data in answer.aiter_bytes():
        body += data
        if len(body) > max_bytes:
            break
    return body[:max_bytes].decode("utf-8", "replace")


T = TypeVar("T")

_NO_CATALOGUE = frozenset({404, 405, 501})
_SHOWN = 8


class _Meta(BaseModel):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Provider(BaseModel):
    context_length: int | None = None


class UpstreamModel(BaseModel):
    """A model in a catalogue; each server has another name for the size of its context."""

    id: str
    max_model_len: int | None = None  # vLLM, SGLang
    max_input_tokens: int | None = None  # Anthropic
    loaded_context_length: int | None = None  # LM Studio: what the loaded model has
    top_provider: _Provider | None = None  # OpenRouter: less than the model has, for some providers
    context_length: int | None = None  # OpenRouter, Together, Moonshot
    context_window: int | None = None  # Groq
    max_context_length: int | None = None  # Mistral, LM Studio
    meta: _Meta | None = None  # llama.cpp

    @property
    def context_tokens(self) -> int:
        """Size of the context; 0 when the upstream does not report it."""
        meta, provider = self.meta or _Meta(), self.top_provider or _Provider()
        sizes = (
            self.max_model_len,
            self.max_input_tokens,
            self.loaded_context_length,
            provider.context_length,
            self.context_length,
            self.context_window,
            self.max_context_length,
            meta.n_ctx,
            meta.n_ctx_train,
        )
        return next((size for size in sizes if size), 0)


class _Page(BaseModel):
    data: tuple[UpstreamModel, ...]


async def listed(link: Link) -> tuple[UpstreamModel, ...] | None:
    """List the models of an upstream; None if it has no list. Raises `Failure` as `find` does."""
    page = _read(_Page.model_validate_json, await link.get("models"), "")
    return None if page is None else page.data


async def find(link: Link, name: str | None) -> UpstreamModel:
    """Look for a model; without a name it is the only one that there is.

    Raises `ModelLoadError` when there is none, and `Failure` when the upstream does not answer or refuses the key.
    """
    listed = _read(_Page.model_validate_json, await link.get("models"), name or "")
    if listed is None:
        if name is None:
            raise ModelLoadError("the upstream does not list its models: name one with --upstream-model")
        return UpstreamModel(id=name)
    names = [model.id for model in listed.data]
    if name is None:
        if len(names) != 1:
            raise ModelLoadError(f"name a model with --upstream-model: {_which(names)}")
        return listed.data[0]
    if (match := next((model for model in listed.data if model.id == name), None)) is not None:
        return match
    # Aliases and models on later pages are in no list.
    if (
        alias := _read(UpstreamModel.model_validate_json, await link.get(f"models/{quote(name, safe='')}"), name)
    ) is not None:
        return alias.model_copy(update={"id": name})
    raise ModelLoadError(f"the upstream has no model {name!r}: {_which(names)}")


def _read(parse: Callable[[str], T], answer: UpstreamResponse, name: str) -> T | None:
    if answer.status in _NO_CATALOGUE:
        return None
    if answer.status != 200:
        raise answer.failure(name)
    try:
        return parse(answer.body)
    except ValidationError:
        return None


def _which(names: list[str]) -> str:
    if not names:
        return "it lists none"
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it has {', '.join(names[:_SHOWN])}{more}"
