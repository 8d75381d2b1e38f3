"""Computes one step and books it: who had how much of it, what it cost, what was learnt for the next ones."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cfs_server.engine.frames import Counters
from cfs_server.engine.llama.budget import PromptBudget, looks
from cfs_server.engine.llama.costs import StepCost
from cfs_server.engine.llama.ffi import Batch, Outcome
from cfs_server.engine.llama.filling import Filling, fill
from cfs_server.engine.llama.forecast import Forecast
from cfs_server.engine.llama.loading import LoadedModel
from cfs_server.engine.llama.lobby import Lobby
from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sampler_pool import Choice, SamplerPool
from cfs_server.engine.llama.sequences import Generation
from cfs_server.engine.llama.solo import Solo
from cfs_server.engine.llama.step_clock import StepClock
from cfs_server.engine.llama.tiles import counted, padding


@dataclass(frozen=True, slots=True)
class Computed:
    """What came of a step, and the next token of each turn that has one."""

    outcome: Outcome
    choices: list[tuple[Generation, Choice]] = field(default_factory=list)
    reason: str = ""
    """Why the library could not compute it, and what: one line for the log."""


class Steps:
    """Runs the model and the samplers for the scheduler, which decides for whom."""

    def __init__(self, model: LoadedModel, lobby: Lobby, residency: Residency) -> None:
        options = model.options
        self.budget = PromptBudget(model.context.batch_size, options.step_seconds)
        self.forecast = Forecast(self.budget)
        self.clock = StepClock()
        self._samplers = SamplerPool(model.vocabulary.size, options.threads)
        self.solo = Solo(model, self._samplers)
        self._log = model.log
        self._context = model.context
        self._vocabulary = model.vocabulary
        self._batch = Batch(model.context.batch_size)
        self._lobby = lobby
        self._residency = residency
        self._cost_alone = StepCost()
        self._steps = self._prompt_tokens = self._tokens_generated = 0

    def counters(self, recomputed_tokens: int) -> Counters:
        """Totals since the start."""
        return Counters(self._steps, self._prompt_tokens, self._tokens_generated, recomputed_tokens)

    @property
    def gauges(self) -> dict[str, float]:
        """What a step costs now, in seconds."""
        return {
            "seconds_per_prompt_token": self.budget.cost.per_token,
            "seconds_per_prompt_look": self.budget.cost.per_look,
            "seconds_per_step": self.budget.streams.fixed,
            "own_seconds_per_step": self.clock.own,
            "sampling_seconds_per_step": self.clock.sampling,
        }

    def compute(self, shares: Mapping[Generation, int]) -> Computed:
        """Compute so many tokens of each turn together, and choose a token for those that are complete."""
        filling = fill(self._batch, shares)
        tokens, seen = self._batch.size, self._looks(filling)
        padded = self._pad(tokens, seen)
        if seen is not None and self._context.tiled:
            seen = counted(tokens, self._batch.size, seen)
        self._log.hold()
        began = time.perf_counter()
        outcome = self._context.decode(self._batch)
        seconds = time.perf_counter() - began
        why = self._log.take(failed=outcome is Outcome.FAILED)
        if padded:
            self._residency.pool.clear_padding()
        self.clock.decoded(seconds)
        if outcome is not Outcome.DONE:
            return Computed(outcome, reason=_failure(shares, tokens, why) if why else "")
        self._book(filling, tokens, seen, seconds)
        return Computed(outcome, self._choose(filling.speaking))

    def compute_alone(self) -> Computed | None:
        """Let one of the turns go on that are computed by themselves; `None` when there are none."""
        self._log.hold()
        began = time.perf_counter()
        pace = self.solo.step()
        why = self._log.take(failed=pace is not None and pace.failed)
        if pace is None:
            return None
        seconds = time.perf_counter() - began
        self._cost_alone.saw(pace.tokens, seconds)
        self.clock.decoded(seconds)
        self._steps += 1
        self._prompt_tokens += pace.prompt
        self._lobby.charge({pace.turn: pace.tokens}, seconds)
        if pace.choice is None:
            return Computed(Outcome.DONE)
        self._tokens_generated += isinstance(pace.choice, int)
        reason = _failure([pace.turn], pace.tokens, why) if why else ""
        return Computed(Outcome.DONE, [(pace.turn, pace.choice)], reason)

    def seconds_alone(self) -> float | None:
        """Predict how long `compute_alone` takes, 0 before it was seen; `None` when there is nothing to compute."""
        tokens = self.solo.next_size()
        return self._cost_alone.seconds(tokens) if tokens else None

    def close(self) -> None:
        """Free what turns have to themselves, and end the threads that were started."""
        self.solo.close()
        self._samplers.close()

    def _looks(self, filling: Filling) -> float | None:
        """Count the cells that a step looks at which has nothing but pieces of prompts."""
        if filling.streams:
            return None
        return sum(looks(count, turn.computed) for turn, count in filling.shares.items())

    def _pad(self, tokens: int, seen: float | None) -> bool:
        """Fill up the tile of a step with tokens that nobody needs, if that is quicker and there is room."""
        if seen is None or not self._context.tiled:
            return False
        count = padding(tokens, seen, self.budget.cost)
        sequence = self._residency.pool.padding(tokens + count) if count else None
        if sequence is None:
            return False
        self._batch.add(sequence, [0] * count, 0, output=False)
        return True

    def _book(self, filling: Filling, tokens: int, seen: float | None, seconds: float) -> None:
        self._steps += 1
        self._lobby.charge(filling.shares, self.budget.credible(self._batch.size, seconds, seen))
        self.budget.saw_step(self._batch.size, seconds, seen)
        for turn, count in filling.shares.items():
            self._residency.grow(turn.place, count)
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
