"""Continuous batching: selects the turns of the next step, on the one thread that owns the context.

A step computes one token of every streaming turn, or pieces of prompts, as many tokens as fit into its time budget
(`PromptBudget`). The two kinds of steps alternate. Waiting turns start by fair shares (`WaitQueue`). Exceptions are
turns whose prefix another turn is computing (`waits_for_prefix`) and turns whose state is being read from disk
(`waits_for_load`). When the pool is full, idle state is evicted first. Then a running turn is preempted; it resumes
later. No turn fails because of other turns.
"""

import contextlib
import math
import queue
import time
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from cfs.errors import CfsError, EngineError
from cfs.wire import FinishReason
from cfs_server.engine.contract.backlog import Backlog
from cfs_server.engine.contract.interface import TOO_LONG
from cfs_server.engine.contract.protocol import (
    Alive,
    AskStats,
    CancelTurn,
    Counters,
    Embedded,
    Ended,
    Expect,
    Forget,
    FromWorker,
    Log,
    Pause,
    Ping,
    Resume,
    Retain,
    Stats,
    Step,
    StopEmbedding,
    TextDelta,
    TokenLogDelta,
    TurnDequeued,
)
from cfs_server.engine.kvcache.cache import PrefixCache, tokens_of
from cfs_server.engine.kvcache.device import Allocation
from cfs_server.engine.kvcache.disk import DiskProgress, open_disk
from cfs_server.engine.kvcache.radix_tree import SECONDS_UNTIL, PrefixTree
from cfs_server.engine.kvcache.snapshots import SnapshotCache
from cfs_server.engine.llama.ffi import DecodeResult, Tokens
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.worker.batch import BatchRunner, Computed
from cfs_server.engine.worker.embeddings import EmbeddingJob, EmbeddingRunner
from cfs_server.engine.worker.generation import Generation, GenerationState, Refused
from cfs_server.engine.worker.isolated_turns import STEP_FAILED
from cfs_server.engine.worker.step_clock import announcement
from cfs_server.engine.worker.wait_queue import WaitQueue

_AT_ONCE = 500
"""Messages that are handled before the next step: their work takes less than 50 ms."""
_REST_SHARE = 0.25
"""State in memory is looked through this often in the time after which it rests."""
IDLE_SECONDS = 10.0
"""Least time between two checks of an idle engine: with thousands of sessions each takes milliseconds."""

Work = (
    Generation
    | Refused
    | CancelTurn
    | Pause
    | Resume
    | Forget
    | Retain
    | Expect
    | EmbeddingJob
    | StopEmbedding
    | AskStats
    | Ping
    | DiskProgress
)


class Scheduler:
    """Runs generations. `inbox` takes work from other threads; `send` is called with frames for the server."""

    def __init__(self, model: LoadedModel, send: Callable[[FromWorker], None]) -> None:
        options = model.options
        self.inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._send = send
        self._context = model.context
        self._vocabulary = model.vocabulary
        self._parallel = options.parallel
        cache_type = PrefixCache if model.context.partial else SnapshotCache
        disk = open_disk(model, lambda: self.inbox.put(DiskProgress()), lambda text: send(Log("warning", text)))
        self._cache = cache_type(model.context, options.parked_bytes, options.idle_seconds, disk)
        self._queue = WaitQueue(options.slice_seconds)
        self._runner = BatchRunner(model, self._queue, self._cache)
        self._deterministic = self._runner.deterministic
        self._embeddings = EmbeddingRunner(model)
        self._waiting = self._queue.waiting
        self._running = self._queue.running
        self._preemption = PreemptionPolicy(self._cache, self._queue)
        self._compaction = PoolCompaction(self._cache, self._queue)
        self._output = StepOutput()
        self._deadlines = Deadlines()
        self._prompts = Prompts(self._cache)
        self._next_check = 0.0
        self._rest_seconds = options.rest_seconds
        self._next_rest = 0.0

    def run_forever(self) -> None:
        """Serve. While there is nothing to compute, this blocks and costs nothing."""
        while True:
            self.take_work()
            self.step()

    def take_work(self) -> None:
        """Handle all work that arrived; when there is nothing to compute, wait for some."""
        if self._seconds_until_rest == 0:
            self._cache.rest(self._rest_seconds)
            self._next_rest = time.monotonic() + self._rest_seconds * _REST_SHARE
        if not self._busy:
            self._check_when_idle()
            with contextlib.suppress(queue.Empty):
                while isinstance(work := self.inbox.get(timeout=self._seconds_left), Ping):
                    self._send(Alive())  # and nothing else: an idle engine stays idle
                self._handle(work)
        # What arrives meanwhile, and what is beyond a number, comes after a step: a flood would prevent steps.
        for _ in range(min(self.inbox.qsize(), _AT_ONCE)):
            self._handle(self.inbox.get())

    def drain(self, seconds: float) -> None:
        """Write the state that waits for the disk, for so long at most. Called from any thread."""
        self._cache.disk.drain(seconds)

    def recovered(self) -> Iterator[tuple[str, str, Tokens]]:
        """Yield the sessions that were found on disk, with their owners and tokens. To be called before it runs."""
        return self._cache.recovered()

    def close(self) -> None:
        """Free the contexts of deterministic turns, and end all threads."""
        self._runner.close()
        self._embeddings.close()
        self._cache.disk.close()

    def step(self) -> None:
        """Admit turns, compute one batch, sample, and send one frame with the results."""
        self._runner.clock.begin()
        self._cache.collect()
        for turn in self._deadlines.late():
            self._end(turn, "error", TOO_LONG.format(turn.may_take))
        self._admit()
        self._flush()  # a reader learns that its turn has started before the first step, which may be long
        if self._running:
            self._cache.evict_rested()
            self._compaction.compact_if_worthwhile()
            self._compute()
        if (seconds := self._runner.seconds_alone()) is not None:
            self._announce_long_step(seconds)
        if (alone := self._runner.compute_alone()) is not None:
            if alone.reason:
                self._send(Log("error", alone.reason))
            self._take(alone)
        self._flush()
        self._embed()
        self._cache.copy_some()
        self._runner.clock.end()

    def interrupt(self, turn: str) -> None:
        """Abort the current step if it is for this turn alone. Called from any thread, before the cancel is handled."""
        if [running.id for running in self._running] == [turn]:
            self._context.abort_flag.set()

    def _handle(self, work: Work) -> None:
        match work:
            case Generation():
                self._queue.add(work)
                self._deadlines.add(work)
                self._prompts.arrive(work)
            case Refused(ended):
                self._output.ended.append(ended)
            case CancelTurn(turn):
                for generation in self._named(turn):
                    self._end(generation, "cancelled")
            case Pause(turn):
                for generation in self._named(turn):
                    self._pause(generation)
            case Resume(turn):
                for generation in self._named(turn):
                    if generation.state is GenerationState.PAUSED:
                        self._queue.move(generation, GenerationState.WAITING, first=True)
            case Forget(key):
                self._forget(key)
            case Retain(keys):
                self._cache.retain(keys)
            case Expect(key, hint):
                self._cache.expect(key, SECONDS_UNTIL[hint])
            case EmbeddingJob():
                self._embeddings.add(work)
            case StopEmbedding(number):
                self._answer(self._embeddings.stop(number))
            case DiskProgress():
                pass
            case Ping():
                self._send(Alive())
            case AskStats():
                self._flush()
                self._send(self._stats(work))

    def _pause(self, turn: Generation) -> None:
        if turn.state is GenerationState.PAUSED:
            return
        if turn.allocation is not None:
            self._release(turn)
        self._deterministic.remove(turn)
        turn.loads = 0
        self._queue.move(turn, GenerationState.PAUSED)

    def _forget(self, key: str) -> None:
        self._cache.forget(key)
        self._runner.speculation.forget(key)
        for turn in self._queue.of_session(key):
            turn.forgotten = True

    def _admit(self) -> None:
        """Admit waiting turns in their order, up to the first that does not fit."""
        full = len(self._running) >= self._parallel
        if full and (turn := self._queue.gives_way(self._preemption.can_keep)) is not None:
            self._preempt(turn)
        if not self._deterministic.full:
            for turn in self._queue.in_order(deterministic=True):
                self._admit_alone(turn)
                if self._deterministic.full:
                    break
        if len(self._running) >= self._parallel:
            return
        for turn in self._queue.in_order(deterministic=False):
            if len(self._running) >= self._parallel:
                return
            if waits_for_prefix(turn, self._running, self._cache) or waits_for_load(turn, self._queue, self._cache):
                continue
            if not self._bring_in(turn):
                if not self._running:
                    self._fail([turn], EngineError("the pool has no room for this turn"))
                return
            self._queue.move(turn, GenerationState.RUNNING)
            self._announce(turn)

    def _admit_alone(self, turn: Generation) -> None:
        try:
            self._deterministic.begin(turn)
        except EngineError as error:
            return self._fail([turn], error)
        self._queue.move(turn, GenerationState.RUNNING)
        return self._announce(turn)

    def _announce(self, turn: Generation) -> None:
        if not turn.started:
            turn.started = True
            self._output.started.append(turn.start_notice())

    def _bring_in(self, turn: Generation) -> bool:
        """Allocate a sequence to a turn, if its log and some room to grow fit beside the running turns."""
        spare, alone = self._preemption.spare(turn), not self._running
        turn.allocation = self._cache.allocate(turn.owner, turn.log, spare, alone=alone)
        if turn.allocation is not None:
            self._preemption.resumed(turn)
        return turn.allocation is not None

    def _compute(self) -> None:
        while self._running:
            shares = self._fitting_shares()
            self._announce_long_step(self._runner.budget.step_seconds(shares, _depth))
            computed = self._runner.compute(shares)
            if computed.outcome is DecodeResult.DONE:
                return self._take(computed)
            if computed.outcome is DecodeResult.ABORTED:
                return self._cache.undo([turn.own_allocation for turn in shares])
            if computed.outcome is DecodeResult.FAILED:
                self._send(Log("error", computed.reason))
                return self._fail(list(shares), EngineError(STEP_FAILED))
            if not self._preempt_one():  # by the count of cells it fits, but the library found no room
                return self._fail(list(shares), EngineError("the pool has no room for this turn"))
        return None

    def _embed(self) -> None:
        """Compute some embeddings; turns wait for one small step of them."""
        step = self._embeddings.next_step(beside_turns=bool(self._running or self._queue.deterministic))
        if step is None:
            return
        self._announce_long_step(self._embeddings.cost.seconds(step.tokens))
        self._answer(self._embeddings.compute(step))
        self._runner.count_embedded(step.tokens)

    def _answer(self, answers: Iterable[Embedded]) -> None:
        for answer in answers:
            self._send(answer)

    def _announce_long_step(self, seconds: float) -> None:
        if (long := announcement(seconds)) is not None:
            self._send(long)

    @property
    def _seconds_left(self) -> float | None:
        """How long there is nothing to do, unless work arrives."""
        waits = (self._deadlines.seconds_left, self._seconds_until_rest)
        return min((seconds for seconds in waits if seconds is not None), default=None)

    @property
    def _seconds_until_rest(self) -> float | None:
        cache = self._cache
        return max(0.0, self._next_rest - time.monotonic()) if cache.disk.on and cache.memory.used else None

    @property
    def _busy(self) -> bool:
        """Whether there is anything to compute or to copy. Turns that load are woken by the disk."""
        if self._running or self._queue.deterministic or self._cache.copying or self._embeddings.waiting:
            return True
        return any(turn.state is not GenerationState.LOADING for turn in self._waiting)

    def _named(self, name: str) -> list[Generation]:
        turn = self._queue.named(name)
        return [] if turn is None else [turn]

    def _fitting_shares(self) -> dict[Generation, int]:
        """Decide how many tokens of each running turn go into this step, preempting turns until they fit."""
        while True:
            shares = self._runner.budget.share({turn: turn.pending for turn in self._running}, _depth)
            if self._cache.make_room(sum(shares.values())) or not self._preempt_one():
                return shares

    def _preempt_one(self) -> bool:
        """Evict idle state, or else preempt a running turn, but never the oldest; false when neither is possible."""
        if self._cache.evict_one():
            return True
        if len(self._running) <= 1:
            return False
        self._preempt(self._queue.victim(), first=True)
        return True

    def _preempt(self, turn: Generation, *, first: bool = False) -> None:
        """Take a turn out of the steps; it resumes later from where it was."""
        self._release(turn)
        self._queue.move(turn, GenerationState.PREEMPTED, first=first)

    def _release(self, turn: Generation) -> None:
        """Release a turn's allocation and record the turn's progress."""
        turn.reached = turn.computed
        self._cache.release(turn.own_allocation, turn.log, turn.cache_key)
        turn.allocation = None

    def _take(self, computed: Computed) -> None:
        """Give each turn its sampled tokens, and collect new text."""
        for turn, choices in computed.choices:
            if turn.allocation is not None and not turn.completion_tokens:
                self._cache.commit(turn.allocation, turn.log)
            length, reason = len(turn.log) - 1 + len(choices), None
            for choice in choices:
                if isinstance(choice, CfsError) or (reason := turn.accept(choice, self._vocabulary)):
                    break
            if turn.allocation is not None:
                self._cache.truncate(turn.allocation, min(length, len(turn.log)))
            if isinstance(choice, CfsError):
                self._fail([turn], choice)
            elif reason:
                self._end(turn, reason)
            elif text := turn.take_text():
                self._output.texts.append(text)

    def _end(self, turn: Generation, reason: FinishReason, error: str = "") -> None:
        """End a turn whose state is good, even if it ends with an error."""
        ended = turn.end_notice(reason, error)
        if text := turn.take_text():
            self._output.texts.append(text)
        turn.remember(self._vocabulary)
        if not turn.forgotten and (delta := turn.known.take_delta()) is not None:
            self._output.logs.append(delta)
        if turn.started:
            self._runner.forecast.saw_reply(turn.completion_tokens)
            self._runner.speculation.ended(turn)
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
        self._queue.move(turn, GenerationState.FINISHED)
        self._deterministic.remove(turn)
        self._deadlines.remove(turn)
        self._prompts.gone(turn)
        if turn.allocation is not None:
            log, key = None if turn.failed else turn.log, None if turn.forgotten else turn.cache_key
            self._cache.release(turn.allocation, log, key, SECONDS_UNTIL[turn.share[1]])
            turn.allocation = None
        if turn.forgotten and not turn.failed:
            self._cache.forget(turn.cache_key)  # a preemption may have kept it after the session was deleted

    def _flush(self) -> None:
        if self._output or self._runner.forecast.outdated(self._waiting):
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
            "embedding_texts_waiting": float(self._embeddings.waiting),
        }
        return Stats(
            number=question.number,
            counters=self._counters,
            running=len(self._running) + len(self._queue.deterministic),
            waiting=len(self._waiting),
            sequences_resident=len(cache.pool.handles),
            sequences_parked=cache.parked,
            cells_used=cache.pool.cells_used,
            gauges=cache.gauges() | self._runner.gauges | gauges,
            violations=self.check_integrity() if question.check else [],
        )

    def check_integrity(self) -> list[str]:
        """Compare the records with each other and with the device; every line is a violation."""
        queue, turns = self._queue, self._queue.turns
        problems = self._cache.check_integrity() + queue.check_integrity()
        problems += self._deadlines.check_integrity(set(turns)) + self._prompts.check_integrity(turns)
        problems += self._embeddings.check_integrity()
        if set(self._deterministic.turns) != set(queue.deterministic):
            problems.append("deterministic turns and their contexts do not agree")
        allocated = {turn for turn in turns if turn.allocation is not None}
        problems += [f"{turn.id} runs without an allocation" for turn in set(queue.running) - allocated]
        problems += [f"{turn.id} has an allocation but does not run" for turn in allocated - set(queue.running)]
        return [*problems, *self._misplaced(turns)]

    def _misplaced(self, turns: Iterable[Generation]) -> Iterator[str]:
        allocations = [turn.allocation for turn in turns if turn.allocation is not None]
        handles = self._cache.pool.handles.values()
        if {allocation.handle.id for allocation in allocations} != {handle.id for handle in handles if handle.running}:
            yield "running sequences and unfinished turns do not agree"
        for allocation in allocations:
            if allocation.node is not None and allocation.handle.own != allocation.length - allocation.shared:
                yield f"sequence {allocation.handle.id} has {allocation.handle.own} cells of its own"

    def _check_when_idle(self) -> None:
        """Log violations, if the last check is long enough ago."""
        if time.monotonic() >= self._next_check:
            for problem in self.check_integrity():
                self._send(Log("error", f"engine invariant broken: {problem}"))
            self._next_check = time.monotonic() + IDLE_SECONDS


def _depth(turn: Generation) -> int:
    """Count the tokens before the next one of a turn."""
    return turn.computed


@dataclass(slots=True)
class StepOutput:
    """The events since the last frame to the server, to be sent as one frame."""

    started: list[TurnDequeued] = field(default_factory=list)
    texts: list[TextDelta] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    logs: list[TokenLogDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.started or self.texts or self.ended or self.logs)

    def step(self, counters: Counters, backlog: Backlog) -> Step:
        """Make the frame."""
        return Step(counters, self.started, self.texts, self.ended, backlog, self.logs)


class Deadlines:
    """Turns with a deadline, the next deadline first."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, int, Generation]] = []

    def add(self, turn: Generation) -> None:
        """Add a turn."""
        if turn.ends_at < math.inf:
            insort(self._turns, (turn.ends_at, id(turn), turn))

    def remove(self, turn: Generation) -> None:
        """Drop a finished turn."""
        index = bisect_left(self._turns, (turn.ends_at, id(turn)))
        if index < len(self._turns) and self._turns[index][2] is turn:
            del self._turns[index]

    def late(self) -> list[Generation]:
        """List the turns whose deadline has passed."""
        return [turn for _, _, turn in self._turns[: bisect_left(self._turns, (time.monotonic(),))]]

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the next deadline; None when there is none."""
        return max(0.0, self._turns[0][0] - time.monotonic()) if self._turns else None

    def check_integrity(self, turns: set[Generation]) -> list[str]:
        """Compare with the unfinished turns; every line is a violation."""
        listed = [turn for _, _, turn in self._turns]
        expected = {turn for turn in turns if turn.ends_at < math.inf}
        return [] if set(listed) == expected and len(listed) == len(expected) else ["deadlines and turns do not agree"]


# A turn whose state is lost meanwhile computes it again. Two rules bound this. A turn whose state cannot be saved is
# not preempted for the sake of fair shares. A turn that lost its state resumes only when it can stay to its end. So no
# token is evaluated more than twice.

HEADROOM = 64
"""Cells that must be free for each running turn before another is admitted, so that turns do not come and go."""


class PreemptionPolicy:
    """Checks turns before they are preempted and before they resume, and counts their losses."""

    def __init__(self, cache: PrefixCache, wait_queue: WaitQueue) -> None:
        self.recomputed_tokens = 0
        self._cache = cache
        self._queue = wait_queue

    def can_keep(self, turn: Generation) -> bool:
        """Whether a turn preempted now would find its state again: in memory, or as the pool has room for all turns."""
        if turn.losses:
            return False
        state_bytes = self._cache.pool.state_bytes
        others = chain(self._queue.waiting, self._queue.paused)
        aside = state_bytes(turn.computed) + sum(state_bytes(other.reached) for other in others if other.reached)
        return aside <= self._cache.memory.limit or self._all_fit()

    def spare(self, turn: Generation) -> int:
        """Cells that must be free beside a turn's log for its admission: for a while or, after a loss, to its end."""
        if turn.losses or any(other.losses for other in self._queue.running):
            return turn.left + sum(other.pending + other.left for other in self._queue.running)
        return sum(other.pending for other in self._queue.running) + HEADROOM * (len(self._queue.running) + 1)

    def resumed(self, turn: Generation) -> None:
        """Count the state that an admitted turn has lost since it was preempted."""
        lost = max(0, turn.reached - turn.computed)
        self.recomputed_tokens += lost
        turn.losses += lost > 0
        turn.reached = 0

    def _all_fit(self) -> bool:
        """Whether the pool has room for all turns to their ends."""
        left = self._cache.pool.cells
        for turn in chain(self._queue.running, self._queue.waiting, self._queue.paused):
            left -= len(turn.log) + turn.left
            if left < 0:
                return False
        return True


TRIES = 3
"""How often a turn waits for a load; after that, where memory is too small for its state, it computes it again."""


def waits_for_load(turn: Generation, wait_queue: WaitQueue, cache: PrefixCache) -> bool:
    """Whether a turn waits for the disk. Starts the loads that it needs, and changes its state."""
    loading = turn.state is GenerationState.LOADING
    if not loading and turn.loads >= TRIES:
        return False
    if not cache.fetch(turn.owner, turn.log):
        if loading:
            wait_queue.move(turn, GenerationState.WAITING)
        return False
    if not loading:
        turn.loads += 1
        wait_queue.move(turn, GenerationState.LOADING)
    return True


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
    cached = cache.known(turn.owner, turn.log)
    best: Generation | None = None
    for other in running:
        common = _common(turn, other) if other.owner == turn.owner else 0
        if common >= cached + WORTH_WAITING:
            best, cached = other, common
    if best is None:
        return False
    if best.computed < cached:
        turn.awaited = best, cached
        return True
    cache.commit(best.own_allocation, best.log)
    return False


def _common(turn: Generation, other: Generation) -> int:
    """Length of the common beginning of two prompts, all but the last token at most."""
    length = min(len(turn.log) - 1, len(other.log))
    different = np.flatnonzero(np.array(turn.log[:length]) != np.array(other.log[:length]))
    return int(different[0]) if len(different) else length


class Prompts:
    """The prompts of all unfinished turns: a shared prefix is computed and forecast once.

    A turn counts the prefixes that others compute at its arrival. If those are cancelled, its forecast is too low.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._tree = PrefixTree()

    def arrive(self, turn: Generation) -> None:
        """Add a turn and set the part of its prompt that it need not compute (`Generation.spared`)."""
        if turn.deterministic:
            return
        tokens = tokens_of(turn.log, turn.prompt_tokens)
        coming = self._tree.match(turn.owner, tokens[:-1]).length if self._cache.partial else 0
        turn.spared = max(coming, self._cache.known(turn.owner, turn.log))
        if (node := self._tree.insert(turn.owner, tokens)) is not None:
            self._tree.attach(turn.id, node)

    def gone(self, turn: Generation) -> None:
        """Remove the prompt of a finished turn."""
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


# The library attends over all cells up to the highest used one, including free cells, and has no call that moves cells.
# So running turns are saved, removed and allocated again. Copying a cell costs as much as attending to it dozens of
# times.

COPY = 40
"""Saving and restoring a cell costs as much as attending to it this often (measured: 5 to 42 times)."""
AHEAD = 100
"""Tokens of a reply that are expected to come; it may be more or none."""
LEAST = 1024
"""Fewest holes that are worth a compaction."""
MOST_BYTES = 256 << 20
"""Most bytes that are copied: streams wait meanwhile."""


@dataclass(frozen=True, slots=True)
class RunningSequence:
    """A running turn: its allocation, its tokens, its session."""

    allocation: Allocation
    log: "array[int]"
    key: str


def reallocate(cache: PrefixCache, places: Sequence[RunningSequence]) -> list[Allocation | None]:
    """Empty the pool and allocate these turns again from its beginning; `None` for a turn that finds no room any more.

    Needs all running turns. Nothing is lost: memory may exceed its limit meanwhile.
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


class PoolCompaction:
    """Estimates how far the pool was filled, and decides whether moving pays."""

    def __init__(self, cache: PrefixCache, wait_queue: WaitQueue) -> None:
        self.count = 0
        self._cache = cache
        self._queue = wait_queue
        self._peak = 0

    def compact_if_worthwhile(self) -> None:
        """Compact the pool if that pays; to be called before each step."""
        used = self._cache.pool.cells_used
        self._peak = max(self._peak, used) if used else 0  # an empty pool is filled from its beginning
        if self._pays(used, self._peak - used) and self._nothing_is_lost():
            self._compact()
            self._peak = self._cache.pool.cells_used

    def _pays(self, used: int, holes: int) -> bool:
        """Whether most attended cells are holes, and the remaining tokens are worth the copying."""
        ahead = sum(min(turn.left, AHEAD) for turn in self._queue.running)
        copied = self._cache.pool.state_bytes(used)
        return holes >= max(used, LEAST) and holes * ahead >= COPY * used and copied <= MOST_BYTES

    def _nothing_is_lost(self) -> bool:
        """Whether memory has room for the idle state that is on the device only."""
        pool, memory = self._cache.pool, self._cache.memory
        unsaved = sum(len(node.tokens) for node in pool.nodes if not (node.memory or node.pins))
        return not unsaved or memory.used + pool.state_bytes(unsaved) <= memory.limit

    def _compact(self) -> None:
        self.count += 1
        turns = list(self._queue.running)
        allocations = reallocate(
            self._cache, [RunningSequence(turn.own_allocation, turn.log, turn.cache_key) for turn in turns]
        )
        for turn, allocation in zip(turns, allocations, strict=True):
            turn.reached, turn.allocation = (0 if allocation else turn.computed), allocation
            if allocation is None:
                self._queue.move(turn, GenerationState.PREEMPTED, first=True)
