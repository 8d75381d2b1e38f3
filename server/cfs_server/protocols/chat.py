"""Chat completions of the OpenAI API: reads requests, and writes chunks or one completion (H4)."""

import json
import time
import uuid
from collections.abc import AsyncIterable, Iterator

from cfs.completions import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
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
from cfs.wire import FinishReason
from cfs_server.completions.requests import CompletionSpec, messages_of, patch_of, read_tools, refusal, schema_of
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.engine.contract.reply_options import ReplyOptions

# Requests


def read_chat(request: ChatRequest, limits: StoreLimits) -> CompletionSpec:
    """Convert a request. Raises `InvalidParameters` for unsupported parameters, and `TooLarge` as `messages_of`."""
    _refuse_unsupported(request)
    tools, choice = read_tools(request.tools, request.tool_choice)
    messages = messages_of(request.messages, limits)
    return CompletionSpec(
        messages=messages,
        before=SizedMessages.of(messages[:-1]),
        patch=patch_of(
            max_tokens=request.max_completion_tokens or request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=request.seed,
            stop=request.stop,
            logits=request,
        ),
        options=ReplyOptions(
            json_schema=schema_of(request.response_format),
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            tools=tools,
            tool_choice=choice,
            parallel_calls=request.parallel_tool_calls is not False,
        ),
        account=request.user or "",
    )


def _refuse_unsupported(request: ChatRequest) -> None:
    """Refuse unsupported parameters that would change the result. Other unknown parameters are ignored."""
    if request.n not in (None, 1):
        raise refusal("n", "one completion is made at a time: leave it out, or set it to 1")
    if request.top_logprobs and not request.logprobs:
        raise refusal("top_logprobs", "it goes with `logprobs`: set that to true, too")
    if request.functions is not None or request.function_call is not None:
        raise refusal("functions", "they have become `tools` and `tool_choice`: use these")


# Responses: chunks, or one completion assembled from them

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
        self._around: tuple[str, str] | None = None

    def first(self) -> ChatChunk:
        """Return the first chunk, with the role."""
        return self._chunk(ChunkDelta(role="assistant", content=""))

    def write(self, item: Delta | Finished) -> Iterator[ChatChunk]:
        """Yield the chunks of a piece, or of the end and the usage."""
        if isinstance(item, Finished):
            recorded = self._recorded and self._recorded.model_copy(update={"finish_reason": item.reason})
            more = {"cfs": recorded, "warnings": item.warnings or None}
            yield self._chunk(ChunkDelta(), finish_reason=_REASONS[item.reason]).model_copy(update=more)
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

    def texts(self, item: Delta | Finished, *, include_usage: bool) -> Iterator[str]:
        """Yield the JSON of the chunks of a piece, or of the end and the usage; see `chunk_json`.

        Almost all pieces are only text. Their chunks differ in nothing else, so it is put into what the others have:
        models and their JSON would be a tenth of the time that a token takes.
        """
        if isinstance(item, Delta) and item.text and not (item.thinking or item.calls or item.logprobs):
            if self._around is None:
                empty = chunk_json(self._chunk(ChunkDelta(content="")), include_usage=include_usage) or ""
                before, _, after = empty.rpartition('""')
                self._around = before, after
            yield self._around[0] + _encode(item.text) + self._around[1]
            return
        for chunk in self.write(item):
            if (text := chunk_json(chunk, include_usage=include_usage)) is not None:
                yield text

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
    document = chunk.model_dump(exclude_none=True)
    for choice in document["choices"]:
        choice.setdefault("finish_reason", None)
    if include_usage:
        document.setdefault("usage", None)
    return _encode(document)


def completion_json(completion: ChatCompletion) -> str:
    """Return the JSON of a completion. A message with only tool calls has `content: null`."""
    document = completion.model_dump(exclude_none=True)
    for choice in document["choices"]:
        choice["message"].setdefault("content", None)
    return _encode(document)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
