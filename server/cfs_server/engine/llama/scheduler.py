"""Who computes in the next step: the policy of continuous batching, on one thread that owns the context.

A step takes one token of every turn that streams, or pieces of prompts, as many tokens as fit into the time that it
may cost (`budget`); the two take turns. Waiting turns come in by fair shares (`wait_queue`), but for those whose prefix
somebody else is computing (`sharing`). When the pool is full, idle state leaves it, then a running turn; it goes on
later from where it was. Nothing fails because others are there.
"""

import contextlib
import math
import queue
import time
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from cfs.errors import CfsError, EngineError
from cfs.wire import FinishReason
from cfs_server.engine.fairness import Backlog
from cfs_server.engine.interface import TOO_LONG
from cfs_server.engine.kvcache.cache import PrefixCache, tokens_of
from cfs_server.engine.kvcache.device import Allocation
from cfs_server.engine.kvcache.disk import Woken, open_disk
from cfs_server.engine.kvcache.radix_tree import SECONDS_UNTIL, PrefixTree
from cfs_server.engine.kvcache.snapshots import SnapshotCache
from cfs_server.engine.llama.batch import STEP_FAILED, BatchRunner, Computed, DeterministicRunner
from cfs_server.engine.llama.ffi import Outcome
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.llama.sequence import Generation, Refused
from cfs_server.engine.llama.wait_queue import WaitQueue
from cfs_server.engine.protocol import (
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
    Started,
    Stats,
    Step,
    Text,
    TokenLogDelta,
)

# Moves what runs to the beginning of the pool when holes below it cost time.
#
# The library attends over all cells up to the highest that is used, free ones too, and has no call that moves cells. So
# running turns are saved, taken off and allocated anew: copying a cell costs as much as looking at it some dozen times.

COPY = 40
"""Looks at a cell, one for each token of a stream, that cost as much as saving and restoring it (measured: 5 to 42)."""
AHEAD = 100
"""Tokens of a reply that are counted on; more may come, or none."""
LEAST = 1024
"""Fewer holes are not worth the trouble."""
MOST_BYTES = 256 << 20
"""So much is copied at most, or streams would stand still for too long."""


@dataclass(frozen=True, slots=True)
class RunningSequence:
    """A running turn: its allocation, its tokens, its session."""

    allocation: Allocation
    log: "array[int]"
    key: str


def reallocate(cache: PrefixCache, places: Sequence[RunningSequence]) -> list[Allocation | None]:
    """Empty the pool and allocate these turns again where it begins; `None` for one that finds no room any more.

    All turns that run must be given. Nothing is lost: memory may hold more than its limit meanwhile.
    """
    limit, cache.memory.limit = cache.memory.limit, 1 << 62
    for place in places:
        cache.release(place.allocation, place.log, place.key)
    while cache.evict_one():
        pass
    allocations = [cache.allocate(place.allocation.owner, place.log, 0, alone=False) for place in places]
    cache.memory.limit = limit
    cache.trim_memory()
    return allocations


class Compaction:
    """Knows about how far the pool was filled, and judges whether moving pays.

    It is given the scheduler's own lists of the turns that run and of those that wait.
    """

    def __init__(self, cache: PrefixCache, running: list[Generation], waiting: deque[Generation]) -> None:
        self.count = 0
        self._cache = cache
        self._running = running
        self._waiting = waiting
        self._peak = 0

    def look(self) -> None:
        """Call before each step: compact if that pays."""
        used = self._cache.pool.cells_used
        self._peak = max(self._peak, used) if used else 0  # an empty pool is filled from its beginning
        if self._pays(used, self._peak - used) and self._nothing_is_lost():
            self._compact()
            self._peak = self._cache.pool.cells_used

    def _pays(self, used: int, holes: int) -> bool:
        """Whether most of what a step looks at is holes, and the tokens to come are worth the copying."""
        ahead = sum(min(turn.left, AHEAD) for turn in self._running)
        copied = self._cache.pool.state_bytes(used)
        return holes >= max(used, LEAST) and holes * ahead >= COPY * used and copied <= MOST_BYTES

    def _nothing_is_lost(self) -> bool:
        """Whether memory takes what rests on the device and is nowhere else."""
        pool, memory = self._cache.pool, self._cache.memory
        unsaved = sum(len(node.tokens) for node in pool.nodes if not (node.memory or node.pins))
        return not unsaved or memory.used + pool.state_bytes(unsaved) <= memory.limit

    def _compact(self) -> None:
        self.count += 1
        turns = list(self._running)
        allocations = reallocate(
            self._cache, [RunningSequence(turn.own_allocation, turn.log, turn.cache_key) for turn in turns]
        )
        for turn, allocation in zip(turns, allocations, strict=True):
            turn.reached, turn.allocation = (0 if allocation else turn.computed), allocation
            if allocation is None:
                self._running.remove(turn)
                self._waiting.appendleft(turn)


# The prompts of all unfinished turns: what several of them begin with is computed, and waited for, once.


class Prompts:
    """Tells each turn, when it comes, how much of its prompt others compute before it or have computed.

    It is told once: should those others be cancelled, the forecast is too low by their prompt until this turn begins.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._tree = PrefixTree()

    def arrive(self, turn: Generation) -> None:
        """Take in a turn and note what of its prompt it need not compute (`Generation.spared`)."""
        if turn.deterministic:
            return
        tokens = tokens_of(turn.log, turn.prompt_tokens)
        coming = self._tree.match(turn.owner, tokens[:-1]).length if self._cache.partial else 0
        turn.spared = max(coming, self._cache.known(turn.owner, turn.log))
        if (node := self._tree.insert(turn.owner, tokens)) is not None:
            self._tree.attach(turn.id, node)

    def gone(self, turn: Generation) -> None:
        """Forget the prompt of a turn that is over."""
        for node in self._tree.unwanted(self._tree.detach(turn.id)):
            self._tree.remove(node)

    def check_integrity(self, turns: Iterable[Generation]) -> list[str]:
        """Compare the prompts with the unfinished turns; every line is a violation."""
        problems = self._tree.check_integrity()
        ends = {turn.id: self._tree.end_of(turn.id) for turn in turns if not turn.deterministic}
        if any(node is None for node in ends.values()):
            problems.append("the prompt of an unfinished turn is missing")
        if any(not node.children and not node.sessions for node in self._tree):
            problems.append("a prompt is kept that no unfinished turn has")
        return problems


# Prefix deduplication: a turn waits while another turn computes the prefix that both share.

WORTH_WAITING = 32
"""Fewest shared tokens that are worth waiting for; the few at the beginning of every chat are not."""


def waits_for_prefix(turn: Generation, running: Iterable[Generation], cache: PrefixCache) -> bool:
    """Whether a turn waits for its prefix. A prefix that is complete is committed, so that the turn finds it."""
    if turn.awaited is not None:
        other, length = turn.awaited
        if other.allocation is not None and other.computed < length:
            return True
        turn.awaited = None
    if not cache.partial:
        return False
    known = cache.known(turn.owner, turn.log)
    best: Generation | None = None
    for other in running:
        common = _common(turn, other) if other.owner == turn.owner else 0
        if common >= known + WORTH_WAITING:
            best, known = other, common
    if best is None:
        return False
    if best.computed < known:
        turn.awaited = best, known
        return True
    cache.commit(best.own_allocation, best.log)
    return False


def _common(turn: Generation, other: Generation) -> int:
    """Length of the common beginning of two prompts, all but the last token at most."""
    length = min(len(turn.log) - 1, len(other.log))
    different = np.flatnonzero(np.array(turn.log[:length]) != np.array(other.log[:length]))
    return int(different[0]) if len(different) else length


# Pending loads: turns that wait until their state is read from disk, while others compute.

TRIES = 3
"""How often a turn waits for a load; after that, where memory is too small for its state, it computes it again."""


class PendingLoads:
    """The turns that wait for a load, and how often each has waited."""

    def __init__(self, cache: PrefixCache) -> None:
        self.turns: set[Generation] = set()
        self._cache = cache
        self._tries: dict[Generation, int] = {}

    def must_wait(self, turn: Generation) -> bool:
        """Whether a turn waits for the disk. Starts the loads that it needs."""
        if turn not in self.turns and self._tries.get(turn, 0) >= TRIES:
            return False
        if not self._cache.fetch(turn.owner, turn.log):
            self.turns.discard(turn)
            return False
        if turn not in self.turns:
            self.turns.add(turn)
            self._tries[turn] = self._tries.get(turn, 0) + 1
        return True

    def gone(self, turn: Generation) -> None:
        """Forget a turn that is finished or paused."""
        self.turns.discard(turn)
        self._tries.pop(turn, None)


# Preempted turns: which turns may be preempted, what it costs them, and when they resume.
#
# A turn whose state is lost meanwhile computes it again. That must not happen again and again, so a turn that cannot be
# kept is not preempted for the sake of others' shares, and one that lost its state comes back only when it can stay. So
# no token is evaluated more than twice.

HEADROOM = 64
"""Cells that must be free for each running turn before another is admitted, or turns would go in and out."""


class PreemptionPolicy:
    """Looks ahead before turns leave and before they come back, and counts what they lost.

    It is given the scheduler's own list of the turns that run.
    """

    def __init__(self, cache: PrefixCache, wait_queue: WaitQueue, running: Collection[Generation]) -> None:
        self.recomputed_tokens = 0
        self._cache = cache
        self._running = running
        self._queue = wait_queue

    def can_keep(self, turn: Generation) -> bool:
        """Whether a turn that gives way now finds its state again: in memory, or as the pool has room for everybody."""
        if turn.losses:
            return False
        state_bytes = self._cache.pool.state_bytes
        others = chain(self._queue.waiting, self._queue.paused)
        aside = state_bytes(turn.computed) + sum(state_bytes(other.reached) for other in others if other.reached)
        return aside <= self._cache.memory.limit or self._everybody_fits()

    def spare(self, turn: Generation) -> int:
        """Cells that must be free beside a turn's log before it comes in: for a while, or for good after a loss."""
        if turn.losses or any(other.losses for other in self._running):
            return turn.left + sum(other.pending + other.left for other in self._running)
        return sum(other.pending for other in self._running) + HEADROOM * (len(self._running) + 1)

    def leaves(self, turn: Generation) -> None:
        """Note how far a preempted turn has come."""
        turn.reached = turn.computed

    def came_in(self, turn: Generation) -> None:
        """Count what a preempted turn has lost."""
        lost = max(0, turn.reached - turn.computed)
        self.recomputed_tokens += lost
        turn.losses += lost > 0
        turn.reached = 0

    def _everybody_fits(self) -> bool:
        """Whether the pool holds all turns that there are to their ends."""
        left = self._cache.pool.cells
        for turn in chain(self._running, self._queue.waiting, self._queue.paused):
            left -= len(turn.log) + turn.left
            if left < 0:
                return False
        return True


# The turns that must be over by some time, whatever they do until then: wait, compute, or pause.


class Deadlines:
    """Holds each turn that has a deadline from its arrival to its end, the next to be over first."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, int, Generation]] = []

    def add(self, turn: Generation) -> None:
        """Take in a turn."""
        if turn.ends_at < math.inf:
            insort(self._turns, (turn.ends_at, id(turn), turn))

    def remove(self, turn: Generation) -> None:
        """Let go of a turn that is over."""
        place = bisect_left(self._turns, (turn.ends_at, id(turn)))
        if place < len(self._turns) and self._turns[place][2] is turn:
            del self._turns[place]

    def late(self) -> list[Generation]:
        """List the turns whose time is over."""
        return [turn for _, _, turn in self._turns[: bisect_left(self._turns, (time.monotonic(),))]]

    @property
    def seconds_left(self) -> float | None:
        """Until the next turn is late; None when there is no deadline."""
        return max(0.0, self._turns[0][0] - time.monotonic()) if self._turns else None

    def check_integrity(self, turns: set[Generation]) -> list[str]:
        """Compare with the turns that there are; every line is a violation."""
        known = [turn for _, _, turn in self._turns]
        wanted = {turn for turn in turns if turn.ends_at < math.inf}
        return [] if set(known) == wanted and len(known) == len(wanted) else ["deadlines and turns do not agree"]


# Compares what the scheduler's parts believe of the same turns; every line is a violation.

IDLE_SECONDS = 10.0
"""An idle engine looks after its books, but not more often: with thousands of sessions that takes milliseconds."""


class Audit:
    """Looks at the parts themselves; `running` is the scheduler's own list."""

    def __init__(
        self,
        cache: PrefixCache,
        wait_queue: WaitQueue,
        deadlines: Deadlines,
        running: Sequence[Generation],
        deterministic: DeterministicRunner,
    ) -> None:
        self._deterministic = deterministic
        self._cache = cache
        self._queue = wait_queue
        self._deadlines = deadlines
        self._running = running
        self._next = 0.0

    def when_idle(self) -> list[str]:
        """Check, if the last time is long enough ago."""
        if time.monotonic() < self._next:
            return []
        problems = self.violations()
        self._next = time.monotonic() + IDLE_SECONDS
        return problems

    def violations(self) -> list[str]:
        """Compare the turns with their allocations, their accounts and their deadlines."""
        aside = [*self._queue.waiting, *self._queue.paused]
        computed = [*self._running, *self._deterministic.turns]
        turns = [*computed, *aside]
        problems = self._cache.check_integrity()
        problems += self._queue.check_integrity([*computed, *self._queue.waiting])
        problems += self._deadlines.check_integrity(set(turns))
        if len(set(turns)) != len(turns):
            problems.append("a turn is listed twice")
        problems += [f"{turn.id} runs without an allocation" for turn in self._running if turn.allocation is None]
        problems += [
            f"{turn.id} waits in an allocation"
            for turn in [*aside, *self._deterministic.turns]
            if turn.allocation is not None
        ]
        return [*problems, *self._misplaced(turns)]

    def _misplaced(self, turns: Sequence[Generation]) -> Iterator[str]:
        allocations = [turn.allocation for turn in turns if turn.allocation is not None]
        handles = self._cache.pool.handles.values()
        if {allocation.handle.id for allocation in allocations} != {handle.id for handle in handles if handle.running}:
            yield "sequences that run and unfinished turns do not agree"
        for allocation in allocations:
            if allocation.node is not None and allocation.handle.own != allocation.length - allocation.shared:
                yield f"sequence {allocation.handle.id} has {allocation.handle.own} cells of its own"


# What happened since the last frame to the server.


@dataclass(slots=True)
class StepOutput:
    """Collected during a step, sent as one frame."""

    started: list[Started] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    logs: list[TokenLogDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.started or self.texts or self.ended or self.logs)

    def step(self, counters: Counters, backlog: Backlog) -> Step:
        """Make the frame."""
        return Step(counters, self.started, self.texts, self.ended, backlog, self.logs)


HANG_FACTOR = 10.0
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
        cache_type = PrefixCache if model.context.partial else SnapshotCache
        disk = open_disk(model, lambda: self.inbox.put(Woken()), lambda text: send(Log("warning", text)))
        self._cache = cache_type(model.context, options.parked_bytes, options.idle_seconds, disk)
        self._pending_loads = PendingLoads(self._cache)
        self._queue = WaitQueue(options.slice_seconds)
        self._runner = BatchRunner(model, self._queue, self._cache)
        self._deterministic = self._runner.deterministic
        self._waiting = self._queue.waiting
        self._running: list[Generation] = []
        self._preemption = PreemptionPolicy(self._cache, self._queue, self._running)
        self._compaction = Compaction(self._cache, self._running, self._waiting)
        self._output = StepOutput()
        self._deadlines = Deadlines()
        self._prompts = Prompts(self._cache)
        self._audit = Audit(self._cache, self._queue, self._deadlines, self._running, self._deterministic)

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
        self._runner.close()
        self._cache.disk.close()

    def step(self) -> None:
        """Admit, compute one batch, sample, and send one frame with what came of it."""
        self._runner.clock.begin()
        self._cache.collect()
        for turn in self._deadlines.late():
            self._end(turn, "error", TOO_LONG.format(turn.may_take))
        self._admit()
        self._flush()  # whoever waits hears that its turn began before the first, perhaps long, step
        if self._running:
            self._cache.evict_rested()
            self._compaction.look()
            self._compute()
        if (seconds := self._runner.seconds_alone()) is not None:
            self._excuse(seconds)
        if (alone := self._runner.compute_alone()) is not None:
            if alone.reason:
                self._send(Log("error", alone.reason))
            self._take(alone)
        self._flush()
        self._cache.copy_some()
        self._runner.clock.end()

    def interrupt(self, turn: str) -> None:
        """End the step that is being computed if it is for this turn alone. From any thread; the cancel comes after."""
        if [running.id for running in self._running] == [turn]:
            self._context.abort_flag.set()

    def _handle(self, work: Work) -> None:
        match work:
            case Generation():
                self._queue.arrive(work)
                self._deadlines.add(work)
                self._prompts.arrive(work)
            case Refused(ended):
                self._output.ended.append(ended)
            case Cancel(turn):
                for generation in self._named(turn):
                    self._end(generation, "cancelled")
            case Pause(turn):
                for generation in self._named(turn):
                    self._pause(generation)
            case Resume(turn):
                self._queue.resume(turn)
            case Forget(key):
                self._forget(key)
            case Expect(key, hint):
                self._cache.expect(key, SECONDS_UNTIL[hint])
            case Woken():
                pass
            case Ping():
                self._send(Alive())
            case AskStats():
                self._flush()
                self._send(self._stats(work))

    def _pause(self, turn: Generation) -> None:
        if turn.allocation is not None:
            self._preempt(turn)
        self._deterministic.remove(turn)
        self._pending_loads.gone(turn)
        self._queue.pause(turn)

    def _forget(self, key: str) -> None:
        self._cache.forget(key)
        for turn in self._turns:
            turn.forgotten = turn.forgotten or turn.cache_key == key

    def _admit(self) -> None:
        """Bring in waiting turns; the first that does not fit keeps its place."""
        full = len(self._running) >= self._parallel
        if full and (turn := self._queue.gives_way(self._running, self._preemption.can_keep)) is not None:
            self._preempt(turn)
            self._waiting.append(turn)
        waiting = self._queue.in_order()
        for turn in waiting:
            if turn.deterministic and not self._deterministic.full:
                self._admit_alone(turn)
        for turn in waiting:
            if len(self._running) >= self._parallel:
                return
            if (
                turn.deterministic
                or waits_for_prefix(turn, self._running, self._cache)
                or self._pending_loads.must_wait(turn)
            ):
                continue
            if not self._bring_in(turn):
                if not self._running:
                    self._fail([turn], EngineError("the pool has no room for this turn"))
                return
            self._queue.admit(turn)
            self._running.append(turn)
            self._announce(turn)

    def _admit_alone(self, turn: Generation) -> None:
        try:
            self._deterministic.begin(turn)
        except EngineError as error:
            return self._fail([turn], error)
        self._queue.admit(turn)
        return self._announce(turn)

    def _announce(self, turn: Generation) -> None:
        if not turn.started:
            turn.started = True
            self._output.started.append(turn.start_notice())

    def _bring_in(self, turn: Generation) -> bool:
        """Allocate a sequence to a turn if all of its log, and some of what comes, fits beside the running ones."""
        spare, alone = self._preemption.spare(turn), not self._running
        turn.allocation = self._cache.allocate(turn.owner, turn.log, spare, alone=alone)
        if turn.allocation is not None:
            self._preemption.came_in(turn)
        return turn.allocation is not None

    def _compute(self) -> None:
        while self._running:
            shares = self._fitting_shares()
            self._excuse(self._runner.budget.step_seconds(shares, _depth))
            computed = self._runner.compute(shares)
            if computed.outcome is Outcome.DONE:
                return self._take(computed)
            if computed.outcome is Outcome.ABORTED:
                return self._cache.undo([turn.own_allocation for turn in shares])
            if computed.outcome is Outcome.FAILED:
                self._send(Log("error", computed.reason))
                return self._fail(list(shares), EngineError(STEP_FAILED))
            if not self._preempt_one():  # the books said that it fits, the pool says that it does not
                return self._fail(list(shares), EngineError("the pool has no room for this turn"))
        return None

    def _excuse(self, seconds: float) -> None:
        """Say so before a step that takes so long that the supervisor would give this process up; 0 is unknown."""
        may_take = seconds * HANG_FACTOR if seconds else FIRST_STEP_SECONDS
        if may_take > LONG_SECONDS:
            self._send(Computing(may_take))

    @property
    def _busy(self) -> bool:
        """Whether there is anything to compute, or to copy; those who wait for the disk are told when it is there."""
        waiting = len(self._waiting) > len(self._pending_loads.turns)
        return bool(self._running or waiting or self._deterministic.turns or self._cache.copying)

    @property
    def _turns(self) -> tuple[Generation, ...]:
        """All turns that are not over."""
        return (*self._running, *self._deterministic.turns, *self._waiting, *self._queue.paused)

    def _named(self, name: str) -> list[Generation]:
        return [turn for turn in self._turns if turn.id == name]

    def _fitting_shares(self) -> dict[Generation, int]:
        """Decide how many tokens of each running turn go into this step, preempting turns until they fit."""
        while True:
            shares = self._runner.budget.share({turn: turn.pending for turn in self._running}, _depth)
            if self._cache.make_room(sum(shares.values())) or not self._preempt_one():
                return shares

    def _preempt_one(self) -> bool:
        """Evict idle state, or else preempt the youngest running turn; the oldest always goes on."""
        if self._cache.evict_one():
            return True
        if len(self._running) <= 1:
            return False
        victim = self._queue.victim(self._running)
        self._preempt(victim)
        self._waiting.appendleft(victim)
        return True

    def _preempt(self, turn: Generation) -> None:
        """Take a turn's allocation away; it goes on later from where it was."""
        self._running.remove(turn)
        self._preemption.leaves(turn)
        self._cache.release(turn.own_allocation, turn.log, turn.cache_key)
        turn.allocation = None

    def _take(self, computed: Computed) -> None:
        """Let those speak for whom a token was chosen."""
        for turn, choice in computed.choices:
            if isinstance(choice, CfsError):
                self._fail([turn], choice)
                continue
            if turn.allocation is not None and not turn.completion_tokens:
                self._cache.commit(turn.allocation, turn.log)
            if reason := turn.accept(choice, self._vocabulary):
                self._end(turn, reason)
            elif text := turn.take_text():
                self._output.texts.append(text)

    def _end(self, turn: Generation, reason: FinishReason, error: str = "") -> None:
        """End a turn whose state is good, even if its reader is told of an error."""
        ended = turn.end_notice(reason, error)
        if text := turn.take_text():
            self._output.texts.append(text)
        turn.remember(self._vocabulary)
        if not turn.forgotten and (delta := turn.known.take_delta()) is not None:
            self._output.logs.append(delta)
        if turn.started:
            self._runner.forecast.saw_reply(turn.completion_tokens)
        self._output.ended.append(ended)
        self._remove(turn)

    def _fail(self, turns: list[Generation], error: CfsError) -> None:
        for turn in turns:
            turn.failed = turn.forgotten = True
            ended = Ended(turn.id, "error", turn.completion_tokens, type(error).__name__, error.detail)
            self._output.ended.append(ended)
            self._remove(turn)

    def _remove(self, turn: Generation) -> None:
        turn.sampler.free()
        self._queue.gone(turn)
        self._deterministic.remove(turn)
        self._deadlines.remove(turn)
        self._prompts.gone(turn)
        self._pending_loads.gone(turn)
        if turn in self._running:
            self._running.remove(turn)
        if turn.allocation is not None:
            log, key = None if turn.failed else turn.log, None if turn.forgotten else turn.cache_key
            self._cache.release(turn.allocation, log, key, SECONDS_UNTIL[turn.share[1]])
            turn.allocation = None
        if turn.forgotten and not turn.failed:
            self._cache.forget(turn.cache_key)  # a preemption may have kept it after the session was deleted

    def _flush(self) -> None:
        if self._output:
            output, self._output = self._output, StepOutput()
            backlog = self._runner.forecast.backlog(self._running, self._waiting, self._parallel)
            self._send(output.step(self._counters, backlog))

    @property
    def _counters(self) -> Counters:
        return self._runner.counters(self._preemption.recomputed_tokens)

    def _stats(self, question: AskStats) -> Stats:
        cache = self._cache
        gauges = {
            "turns_paused": float(len(self._queue.paused)),
            "compactions": float(self._compaction.count),
        }
        return Stats(
            number=question.number,
            counters=self._counters,
            running=len(self._running) + len(self._deterministic.turns),
            waiting=len(self._waiting),
            sequences_resident=len(cache.pool.handles),
            sequences_parked=cache.parked,
            cells_used=cache.pool.cells_used,
            gauges=cache.gauges() | self._runner.gauges | gauges,
            violations=self.check_integrity() if question.check else [],
        )

    def check_integrity(self) -> list[str]:
        """Compare what is known with what is; every line is a violation."""
        return self._audit.violations() + self._prompts.check_integrity(self._turns)


def _depth(turn: Generation) -> int:
    """Count the tokens before the next one of a turn."""
    return turn.computed
