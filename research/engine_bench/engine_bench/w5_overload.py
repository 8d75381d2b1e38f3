"""W5: more work than can be done. Two tenants, one of whom asks for ten times as much; three classes of one tenant.

1. Over HTTP, with tokens for two: together they offer twice the capacity, ten to one. The one who asks for less than
   his share should get it all; what is refused gets 429 and nothing else.
2. Over HTTP: both always have work waiting, ten to one. Their tokens should be as one to one.
3. In the engine: each class always has work waiting. Their tokens should be as the weights.
"""

import asyncio
import contextlib
import itertools
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cfs_filesystem import OPERATIONS
from cfs_server.access import tokens
from cfs_server.engine.contract.fairness import WEIGHTS
from cfs_server.engine.contract.interface import Kind
from engine_bench.bench import Bench
from engine_bench.client import RefusedError
from engine_bench.prompts import user, words
from engine_bench.served import Caller, Served, serving
from engine_bench.sides import Setup, Turn
from engine_bench.tables import Verdict, table
from engine_bench.waiting import until

MANY, FEW = "many", "few"
WORDS, REPLY = 16, 32
WORKERS = 16
"""Turns at a time when the capacity is measured."""
COUNTED, FEW_COUNTED = 600, 40
"""Turns over which shares are counted, in a full run and in a smoke test: over a few seconds of a slow machine they
would be those of a handful."""
GOING = 0.3
"""So many of them pass before anything counts: at first turns come in by arrival alone."""
LONGEST = 1200.0
"""Seconds that these turns may take; what has been counted by then counts."""
LIMIT_SECONDS = 2.0
SERVED_BAR = 0.95
EVEN_BAR = 0.15
SHARE_BAR = 0.05
KINDS: tuple[Kind, ...] = ("interactive", "agent", "background")


@dataclass(slots=True)
class Tally:
    """What became of one tenant's turns."""

    offered: int = 0
    served: int = 0
    refused: int = 0
    failed: int = 0
    tokens: int = 0
    waits: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant in one phase."""

    phase: str
    name: str
    offered: int
    served: int
    refused: int
    failed: int
    tokens: int
    median_seconds: float


@dataclass(frozen=True, slots=True)
class Class:
    """One class of work that always has some waiting."""

    kind: str
    tokens: int
    share: float
    wanted: float


@dataclass(frozen=True, slots=True)
class Overload:
    """All of W5."""

    capacity: float
    tenants: list[Tenant]
    classes: list[Class]
    judged: bool

    def markdown(self) -> str:
        """Write the tables."""
        columns = ["phase", "tenant", "turns offered", "served", "429", "other errors", "tokens", "median s"]
        rows = [
            [t.phase, t.name, t.offered, t.served, t.refused, t.failed, t.tokens, t.median_seconds]
            for t in self.tenants
        ]
        classes = [[c.kind, c.tokens, f"{c.share:.3f}", f"{c.wanted:.3f}"] for c in self.classes]
        return "\n\n".join(
            [
                f"Capacity: {self.capacity:.1f} turns a second.",
                table(columns, rows, left=2),
                table(["class", "tokens", "share", "by weight"], classes),
            ]
        )

    def verdicts(self) -> list[Verdict]:
        """Judge; shares only in a full run, as a short one has few turns."""
        found = [Verdict("errors that are not 429", sum(tenant.failed for tenant in self.tenants), 0)]
        if not self.judged:
            return found
        few = next(t for t in self.tenants if t.name == FEW and t.phase == "twice the capacity")
        even = {t.name: t.tokens for t in self.tenants if t.phase == "both always wait"}
        off = max(abs(each.share - each.wanted) for each in self.classes)
        return [
            *found,
            Verdict("share of the small tenant's turns that are served", few.served / few.offered, SERVED_BAR, True),
            Verdict("tokens of many over few, distance from one", abs(even[MANY] / even[FEW] - 1), EVEN_BAR),
            Verdict("classes' parts of the whole, worst distance from their weights", off, SHARE_BAR),
        ]


async def run(bench: Bench) -> Overload:
    """Run the three phases."""
    model = bench.models.small
    seconds, counted = (6.0, FEW_COUNTED) if bench.smoke else (30.0, COUNTED)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokens.toml"
        everything = [tokens.TokenGrant(prefix="/", ops=frozenset(OPERATIONS))]
        secrets = {name: tokens.create(file, name, everything) for name in (MANY, FEW)}
        shared = ("--tokens", str(file))
        async with serving(model, *shared, "--max-wait-seconds", f"{LIMIT_SECONDS}") as server:
            tenants = Tenants(server, secrets)
            capacity = await tenants.capacity(60 if bench.smoke else 300)
            bench.say(f"W5 capacity: {capacity:.1f} turns a second")
            found = await tenants.offer("twice the capacity", {MANY: 20 / 11, FEW: 2 / 11}, capacity, seconds)
        async with serving(model, *shared) as server:
            found += await Tenants(server, secrets).insist("both always wait", {MANY: 80, FEW: 8}, counted)
    return Overload(capacity, found, await _classes(bench, model, counted), judged=not bench.smoke)


class Tenants:
    """Two callers of one server."""

    def __init__(self, server: Served, secrets: dict[str, str]) -> None:
        settings = {"temperature": 0, "max_tokens": REPLY, "prompt_style": "chat"}
        self._callers = {name: Caller(server.address, token, settings) for name, token in secrets.items()}
        self._numbers = itertools.count()
        self._tallies = {name: Tally() for name in secrets}

    async def capacity(self, turns: int) -> float:
        """Measure how many turns a second are served while some callers are always there."""
        self._clear()
        async with _working([lambda: self._turn(MANY)] * WORKERS):
            await until(lambda: self._tallies[MANY].served >= WORKERS)
            began, before = time.perf_counter(), self._tallies[MANY].served
            await until(lambda: self._tallies[MANY].served >= before + turns)
            return (self._tallies[MANY].served - before) / (time.perf_counter() - began)

    async def offer(self, phase: str, shares: dict[str, float], capacity: float, seconds: float) -> list[Tenant]:
        """Let turns come as they please, by chance, whatever becomes of those before."""
        self._clear()
        chances = random.Random(5)
        moments = sorted(
            (moment, name) for name, share in shares.items() for moment in _arrivals(chances, share * capacity, seconds)
        )
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for moment, name in moments:
                await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
                group.create_task(self._turn(name))
        return self._told(phase, shares)

    async def insist(self, phase: str, workers: dict[str, int], counted: int) -> list[Tenant]:
        """Let each tenant have so many turns at a time, and count the next `counted`, once all are at work."""
        work = [partial(self._turn, name) for name, count in workers.items() for _ in range(count)]
        async with _working(work):
            await _counted(lambda: self._over, counted * GOING)
            self._clear()
            await _counted(lambda: self._over, counted)
            return self._told(phase, workers)

    @property
    def _over(self) -> int:
        return sum(tally.served + tally.failed for tally in self._tallies.values())

    async def _turn(self, name: str) -> None:
        began, label = time.perf_counter(), f"{name}-{next(self._numbers)}"
        self._tallies[name].offered += 1
        try:
            reply = await self._callers[name].reply(label, words(label, WORDS))
        except RefusedError as error:
            self._tallies[name].refused += error.status == 429
            self._tallies[name].failed += error.status != 429 or not error.retry_after
            return
        except (OSError, EOFError):
            self._tallies[name].failed += 1
            return
        tally = self._tallies[name]
        tally.served += reply["error"] is None
        tally.failed += reply["error"] is not None
        tally.tokens += reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
        tally.waits.append(time.perf_counter() - began)

    def _clear(self) -> None:
        self._tallies = {name: Tally() for name in self._tallies}

    def _told(self, phase: str, names: dict[str, float] | dict[str, int]) -> list[Tenant]:
        tallies = {name: self._tallies[name] for name in names}
        return [
            Tenant(
                phase,
                name,
                tally.offered,
                tally.served,
                tally.refused,
                tally.failed,
                tally.tokens,
                round(statistics.median(tally.waits or [0.0]), 3),
            )
            for name, tally in tallies.items()
        ]


def _arrivals(chances: random.Random, rate: float, seconds: float) -> list[float]:
    """Draw moments at which a caller comes, so many a second in the mean."""
    pauses = iter(lambda: chances.expovariate(rate), None)
    return list(itertools.takewhile(lambda moment: moment < seconds, itertools.accumulate(pauses)))


@contextlib.asynccontextmanager
async def _working(work: Sequence[Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Do each of these again and again for as long as the block lasts."""

    async def endless(turn: Callable[[], Awaitable[None]]) -> None:
        while True:
            await turn()

    tasks = [asyncio.create_task(endless(turn)) for turn in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _counted(over: Callable[[], int], turns: float) -> None:
    """Wait until so many turns are over, or the longest time is."""
    with contextlib.suppress(TimeoutError):
        await until(lambda: over() >= turns, LONGEST)


async def _classes(bench: Bench, model: Path, counted: int) -> list[Class]:
    """Keep sixteen turns of each class at the engine, and count the tokens of the next `counted` that end."""
    said: Counter[str] = Counter()
    over: Counter[str] = Counter()
    numbers = itertools.count()

    async with bench.ours(Setup(model, bench.threads)) as side:

        async def turn(kind: Kind) -> None:
            label = f"{kind}-{next(numbers)}"
            answer = await side.ask(Turn(label, (user(words(label, WORDS)),), REPLY, kind=kind))
            said[kind] += answer.prompt_tokens + answer.tokens
            over[kind] += 1
            side.forget(label)

        async with _working([partial(turn, kind) for kind in KINDS for _ in range(16)]):
            await _counted(over.total, counted * GOING)
            said.clear()
            over.clear()
            await _counted(over.total, counted)
            tokens = dict(said)
    whole, weights = max(1, sum(tokens.values())), sum(WEIGHTS.values())
    return [Class(kind, tokens.get(kind, 0), tokens.get(kind, 0) / whole, WEIGHTS[kind] / weights) for kind in KINDS]
