"""One turn in the worker: its tokens, its text, and its state in the scheduler."""

import math
from array import array
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from cfs.wire import FinishReason
from cfs_server.engine.contract.fairness import Path as Share
from cfs_server.engine.contract.protocol import Ended, TextDelta, TurnDequeued
from cfs_server.engine.kvcache.device import Allocation
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.token_logs import TokenLog
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.log_probabilities import Reported
from cfs_server.engine.worker.lookup import Drafter
from cfs_server.engine.worker.sampling import Sampler
from cfs_server.engine.worker.text import TextStream


class GenerationState(Enum):
    """The state of a turn. Only `WaitQueue.move` changes it."""

    WAITING = "waiting"
    """For its share of the engine, for room in the pool, or for a prefix that another turn computes."""
    LOADING = "loading"
    """For the disk, from which its state is read."""
    RUNNING = "running"
    """It takes part in the steps."""
    PREEMPTED = "preempted"
    """It ran, made room for others, and waits to resume."""
    PAUSED = "paused"
    """Its reader is slow: it does not compete for the engine until its reader has caught up."""
    FINISHED = "finished"


TRANSITIONS: dict[GenerationState, frozenset[GenerationState]] = {
    GenerationState.WAITING: frozenset(
        {GenerationState.LOADING, GenerationState.RUNNING, GenerationState.PAUSED, GenerationState.FINISHED}
    ),
    GenerationState.LOADING: frozenset({GenerationState.WAITING, GenerationState.PAUSED, GenerationState.FINISHED}),
    GenerationState.RUNNING: frozenset({GenerationState.PREEMPTED, GenerationState.PAUSED, GenerationState.FINISHED}),
    GenerationState.PREEMPTED: frozenset(
        {GenerationState.LOADING, GenerationState.RUNNING, GenerationState.PAUSED, GenerationState.FINISHED}
    ),
    GenerationState.PAUSED: frozenset({GenerationState.WAITING, GenerationState.FINISHED}),
    GenerationState.FINISHED: frozenset(),
}
"""The states that may follow each state."""
QUEUED = frozenset({GenerationState.WAITING, GenerationState.LOADING, GenerationState.PREEMPTED})
"""States of turns that want to run."""
COMPETING = QUEUED | {GenerationState.RUNNING}
"""States of turns whose accounts compete for the engine."""


class InvalidGenerationTransition(RuntimeError):
    """A turn cannot go from its state to another one: a defect of the scheduler."""


@dataclass(eq=False, slots=True)
class Generation:
    """A turn whose prompt is tokens already. `log` is prompt and reply; the pool needs it to continue.

    Owner: `share` is its account; `forgotten` means that its session was deleted.
    Time: `slice` is the time since its admission, `owed` the time that was not charged to an account yet.
    `ends_at` is its deadline by the monotonic clock, `may_take` its time limit in seconds.
    Savings: `spared` tokens of its prompt were or are computed by other turns. `awaited` is a running turn that
    computes this one's prefix, and the length of the prefix.
    Losses: `reached` is its number of computed tokens at its preemption. `losses` counts how often they were lost when
    it resumed, `loads` how often it waited for the disk.
    Speculation: `drafted` tokens were guessed by its `drafter` or its grammar and verified, `accepted` of them were
    right. Its grammar forces the next `forced` ones.
    `reported` is set for turns with log-probabilities. A `deterministic` turn is computed in isolation and gets no
    allocation. `thinks` means that its prompt ends in the middle of the model's thinking.
    """

    id: str
    cache_key: str
    log: "array[int]"
    prompt_tokens: int
    max_tokens: int
    sampler: Sampler
    text: TextStream
    reported: Reported | None = None
    known: TokenLog = field(default_factory=TokenLog)
    owner: str = ""
    deterministic: bool = False
    share: Share = ("", "interactive", "")
    slice: float = 0.0
    owed: float = 0.0
    ends_at: float = math.inf
    may_take: float = math.inf
    spared: int = 0
    reached: int = 0
    losses: int = 0
    loads: int = 0
    state: GenerationState = GenerationState.WAITING
    allocation: Allocation | None = None
    awaited: "tuple[Generation, int] | None" = None
    forgotten: bool = False
    failed: bool = False
    thinks: bool = False
    completion_tokens: int = 0
    told_tokens: int = 0
    started: bool = False
    drafter: Drafter | None = None
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    newest: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def own_allocation(self) -> Allocation:
        """The allocation of a running turn."""
        if self.allocation is None:
            raise RuntimeError(f"turn {self.id} was not admitted")
        return self.allocation

    @property
    def computed(self) -> int:
        """Tokens of the log whose state is on the device."""
        return self.allocation.handle.length if self.allocation else 0

    @property
    def left(self) -> int:
        """Tokens that the reply may still have."""
        return self.max_tokens - self.completion_tokens

    @property
    def pending(self) -> int:
        """Tokens of the log that are still to be computed."""
        return len(self.log) - (self.allocation.handle.length if self.allocation else 0)

    def next_tokens(self, count: int) -> Tokens:
        """Return the next tokens to compute."""
        start = self.computed
        return np.array(self.log[start : start + count], dtype=np.int32)

    def accept(self, token: int, vocabulary: Vocabulary) -> FinishReason | None:
        """Append a sampled token; return the finish reason if it ends the turn."""
        if vocabulary.ends(token):
            return "stop"
        self.log.append(token)
        self.completion_tokens += 1
        self.newest += self.text.feed(vocabulary.piece(token))
        if self.reported is not None and self.sampler.ranked:
            self.reported.add(self.sampler.ranked.popleft(), self.text)
        if self.text.stopped:
            return "stop"
        return "length" if self.completion_tokens >= self.max_tokens else None

    def take_text(self) -> TextDelta | None:
        """Return the text since the last call, if there is any."""
        if not self.newest:
            return None
        text, self.newest = self.newest, ""
        self.said.append(text)
        tokens, self.told_tokens = self.completion_tokens - self.told_tokens, self.completion_tokens
        return TextDelta(self.id, text, tokens, self.reported.take(self.text) if self.reported else None)

    def start_notice(self) -> TurnDequeued:
        """Describe the beginning of the turn."""
        return TurnDequeued(self.id, self.prompt_tokens, self.computed, self.thinks)

    def remember(self, vocabulary: Vocabulary) -> None:
        """Note the reply in the session's token log, so that the next prompt has these tokens again."""
        reply = np.array(self.log[self.prompt_tokens :], dtype=np.int32)
        self.known.answer("".join(self.said), reply, [vocabulary.piece(int(token)) for token in reply])

    def end_notice(self, reason: FinishReason, error: str = "") -> Ended:
        """Describe the end of the turn; text that was held back becomes certain."""
        self.newest += self.text.finish()
        kind = "EngineError" if error else ""
        refused = self.drafted - self.accepted
        return Ended(
            self.id,
            reason,
            self.completion_tokens,
            kind,
            error,
            stop=self.text.stop,
            accepted=self.accepted,
            refused=refused,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that could not even become a generation."""

    ended: Ended
