"""What the server records for OpenTelemetry of the turns of sessions, and of what the engine does for them.

A turn's span begins in the request that brings the message, and ends with the turn. It is the parent of the model's
work and of the agent that claims the turn, so all of them are one trace. The worker has no spans of its own: the times
of a generation arrive with its end.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cfs.errors import CfsError
from cfs.transports import tracing
from cfs.transports.tracing import SECONDS
from cfs.wire import Message, Usage
from cfs_server.domain.changes import Deleted, LeaseExpired, SessionChange, TurnEnded, TurnQueued, TurnStarted
from cfs_server.domain.state import SessionState
from cfs_server.engine.contract.interface import (
    Delta,
    EmbeddingRequest,
    Embeddings,
    Embeds,
    Engine,
    Finished,
    GenerationRequest,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_FIRST_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PROVIDER = "cfs"


class _TurnSpan(NamedTuple):
    span: "Span"
    key: str
    session: str


_turns: dict[str, _TurnSpan] = {}
"""The spans of the turns that have not ended, by the id of the turn."""


def changed(session: SessionState, change: SessionChange) -> None:
    """Follow the turns of a session by its changes. A turn that outlived a restart gets a trace of its own."""
    if not tracing.is_on():
        return
    match change:
        case TurnQueued(request):
            if request.generate:
                _begin(session, request.id)
        case TurnStarted(turn):
            (_turns.get(turn) or _begin(session, turn)).span.add_event("turn.started")
        case LeaseExpired(turn):
            if turn in _turns:
                _turns[turn].span.add_event("turn.lease_expired")
        case TurnEnded():
            if (trace := _turns.pop(change.turn, None)) is not None:
                trace.span.set_attribute("cfs.turn.result", change.state.value)
                if change.error is not None:
                    tracing.fail(trace.span, "turn_failed")
                trace.span.end()
        case Deleted():
            _end_all(session, "deleted")


def closed(session: SessionState) -> None:
    """End what is open of a session whose store ends. Its turns go on in traces of their own."""
    if tracing.is_on():
        _end_all(session, "suspended")


def _end_all(session: SessionState, result: str) -> None:
    for turn in [turn for turn, trace in _turns.items() if trace.key == session.key]:
        _turns[turn].span.set_attribute("cfs.turn.result", result)
        _turns.pop(turn).span.end()


def _begin(session: SessionState, turn: str) -> _TurnSpan:
    attributes = {
        "gen_ai.conversation.id": session.id,
        "cfs.turn.id": turn,
        "cfs.turn.driver": session.settings.driver,
    }
    span = tracing.begin("turn", attributes)
    assert span is not None  # noqa: S101 - spans are recorded
    _turns[turn] = _TurnSpan(span, session.key, session.id)
    return _turns[turn]


def trace_of(turn: str) -> str | None:
    """Return the `traceparent` of a turn, for the agent that answers it."""
    trace = _turns.get(turn)
    return None if trace is None else tracing.headers_of(trace.span).get("traceparent")


def generate(engine: Engine, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
    """Let the engine generate, and record it: in the turn of the same id, or else in the active span."""
    items = engine.generate(request)
    return _recorded(cast("AsyncGenerator[Delta | Finished]", items), request) if tracing.is_on() else items


_model = ""


def serving(model: str) -> None:
    """Note the name of the engine's model, or of the default one."""
    global _model
    _model = model


async def _recorded(
    items: AsyncGenerator[Delta | Finished], request: GenerationRequest
) -> AsyncGenerator[Delta | Finished]:
    turn, content = _turns.get(request.id), tracing.captures_content()
    model = request.settings.model or _model
    shared = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model or None,
    }
    attributes = {
        **shared,
        **_settings(request),
        "gen_ai.conversation.id": None if turn is None else turn.session,
        "gen_ai.input.messages": tracing.texts(request.messages) if content else None,
    }
    began = time.time_ns()
    span = tracing.begin(f"chat {model}".rstrip(), attributes, parent=None if turn is None else turn.span, at=began)
    assert span is not None  # noqa: S101 - spans are recorded
    deltas: list[Delta] = []
    try:
        async with aclosing(tracing.following(span, items)) as followed:  # a request to an upstream carries the span
            async for item in followed:
                if isinstance(item, Finished):
                    _finish(span, item, began, shared)
                elif content:
                    deltas.append(item)
                yield item
    except CfsError as error:
        tracing.fail(span, type(error).__name__)
        failed = {**shared, "error.type": type(error).__name__}
        _measure("gen_ai.server.request.duration", (time.time_ns() - began) / 1e9, failed)
        raise
    finally:
        if deltas:
            reply = Message(role="assistant", content="".join(delta.text for delta in deltas))
            span.set_attribute("gen_ai.output.messages", tracing.texts([reply]))
        span.end()


async def embed(engine: Embeds, request: EmbeddingRequest) -> Embeddings:
    """Let the engine make embeddings, and record it in the active span."""
    if not tracing.is_on():
        return await engine.embed(request)
    model = request.model or _model
    shared = {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model or None,
    }
    began = time.time_ns()
    span = tracing.begin(f"embeddings {model}".rstrip(), {**shared, "cfs.texts": len(request.inputs)}, at=began)
    assert span is not None  # noqa: S101 - spans are recorded
    failure: str | None = None
    try:
        with tracing.active(span, ends=True):  # a request to an upstream carries the span
            embeddings = await engine.embed(request)
            span.set_attribute("gen_ai.usage.input_tokens", embeddings.tokens)
            span.set_attribute("gen_ai.embeddings.dimension.count", len(embeddings.vectors[0]))
            return embeddings
    except CfsError as error:
        failure = type(error).__name__
        raise
    finally:
        seconds = (time.time_ns() - began) / 1e9
        _measure("gen_ai.server.request.duration", seconds, {**shared, "error.type": failure})


def _settings(request: GenerationRequest) -> dict[str, Any]:
    settings = request.settings
    return {
        "gen_ai.request.max_tokens": settings.max_tokens,
        "gen_ai.request.temperature": settings.temperature,
        "gen_ai.request.top_p": settings.top_p,
        "gen_ai.request.top_k": settings.top_k,
        "gen_ai.request.seed": settings.seed,
        "gen_ai.request.stop_sequences": settings.stop,
        "gen_ai.output.type": "text" if request.options.json_schema is None else "json",
    }


def _finish(span: "Span", end: Finished, began: int, shared: dict[str, str | None]) -> None:
    """Record the end of a generation, and its phases as spans below it."""
    usage = end.usage
    span.set_attributes(
        {
            "gen_ai.response.finish_reasons": (end.reason,),
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        }
    )
    at = 0.0
    for name, until, attributes in _phases(usage):
        if until > at:
            phase = tracing.begin(name, attributes, parent=span, at=began + int(at * 1e9))
            if phase is not None:
                phase.end(began + int(until * 1e9))
            at = until
    _measure("gen_ai.server.request.duration", usage.total_seconds, shared)
    if usage.first_token_seconds > 0:
        _measure("gen_ai.server.time_to_first_token", usage.first_token_seconds, shared, _FIRST_SECONDS)
    if usage.tokens_per_second > 0:
        _measure("gen_ai.server.time_per_output_token", 1 / usage.tokens_per_second, shared, _TOKEN_SECONDS)


def _phases(usage: Usage) -> Iterator[tuple[str, float, dict[str, Any]]]:
    yield "queue", usage.queue_seconds, {}
    evaluated = max(usage.prompt_tokens - usage.cached_tokens, 0)
    yield "prefill", usage.first_token_seconds, {"cfs.prompt_tokens_evaluated": evaluated}
    yield "decode", usage.total_seconds, {"cfs.tokens_per_second": usage.tokens_per_second}


def _measure(name: str, seconds: float, shared: dict[str, str | None], bounds: tuple[float, ...] = SECONDS) -> None:
    tracing.measure(name, "s", bounds, seconds, shared)
