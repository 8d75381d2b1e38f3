"""The interface of all engines.

An engine generates text from structured messages and settings. It builds the prompt itself (S8): no other code knows
templates or tokens. One conformance class in `tests/engine` runs against every implementation.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from cfs.errors import EngineError, WorkerCrashed
from cfs.wire import FinishReason, Message, Price, Settings, TokenLogprob, Usage
from cfs_server.engine.contract.reply_options import ReplyOptions

Kind = Literal["interactive", "agent", "background"]
Hint = Literal["waiting_for_children", "children_done", "tool_call", "user_turn"]
EngineState = Literal["starting", "ready", "restarting", "stopped"]
RestartReason = Literal["crash", "hang"]
UpstreamKind = Literal["openai", "anthropic"]
"""Protocols of upstreams; `upstream.protocol.KINDS` describes them."""
Sampling = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repeat_last_n",
    "logit_bias",
    "min_tokens",
]
"""Settings of a session that an upstream may get."""
AffinityKind = Literal["x-session-id", "x-session-affinity", "prompt_cache_key", "user", "none"]
"""Where requests to an upstream say which of them belong together; see `upstream.affinity`."""

KvType = Literal["f16", "q8_0", "q4_0"]
"""Types of the numbers that attention keeps of each token; see `llama.model_plan.KV_TYPES`."""

TOO_LONG = "the turn took longer than {:g} seconds"
"""Error of a turn that had not finished at its deadline."""


MAX_TIMES = 4
"""How often a reply is begun: upstreams may fail after its first text, and a worker may die once."""


class ReplyLost(EngineError):
    """The reply broke off after its first text, which is void. The same request gets a new reply."""


class WorkerLost(ReplyLost, WorkerCrashed):
    """The worker process died after the first text of a reply."""


class HistoryRefused(EngineError):
    """The model's server refuses a history in all forms, for an unknown reason: it may accept a shorter one.

    `fits` is how many of the newest exchanges it may accept, and `error` is the error if that does not help.
    """

    def __init__(self, error: EngineError, *, fits: int) -> None:
        super().__init__(error.detail, retry_after=error.retry_after)
        self.error = error
        self.fits = fits


class ModelLoadError(Exception):
    """The model cannot be loaded; the text is the one line that the operator sees (E2)."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The detected properties of a model's state and the chosen settings: for `/readyz`, `/metrics`, log and doctor.

    `policy` is `ranges` when any run of tokens is kept and shared, `snapshots` when only whole states are. `window`
    is the mode of a sliding window. `extra_buffers`: weights are repacked for this processor's fast native code.
    `kv_type` is the type of the numbers that attention keeps of each token.
    """

    family: str
    policy: str
    window: str
    flash_attention: bool
    pool_tokens: int
    pool_bytes: int
    parallel: int
    threads: int
    extra_buffers: bool
    kv_type: KvType = "f16"

    def __str__(self) -> str:
        """Describe the plan in one line."""
        window = "" if self.window == "none" else f" (window of {self.window})"
        return (
            f"{self.family}{window}, kept as {self.policy}, flash attention {_on(self.flash_attention)}, one pool of"
            f" {self.pool_tokens} tokens in {self.pool_bytes / (1 << 20):.0f} MiB of {self.kv_type},"
            f" {self.parallel} turns at a time, {self.threads} threads, repacked weights {_on(self.extra_buffers)}"
        )


def _on(flag: bool) -> str:
    return "on" if flag else "off"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model: shown by `/readyz`, `/v1/models` and the log.

    `embedded`: it is the small model that is part of CFS. `notes` are remarks for the user, one sentence each. A model
    that is not `loaded` is loaded for the first turn that needs it; what is not known before that is 0. `pooling` is
    how it makes one vector of the tokens of a text: empty if it makes no embeddings, or if that is unknown. A model for
    embeddings alone does not have `makes_texts`.
    """

    name: str
    context_tokens: int
    has_chat_template: bool
    parameters: int = 0
    notes: tuple[str, ...] = ()
    engine: EnginePlan | None = None
    embedded: bool = False
    loaded: bool = True
    price: Price | None = None
    pooling: str = ""
    makes_texts: bool = True

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What it can do, as far as that is known."""
        return ("completion",) * self.makes_texts + ("embedding",) * bool(self.pooling)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn: the complete history (the user's message last) and how to answer it.

    An engine of several models answers with the one that the setting `model` names; others do not look at it.

    `cache_key` is the key of the state that may stay for the next turn: the session's stable key, which survives a
    rename. `family` is that of the root of its tree, if it has one. Sessions of one `owner` share state. Owners never
    share state, because its speed would reveal their text. Turns of one `account`, such as a family of sessions, have
    one share of their owner's time; `kind` is their urgency.
    A turn that has not ended after `deadline_seconds`, waiting time included, fails with `EngineError`.

    `may_shorten`: the caller can leave out old exchanges. A prompt without room for the reply is then refused, unless
    it has a single exchange.

    `partial` is the beginning of the reply, which another upstream has made. Only upstreams that can continue it get
    such requests. `times` counts how often the reply has begun, because the one before it was lost.
    """

    id: str
    cache_key: str
    messages: tuple[Message, ...]
    settings: Settings
    options: ReplyOptions = field(default_factory=ReplyOptions)
    owner: str = ""
    account: str = ""
    family: str = ""
    kind: Kind = "interactive"
    deadline_seconds: float | None = None
    may_shorten: bool = False
    partial: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call. `index` counts the calls of a reply from 0; the first piece has `id` and `name`.

    `arguments` is the next piece of the arguments' JSON text; all pieces of a call together are one JSON object.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """The new text of a running generation, whole characters only, and its number of tokens.

    `thinking` is the model's reasoning before its answer; `calls` are pieces of its tool calls. `logprobs` has the
    tokens of this text, for turns that requested them, except tokens that a stop string removed.
    """

    text: str
    tokens: int
    thinking: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last item that a generation yields. `stop` is the stop string that ended the text, if that is known.

    `warnings` say, a sentence each, what of the request could not be carried out.
    """

    reason: FinishReason
    usage: Usage
    stop: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start and current gauges, for `/metrics` and for tests that count instead of timing."""

    state: EngineState
    running: int = 0
    waiting: int = 0
    prompt_tokens_evaluated: int = 0
    tokens_generated: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    sequences_resident: int = 0
    sequences_parked: int = 0
    cells_used: int = 0
    restarts: int = 0
    restarts_by_reason: dict[RestartReason, int] = field(default_factory=dict)
    reason: str = ""
    """Why the engine is not ready, if known."""
    worker_pid: int | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    loaded: bool = True
    """Whether the model is loaded. One that is not is loaded for the first turn that needs it."""
    loads: int = 1
    """How often it has been loaded for that reason."""
    models: dict[str, "EngineStats"] = field(default_factory=dict)
    """The same for each model, if the engine has several: the counters above are their sums."""


COUNTERS = (
    "prompt_tokens_evaluated",
    "tokens_generated",
    "recomputed_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "steps",
    "restarts",
)
"""The counters of `EngineStats`: they only grow."""
GAUGES = ("running", "waiting", "sequences_resident", "sequences_parked", "cells_used")
"""The figures of `EngineStats` that say what is now."""


@dataclass(frozen=True, slots=True)
class EngineTokenCounts:
    """The token counts of some texts, and of a conversation's prompt if it was requested."""

    texts: tuple[int, ...]
    prompt: int | None = None


@runtime_checkable
class CountsTokens(Protocol):
    """An engine that has the model's tokenizer; for other engines token counts are estimated."""

    async def count_tokens(
        self, texts: Sequence[str], messages: Sequence[Message] | None = None, tools: Sequence[dict[str, Any]] = ()
    ) -> EngineTokenCounts:
        """Count the tokens of texts, and of a conversation's prompt; raises `EngineError` or `Unavailable`."""
        ...


Input = str | tuple[int, ...]
"""A text, or its tokens."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts whose vectors are requested from one model, or from the default.

    `dimensions` is the length of the vectors, if it is not the model's own. With `truncate` the end of a text that is
    too long is left out. Texts of one `owner` share that owner's time. One that is not answered after
    `deadline_seconds` fails.
    """

    inputs: tuple[Input, ...]
    model: str | None = None
    dimensions: int | None = None
    truncate: bool = False
    owner: str = ""
    account: str = ""
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A vector for each text, in their order, and the number of their tokens. Those of a worker have the length 1."""

    vectors: tuple[Sequence[float], ...]
    tokens: int


@runtime_checkable
class Embeds(Protocol):
    """An engine that can make embeddings, if its model can."""

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Make the vectors of some texts. Closing the task stops the work.

        Raises `Unsupported` if the model cannot, `ContextTooLong` for a text that is too long, and `EngineError`.
        """
        ...


class Engine(Protocol):
    """A back end that runs turns (E4). All methods are called on the server's event loop."""

    async def start(self) -> ModelInfo:
        """Load the model; raises `ModelLoadError`."""
        ...

    async def stop(self) -> None:
        """Stop at once and leave no process, thread, file or task."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a turn submitted now would start."""
        ...

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and its reply together; 0 if unknown."""
        ...

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """Predict the seconds that an owner's turn of a kind would wait if it were submitted now.

        Turns of others count as far as fair shares put them first. Zero while a turn can start at once.
        """
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Yield text as it is generated, then exactly one `Finished`.

        After `cancel(request.id)` it ends with `Finished("cancelled")`; closing the iterator cancels as well.
        Raises `EngineError` (`ContextTooLong`, `WorkerCrashed`) when the turn fails, and `ReplyLost` when the same
        request should be sent again. `ContextTooLong` is raised before any text. It contains the number of exchanges
        that fit, if the engine knows it. So is `HistoryRefused`, if the caller can leave out old exchanges.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a generation within one step; unknown ids are ignored."""
        ...

    def forget(self, cache_key: str) -> None:
        """Free all state of a deleted session."""
        ...

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Note a session's activity until its next turn, to decide which state stays. Unknown keys are ignored."""
        ...

    async def stats(self) -> EngineStats:
        """Return current counters and gauges."""
        ...


def delayed(usage: Usage, seconds: float) -> Usage:
    """Add the time that a turn has waited before the engine got it."""
    names = ("queue_seconds", "first_token_seconds", "total_seconds")
    return usage.model_copy(update={name: round(getattr(usage, name) + seconds, 6) for name in names})


@runtime_checkable
class DescribesItself(Protocol):
    """An engine whose model changes: it is not always loaded."""

    def info(self) -> ModelInfo:
        """Describe the model as it is now."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """An engine whose model is loaded for its first turn, or earlier."""

    def prepare(self) -> None:
        """Begin to load the model, so that the first turn need not wait for it."""
        ...


@runtime_checkable
class KeepsState(Protocol):
    """An engine whose state survives its worker and the server."""

    def keep_only(self, living: Callable[[], Iterable[str]]) -> None:
        """Free the state of all sessions of the past but those that exist, whose keys `living` returns at any time."""
        ...


@runtime_checkable
class HasModels(Protocol):
    """An engine of several models, one of which is the default. The models may change while it runs."""

    @property
    def names(self) -> Collection[str]:
        """The names of all models, the default first. The collection changes when the models change."""
        ...

    def engine_of(self, model: str | None) -> Engine:
        """Return the engine of a model, or of the default. Raises `EngineError` if there is no such model."""
        ...

    def infos(self) -> tuple[ModelInfo, ...]:
        """Describe all models as they are now, the default first."""
        ...


def engine_of(engine: Engine, model: str | None) -> Engine:
    """Return the engine that answers for a model. Raises `EngineError` if it has several, but not this one."""
    return engine.engine_of(model) if isinstance(engine, HasModels) else engine


def info_of(engine: Engine, info: ModelInfo | None, model: str | None) -> ModelInfo | None:
    """Describe a model of an engine, or its default; None if there is no such model. `info` is that of its only one."""
    if not isinstance(engine, HasModels):
        return info
    return next((candidate for candidate in engine.infos() if model in (None, candidate.name)), None)


def predicted_wait(engine: Engine, model: str | None, owner: str, kind: Kind) -> float:
    """Predict the wait of a turn for a model; see `Engine.predicted_wait`. A turn for no model fails at once."""
    try:
        return engine_of(engine, model).predicted_wait(owner, kind)
    except EngineError:
        return 0.0
