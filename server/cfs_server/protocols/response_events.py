"""The answers of the responses protocol of OpenAI: a response, and the events that make it. Pure: no I/O (H4)."""

from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterator
from typing import Any, Literal

from cfs.completions import ContentLogprob, Recorded
from cfs.completions.messages import Open
from cfs.errors import CfsError
from cfs.wire import FinishReason, TokenLogprob, Usage
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.protocols.errors import code_of
from cfs_server.protocols.response_items import call_item, custom_call_item, item_id, reasoning_item
from cfs_server.protocols.response_tools import HostedTool, RequestTools, custom_input
from cfs_server.protocols.responses import ResponsesRequest

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
_STATUS: dict[FinishReason, ResponseStatus] = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
    "error": "failed",
}


_CODES = frozenset({"context_length_exceeded", "insufficient_quota", "rate_limit_exceeded"})
"""Codes by which clients decide what to do, besides `invalid_prompt` for a request without hope.

Codex repeats a request that fails by any other code (openai/codex, `codex-api/src/sse/responses.rs`).
"""


class ResponseObject(Open):
    """A response. `output` has its items: messages, calls of functions, and what the model thought.

    `warnings` are about parts of the request that had no effect, a sentence each.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: float
    status: ResponseStatus
    model: str
    output: tuple[dict[str, Any], ...]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None


class DeletedObject(Open):
    """What was deleted."""

    id: str
    object: Literal["response", "conversation.deleted"]
    deleted: Literal[True] = True


Event = dict[str, Any]


class ResponseWriter:
    """Formats one response: as events, and as it is after them.

    `asked` is its request, or None where that is not known any more. `recorded` is the session and turn that record
    it. `location` says where the reply is stored, which is known when it begins, and is a part of the ids of its items.
    Events have numbers from 0. The same pieces make the same events.
    """

    def __init__(
        self,
        name: str,
        model: str,
        created_at: float,
        *,
        request: ResponsesRequest | None = None,
        recorded: Recorded | None = None,
        location: Callable[[], str] | None = None,
    ) -> None:
        self._name = name
        self._place = location or (lambda: name.removeprefix("resp_"))
        self._model = model
        self._created_at = created_at
        self._asked = request
        self._recorded = recorded
        self._tools = RequestTools(request.tools if request else None)
        self._warnings: tuple[str, ...] = request.warnings if request else ()
        self._counts: Counter[str] = Counter()
        """The number of items of each kind so far."""
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: int | None = None
        """The place of the message or the thinking that grows."""
        self._texts: list[str] = []
        self._ranked: list[dict[str, Any]] = []
        self._calls: dict[int, tuple[int, list[str]]] = {}
        """The calls that grow, by their index: their place in the output, and the pieces of their arguments."""
        self._status: ResponseStatus = "in_progress"
        self._usage: Usage | None = None
        self._error: dict[str, Any] | None = None

    def begin(self) -> Iterator[Event]:
        """Yield the first events."""
        yield self._event("response.created", response=self.response())
        yield self._event("response.in_progress", response=self.response())

    def write(self, item: Delta | Finished) -> Iterator[Event]:
        """Yield the events of a piece, or of the end."""
        if isinstance(item, Finished):
            self._status, self._usage, self._warnings = (
                _STATUS[item.reason],
                item.usage,
                (*self._warnings, *item.warnings),
            )
            if self._recorded:
                self._recorded = self._recorded.model_copy(update={"finish_reason": item.reason})
            yield from self._close_all()
            end = "completed" if self._status == "completed" else "incomplete"
            yield self._event(f"response.{end}", response=self.response())
            return
        if item.thinking:
            yield from self._enter("reasoning")
            self._texts.append(item.thinking)
            yield self._grow("response.reasoning_summary_text.delta", summary_index=0, delta=item.thinking)
        if item.text or item.logprobs:
            yield from self._enter("message")
            ranked = [ContentLogprob.of(token).model_dump() for token in self._shown(item.logprobs)]
            self._texts.append(item.text)
            self._ranked += ranked
            yield self._grow("response.output_text.delta", content_index=0, delta=item.text, logprobs=ranked)
        for call in item.calls:
            yield from self._call(call)

    def fail(self, error: CfsError) -> Iterator[Event]:
        """Yield the events of a failure."""
        self._status = "failed"
        code = code_of(error)
        if code not in _CODES:
            code = "server_error" if error.passes else "invalid_prompt"
        self._error = {"code": code, "message": error.detail}
        yield from self._close_all()
        yield self._event("response.failed", response=self.response())

    async def whole(self, items: AsyncIterable[Delta | Finished]) -> dict[str, Any]:
        """Return the complete response."""
        async for item in items:
            for _ in self.write(item):
                pass
        return self.response()

    def response(self, status: ResponseStatus | None = None) -> dict[str, Any]:
        """Return the response as it is now. A finished one has its usage."""
        request, cut = self._asked, self._status == "incomplete"
        form = request.text.format if request and request.text else None
        document = {
            "id": self._name,
            "object": "response",
            "created_at": self._created_at,
            "status": status or self._status,
            "background": bool(request and request.background),
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": request and request.instructions,
            "max_output_tokens": request and request.max_output_tokens,
            "metadata": (request and request.metadata) or {},
            "model": self._model,
            "output": [dict(item) for item in self._output],
            "parallel_tool_calls": not (request and request.parallel_tool_calls is False),
            "previous_response_id": request and request.previous_response_id,
            "conversation": {"id": request.conversation_id} if request and request.conversation_id else None,
            "reasoning": {"effort": None, "summary": None},
            "store": self._recorded is not None,
            "temperature": request and request.temperature,
            "text": {"format": form.model_dump(exclude_none=True, by_alias=True) if form else {"type": "text"}},
            "tool_choice": _plain(request and request.tool_choice) or "auto",
            "tools": [
                tool.model_dump() for tool in (request and request.tools) or () if not isinstance(tool, HostedTool)
            ],
            "top_logprobs": request and request.top_logprobs,
            "top_p": request and request.top_p,
            "truncation": "disabled",
            "usage": None if self._usage is None else _usage(self._usage),
            "user": request and request.user,
        }
        if self._warnings:
            document["warnings"] = list(self._warnings)
        if self._recorded:
            document["cfs"] = self._recorded.model_dump(exclude_none=True)
        return document

    def _shown(self, tokens: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        return tokens if self._asked and self._asked.shows_logprobs else ()

    def _event(self, kind: str, **members: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return event

    def _grow(self, kind: str, index: int | None = None, **members: Any) -> Event:
        """Return an event about a part of an item: of the open one, or of that at an index."""
        at = self._open if index is None else index
        assert at is not None  # noqa: S101 - it has just been opened
        return self._event(kind, item_id=self._output[at]["id"], output_index=at, **members)

    def _enter(self, kind: Literal["message", "reasoning"]) -> Iterator[Event]:
        """Open an item, unless one of this kind is open already."""
        if self._open is not None and self._output[self._open]["type"] == kind:
            return
        yield from self._close()
        self._open = len(self._output)
        if kind == "message":
            self._output.append(self._message("in_progress"))
        else:
            self._output.append(reasoning_item(self._id("rs"), "", "in_progress"))
        yield self._added(self._open)
        if kind == "message":
            yield self._grow("response.content_part.added", content_index=0, part=_part("", []))
        else:
            part = {"type": "summary_text", "text": ""}
            yield self._grow("response.reasoning_summary_part.added", summary_index=0, part=part)

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        text, ranked = "".join(self._texts), self._ranked
        at, self._texts, self._ranked = self._open, [], []
        name = self._output[at]["id"]
        if self._output[at]["type"] == "message":
            part = _part(text, ranked)
            yield self._grow("response.output_text.done", content_index=0, text=text, logprobs=ranked)
            yield self._grow("response.content_part.done", content_index=0, part=part)
            self._output[at] = self._message(self._ended, part, name)
        else:
            yield self._grow("response.reasoning_summary_text.done", summary_index=0, text=text)
            part = {"type": "summary_text", "text": text}
            yield self._grow("response.reasoning_summary_part.done", summary_index=0, part=part)
            self._output[at] = reasoning_item(name, text, self._ended)
        self._open = None
        yield self._done(at)

    @property
    def _ended(self) -> str:
        """The status of an item that ends now: it is cut off with its response, or complete."""
        return "completed" if self._status in ("in_progress", "completed") else "incomplete"

    def _message(self, status: str, part: dict[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
        return {
            "type": "message",
            "id": name or self._id("msg"),
            "role": "assistant",
            "status": status,
            "content": [part] if part else [],
        }

    def _id(self, kind: str) -> str:
        number = self._counts[kind]
        self._counts[kind] += 1
        return item_id(kind, self._place(), number)

    def _call(self, call: CallDelta) -> Iterator[Event]:
        if call.index not in self._calls:
            yield from self._close()
            at = len(self._output)
            self._output.append(self._call_item(self._id("fc"), call.id or "", call.name or ""))
            self._calls[call.index] = at, []
            yield self._added(at)
        at, pieces = self._calls[call.index]
        if call.arguments:
            pieces.append(call.arguments)
            if self._output[at]["type"] == "function_call":
                yield self._grow("response.function_call_arguments.delta", at, delta=call.arguments)

    def _call_item(self, name: str, call: str, function: str) -> dict[str, Any]:
        tool = self._tools.origin(function)
        make = custom_call_item if tool.custom else call_item
        return make(name, call, tool.name, "", "in_progress", tool.namespace)

    def _close_all(self) -> Iterator[Event]:
        yield from self._close()
        for at, pieces in self._calls.values():
            arguments, call = "".join(pieces), self._output[at] | {"status": self._ended}
            if call["type"] == "custom_tool_call":
                text = custom_input(arguments)  # its text is known when the arguments are complete
                self._output[at] = call | {"input": text}
                yield self._grow("response.custom_tool_call_input.delta", at, delta=text)
                yield self._grow("response.custom_tool_call_input.done", at, input=text)
            else:
                self._output[at] = call | {"arguments": arguments}
                yield self._grow("response.function_call_arguments.done", at, name=call["name"], arguments=arguments)
            yield self._done(at)

    def _added(self, at: int) -> Event:
        return self._event("response.output_item.added", output_index=at, item=dict(self._output[at]))

    def _done(self, at: int) -> Event:
        return self._event("response.output_item.done", output_index=at, item=dict(self._output[at]))


def _part(text: str, ranked: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": ranked}


def _plain(choice: Any) -> Any:
    return choice.model_dump() if isinstance(choice, Open) else choice


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
