"""What comes back: a completion, whole or in chunks, models, and numbers of tokens."""

from typing import Literal, Self

from cfs import wire
from cfs.completions.messages import ChatMessage, Open

CompletionReason = Literal["stop", "length", "tool_calls"]


class CachedTokens(Open):
    """How many tokens of the prompt needed no computation."""

    cached_tokens: int = 0


class CompletionUsage(Open):
    """What a completion cost, in tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: CachedTokens = CachedTokens()

    @classmethod
    def of(cls, usage: wire.Usage) -> Self:
        """Say what a turn's usage says."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
        )

    def usage(self) -> wire.Usage:
        """Say it as a turn's usage does; the protocol has no times."""
        return wire.Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.prompt_tokens_details.cached_tokens,
        )


class Recorded(Open):
    """Where a completion was recorded, and how its turn ended there: it may have been cancelled, too."""

    session: str
    turn: str
    finish_reason: wire.FinishReason | None = None


class TopLogprob(Open):
    """A token that could stand at some place, and the natural logarithm of its probability there."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


class ContentLogprob(TopLogprob):
    """A token of an answer, and the most probable ones at its place."""

    top_logprobs: tuple[TopLogprob, ...] = ()

    @classmethod
    def of(cls, token: wire.TokenLogprob) -> Self:
        """Say what a turn's token says."""
        top = tuple(TopLogprob(token=each.token, logprob=each.logprob, bytes=each.bytes) for each in token.top)
        return cls(token=token.token, logprob=token.logprob, bytes=token.bytes, top_logprobs=top)


class ChoiceLogprobs(Open):
    """The tokens that an answer was made of; those of thinking and calls are among them."""

    content: tuple[ContentLogprob, ...]


class Choice(Open):
    """The one answer of a completion."""

    index: int = 0
    message: ChatMessage
    finish_reason: CompletionReason
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(Open):
    """A finished completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: CompletionUsage = CompletionUsage()
    cfs: Recorded | None = None

    @property
    def message(self) -> ChatMessage:
        """What the model said."""
        return self.choices[0].message


class FunctionPiece(Open):
    """A piece of a call: the name comes first, then the arguments' JSON text piece by piece."""

    name: str | None = None
    arguments: str | None = None


class ToolCallPiece(Open):
    """A piece of the call with this `index`; `id` comes with the first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionPiece | None = None


class ChunkDelta(Open):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallPiece, ...] | None = None


class ChunkChoice(Open):
    """The part of a chunk that belongs to the one answer."""

    index: int = 0
    delta: ChunkDelta
    finish_reason: CompletionReason | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatChunk(Open):
    """One piece of a streamed completion; one without choices says what the whole cost."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...] = ()
    usage: CompletionUsage | None = None
    cfs: Recorded | None = None


class ModelCard(Open):
    """A model that answers here; `max_model_len` is the length of its context in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "cfs"
    max_model_len: int | None = None


class ModelList(Open):
    """All models that answer here."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


class TokenCounts(Open):
    """How many tokens each text has, and the prompt. Not `exact` where the model's tokenizer cannot be asked."""

    counts: tuple[int, ...]
    prompt_tokens: int | None = None
    exact: bool
