"""Who computes in the next step: the policy of continuous batching, on one thread that owns the context.

Each step takes one token of every turn that streams, and fills up with pieces of prompts, as many tokens as fit into
the time that a step may cost. Waiting turns come in by fair shares (`lobby`), but for those whose prefix somebody else
is computing (`sharing`). When the pool is full, idle state leaves it, then a running turn; it goes on later from where
it was. Nothing fails because others are there.
"""

import queue
import time
from collections.abc import Callable

from cfs.errors import CfsError, EngineError
from cfs.wire import FinishReason
from cfs_server.engine.frames import AskStats, Cancel, Counters, Ended, Expect, Forget, Log, Stats, Step
from cfs_server.engine.llama.budget import PromptBudget
from cfs_server.engine.llama.ffi import Batch, Outcome
from cfs_server.engine.llama.forecast import Forecast
from cfs_server.engine.llama.loading import LoadedModel
from cfs_server.engine.llama.lobby import Lobby
from cfs_server.engine.llama.news import News
from cfs_server.engine.llama.parking import Parking
from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation, Refused
from cfs_server.engine.llama.sharing import must_wait
from cfs_server.engine.llama.snapshots import Snapshots
from cfs_server.engine.prefixes.policy import SECONDS_UNTIL

CHECK_SECONDS = 10.0
"""An idle engine looks after its books, but not more often: with thousands of sessions that takes milliseconds."""

Work = Generation | Refused | Cancel | Forget | Expect | AskStats


class Scheduler:
    """Runs generations; `inbox` takes work from other threads, `send` takes frames away."""

    def __init__(self, model: LoadedModel, send: Callable[[Step | Stats | Log], None]) -> None:
        options = model.options
        self.inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._send = send
        self._context = model.context
        self._vocabulary = model.vocabulary
        self._parallel = options.parallel
        keeper = Residency if model.context.partial else Snapshots
        self._residency = keeper(model.context, options.parked_bytes, options.idle_seconds)
        self._batch = Batch(model.context.batch_size)
        self._budget = PromptBudget(model.context.batch_size, options.step_seconds)
        self._forecast = Forecast(self._budget)
        self._lobby = Lobby(options.slice_seconds)
        self._waiting = self._lobby.waiting
        self._running: list[Generation] = []
        self._parking = Parking(self._residency, self._running, self._waiting)
        self._news = News()
        self._check_after = 0.0
        self._steps = self._prompt_tokens_evaluated = self._tokens_generated = 0

    def run_forever(self) -> None:
        """Serve; while there is nothing to compute this blocks and costs nothing."""
        while True:
            self.take_work()
            self.step()

    def take_work(self) -> None:
        """Take everything that arrived; wait for something when there is nothing to do."""
        if not self._running and not self._waiting:
            if time.monotonic() > self._check_after:
                self._check()
            self._handle(self.inbox.get())
        while not self.inbox.empty():
            self._handle(self.inbox.get())

    def step(self) -> None:
        """Admit, compute one batch, sample, and send one frame with what came of it."""
        self._admit()
        self._flush()  # whoever waits hears that its turn began before the first, perhaps long, step
        if self._running:
            self._residency.evict_rested()
            self._compute()
        self._flush()

    def interrupt(self, turn: str) -> None:
        """End the step that is being computed if it is for this turn alone. From any thread; the cancel comes after."""
        if [running.id for running in self._running] == [turn]:
            self._context.brake.pull()

    def _handle(self, work: Work) -> None:
        match work:
            case Generation():
                self._lobby.arrive(work)
            case Refused(ended):
                self._news.ended.append(ended)
            case Cancel(turn):
                self._cancel(turn)
            case Forget(key):
                self._forget(key)
            case Expect(key, hint):
                self._residency.expect(key, SECONDS_UNTIL[hint])
            case AskStats():
                self._flush()
                self._send(self._stats(work))

    def _cancel(self, turn: str) -> None:
        for generation in (*self._running, *self._waiting):
            if generation.id == turn:
                self._end(generation, "cancelled")

    def _forget(self, key: str) -> None:
        self._residency.forget(key)
        for turn in (*self._running, *self._waiting):
            turn.forgotten = turn.forgotten or turn.cache_key == key

    def _admit(self) -> None:
        """Bring in waiting turns; the first that does not fit keeps its place."""
        full = len(self._running) >= self._parallel
        if full and (turn := self._lobby.gives_way(self._running, self._parking.can_keep)) is not None:
            self._put_aside(turn)
            self._waiting.append(turn)
        for turn in self._lobby.in_order() if len(self._running) < self._parallel else ():
            if len(self._running) >= self._parallel:
                return
            if must_wait(turn, self._running, self._residency):
                continue
            if not self._bring_in(turn):
                if not self._running:
                    self._fail([turn], EngineError("the pool has no room for this turn"))
                return
            self._lobby.admit(turn)
            self._running.append(turn)
            if not turn.started:
                turn.started = True
                self._news.started.append(turn.start_notice())

    def _bring_in(self, turn: Generation) -> bool:
        """Seat a turn if all of its log, and some of what comes, fits beside the running ones."""
        spare, alone = self._parking.spare(turn), not self._running
        turn.seat = self._residency.enter(turn.owner, turn.log, spare, alone=alone)
        if turn.seat is not None:
            self._parking.came_in(turn)
        return turn.seat is not None

    def _compute(self) -> None:
        while self._running:
            shares = self._fitting_shares()
            outputs = self._fill(shares)
            began = time.perf_counter()
            with self._budget.measure(streams=self._streams, tokens=self._batch.size):
                outcome = self._context.decode(self._batch)
            if outcome is Outcome.DONE:
                seconds = time.perf_counter() - began
                self._lobby.charge(shares, seconds)
                self._forecast.saw_step(self._streams, self._batch.size, seconds)
                return self._advance(shares, outputs)
            if outcome is Outcome.ABORTED:
                return self._residency.undo([turn.place for turn in shares])
            if outcome is Outcome.FAILED:
                return self._fail(list(shares), EngineError("the model could not compute this step"))
            if not self._park_one():  # the books said that it fits, the pool says that it does not
                return self._fail(list(shares), EngineError("the pool has no room for this turn"))
        return None

    @property
    def _streams(self) -> int:
        return sum(turn.pending == 1 for turn in self._running)

    def _fitting_shares(self) -> dict[Generation, int]:
        """Decide how many tokens of each running turn go into this step, parking turns until they fit."""
        while True:
            shares = self._budget.share({turn: turn.pending for turn in self._running})
            if self._residency.make_room(sum(shares.values())) or not self._park_one():
                return shares

    def _park_one(self) -> bool:
        """Evict idle state, or else put the youngest running turn aside; the oldest always goes on."""
        if self._residency.evict_one():
            return True
        if len(self._running) <= 1:
            return False
        victim = self._lobby.victim(self._running)
        self._put_aside(victim)
        self._waiting.appendleft(victim)
        return True

    def _put_aside(self, turn: Generation) -> None:
        """Take a turn's seat away; it goes on later from where it was."""
        self._running.remove(turn)
        self._parking.leaves(turn)
        self._residency.leave(turn.place, turn.log, turn.cache_key)
        turn.seat = None

    def _fill(self, shares: dict[Generation, int]) -> dict[Generation, int]:
        """Write the batch; the indices of those turns whose next token can be sampled after it are returned."""
        self._batch.clear()
        outputs: dict[Generation, int] = {}
        for turn, count in shares.items():
            complete = count == turn.pending
            index = self._batch.add(turn.place.slot.id, turn.next_tokens(count), turn.computed, output=complete)
            if complete:
                outputs[turn] = index
        return outputs

    def _advance(self, shares: dict[Generation, int], outputs: dict[Generation, int]) -> None:
        self._steps += 1
        for turn, count in shares.items():
            again = turn.completion_tokens > 0 and turn in outputs
            self._prompt_tokens_evaluated += count - again
            self._residency.grow(turn.place, count)
        for turn, index in outputs.items():
            self._sample(turn, index)

    def _sample(self, turn: Generation, index: int) -> None:
        try:
            token = turn.sampler.sample(self._context, index)
        except CfsError as error:
            return self._fail([turn], error)
        if not turn.completion_tokens:
            self._residency.commit(turn.place, turn.log)
        reason = turn.accept(token, self._vocabulary)
        self._tokens_generated += 1
        if reason:
            return self._end(turn, reason)
        if text := turn.take_text():
            self._news.texts.append(text)
        return None

    def _end(self, turn: Generation, reason: FinishReason) -> None:
        ended = turn.end_notice(reason)
        if text := turn.take_text():
            self._news.texts.append(text)
        turn.remember(self._vocabulary)
        self._forecast.saw_reply(turn.completion_tokens)
        self._news.ended.append(ended)
        self._remove(turn)

    def _fail(self, turns: list[Generation], error: CfsError) -> None:
        for turn in turns:
            turn.failed = turn.forgotten = True
            ended = Ended(turn.id, "error", turn.completion_tokens, type(error).__name__, error.detail)
            self._news.ended.append(ended)
            self._remove(turn)

    def _remove(self, turn: Generation) -> None:
        turn.sampler.free()
        self._lobby.gone(turn)
        if turn in self._running:
            self._running.remove(turn)
        if turn.seat is not None:
            log, key = None if turn.failed else turn.log, None if turn.forgotten else turn.cache_key
            self._residency.leave(turn.seat, log, key, SECONDS_UNTIL[turn.share[1]])
            turn.seat = None
        if turn.forgotten and not turn.failed:
            self._residency.forget(turn.cache_key)  # it may have been put aside for a session that was gone by then

    def _flush(self) -> None:
        if self._news:
            news, self._news = self._news, News()
            wait = self._forecast.wait(self._running, self._waiting, self._parallel)
            self._send(news.step(self._counters(), wait))

    def _counters(self) -> Counters:
        recomputed = self._parking.recomputed_tokens
        return Counters(self._steps, self._prompt_tokens_evaluated, self._tokens_generated, recomputed)

    def _stats(self, question: AskStats) -> Stats:
        residency = self._residency
        return Stats(
            number=question.number,
            counters=self._counters(),
            running=len(self._running),
            waiting=len(self._waiting),
            sequences_resident=len(residency.pool.slots),
            sequences_parked=residency.parked,
            cells_used=residency.pool.cells_used,
            gauges=residency.gauges() | {"seconds_per_prompt_token": self._budget.seconds_per_token},
            violations=self.check_integrity() if question.check else [],
        )

    def _check(self) -> None:
        for problem in self.check_integrity():
            self._send(Log("error", f"engine invariant broken: {problem}"))
        self._check_after = time.monotonic() + CHECK_SECONDS

    def check_integrity(self) -> list[str]:
        """Compare what is known with what is; every line is a violation."""
        problems = self._residency.check_integrity()
        turns = [*self._running, *self._waiting]
        problems += self._lobby.check_integrity(turns)
        if len({id(turn) for turn in turns}) != len(turns):
            problems.append("a turn is listed twice")
        seated = [turn.seat for turn in turns if turn.seat is not None]
        slots = self._residency.pool.slots.values()
        if {seat.slot.id for seat in seated} != {slot.id for slot in slots if slot.running}:
            problems.append("sequences that run and unfinished turns do not agree")
        problems += [f"{turn.id} runs without a seat" for turn in self._running if turn.seat is None]
        problems += [f"{turn.id} waits in a seat" for turn in self._waiting if turn.seat is not None]
        for seat in seated:
            if seat.node is not None and seat.slot.own != seat.length - seat.shared:
                problems.append(f"sequence {seat.slot.id} has {seat.slot.own} cells of its own")
        return problems
