"""Computes one step and accounts for it: each turn's share, the cost, and the cost model's update."""

import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from cfs_server.engine.contract.protocol import Counters
from cfs_server.engine.kvcache.cache import PrefixCache
from cfs_server.engine.llama.cost_model import StepCost, counted, padding
from cfs_server.engine.llama.ffi import DecodeResult, TokenBatch
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.llama.prompt_budget import PromptBudget, attended_cells
from cfs_server.engine.worker.generation import Generation
from cfs_server.engine.worker.isolated_turns import DeterministicRunner
from cfs_server.engine.worker.sampling import Choice, Draw, SamplerPool
from cfs_server.engine.worker.speculation import Speculation
from cfs_server.engine.worker.step_clock import StepClock
from cfs_server.engine.worker.wait_queue import Forecast, WaitQueue


@dataclass(frozen=True, slots=True)
class Filling:
    """The tokens of each turn in a batch, drafts included.

    `streams` turns are streaming. All of `speaking` get logits, in its order: a row, and one for each draft token.
    """

    shares: Mapping[Generation, int]
    streams: int
    speaking: list[Generation]
    drafts: "Mapping[Generation, array[int]]"

    @property
    def drafted(self) -> int:
        """Draft tokens of all turns."""
        return sum(map(len, self.drafts.values()))


def fill(batch: TokenBatch, shares: Mapping[Generation, int], drafts: "Mapping[Generation, array[int]]") -> Filling:
    """Write the next tokens of some turns into a batch, and the drafts of streams behind theirs."""
    batch.clear()
    speaking = [turn for turn, count in shares.items() if count == 1 == turn.pending and turn not in drafts]
    batch.add_streams(
        [turn.own_allocation.handle.id for turn in speaking],
        [turn.log[-1] for turn in speaking],
        [len(turn.log) - 1 for turn in speaking],
    )
    for turn, draft in drafts.items():
        tokens, position = [turn.log[-1], *draft], len(turn.log) - 1
        batch.add(turn.own_allocation.handle.id, tokens, position, output=True, all_outputs=True)
        speaking.append(turn)
    streams = len(speaking)
    if streams < len(shares):
        streaming = set(speaking)
        for turn in [turn for turn in shares if turn not in streaming]:
            count, pending = shares[turn], turn.pending
            batch.add(turn.own_allocation.handle.id, turn.next_tokens(count), turn.computed, output=count == pending)
            if count == pending:
                speaking.append(turn)
    if drafts:
        shares = {turn: count + len(drafts.get(turn, ())) for turn, count in shares.items()}
    return Filling(shares, streams, speaking, drafts)


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of a step, and the next tokens of each turn that has some: several only after a draft."""

    outcome: DecodeResult
    choices: list[tuple[Generation, list[Choice]]] = field(default_factory=list)
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
        self.speculation = Speculation(model, self.budget.cost)
        self._log = model.log
        self._context = model.context
        self._vocabulary = model.vocabulary
        self._batch = TokenBatch(model.context.batch_size)
        self._queue = wait_queue
        self._cache = cache
        self._cost_alone = StepCost()
        self._steps = self._prompt_tokens = self._tokens_generated = 0

    def counters(self, recomputed_tokens: int) -> Counters:
        """Totals since the start."""
        speculation = self.speculation
        return Counters(
            self._steps,
            self._prompt_tokens,
            self._tokens_generated,
            recomputed_tokens,
            speculation.drafted,
            speculation.accepted,
        )

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

    def compute(self, shares: Mapping[Generation, int], *, speculate: bool = True) -> Computed:
        """Compute so many tokens of each turn together, and choose a token for those that are complete.

        Streams may get several tokens: those of a draft as far as they are what is chosen, and one more.
        """
        drafts = self._drafts(shares) if speculate else {}
        filling = fill(self._batch, shares, drafts)
        tokens, cells = self._batch.size, self._attended_cells(filling)
        padded = self._pad(tokens, cells)
        if cells is not None and self._context.tiled:
            cells = counted(tokens, self._batch.size, cells)
        self._log.hold()
        began = time.perf_counter()
        outcome = self._context.decode(self._batch)
        seconds = time.perf_counter() - began
        why = self._log.take(failed=outcome is DecodeResult.FAILED)
        if padded:
            self._cache.pool.clear_padding()
        self.clock.decoded(seconds)
        if outcome is DecodeResult.NO_ROOM and drafts:
            return self.compute(shares, speculate=False)
        if outcome is not DecodeResult.DONE:
            return Computed(outcome, reason=_failure(shares, tokens, why) if why else "")
        self._book(filling, tokens, cells, seconds)
        return Computed(outcome, self._choose(filling))

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
            return Computed(DecodeResult.DONE)
        self._tokens_generated += isinstance(pace.choice, int)
        reason = _failure([pace.turn], pace.tokens, why) if why else ""
        return Computed(DecodeResult.DONE, [(pace.turn, [pace.choice])], reason)

    def count_embedded(self, tokens: int) -> None:
        """Count a step of embeddings."""
        self._steps += 1
        self._prompt_tokens += tokens

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
        credible = self.budget.credible(self._batch.size, seconds, seen)
        self._queue.charge(filling.shares, seconds if filling.drafts else credible)
        self.budget.saw_step(self._batch.size, seconds, seen, drafts=bool(filling.drafts))
        if filling.streams == len(filling.shares):
            self.speculation.saw_step(filling.speaking, tokens, seconds)
        for turn, count in filling.shares.items():
            self._cache.grow(turn.own_allocation, count)
        again = sum(turn.completion_tokens > 0 for turn in filling.speaking)
        self._prompt_tokens += tokens - filling.drafted - again

    def _choose(self, filling: Filling) -> list[tuple[Generation, list[Choice]]]:
        turns, drafts = filling.speaking, filling.drafts
        if not turns:
            return []
        began = time.perf_counter()
        rows = self._context.outputs(len(turns) + filling.drafted, self._vocabulary.size)
        ends = list(accumulate(1 + len(drafts.get(turn, ())) for turn in turns))
        draws = [
            Draw(turn.sampler, rows[start:end], drafts.get(turn, ()))
            for turn, start, end in zip(turns, [0, *ends], ends, strict=False)
        ]
        choices = self._samplers.verify(draws)
        self.clock.sampled(time.perf_counter() - began)
        self._tokens_generated += sum(isinstance(choice, int) for tokens in choices for choice in tokens)
        for turn, tokens in zip(turns, choices, strict=True):
            if turn in drafts:
                self.speculation.verified(turn, len(drafts[turn]), len(tokens) - 1)
        return list(zip(turns, choices, strict=True))

    def _drafts(self, shares: Mapping[Generation, int]) -> "Mapping[Generation, array[int]]":
        """Guess tokens of the streams of a step that has nothing else, if there is room for them."""
        if not self.speculation.on or any(not turn.completion_tokens or turn.pending > 1 for turn in shares):
            return {}
        alone = len(self._queue) == 1
        drafts = self.speculation.drafts(shares, self.budget.longest(alone=alone))
        tokens = len(shares) + sum(map(len, drafts.values()))
        return drafts if not drafts or self._cache.make_room(tokens) else {}


def _failure(turns: Iterable[Generation], tokens: int, why: str) -> str:
    names = ", ".join(turn.id for turn in turns)
    return f"a step of {tokens} tokens failed, and with it the turns {names}: {why}"
