"""What agents record for OpenTelemetry: tasks, calls of the model and calls of tools, by the GenAI conventions.

A task that answers a session belongs to the trace of its turn, also if a tool call of another agent sent the message.
If nothing is recorded, these functions do nothing.
"""

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from cfs.transports import tracing
from cfs.transports.tracing import SECONDS, TOKENS, fail
from cfs.wire import ToolCall, Usage

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["chat", "fail", "task", "task_events", "tool_call", "tool_ended"]

T = TypeVar("T")
_PROVIDER = "cfs"


@contextmanager
def task(agent: str, session: str, traceparent: str | None) -> Iterator["Span | None"]:
    """Record a task of an agent in a block. `traceparent` is the trace of the turn that it answers, if there is one."""
    began = time.perf_counter()
    parent = None if traceparent is None else {"traceparent": traceparent}
    span = tracing.begin(f"invoke_agent {agent}", _task(agent, session), parent=parent)
    with _measured(agent, began), tracing.active(span, ends=True):
        yield span


async def task_events(agent: str, items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Record a task whose events these are; it is the active span in their code, not in the code that reads them."""
    began = time.perf_counter()
    span = tracing.begin(f"invoke_agent {agent}", _task(agent, None))
    with _measured(agent, began):
        try:
            async with aclosing(tracing.following(span, items)) as followed:
                async for item in followed:
                    yield item
        finally:
            if span is not None:
                span.end()


def _task(agent: str, session: str | None) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.agent.name": agent,
        "gen_ai.conversation.id": session,
    }


@contextmanager
def _measured(agent: str, began: float) -> Iterator[None]:
    try:
        yield
    finally:
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
        tracing.measure("gen_ai.invoke_agent.duration", "s", SECONDS, time.perf_counter() - began, attributes)


async def chat(
    items: AsyncGenerator[T], end_of: Callable[[T], tuple[str, Usage] | None], model: str, **settings: float | None
) -> AsyncGenerator[T]:
    """Record a call of a model, with all its attempts, whose parts these are; `end_of` finds the last part.

    `settings` are those of the request, by their names in the conventions.
    """
    began = time.perf_counter()
    shared = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model or None,
    }
    requested = {f"gen_ai.request.{name}": value for name, value in settings.items()}
    span = tracing.begin(f"chat {model}".rstrip(), {**shared, **requested}, kind="client")
    failed: str | None = None
    try:
        async with aclosing(tracing.following(span, items)) as followed:
            async for item in followed:
                if (end := end_of(item)) is not None:
                    _answered(span, shared, *end)
                yield item
    except Exception as error:
        failed = type(error).__name__
        fail(span, failed)
        raise
    finally:
        seconds, measured = time.perf_counter() - began, {**shared, "error.type": failed}
        tracing.measure("gen_ai.client.operation.duration", "s", SECONDS, seconds, measured)
        if span is not None:
            span.end()


def _answered(span: "Span | None", shared: dict[str, str | None], reason: str, usage: Usage) -> None:
    if span is not None:
        span.set_attributes(
            {
                "gen_ai.response.finish_reasons": (reason,),
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            }
        )
    for kind, count in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
        tracing.measure("gen_ai.client.token.usage", "{token}", TOKENS, count, {**shared, "gen_ai.token.type": kind})


@contextmanager
def tool_call(call: ToolCall) -> Iterator["Span | None"]:
    """Record a call of a tool in a block."""
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.call.arguments": tracing.as_json(dict(call.arguments)) if tracing.captures_content() else None,
    }
    span = tracing.begin(f"execute_tool {call.name}", attributes)
    with tracing.active(span, ends=True):
        yield span


def tool_ended(span: "Span | None", call: ToolCall, text: str, seconds: float, *, ok: bool) -> None:
    """Record the result of a call."""
    failed = None if ok else "tool_error"
    if span is not None:
        if failed:
            fail(span, failed)
        if tracing.captures_content():
            span.set_attribute("gen_ai.tool.call.result", text)
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name, "error.type": failed}
    tracing.measure("gen_ai.execute_tool.duration", "s", SECONDS, seconds, attributes)
