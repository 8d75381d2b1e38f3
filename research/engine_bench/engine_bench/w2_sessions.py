"""W2: many sessions that come and go, think, and go on. How long until the first token?

Sessions come by chance (Poisson), each has five to ten turns and thinks between them for a random time (exponential).
The times are the same for all sides, and such that a bare loop, which computes each new token once, would be busy for
`LOAD` of the time. Ours gets half of the memory for state outside of the pool that the peer gets; the pool is the same.
"""

import asyncio
import random
import statistics
import time
from dataclasses import dataclass

from cfs.wire import Message
from engine_bench.bench import Bench
from engine_bench.llama_server import LlamaServer
from engine_bench.ours import Ours
from engine_bench.prompts import Ideal, Prompts, assistant
from engine_bench.raw import RawLoop
from engine_bench.sides import Setup, Side, SideError, Turn
from engine_bench.tables import Verdict, table

LOAD = 0.4
"""Well below one: a real side also pays for the length of its contexts, and a queue that only grows says nothing."""
RULES, WORDS, REPLY = 120, 40, 12
"""Tokens of the system message that all share, of what a user says, and of a reply."""
PARALLEL = 8
BETWEEN = 8
"""Tokens that the template puts around a turn, roughly: for the plan's estimate of the work."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One session: when it comes, what its user says, and how long he thinks before each turn but the first."""

    name: str
    comes: float
    says: tuple[Message, ...]
    pauses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All sessions, and the memory in MiB that would hold the state of those that are there at the same time."""

    visits: tuple[Visit, ...]
    memory_mib: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One side."""

    side: str
    memory_mib: int
    turns: int
    failed: int
    p50: float
    p95: float
    evaluated: int | None
    ideal: int
    cpu: float
    resident_mib: float
    first_tokens: list[float]


@dataclass(frozen=True, slots=True)
class Sessions:
    """All of W2."""

    sessions: int
    seconds: float
    rows: list[Row]
    judged: bool

    def markdown(self) -> str:
        """Write the table."""
        columns = ["side", "memory for state, MiB", "turns", "failed", "first token p50 s", "p95 s"]
        columns += ["prompt tokens evaluated", "ideal", "CPU s", "resident MiB"]
        rows = [
            [
                row.side,
                row.memory_mib,
                row.turns,
                row.failed,
                f"{row.p50:.3f}",
                f"{row.p95:.3f}",
                row.evaluated,
                row.ideal,
                row.cpu,
                round(row.resident_mib),
            ]
            for row in self.rows
        ]
        return f"{self.sessions} sessions in {self.seconds:.0f} seconds.\n\n" + table(columns, rows)

    def verdicts(self) -> list[Verdict]:
        """Judge ours by llama.cpp's server; the time only in a full run."""
        rows = {row.side: row for row in self.rows}
        ours, peer = rows[Ours.name], rows.get(LlamaServer.name)
        found = [Verdict("turns that failed", ours.failed, 0)]
        if peer is not None and self.judged:
            found.append(Verdict(f"p95 of the first token over {peer.side}'s", ours.p95 / peer.p95, 1.0))
        if peer is not None and peer.evaluated and ours.evaluated:
            found.append(Verdict(f"prompt tokens evaluated over {peer.side}'s", ours.evaluated / peer.evaluated, 1.0))
        return found


async def run(bench: Bench) -> Sessions:
    """Play the same plan with each side, one after the other."""
    model = bench.models.medium
    setup = Setup(model, bench.threads, PARALLEL, 8192)
    plan = await _plan(bench, setup, 12 if bench.smoke else 200)
    bench.say(f"W2: {plan.seconds:.0f} s for each side, {plan.memory_mib} MiB hold all state")
    rows: list[Row] = []
    prompts = bench.models.prompts(model)
    rules = prompts.message("rules", RULES, role="system")
    ours = Setup(model, bench.threads, PARALLEL, 8192, memory_mib=max(1, plan.memory_mib // 2))
    theirs = Setup(model, bench.threads, PARALLEL, 8192, memory_mib=max(2, plan.memory_mib))
    async with bench.ours(ours) as side:
        rows.append(await _play(side, plan, prompts, rules, ours.memory_mib))
    async with bench.peer("llama-server", theirs) as peer:
        if peer is not None:
            rows.append(await _play(peer, plan, prompts, rules, theirs.memory_mib))
    for row in rows:
        bench.say(f"W2 {row.side}: p50 {row.p50:.3f} s, p95 {row.p95:.3f} s, {row.evaluated} evaluated")
    return Sessions(len(plan.visits), plan.seconds, rows, judged=not bench.smoke)


async def _plan(bench: Bench, setup: Setup, sessions: int) -> Plan:
    """Draw the sessions, on a clock that follows from what a bare loop can do here."""
    chances = random.Random(2)
    turns = [chances.randint(5, 10) for _ in range(sessions)]
    prompt_seconds, reply_seconds = await costs(bench, setup)
    busy = sum(turns) * ((WORDS + BETWEEN) * prompt_seconds + REPLY * reply_seconds)
    seconds = busy / LOAD
    prompts: Prompts = bench.models.prompts(setup.model)
    visits = tuple(
        Visit(
            f"visit{n}",
            chances.uniform(0, 0.7 * seconds),  # so many uniform moments are a Poisson process
            tuple(prompts.message(f"visit{n} {turn}", WORDS) for turn in range(count)),
            tuple(chances.expovariate(20 / seconds) for _ in range(count - 1)),
        )
        for n, count in enumerate(turns)
    )
    cells = sum(count * (WORDS + BETWEEN + REPLY) for count in turns) + RULES
    present = statistics.mean(min(1.0, sum(visit.pauses) / seconds) for visit in visits)
    return Plan(visits, max(2, round(present * cells * prompts.state_bytes / (1 << 20))), seconds)


COUNTED = 128
"""Tokens of a reply by which the speed of the machine is judged: it is not the same from one second to the next."""


async def costs(bench: Bench, setup: Setup) -> tuple[float, float]:
    """Seconds of a prompt's token and of a reply's with all places taken, in a bare loop."""
    async with bench.ours(setup) as side:
        extra_buffers = side.extra_buffers
    raw = await RawLoop.start(setup, extra_buffers=extra_buffers)
    try:
        await raw.run(1, 64, 4)
        loop = await raw.run(PARALLEL, 64, COUNTED)
    finally:
        await raw.stop()
    return loop.prompt_seconds / (PARALLEL * 64), loop.reply_seconds / (PARALLEL * (COUNTED - 1))


async def _play(side: Side, plan: Plan, prompts: Prompts, rules: Message, memory_mib: int) -> Row:
    first_tokens: list[float] = []
    histories: list[list[Message]] = []
    failed = 0
    cpu, began = side.cpu_seconds(), time.perf_counter()

    async def visit(who: Visit) -> None:
        nonlocal failed
        history: list[Message] = [rules]
        histories.append(history)
        await asyncio.sleep(max(0.0, began + who.comes - time.perf_counter()))
        for says, pause in zip(who.says, (*who.pauses, 0.0), strict=True):
            history.append(says)
            try:
                answer = await side.ask(Turn(who.name, tuple(history), REPLY))
            except SideError:
                failed += 1
                return
            first_tokens.append(answer.first_token_seconds)
            history.append(assistant(answer.text))
            await asyncio.sleep(pause)
        side.forget(who.name)

    await asyncio.gather(*map(visit, plan.visits))
    spent = side.cpu_seconds() - cpu
    cuts = statistics.quantiles(first_tokens, n=20)
    return Row(
        side.name,
        memory_mib,
        sum(len(who.says) for who in plan.visits),
        failed,
        statistics.median(first_tokens),
        cuts[18],
        await side.evaluated(),
        _ideal(prompts, histories),
        spent,
        side.memory_mib(),
        [round(seconds, 4) for seconds in sorted(first_tokens)],
    )


def _ideal(prompts: Prompts, histories: list[list[Message]]) -> int:
    """Count each distinct token once, as a side does that forgets nothing."""
    ideal, total = Ideal(prompts), 0
    for history in histories:
        for end in range(2, len(history) + 1, 2):
            total += ideal.add(history[:end])
            if end < len(history):
                ideal.answer(history[:end], history[end].content)
    return total
