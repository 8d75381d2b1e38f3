"""Computes one step and accounts for it: each turn's share, the cost, and the cost model's update."""

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import CfsError, EngineError
from cfs_server.engine.contract.fairness import Backlog
from cfs_server.engine.contract.protocol import Counters
from cfs_server.engine.kvcache.cache import PrefixCache
from cfs_server.engine.llama.cost_model import TILE, PromptBudget, StepCost, attended_cells, counted, padding
from cfs_server.engine.llama.ffi import Batch, Context, Outcome
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.worker.generation import Generation
from cfs_server.engine.worker.sampling import Candidates, Logits, Sampler
from cfs_server.engine.worker.wait_queue import WaitQueue

# -- waiting work in seconds, estimated from the cost of earlier turns (back-pressure) --------------------------------

_LEARNING_RATE = 0.1
_FIRST_GUESS = 128.0


class Forecast:
    """Learns the length of replies; gets the cost of prompts and steps from the budget."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._reply_tokens = _FIRST_GUESS

    def saw_reply(self, tokens: int) -> None:
        """Learn from a turn that ended."""
        self._reply_tokens += _LEARNING_RATE * (tokens - self._reply_tokens)

    def backlog(self, running: Collection[Generation], waiting: Collection[Generation], parallel: int) -> Backlog:
        """Predict the work before a new turn. Without a free place a running turn must end first."""
        if len(running) < parallel:
            return Backlog()
        prompt, reply = self._budget.seconds(1), self._budget.reply_seconds(parallel)
        place = min((self._seconds(turn, prompt, reply) for turn in running), default=0.0)
        return Backlog.of(place, ((*turn.share[:2], self._seconds(turn, prompt, reply)) for turn in waiting))

    def _seconds(self, turn: Generation, per_prompt_token: float, per_reply_token: float) -> float:
        known = max(turn.computed, turn.spared)
        prompt = max(0, turn.prompt_tokens - known) if not turn.completion_tokens else 0
        reply = max(1.0, min(self._reply_tokens, turn.max_tokens) - turn.completion_tokens)
        return prompt * per_prompt_token + reply * per_reply_token


# -- sampling of all outputs of a step --------------------------------------------------------------------------------
#
# It runs on the engine's thread, or on a few more threads when that is faster.

PAYS_FROM = 300_000
"""Tokens that a step's samplers look at one by one: 3 ms of work, when the hand-over costs 0.1 ms (measured)."""
MOST_THREADS = 4

Choice = int | CfsError
"""The token of an output, or why there is none."""


class SamplerPool:
    """Chooses tokens. A sampler belongs to one turn and a buffer to one thread, so nothing is shared.

    Native code runs without Python's lock; the tokens are the same with and without threads. `close` ends them.
    """

    def __init__(self, vocabulary: int, threads: int) -> None:
        self._vocabulary = vocabulary
        self._buffers = [Candidates(vocabulary)]
        self._helpers = min(threads, MOST_THREADS) - 1
        self._threads: ThreadPoolExecutor | None = None

    def choose(self, samplers: Sequence[Sampler], rows: Logits) -> list[Choice]:
        """Choose a token for each sampler from its row of logits."""
        if len(samplers) < 2 or self._helpers < 1 or not self._pays(samplers):
            return _choose(samplers, rows, self._buffers[0])
        if self._threads is None:
            self._buffers += [Candidates(self._vocabulary) for _ in range(self._helpers)]
            self._threads = ThreadPoolExecutor(self._helpers, "sampler")
        parts = range(min(len(samplers), self._helpers + 1))
        step = len(parts)
        others = [
            self._threads.submit(_choose, samplers[part::step], rows[part::step], self._buffers[part])
            for part in parts[1:]
        ]
        choices: list[Choice] = [0] * len(samplers)
        choices[0::step] = _choose(samplers[0::step], rows[0::step], self._buffers[0])
        for part, other in zip(parts[1:], others, strict=True):
            choices[part::step] = other.result()
        return choices

    def close(self) -> None:
        """End the threads, if there are any."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _pays(self, samplers: Sequence[Sampler]) -> bool:
        return sum(sampler.weight(self._vocabulary) for sampler in samplers) >= PAYS_FROM


def _choose(samplers: Sequence[Sampler], rows: Logits, buffer: Candidates) -> list[Choice]:
    choices: list[Choice] = []
    for sampler, row in zip(samplers, rows, strict=True):
        try:
            choices.append(sampler.sample(row, buffer))
        except CfsError as error:
            choices.append(error)
    return choices


# -- isolated turns: the same seed gives the same text under any load -------------------------------------------------
#
# A floating-point sum depends on the order of its terms. Here the order depends on the other turns in a batch, on the
# pieces of the prompt, and on the cells of other sequences (docs/engine.md has measurements). So such a turn has its
# own context, created for it and freed after it. It shares no batch, uses fixed pieces and cells, and reuses no earlier
# state. Its steps alternate with those of all other turns, which wait for at most one small step.

PIECE = TILE
"""Tokens of a prompt that are read in one step: as few as a step of others reads at least."""
STEP_FAILED = "the model could not compute this step"
MOST = 2
"""Turns that have a context of their own at a time; each takes memory for its whole length."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One step of one turn: the tokens computed, how many of them of its prompt, and its next token if there is one."""

    turn: Generation
    tokens: int
    prompt: int
    choice: Choice | None
    failed: bool = False


class _Own:
    """One turn's context. Prompt and reply are computed in the same pieces whenever this begins anew."""

    def __init__(self, model: LoadedModel, turn: Generation) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = len(turn.log) + turn.max_tokens - turn.completion_tokens
        params.n_batch = params.n_ubatch = PIECE
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = model.options.threads
        flash, plain = lib.LLAMA_FLASH_ATTN_TYPE_AUTO, lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.flash_attn_type = flash if model.options.flash_attention else plain
        params.swa_full = params.no_perf = True
        raw = lib.llama_init_from_model(model.raw, params)
        if not raw:
            raise EngineError("there is no memory for a context of this turn's own")
        self.turn = turn
        self.computed = 0
        self.context = Context(raw, model.raw)
        self._batch = Batch(PIECE)

    def next_size(self) -> int:
        """Tokens of the next step: pieces of the prompt, then the reply token by token."""
        left = self.turn.prompt_tokens - self.computed
        return min(left, PIECE) if left > 0 else 1

    def decode(self, count: int) -> Outcome:
        """Compute the next tokens; the last of them has logits."""
        end = self.computed + count
        self._batch.clear()
        self._batch.add(0, np.array(self.turn.log[self.computed : end], dtype=np.int32), self.computed, output=True)
        self.computed = end
        return self.context.decode(self._batch)

    def free(self) -> None:
        """Release the context."""
        lib.llama_free(self.context.raw)


class DeterministicRunner:
    """The turns that have a context of their own; they take steps one after the other."""

    def __init__(self, model: LoadedModel, samplers: SamplerPool) -> None:
        self._model = model
        self._samplers = samplers
        self._turns: deque[_Own] = deque()

    @property
    def turns(self) -> list[Generation]:
        """The present turns."""
        return [own.turn for own in self._turns]

    def next_size(self) -> int:
        """Tokens of the next step; 0 without turns."""
        return self._turns[0].next_size() if self._turns else 0

    @property
    def full(self) -> bool:
        """Whether no other turn can start."""
        return len(self._turns) >= MOST

    def begin(self, turn: Generation) -> None:
        """Make a context for a turn; raises `EngineError`."""
        self._turns.append(_Own(self._model, turn))

    def step(self) -> Pace | None:
        """Continue the turn that waited longest."""
        if not self._turns:
            return None
        own = self._turns.popleft()
        self._turns.append(own)
        turn, count = own.turn, own.next_size()
        prompt = count if own.computed < turn.prompt_tokens else 0
        if own.decode(count) is not Outcome.DONE:
            return Pace(turn, count, prompt, EngineError(STEP_FAILED), failed=True)
        if own.computed < len(turn.log):
            return Pace(turn, count, prompt, None)
        rows = own.context.outputs(1, self._model.vocabulary.size)
        return Pace(turn, count, prompt, self._samplers.choose([turn.sampler], rows)[0])

    def remove(self, turn: Generation) -> None:
        """Free the context of a turn, if it has one here."""
        for own in [own for own in self._turns if own.turn is turn]:
            self._turns.remove(own)
            own.free()

    def close(self) -> None:
        """Free all contexts."""
        for turn in self.turns:
            self.remove(turn)


# -- the engine's own overhead: the part of a step in which the model computes nothing --------------------------------

_RATE_OF_CLOCK = 0.05


class StepClock:
    """Exponential means of seconds a step: `own` is all time except the model's work and the sampling."""

    def __init__(self) -> None:
        self.own = 0.0
        self.sampling = 0.0
        self._began = self._decoded = self._sampled = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began, self._decoded, self._sampled = time.perf_counter(), 0.0, 0.0

    def decoded(self, seconds: float) -> None:
        """The model took so long."""
        self._decoded += seconds

    def sampled(self, seconds: float) -> None:
        """Choosing tokens took so long."""
        self._sampled += seconds

    def end(self) -> None:
        """A step is over; one in which nothing was computed does not count."""
        if not self._decoded:
            return
        own = time.perf_counter() - self._began - self._decoded - self._sampled
        self.own = _mean(self.own, own)
        self.sampling = _mean(self.sampling, self._sampled)


def _mean(before: float, newest: float) -> float:
    return before + _RATE_OF_CLOCK * (newest - before) if before else newest


# -- the batch of a step: one token of each stream, or pieces of prompts ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Filling:
    """The tokens of each turn in a batch; `streams` turns are streaming, all of `speaking` get logits, in its order."""

    shares: Mapping[Generation, int]
    streams: int
    speaking: list[Generation]


def fill(batch: Batch, shares: Mapping[Generation, int]) -> Filling:
    """Write the next tokens of some turns into a batch."""
    batch.clear()
    speaking = [turn for turn, count in shares.items() if count == 1 == turn.pending]
    batch.add_streams(
        [turn.own_allocation.handle.id for turn in speaking],
        [turn.log[-1] for turn in speaking],
        [len(turn.log) - 1 for turn in speaking],
    )
    streams = len(speaking)
    if streams < len(shares):
        streaming = set(speaking)
        for turn in [turn for turn in shares if turn not in streaming]:
            count, pending = shares[turn], turn.pending
            batch.add(turn.own_allocation.handle.id, turn.next_tokens(count), turn.computed, output=count == pending)
            if count == pending:
                speaking.append(turn)
    return Filling(shares, streams, speaking)


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of a step, and the next token of each turn that has one."""

    outcome: Outcome
    choices: list[tuple[Generation, Choice]] = field(default_factory=list)
    reason: str = ""
    """The batch that the library could not compute, and the reason: one line for the log."""


class BatchRunner:
    """Runs the model and the samplers for the scheduler, which decides for whom."""

    def __init__(self, model: LoadedModel, wait_queue: WaitQueue, cache: PrefixCache) -> None:
        options = model.options
        self.budget = PromptBudget(model.context.batch_size, options.step_seconds)
        self.forecast = Forecast(self.budget)
        self.clock = StepClock()
        self._samplers = SamplerPool(model.vocabulary.size, options.threads)
        self.deterministic = DeterministicRunner(model, self._samplers)
        self._log = model.log
        self._context = model.context
        self._vocabulary = model.vocabulary
        self._batch = Batch(model.context.batch_size)
        self._queue = wait_queue
        self._cache = cache
        self._cost_alone = StepCost()
        self._steps = self._prompt_tokens = self._tokens_generated = 0

    def counters(self, recomputed_tokens: int) -> Counters:
        """Totals since the start."""
        return Counters(self._steps, self._prompt_tokens, self._tokens_generated, recomputed_tokens)

    @property
    def gauges(self) -> dict[str, float]:
        """The current cost of a step in seconds."""
        return {
            "seconds_per_prompt_token": self.budget.cost.per_token,
            "seconds_per_prompt_look": self.budget.cost.per_attended_cell,
            "seconds_per_step": self.budget.streams.fixed,
            "own_seconds_per_step": self.clock.own,
            "sampling_seconds_per_step": self.clock.sampling,
        }

    def compute(self, shares: Mapping[Generation, int]) -> Computed:
        """Compute so many tokens of each turn together, and choose a token for those that are complete."""
        filling = fill(self._batch, shares)
        tokens, seen = self._batch.size, self._attended_cells(filling)
        padded = self._pad(tokens, seen)
        if seen is not None and self._context.tiled:
            seen = counted(tokens, self._batch.size, seen)
        self._log.hold()
        began = time.perf_counter()
        outcome = self._context.decode(self._batch)
        seconds = time.perf_counter() - began
        why = self._log.take(failed=outcome is Outcome.FAILED)
        if padded:
            self._cache.pool.clear_padding()
        self.clock.decoded(seconds)
        if outcome is not Outcome.DONE:
            return Computed(outcome, reason=_failure(shares, tokens, why) if why else "")
        self._book(filling, tokens, seen, seconds)
        return Computed(outcome, self._choose(filling.speaking))

    def compute_alone(self) -> Computed | None:
        """Compute a step of one isolated turn; `None` when there are none."""
        self._log.hold()
        began = time.perf_counter()
        pace = self.deterministic.step()
        why = self._log.take(failed=pace is not None and pace.failed)
        if pace is None:
            return None
        seconds = time.perf_counter() - began
        self._cost_alone.saw(pace.tokens, seconds)
        self.clock.decoded(seconds)
        self._steps += 1
        self._prompt_tokens += pace.prompt
        self._queue.charge({pace.turn: pace.tokens}, seconds)
        if pace.choice is None:
            return Computed(Outcome.DONE)
        self._tokens_generated += isinstance(pace.choice, int)
        reason = _failure([pace.turn], pace.tokens, why) if why else ""
        return Computed(Outcome.DONE, [(pace.turn, pace.choice)], reason)

    def seconds_alone(self) -> float | None:
        """Predict how long `compute_alone` takes, 0 before it was seen; `None` when there is nothing to compute."""
        tokens = self.deterministic.next_size()
        return self._cost_alone.seconds(tokens) if tokens else None

    def close(self) -> None:
        """Free the contexts of isolated turns, and end the started threads."""
        self.deterministic.close()
        self._samplers.close()

    def _attended_cells(self, filling: Filling) -> float | None:
        """Count the cells that a step attends to, if it has nothing but pieces of prompts."""
        if filling.streams:
            return None
        return sum(attended_cells(count, turn.computed) for turn, count in filling.shares.items())

    def _pad(self, tokens: int, seen: float | None) -> bool:
        """Pad a step to a full tile, if that is quicker and there is room."""
        if seen is None or not self._context.tiled:
            return False
        count = padding(tokens, seen, self.budget.cost)
        sequence = self._cache.pool.padding(tokens + count) if count else None
        if sequence is None:
            return False
        self._batch.add(sequence, [0] * count, 0, output=False)
        return True

    def _book(self, filling: Filling, tokens: int, seen: float | None, seconds: float) -> None:
        self._steps += 1
        self._queue.charge(filling.shares, self.budget.credible(self._batch.size, seconds, seen))
        self.budget.saw_step(self._batch.size, seconds, seen)
        for turn, count in filling.shares.items():
            self._cache.grow(turn.own_allocation, count)
        again = sum(turn.completion_tokens > 0 for turn in filling.speaking)
        self._prompt_tokens += tokens - again

    def _choose(self, turns: list[Generation]) -> list[tuple[Generation, Choice]]:
        if not turns:
            return []
        began = time.perf_counter()
        rows = self._context.outputs(len(turns), self._vocabulary.size)
        choices = self._samplers.choose([turn.sampler for turn in turns], rows)
        self.clock.sampled(time.perf_counter() - began)
        self._tokens_generated += sum(isinstance(choice, int) for choice in choices)
        return list(zip(turns, choices, strict=True))


def _failure(turns: Iterable[Generation], tokens: int, why: str) -> str:
    names = ", ".join(turn.id for turn in turns)
    return f"a step of {tokens} tokens failed, and with it the turns {names}: {why}"
