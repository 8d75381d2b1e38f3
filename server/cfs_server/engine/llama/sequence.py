"""One running turn, as the scheduler sees it: tokens to compute, tokens computed, text to show."""

import math
from array import array
from dataclasses import dataclass, field

import numpy as np

from cfs.wire import FinishReason
from cfs_server.engine.fairness import Path as Share
from cfs_server.engine.kvcache.device import Allocation
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.sampling import Reported, Sampler
from cfs_server.engine.llama.text import TextStream
from cfs_server.engine.llama.tokenizer import TokenLog, Vocabulary
from cfs_server.engine.protocol import Ended, Started, Text


@dataclass(eq=False, slots=True)
class Generation:
    """A turn whose prompt is tokens already. `log` is prompt and reply: what the pool must hold to go on.

    `share` names the account that it draws on, `slice` is the time that it had since it was admitted, `owed` what of
    its time no account has paid yet. `awaited` is another turn that computes this one's prefix, and how much of it;
    `forgotten` when its session is gone. `spared` tokens of its prompt others compute or have computed.
    `reached` is what was computed when it was preempted, and `losses` how often
    that was gone when it came back. `ends_at` is its deadline by the monotonic clock, `may_take` the seconds that it
    was given. `reported` is there for turns that asked for log-probabilities; `deterministic` ones are computed by
    themselves and never get an allocation. `thinks` when its prompt ends in the middle of the model's thinking.
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
    allocation: Allocation | None = None
    awaited: "tuple[Generation, int] | None" = None
    forgotten: bool = False
    failed: bool = False
    thinks: bool = False
    completion_tokens: int = 0
    told_tokens: int = 0
    started: bool = False
    newest: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def own_allocation(self) -> Allocation:
        """The allocation of a turn that runs."""
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
        """Take a sampled token; says why the turn is over if it is."""
        if vocabulary.ends(token):
            return "stop"
        self.log.append(token)
        self.completion_tokens += 1
        self.newest += self.text.feed(vocabulary.piece(token))
        if self.reported is not None and self.sampler.ranked is not None:
            self.reported.add(self.sampler.ranked, self.text)
        if self.text.stopped:
            return "stop"
        return "length" if self.completion_tokens >= self.max_tokens else None

    def take_text(self) -> Text | None:
        """Return the text since the last call, if there is any."""
        if not self.newest:
            return None
        text, self.newest = self.newest, ""
        self.said.append(text)
        tokens, self.told_tokens = self.completion_tokens - self.told_tokens, self.completion_tokens
        return Text(self.id, text, tokens, self.reported.take(self.text) if self.reported else None)

    def start_notice(self) -> Started:
        """Describe the beginning of the turn."""
        return Started(self.id, self.prompt_tokens, self.computed, self.thinks)

    def remember(self, vocabulary: Vocabulary) -> None:
        """Note the reply in the session's token log, so that the next prompt has these tokens again."""
        reply = np.array(self.log[self.prompt_tokens :], dtype=np.int32)
        self.known.answer("".join(self.said), reply, [vocabulary.piece(int(token)) for token in reply])

    def end_notice(self, reason: FinishReason, error: str = "") -> Ended:
        """Describe the end of the turn; text that was held back becomes certain."""
        self.newest += self.text.finish()
        return Ended(self.id, reason, self.completion_tokens, "EngineError" if error else "", error)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that could not even become a generation."""

    ended: Ended
