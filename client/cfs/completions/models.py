"""Pydantic models of completions: requests, responses, chunks, models and token counts (H4)."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, WithJsonSchema

from cfs.completions.messages import ChatMessage, Open
from cfs.contract import wire
from cfs.contract.wire import Count, LogitBias, NamedTool, Penalty, RepeatPenalty, RepeatWindow, ToolSpec


class StreamOptions(Open):
    """`include_usage`: a last chunk says what the completion cost."""

    include_usage: bool = False


Number = Annotated[float, Field(allow_inf_nan=False)]


class LogitOptions(Open):
    """What changes the logits of tokens: the settings of the same names, and `ignore_eos`.

    A reply with `ignore_eos` has as many tokens as it may have.
    """

    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: RepeatPenalty | None = None
    repeat_last_n: RepeatWindow | None = None
    logit_bias: LogitBias | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None


class ChatRequest(LogitOptions):
    """Body of `POST /v1/chat/completions`.

    A server with several models answers with the one that `model` names; a server with one takes any name.
    `user` names the account within the caller's that the completion draws on. `n` may be 1 only.
    Members that are not listed are ignored.
    """

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1)]
    model: str = ""
    tools: tuple[ToolSpec, ...] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[dict[str, Any] | None, WithJsonSchema(wire.RESPONSE_FORMAT)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | tuple[str, ...] | None = None
    seed: int | None = None
    n: Annotated[int | None, WithJsonSchema({"enum": [None, 1]})] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    functions: Annotated[Any, WithJsonSchema({"type": "null"})] = None
    function_call: Annotated[Any, WithJsonSchema({"type": "null"})] = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None


class TokensRequest(Open):
    """Body of `POST /v1/tokens`: texts, each of which is counted, and a conversation whose prompt is."""

    texts: tuple[str, ...] = ()
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[ToolSpec, ...] | None = None
    model: str = ""


CompletionReason = Literal["stop", "length", "tool_calls"]


class CachedTokens(Open):
    """How many tokens of the prompt needed no computation."""

    cached_tokens: int = 0


class PredictedTokens(Open):
    """How many tokens of the reply the engine had guessed, and how many guesses were wrong: those cost nothing."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class CompletionUsage(Open):
    """What a completion cost, in tokens, and in US dollars if the model has a price."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: CachedTokens = CachedTokens()
    completion_tokens_details: PredictedTokens = PredictedTokens()
    cost: float | None = None

    @classmethod
    def of(cls, usage: wire.Usage) -> Self:
        """Convert from the usage of a turn."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
            completion_tokens_details=PredictedTokens(
                accepted_prediction_tokens=usage.accepted_prediction_tokens,
                rejected_prediction_tokens=usage.rejected_prediction_tokens,
            ),
            cost=usage.cost,
        )

    def usage(self) -> wire.Usage:
        """Convert to the usage of a turn; the protocol has no times."""
        return wire.Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.prompt_tokens_details.cached_tokens,
            accepted_prediction_tokens=self.completion_tokens_details.accepted_prediction_tokens,
            rejected_prediction_tokens=self.completion_tokens_details.rejected_prediction_tokens,
            cost=self.cost,
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
        """Convert from a token of a turn."""
        top = tuple(
            TopLogprob(token=alternative.token, logprob=alternative.logprob, bytes=alternative.bytes)
            for alternative in token.top
        )
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
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None

    @property
    def message(self) -> ChatMessage:
        """The text of the reply."""
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
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None


class ModelCard(Open):
    """A model that answers here; `max_model_len` is the length of its context in tokens.

    `created` is when the server started, in seconds since 1970. `notes` are remarks for the user, a sentence each. A
    model that is not `loaded` is loaded for the first turn that needs it. The price is for a million tokens.
    `capabilities` are `completion` and `embedding`, as far as they are known.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "cfs"
    max_model_len: int | None = None
    parameters: int | None = None
    embedded: bool = False
    has_chat_template: bool | None = None
    notes: tuple[str, ...] = ()
    loaded: bool = True
    price: wire.Price | None = None
    capabilities: tuple[str, ...] = ("completion",)


class ModelList(Open):
    """All models that answer here."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


class TokenCounts(Open):
    """How many tokens each text has, and the prompt. Not `exact` where the model's tokenizer cannot be asked."""

    counts: tuple[int, ...]
    prompt_tokens: int | None = None
    exact: bool
