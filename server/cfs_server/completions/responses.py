"""Converts engine output to OpenAI responses: chunks, or one completion assembled from them."""

import json
import time
import uuid
from collections.abc import AsyncIterable, Iterator
from typing import Any

from cfs.completions import (
    ChatChunk,
    ChatCompletion,
    ChoiceLogprobs,
    ChunkChoice,
    ChunkDelta,
    CompletionAccumulator,
    CompletionReason,
    CompletionUsage,
    ContentLogprob,
    FunctionPiece,
    Recorded,
    ToolCallPiece,
)
from cfs.errors import CfsError, ContextTooLong, NotFound, TooMany, Unauthorized, to_problem
from cfs.wire import FinishReason
from cfs_server.engine.interface import CallDelta, Delta, Finished

# Errors for clients of the OpenAI API: a problem document with their members added (H4, H5).

PATHS = ("/v1/chat/completions", "/v1/models", "/v1/tokens")
"""The paths that OpenAI clients use."""

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: dict[type[CfsError], str] = {
    ContextTooLong: "context_length_exceeded",
    TooMany: "rate_limit_exceeded",
    Unauthorized: "invalid_api_key",
}


def is_asked_here(path: str) -> bool:
    """Return whether an error at this path goes to an OpenAI client."""
    return any(path == each or path.startswith(each + "/") for each in PATHS)


def problem_for_clients(error: CfsError, path: str = PATHS[0]) -> dict[str, Any]:
    """Describe an error. OpenAI clients expect 400 in place of 422."""
    problem = to_problem(error)
    status = 400 if error.status == 422 else error.status
    code = _CODES.get(type(error)) or error.slug.replace("-", "_")
    if isinstance(error, NotFound) and path.startswith("/v1/models"):
        code = "model_not_found"
    places = error.extra.get("errors")
    return problem | {
        "status": status,
        "error": {
            "message": error.detail,
            "type": _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error"),
            "param": places[0]["at"] if places else None,
            "code": code,
        },
    }


_REASONS: dict[FinishReason, CompletionReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "cancelled": "stop",  # the protocol has no value for it; `cfs.finish_reason` has
    "error": "stop",
}


class Writer:
    """Formats one completion. `recorded` is the session and turn that record it, if any."""

    def __init__(self, model: str, recorded: Recorded | None = None) -> None:
        self._model = model
        self._recorded = recorded
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def first(self) -> ChatChunk:
        """Return the first chunk, with the role."""
        return self._chunk(ChunkDelta(role="assistant", content=""))

    def write(self, item: Delta | Finished) -> Iterator[ChatChunk]:
        """Yield the chunks of a piece, or of the end and the usage."""
        if isinstance(item, Finished):
            recorded = self._recorded and self._recorded.model_copy(update={"finish_reason": item.reason})
            yield self._chunk(ChunkDelta(), finish_reason=_REASONS[item.reason]).model_copy(update={"cfs": recorded})
            yield ChatChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                usage=CompletionUsage.of(item.usage),
                cfs=recorded,
            )
            return
        if item.thinking:
            yield self._chunk(ChunkDelta(reasoning_content=item.thinking))
        if item.text or item.logprobs:
            yield self._chunk(ChunkDelta(content=item.text), logprobs=_logprobs(item))
        for call in item.calls:
            for piece in _pieces(call):
                yield self._chunk(ChunkDelta(tool_calls=(piece,)))

    async def completion(self, items: AsyncIterable[Delta | Finished]) -> ChatCompletion:
        """Return the complete response."""
        assembly = CompletionAccumulator()
        async for item in items:
            for chunk in self.write(item):
                assembly.add(chunk)
        return assembly.completion()

    def _chunk(
        self,
        delta: ChunkDelta,
        finish_reason: CompletionReason | None = None,
        logprobs: ChoiceLogprobs | None = None,
    ) -> ChatChunk:
        choice = ChunkChoice(delta=delta, finish_reason=finish_reason, logprobs=logprobs)
        return ChatChunk(id=self._id, created=self._created, model=self._model, choices=(choice,))


def _logprobs(item: Delta) -> ChoiceLogprobs | None:
    return ChoiceLogprobs(content=tuple(map(ContentLogprob.of, item.logprobs))) if item.logprobs else None


def _pieces(call: CallDelta) -> Iterator[ToolCallPiece]:
    """Split a piece of a call as OpenAI does: first the name, then the arguments."""
    if call.name is not None or call.id is not None:
        head = FunctionPiece(name=call.name, arguments="")
        yield ToolCallPiece(index=call.index, id=call.id, type="function", function=head)
    if call.arguments:
        yield ToolCallPiece(index=call.index, function=FunctionPiece(arguments=call.arguments))


def chunk_json(chunk: ChatChunk, *, include_usage: bool) -> str | None:
    """Return the JSON of a chunk; None for usage that was not requested."""
    if chunk.usage is not None and not include_usage:
        return None
    found = chunk.model_dump(exclude_none=True)
    for choice in found["choices"]:
        choice.setdefault("finish_reason", None)
    if include_usage:
        found.setdefault("usage", None)
    return _text(found)


def completion_json(completion: ChatCompletion) -> str:
    """Return the JSON of a completion. A message with only tool calls has `content: null`."""
    found = completion.model_dump(exclude_none=True)
    for choice in found["choices"]:
        choice["message"].setdefault("content", None)
    return _text(found)


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
