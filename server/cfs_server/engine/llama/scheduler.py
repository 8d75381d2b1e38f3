"""Who computes in the next step: the policy of continuous batching, on one thread that owns the context.

A step takes one token of every turn that streams, or pieces of prompts, as many tokens as fit into the time that it
may cost (`budget`); the two take turns. Waiting turns come in by fair shares (`lobby`), but for those whose prefix
somebody else is computing (`sharing`). When the pool is full, idle state leaves it, then a running turn; it goes on
later from where it was. Nothing fails because others are there.
"""

import contextlib
import queue
from collections.abc import Callable

from cfs.errors import CfsError, EngineError
from cfs.wire import FinishReason
from cfs_server.engine.frames import (
    Alive,
    AskStats,
    Cancel,
    Computing,
    Counters,
    Ended,
    Expect,
    Forget,
    FromWorker,
    Log,
    Pause,
    Ping,
    Resume,
    Stats,
)
from cfs_server.engine.interface import TOO_LONG
from cfs_server.engine.llama.audit import Audit
from cfs_server.engine.llama.compaction import Compaction
from cfs_server.engine.llama.deadlines import Deadlines
from cfs_server.engine.llama.disk import Woken, open_disk
from cfs_server.engine.llama.fetching import Fetching
from cfs_server.engine.llama.ffi import Outcome
from cfs_server.engine.llama.loading import LoadedModel
from cfs_server.engine.llama.lobby import Lobby
from cfs_server.engine.llama.news import News
from cfs_server.engine.llama.parking import Parking
from cfs_server.engine.llama.prompts import Prompts
from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation, Refused
from cfs_server.engine.llama.sharing import must_wait
from cfs_server.engine.llama.snapshots import Snapshots
from cfs_server.engine.llama.solo import STEP_FAILED
from cfs_server.engine.llama.steps import Computed, Steps
from cfs_server.engine.prefixes.policy import SECONDS_UNTIL

PATIENCE = 10.0
"""A step may take so many times longer than predicted before it counts as one that never ends."""
FIRST_STEP_SECONDS = 120.0
"""What a step may take before any has told how long they take: it may read the whole model from the disk."""
LONG_SECONDS = 2.0
"""Steps that may take less are not announced; the least silence that the supervisor minds is longer."""

Work = Generation | Refused | Cancel | Pause | Resume | Forget | Expect | AskStats | Ping | Woken


class Scheduler:
    """Runs generations; `inbox` takes work from other threads, `send` takes frames away."""

    def __init__(self, model: LoadedModel, send: Callable[[FromWorker], None]) -> None:
        options = model.options
        self.inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._send = send
        self._context = model.context
        self._vocabulary = model.vocabulary
        self._parallel = options.parallel
        keeper = Residency if model.context.partial else Snapshots
        disk = open_disk(model, lambda: self.inbox.put(Woken()), lambda text: send(Log("warning", text)))
        self._residency = keeper(model.context, options.parked_bytes, options.idle_seconds, disk)
        self._fetching = Fetching(self._residency)
        self._lobby = Lobby(options.slice_seconds)
        self._steps = Steps(model, self._lobby, self._residency)
        self._solo = self._steps.solo
        self._waiting = self._lobby.waiting
        self._running: list[Generation] = []
        self._parking = Parking(self._residency, self._lobby, self._running)
        self._compaction = Compaction(self._residency, self._running, self._waiting)
        self._news = News()
        self._deadlines = Deadlines()
        self._prompts = Prompts(self._residency)
        self._audit = Audit(self._residency, self._lobby, self._deadlines, self._running, self._solo)

    def run_forever(self) -> None:
        """Serve; while there is nothing to compute this blocks and costs nothing."""
        while True:
            self.take_work()
            self.step()

    def take_work(self) -> None:
        """Take everything that arrived; wait for something when there is nothing to do."""
        if not self._busy:
            for problem in self._audit.when_idle():
                self._send(Log("error", f"engine invariant broken: {problem}"))
            with contextlib.suppress(queue.Empty):
                while isinstance(work := self.inbox.get(timeout=self._deadlines.seconds_left), Ping):
                    self._send(Alive())  # and nothing else: an idle engine stays idle
                self._handle(work)
        while not self.inbox.empty():
            self._handle(self.inbox.get())

    def close(self) -> None:
        """Free what turns have to themselves, and end the threads that were started."""
        self._steps.close()
        self._residency.disk.close()

    def step(self) -> None:
        """Admit, compute one batch, sample, and send one frame with what came of it."""
        self._steps.clock.begin()
        self._residency.collect()
        for turn in self._deadlines.late():
            self._end(turn, "error", TOO_LONG.format(turn.may_take))
        self._admit()
        self._flush()  # whoever waits hears that its turn began before the first, perhaps long, step
        if self._running:
            self._residency.evict_rested()
            self._compaction.look()
            self._compute()
        if (seconds := self._steps.seconds_alone()) is not None:
            self._excuse(seconds)
        if (alone := self._steps.compute_alone()) is not None:
            if alone.reason:
                self._send(Log("error", alone.reason))
            self._take(alone)
        self._flush()
        self._residency.copy_some()
        self._steps.clock.end()

    def interrupt(self, turn: str) -> None:
        """End the step that is being computed if it is for this turn alone. From any thread; the cancel comes after."""
        if [running.id for running in self._running] == [turn]:
            self._context.brake.pull()

    def _handle(self, work: Work) -> None:
        match work:
            case Generation():
                self._lobby.arrive(work)
                self._deadlines.add(work)
                self._prompts.arrive(work)
            case Refused(ended):
                self._news.ended.append(ended)
            case Cancel(turn):
                for generation in self._named(turn):
                    self._end(generation, "cancelled")
            case Pause(turn):
                for generation in self._named(turn):
                    self._pause(generation)
            case Resume(turn):
                self._lobby.resume(turn)
            case Forget(key):
                self._forget(key)
            case Expect(key, hint):
                self._residency.expect(key, SECONDS_UNTIL[hint])
            case Woken():
                pass
            case Ping():
                self._send(Alive())
            case AskStats():
                self._flush()
                self._send(self._stats(work))

    def _pause(self, turn: Generation) -> None:
        if turn.seat is not None:
            self._put_aside(turn)
        self._solo.remove(turn)
        self._fetching.gone(turn)
        self._lobby.pause(turn)

    def _forget(self, key: str) -> None:
        self._residency.forget(key)
        for turn in self._turns:
            turn.forgotten = turn.forgotten or turn.cache_key == key

    def _admit(self) -> None:
        """Bring in waiting turns; the first that does not fit keeps its place."""
        full = len(self._running) >= self._parallel
        if full and (turn := self._lobby.gives_way(self._running, self._parking.can_keep)) is not None:
            self._put_aside(turn)
            self._waiting.append(turn)
        waiting = self._lobby.in_order()
        for turn in waiting:
            if turn.solo and not self._solo.full:
                self._admit_alone(turn)
        for turn in waiting:
            if len(self._running) >= self._parallel:
                return
            if turn.solo or must_wait(turn, self._running, self._residency) or self._fetching.must_wait(turn):
                continue
            if not self._bring_in(turn):
                if not self._running:
                    self._fail([turn], EngineError("the pool has no room for this turn"))
                return
            self._lobby.admit(turn)
            self._running.append(turn)
            self._announce(turn)

    def _admit_alone(self, turn: Generation) -> None:
        try:
            self._solo.begin(turn)
        except EngineError as error:
            return self._fail([turn], error)
        self._lobby.admit(turn)
        return self._announce(turn)

    def _announce(self, turn: Generation) -> None:
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
            self._excuse(self._steps.budget.step_seconds(shares, _depth))
            computed = self._steps.compute(shares)
            if computed.outcome is Outcome.DONE:
                return self._take(computed)
            if computed.outcome is Outcome.ABORTED:
                return self._residency.undo([turn.place for turn in shares])
            if computed.outcome is Outcome.FAILED:
                self._send(Log("error", computed.reason))
                return self._fail(list(shares), EngineError(STEP_FAILED))
            if not self._park_one():  # the books said that it fits, the pool says that it does not
                return self._fail(list(shares), EngineError("the pool has no room for this turn"))
        return None

    def _excuse(self, seconds: float) -> None:
        """Say so before a step that takes so long that the supervisor would give this process up; 0 is unknown."""
        may_take = seconds * PATIENCE if seconds else FIRST_STEP_SECONDS
        if may_take > LONG_SECONDS:
            self._send(Computing(may_take))

    @property
    def _busy(self) -> bool:
        """Whether there is anything to compute, or to copy; those who wait for the disk are told when it is there."""
        waiting = len(self._waiting) > len(self._fetching.turns)
        return bool(self._running or waiting or self._solo.turns or self._residency.copying)

    @property
    def _turns(self) -> tuple[Generation, ...]:
        """All turns that are not over."""
        return (*self._running, *self._solo.turns, *self._waiting, *self._lobby.paused)

    def _named(self, name: str) -> list[Generation]:
        return [turn for turn in self._turns if turn.id == name]

    def _fitting_shares(self) -> dict[Generation, int]:
        """Decide how many tokens of each running turn go into this step, parking turns until they fit."""
        while True:
            shares = self._steps.budget.share({turn: turn.pending for turn in self._running}, _depth)
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

    def _take(self, computed: Computed) -> None:
        """Let those speak for whom a token was chosen."""
        for turn, choice in computed.choices:
            if isinstance(choice, CfsError):
                self._fail([turn], choice)
                continue
            if turn.seat is not None and not turn.completion_tokens:
                self._residency.commit(turn.seat, turn.log)
            if reason := turn.accept(choice, self._vocabulary):
                self._end(turn, reason)
            elif text := turn.take_text():
                self._news.texts.append(text)

    def _end(self, turn: Generation, reason: FinishReason, error: str = "") -> None:
        """End a turn whose state is good, even if its reader is told of an error."""
        ended = turn.end_notice(reason, error)
        if text := turn.take_text():
            self._news.texts.append(text)
        turn.remember(self._vocabulary)
        if not turn.forgotten and (told := turn.known.tell()) is not None:
            self._news.logs.append(told)
        if turn.started:
            self._steps.forecast.saw_reply(turn.completion_tokens)
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
        self._solo.remove(turn)
        self._deadlines.remove(turn)
        self._prompts.gone(turn)
        self._fetching.gone(turn)
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
            backlog = self._steps.forecast.backlog(self._running, self._waiting, self._parallel)
            self._send(news.step(self._counters, backlog))

    @property
    def _counters(self) -> Counters:
        return self._steps.counters(self._parking.recomputed_tokens)

    def _stats(self, question: AskStats) -> Stats:
        residency = self._residency
        gauges = {
            "turns_paused": float(len(self._lobby.paused)),
            "compactions": float(self._compaction.count),
        }
        return Stats(
            number=question.number,
            counters=self._counters,
            running=len(self._running) + len(self._solo.turns),
            waiting=len(self._waiting),
            sequences_resident=len(residency.pool.slots),
            sequences_parked=residency.parked,
            cells_used=residency.pool.cells_used,
            gauges=residency.gauges() | self._steps.gauges | gauges,
            violations=self.check_integrity() if question.check else [],
        )

    def check_integrity(self) -> list[str]:
        """Compare what is known with what is; every line is a violation."""
        return self._audit.violations() + self._prompts.check_integrity(self._turns)


def _depth(turn: Generation) -> int:
    """Count the tokens before the next one of a turn."""
    return turn.computed
