"""Answers in the protocol of Ollama, whole or in pieces. Pure: no I/O (H4)."""

import json
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from cfs.completions import UNREADABLE, Recorded, read_arguments
from cfs.completions.messages import Open
from cfs.wire import FinishReason, Message, TokenLogprob, Usage
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.protocols.ollama_context import write_context
from cfs_server.protocols.ollama_requests import OllamaCall, OllamaChatRequest, OllamaGenerateRequest, _generation

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is. Clients compare it with the least one that they need."""


DoneReason = Literal["stop", "length", "load", "unload"]
_REASONS: dict[FinishReason, DoneReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "cancelled": "stop",  # the protocol has no value for it; `cfs.finish_reason` has
    "error": "stop",
}


class OllamaReplyMessage(Open):
    """The message of an answer."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[OllamaCall, ...] | None = None


class OllamaReply(Open):
    """An answer or a piece of it. The last piece is `done`, and has the counts; durations are in nanoseconds.

    `message` is in answers of `/api/chat`, the other texts are in those of `/api/generate`.
    """

    model: str
    created_at: str
    message: OllamaReplyMessage | None = None
    response: str | None = None
    thinking: str | None = None
    logprobs: tuple[dict[str, Any], ...] | None = None
    done: bool
    done_reason: DoneReason | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    context: tuple[int, ...] | None = None
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None


Piece = dict[str, Any]


class OllamaWriter:
    """Formats one answer, of a chat or of a generation. `prompt` has the messages before it, for its `context`."""

    def __init__(
        self,
        model: str,
        recorded: Recorded | None,
        *,
        chats: bool,
        thinking: bool = True,
        prompt: Sequence[Message] | None = None,
    ) -> None:
        self._model = model
        self._recorded = recorded
        self._chats = chats
        self._thinking = thinking
        self._prompt = prompt
        self._said: list[str] = []
        self._calls: dict[int, list[CallDelta]] = {}

    def loaded(self, *, unload: bool) -> Piece:
        """Return the answer to a request without messages, by which clients load or unload a model."""
        return {**self._piece(), "done": True, "done_reason": "unload" if unload else "load"}

    def write(self, item: Delta | Finished) -> Iterator[Piece]:
        """Yield the pieces of a piece, or of the end. A call is sent as a whole, wherever its pieces were cut."""
        if isinstance(item, Finished):
            if calls := self._take_calls(len(self._calls)):
                yield self._piece(calls=calls)
            yield self._end(item)
            return
        thinking = item.thinking if self._thinking else ""
        if item.text or thinking or item.logprobs:
            if calls := self._take_calls(self._complete()):
                yield self._piece(calls=calls)
            self._said.append(item.text)
            yield self._piece(item.text, thinking, logprobs=tuple(map(_logprob, item.logprobs)))
        for call in item.calls:
            self._calls.setdefault(call.index, []).append(call)
        if item.calls and (calls := self._take_calls(min(self._complete(), len(self._calls) - 1))):
            yield self._piece(calls=calls)

    async def reply(self, items: AsyncIterable[Delta | Finished]) -> Piece:
        """Return the complete answer."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Piece] = []
        ranked: list[Piece] = []
        piece: Piece = {}
        async for item in items:
            for piece in self.write(item):
                message = piece.get("message", piece)
                texts.append(message.get("content") or message.get("response") or "")
                thoughts.append(message.get("thinking") or "")
                calls += message.get("tool_calls") or ()
                ranked += piece.get("logprobs") or ()
        more = self._piece("".join(texts), "".join(thoughts), tuple(calls), tuple(ranked))
        return piece | more | {"created_at": piece["created_at"], "done": True}

    def _piece(
        self, text: str = "", thinking: str = "", calls: tuple[Piece, ...] = (), logprobs: tuple[Piece, ...] = ()
    ) -> Piece:
        head = {"model": self._model, "created_at": _now()}
        tail = {**({"logprobs": list(logprobs)} if logprobs else {}), "done": False}
        more = {"thinking": thinking} if thinking else {}
        if not self._chats:
            return {**head, "response": text, **more, **tail}
        called = {"tool_calls": list(calls)} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **more, **called}, **tail}

    def _complete(self) -> int:
        """Return how many of the first calls that wait are complete."""
        count = 0
        for _, pieces in sorted(self._calls.items()):
            if not pieces[-1].arguments.rstrip().endswith("}") or UNREADABLE in _arguments(pieces):
                break
            count += 1
        return count

    def _take_calls(self, count: int) -> tuple[Piece, ...]:
        calls = []
        for index, pieces in sorted(self._calls.items())[:count]:
            name = next((piece.name for piece in pieces if piece.name), "")
            call_id = next((piece.id for piece in pieces if piece.id), "")
            calls.append({"id": call_id, "function": {"index": index, "name": name, "arguments": _arguments(pieces)}})
            del self._calls[index]
        return tuple(calls)

    def _end(self, item: Finished) -> Piece:
        document = {**self._piece(), "done": True, "done_reason": _REASONS[item.reason], **_spent(item.usage)}
        if self._prompt is not None:
            message = Message(role="assistant", content="".join(self._said))
            document["context"] = write_context([*self._prompt, message])
        if item.warnings:
            document["warnings"] = list(item.warnings)
        if self._recorded:
            document["cfs"] = self._recorded.model_copy(update={"finish_reason": item.reason}).model_dump()
        return document


def _arguments(pieces: Iterable[CallDelta]) -> dict[str, Any]:
    return read_arguments("".join(piece.arguments for piece in pieces))


def writer_of(
    request: OllamaChatRequest | OllamaGenerateRequest, model: str, recorded: Recorded | None
) -> OllamaWriter:
    """Return the writer of the answer to a request."""
    if isinstance(request, OllamaChatRequest):
        return OllamaWriter(model, recorded, chats=True, thinking=request.shows_thinking)
    prompt = None if recorded and request.context is None else _generation(request)
    return OllamaWriter(model, recorded, chats=False, thinking=request.shows_thinking, prompt=prompt)


def _spent(usage: Usage) -> dict[str, int]:
    """Return counts and times. The time in the queue stands where Ollama has the time to load the model."""
    reading = max(0.0, usage.first_token_seconds - usage.queue_seconds)
    return {
        "total_duration": _nanoseconds(usage.total_seconds),
        "load_duration": _nanoseconds(usage.queue_seconds),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(reading),
        "eval_count": usage.completion_tokens,
        "eval_duration": _nanoseconds(max(0.0, usage.total_seconds - usage.first_token_seconds)),
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _logprob(token: TokenLogprob) -> Piece:
    top = [
        {"token": alternative.token, "logprob": alternative.logprob, "bytes": alternative.bytes}
        for alternative in token.top
    ]
    return {"token": token.token, "logprob": token.logprob, "bytes": token.bytes, "top_logprobs": top}


def line(piece: Mapping[str, Any]) -> bytes:
    """Format a piece as a line of JSON."""
    return json.dumps(piece, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
