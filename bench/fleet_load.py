"""Simulates sessions that are used, and the workers that answer them (`scripts/bench fleet`).

Real are the slots of names (`placement.slot_of`), the sizes of steps (`PromptBudget`) and the order in which turns
start (`Fairness`). Simulated are people, agents and the time that a step takes: a plane through the figures of a model
of 500 million parameters on two cores (docs/benchmarks.md). A run is repeated by its seed.

A session is used in *visits* of some turns with pauses between them. An agent's first turn may begin all its children,
whose prompts begin with that of their parent. A worker keeps the state of the sessions that it has served last.
"""

import heapq
import math
import random
from array import array
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from cfs_server.domain.placement import slot_of
from cfs_server.engine.contract.fairness import Fairness, Path
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.llama.prompt_budget import PromptBudget, attended_cells

SLOTS = 1024
"""The finest division of sessions that is compared: a coarser one is its remainder."""
SPEED = 4.0
"""A worker is so many times as fast as the one that was measured: as on eight cores."""
STREAMS = (0.026 / SPEED, 0.0041 / SPEED)
"""Seconds of a step with streams only: fixed, and of each. Measured: 33, 90, 129 and 174 tokens/s with 1, 4, 8, 16."""
PROMPT = (0.026 / SPEED, 0.0039 / SPEED, 1e-6 / SPEED)
"""Seconds of a step with a piece of a prompt: fixed, of a token, of an attended cell. Measured: 255 tokens/s."""
RESTORE = 1.2e-6
"""Seconds to restore the state of a token."""
KEPT_TOKENS = 4_000_000
"""Tokens whose state a worker keeps."""
OWNERS = 20_000
PAUSE_SECONDS = 45.0
"""Between an answer and the next message of a person; agents go on after a tenth of it."""
_GOES_ON = 0.8
_SPAWNS = 0.25
_SHARED = 2_000
"""Tokens of a parent's prompt that its children begin with, at most."""
_HOURS = 24
_LOOKS = 16
"""Steps of streams after which the order of waiting turns is looked at again."""


def lengths(rng: random.Random, median: float, spread: float, most: int) -> int:
    """Draw a number of tokens: log-normal, cut off."""
    return max(1, min(most, round(rng.lognormvariate(math.log(median), spread))))


class Population:
    """All sessions: the slot, the root and the use of each. Agents' sessions are trees; the root is the first."""

    def __init__(self, sessions: int, seed: int) -> None:
        rng = random.Random(seed)
        self.slots, self.roots = array("H"), array("I")
        self.history = array("I")
        """Tokens of each."""
        self.children = array("H")
        """Children of each root."""
        self.weights = array("d")
        """Visits of each, relative to the others. Children are used when their parents are."""
        while len(self.slots) < sessions:
            root, is_tree = len(self.slots), rng.random() < 0.1
            fan_out = min(32, int(2 * rng.paretovariate(1.2)), sessions - root - 1) if is_tree else 0
            slot = slot_of(f"{'task' if is_tree else 'chat'}-{root}", SLOTS)
            use = min(200.0, rng.paretovariate(1.2))
            for number in range(fan_out + 1):
                self.slots.append(slot)
                self.roots.append(root)
                self.children.append(0 if number else fan_out)
                self.weights.append(0.0 if number else use)
                self.history.append(lengths(rng, 600, 1.0, 16_000))
        self._sums = array("d", accumulate(self.weights))

    def __len__(self) -> int:
        return len(self.slots)

    def draw(self, rng: random.Random) -> int:
        """Draw the session of a visit."""
        return bisect(self._sums, rng.random() * self._sums[-1])

    def is_agent(self, session: int) -> bool:
        """Return whether a session belongs to a tree."""
        return self.children[self.roots[session]] > 0

    def spread(self, slots: int, plan: Sequence[str], replicas: Sequence[str]) -> tuple[dict[str, int], list[float]]:
        """Return the sessions of each replica, and its turns relative to an equal share in the hour with most."""
        counts = dict.fromkeys(replicas, 0)
        hours = [dict.fromkeys(replicas, 0.0) for _ in range(_HOURS)]
        by_slot = [[0.0, 0.0, 0.0] for _ in range(slots)]
        for slot, root, use, children in zip(self.slots, self.roots, self.weights, self.children, strict=True):
            counts[plan[slot % slots]] += 1
            by_slot[slot % slots][root % 3] += use * (1 + _SPAWNS * children)
        for slot, zones in enumerate(by_slot):
            for hour, loads in enumerate(hours):
                loads[plan[slot]] += sum(use * day_share(hour + 8 * zone) for zone, use in enumerate(zones))
        busiest = max(hours, key=lambda loads: sum(loads.values()))
        mean = sum(busiest.values()) / len(replicas)
        return counts, sorted(load / mean for load in busiest.values())


def day_share(hour: float) -> float:
    """Return the use in an hour of the day, relative to the mean: most in the afternoon, a fifth of it in the night."""
    return 1.0 - 0.67 * math.cos((hour - 3) / _HOURS * 2 * math.pi)


@dataclass(eq=False, slots=True)
class Turn:
    """A turn: its prompt, of which a part is cached, and the reply.

    `left` are the tokens of the prompt that are still to be computed, `told` those of the reply that are there, and
    `slice` is the time since its start.
    """

    session: int
    share: Path
    arrived: float
    prompt: int
    reply: int
    parent: int | None = None
    left: int = -1
    told: int = 0
    slice: float = 0.0
    then: Callable[[], None] = field(default=lambda: None)


class Worker:
    """One engine: turns start in fair order, and prompts and streams share its steps."""

    def __init__(self, clock: "Clock", options: WorkerOptions) -> None:
        self._clock = clock
        self._parallel = options.parallel
        self._slice_seconds = options.slice_seconds
        self._budget = PromptBudget(options.step_tokens, options.step_seconds)
        self._fairness = Fairness()
        self._waiting: list[Turn] = []
        self._running: list[Turn] = []
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._kept_tokens = 0
        self._run = 0
        self._run_began = self._run_each = 0.0
        self._is_busy = False
        self.computed = self.given = 0
        """Tokens of prompts that were computed, and all."""
        self.busy = 0.0
        self.first: list[tuple[float, str, float]] = []
        """When each turn arrived, its kind, and its seconds to the first token."""

    @property
    def turns(self) -> int:
        """The unfinished turns."""
        return len(self._waiting) + len(self._running)

    def add(self, turn: Turn) -> None:
        """Take a turn. Streams are interrupted at the end of their step."""
        self._waiting.append(turn)
        self._fairness.join(turn.share)
        if not self._is_busy:
            self._step()
        elif self._run > 1:  # several steps were counted as one, because nothing else was to be done
            done = math.ceil((self._clock.now - self._run_began) / self._run_each)
            if done < self._run:
                self._is_busy = False
                self._begin_streams(max(1, done), self._run_began)

    def keep(self, session: int, tokens: int) -> None:
        """Keep the state of a session."""
        self._kept_tokens += tokens - self._kept.pop(session, 0)
        self._kept[session] = tokens
        while self._kept_tokens > KEPT_TOKENS:
            self._kept_tokens -= self._kept.popitem(last=False)[1]

    def _cached(self, turn: Turn) -> int:
        shared = 0 if turn.parent is None else min(_SHARED, self._kept.get(turn.parent, 0))
        return min(turn.prompt - 1, max(self._kept.get(turn.session, 0), shared))

    def _admit(self) -> float:
        """Start waiting turns. Returns the seconds to restore what is kept of them."""
        seconds = 0.0
        while self._waiting:
            turn = min(self._waiting, key=self._rank)
            if len(self._running) >= self._parallel and not self._give_way(turn):
                break
            self._waiting.remove(turn)
            if turn.left < 0:
                turn.left = turn.prompt - self._cached(turn)
                self.computed, self.given = self.computed + turn.left, self.given + turn.prompt
            seconds += _depth(turn) * RESTORE
            turn.slice = 0.0
            self._running.append(turn)
        return seconds

    def _give_way(self, first: Turn) -> bool:
        """Let a turn wait that had its slice, if the account of a waiting one had less."""
        spent = [turn for turn in self._running if turn.slice >= self._slice_seconds]
        last = max(spent, key=self._rank, default=first)
        if self._fairness.rank(first.share) >= self._fairness.rank(last.share):
            return False
        self._running.remove(last)
        self._waiting.append(last)
        return True

    def _rank(self, turn: Turn) -> tuple[tuple[float, ...], float]:
        return self._fairness.rank(turn.share), turn.arrived

    def _step(self) -> None:
        """Begin a step, or several of streams."""
        restoring = self._admit()
        if not self._running:
            return
        pending = {turn: max(1, turn.left) for turn in self._running}
        shares = self._budget.share(pending, _depth)
        if all(not turn.left for turn in shares):
            steps = min(turn.reply - turn.told for turn in shares)
            self._begin_streams(min(steps, _LOOKS) if self._waiting else steps, self._clock.now)
            return
        tokens = sum(shares.values())
        cells = sum(attended_cells(count, _depth(turn)) for turn, count in shares.items() if turn.left)
        seconds = PROMPT[0] + PROMPT[1] * tokens + PROMPT[2] * cells
        self._budget.saw_step(tokens, seconds, cells)
        self._is_busy, self._run = True, 0
        self._charge(shares, seconds)
        self._clock.later(seconds + restoring, partial(self._end_step, shares))

    def _begin_streams(self, steps: int, began: float) -> None:
        streams = [turn for turn in self._running if not turn.left]
        self._run, self._run_began, self._is_busy = steps, began, True
        self._run_each = STREAMS[0] + STREAMS[1] * len(streams)
        token = self._clock.count
        self._clock.at(began + steps * self._run_each, partial(self._end_streams, streams, steps, began, token))

    def _end_streams(self, streams: list[Turn], steps: int, began: float, _token: int) -> None:
        if (self._run, self._run_began) != (steps, began):
            return  # interrupted
        seconds = steps * self._run_each
        self._budget.saw_step(len(streams), self._run_each)
        shares = dict.fromkeys(streams, steps)
        self._charge(shares, seconds)
        self._run = 0
        self._end_step(shares)

    def _charge(self, shares: dict[Turn, int], seconds: float) -> None:
        self.busy += seconds
        each = seconds / sum(shares.values())
        for turn, count in shares.items():
            turn.slice += each * count
            self._fairness.charge(turn.share, each * count)

    def _end_step(self, shares: dict[Turn, int]) -> None:
        now, ended = self._clock.now, []
        for turn, count in shares.items():
            if turn.left:
                turn.left -= count
                if turn.left:
                    continue
                turn.told = 1
                self.first.append((turn.arrived, turn.share[1], now - turn.arrived))
            else:
                turn.told += count
            if turn.told >= turn.reply:
                ended.append(turn)
        for turn in ended:
            self._running.remove(turn)
            self._fairness.leave(turn.share)
            self.keep(turn.session, turn.prompt + turn.reply)
        self._is_busy = False
        self._step()
        for turn in ended:
            turn.then()


def _depth(turn: Turn) -> int:
    return turn.prompt - turn.left + turn.told


class Clock:
    """Simulated time: a heap of what is to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, step: Callable[[], None]) -> None:
        """Do a step at a moment."""
        self.count += 1
        heapq.heappush(self._events, (moment, self.count, step))

    def later(self, seconds: float, step: Callable[[], None]) -> None:
        """Do a step in so many seconds."""
        self.at(self.now + seconds, step)

    def run(self, end: float) -> None:
        """Do all steps until a moment."""
        while self._events and self._events[0][0] <= end:
            self.now, _, step = heapq.heappop(self._events)
            step()
        self.now = end


Route = Callable[[int, Sequence[Worker]], int]
"""Chooses the worker of a session's next turn."""


class Use:
    """People and agents that use the sessions of a population."""

    def __init__(self, population: Population, workers: int, route: Route, rate: float, seed: int) -> None:
        """`rate` is the number of visits a second."""
        self.clock = Clock()
        self.workers = [Worker(self.clock, WorkerOptions()) for _ in range(workers)]
        self.turns = 0
        self._population = population
        self._history = array("I", population.history)
        self._route = route
        self._rate = rate
        self._rng = random.Random(seed)
        self._queues: dict[int, deque[Turn]] = {}
        """The turns of each session that has one, in order."""

    def run(self, seconds: float) -> None:
        """Let people and agents begin visits for some seconds."""
        self._arrive()
        self.clock.run(seconds)

    def _arrive(self) -> None:
        self._visit(self._population.draw(self._rng))
        self.clock.later(self._rng.expovariate(self._rate), self._arrive)

    def _visit(self, session: int) -> None:
        spawns = self._population.children[session] > 0 and self._rng.random() < _SPAWNS
        self._ask(session, None, spawns=spawns)

    def _spawn(self, root: int) -> None:
        for child in range(root + 1, root + 1 + self._population.children[root]):
            self._history[child] = min(_SHARED, self._history[root])
            self._ask(child, root)

    def _ask(self, session: int, parent: int | None, *, spawns: bool = False) -> None:
        root = self._population.roots[session]
        kind = "agent" if self._population.is_agent(session) else "interactive"
        new, reply = lengths(self._rng, 40, 1.3, 8_000), lengths(self._rng, 120, 0.8, 512)
        turn = Turn(session, (str(root % OWNERS), kind, str(root)), self.clock.now, new, reply, parent)
        turn.then = partial(self._ended, turn, spawns=spawns)
        self.turns += 1
        queue = self._queues.setdefault(session, deque())
        queue.append(turn)
        if len(queue) == 1:
            self._begin(turn)

    def _begin(self, turn: Turn) -> None:
        turn.prompt += self._history[turn.session]
        self.workers[self._route(turn.session, self.workers)].add(turn)

    def _ended(self, turn: Turn, *, spawns: bool) -> None:
        self._history[turn.session] = min(16_000, turn.prompt + turn.reply)
        queue = self._queues[turn.session]
        queue.popleft()
        if queue:
            self._begin(queue[0])
        else:
            del self._queues[turn.session]
        if spawns:
            self._spawn(turn.session)
        if self._rng.random() < _GOES_ON:
            pause = PAUSE_SECONDS * (0.1 if turn.share[1] == "agent" else 1.0)
            self.clock.later(self._rng.expovariate(1 / pause), partial(self._ask, turn.session, turn.parent))


def visit_seconds(population: Population, seed: int, samples: int = 20_000) -> float:
    """Return the mean time of a worker that a visit takes if each token is computed once, with all streams in use."""
    rng, total = random.Random(seed), 0.0
    parallel = WorkerOptions().parallel
    token = STREAMS[0] / parallel + STREAMS[1]
    for _ in range(samples):
        session = population.draw(rng)
        children = population.children[session]
        spawned = children if children and rng.random() < _SPAWNS else 0
        for number in range(1 + spawned):
            total += 0.0 if number else _prompt_seconds(population.history[session])
            goes_on = True
            while goes_on:
                total += _prompt_seconds(lengths(rng, 40, 1.3, 8_000)) + lengths(rng, 120, 0.8, 512) * token
                goes_on = rng.random() < _GOES_ON
    return total / samples


def _prompt_seconds(tokens: int) -> float:
    return math.ceil(tokens / 512) * PROMPT[0] + PROMPT[1] * tokens + PROMPT[2] * tokens * tokens / 2
