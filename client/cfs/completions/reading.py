"""Parses a streamed completion: bytes in, chunks out, and the assembled completion. Pure: no I/O."""

import json

from pydantic import ValidationError

from cfs.completions.messages import ChatMessage, ChatToolCall, FunctionCall
from cfs.completions.models import (
    ChatChunk,
    ChatCompletion,
    Choice,
    ChoiceLogprobs,
    CompletionReason,
    CompletionUsage,
    ContentLogprob,
    Recorded,
)
from cfs.contract.errors import CfsError, EngineError, Unreachable, from_problem
from cfs.contract.sse import SSEDecoder

DONE = "[DONE]"
"""Data of the last event of a stream."""


class CompletionReader:
    """Parses one stream; bytes may be split anywhere. `ended` is true after the server's last event."""

    def __init__(self) -> None:
        self.ended = False
        self._decoder = SSEDecoder()

    def feed(self, data: bytes) -> list[ChatChunk]:
        """Parse the next bytes and return the completed chunks; raises the error that a chunk reports.

        Chunks before the error in the same bytes are lost.
        """
        chunks: list[ChatChunk] = []
        for event in self._decoder.feed(data):
            if event.data == DONE:
                self.ended = True
            elif not self.ended:
                chunks.append(_read(event.data))
        return chunks


def _read(data: str) -> ChatChunk:
    try:
        value = json.loads(data)
        if isinstance(value, dict) and value.get("error"):
            raise _error_in(value)
        return ChatChunk.model_validate(value)
    except (ValueError, ValidationError):
        raise Unreachable(f"the stream holds something that is no piece of a completion: {data[:80]!r}") from None


def _error_in(problem: dict[str, object]) -> CfsError:
    status = problem.get("status")
    if isinstance(status, int):
        return from_problem(status, problem)
    error = problem["error"]
    return EngineError(str(error.get("message") if isinstance(error, dict) else error))


class CompletionAccumulator:
    """Assembles a completion from its chunks; `complete` after the chunk with the finish reason."""

    def __init__(self) -> None:
        self._last: ChatChunk | None = None
        self._reason: CompletionReason | None = None
        self._usage: CompletionUsage | None = None
        self._recorded: Recorded | None = None
        self._warnings: tuple[str, ...] | None = None
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, _GrowingCall] = {}
        self._logprobs: list[ContentLogprob] = []

    @property
    def complete(self) -> bool:
        """Whether the message has ended."""
        return self._reason is not None

    def add(self, chunk: ChatChunk) -> None:
        """Add the next chunk."""
        self._last = chunk
        self._usage = chunk.usage or self._usage
        self._recorded = chunk.cfs or self._recorded
        self._warnings = chunk.warnings or self._warnings
        for choice in chunk.choices:
            self._reason = choice.finish_reason or self._reason
            self._logprobs += choice.logprobs.content if choice.logprobs else ()
            self._text.append(choice.delta.content or "")
            self._thinking.append(choice.delta.reasoning_content or "")
            for piece in choice.delta.tool_calls or ():
                call = self._calls.setdefault(piece.index, _GrowingCall())
                call.id = piece.id or call.id
                if piece.function is not None:
                    call.name += piece.function.name or ""
                    call.arguments += piece.function.arguments or ""

    @property
    def message(self) -> ChatMessage:
        """The text so far."""
        text, thinking = "".join(self._text), "".join(self._thinking)
        calls = tuple(
            ChatToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
            for _, call in sorted(self._calls.items())
        )
        return ChatMessage(
            role="assistant",
            content=None if calls and not text else text,
            tool_calls=calls or None,
            reasoning_content=thinking or None,
        )

    def completion(self) -> ChatCompletion:
        """The completion; raises `Unreachable` if the stream ended early."""
        if self._last is None or self._reason is None:
            raise Unreachable("the completion's stream ended before its end")
        logprobs = ChoiceLogprobs(content=tuple(self._logprobs)) if self._logprobs else None
        return ChatCompletion(
            id=self._last.id,
            created=self._last.created,
            model=self._last.model,
            choices=(Choice(message=self.message, finish_reason=self._reason, logprobs=logprobs),),
            usage=self._usage or CompletionUsage(),
            warnings=self._warnings,
            cfs=self._recorded,
        )


class _GrowingCall:
    """A tool call that is being assembled."""

    def __init__(self) -> None:
        self.id = self.name = self.arguments = ""
