"""W4: four streams, and now and then a long prompt. How long do the streams stand still, and what does that cost it?

A long prompt beside streams cannot be as quick as one alone: the streams go on, and that is work, too. So its time is
held against the time that the same work takes one after the other: the prompt alone, plus the tokens that the streams
said meanwhile at the rate that they have alone. A scheduler that wastes nothing has a ratio of one.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from engine_bench.bench import Bench
from engine_bench.ours import Ours
from engine_bench.prompts import Prompts
from engine_bench.sides import Answer, Setup, Side, Turn
from engine_bench.tables import Verdict, table
from engine_bench.waiting import settled, until

STREAMS = 4
GAP_BAR = 0.3
COST_BAR = 1.10
ENDLESS = 4000
SETTLED = 8
"""Tokens of each stream before anything is measured."""
TUNED_BATCH = 64


@dataclass(frozen=True, slots=True)
class Gap:
    """One side, medians over the rounds; the longest gap is the worst of all rounds."""

    side: str
    prompt_tokens: int
    longest_gap: float
    alone: float
    beside: float
    said: float
    stream_rate: float
    stream_rate_beside: float
    work_ratio: float
    cpu_ratio: float

    @property
    def plain_ratio(self) -> float:
        """Time beside the streams over time alone."""
        return self.beside / self.alone


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds on the clock and of the processors, and the tokens that the streams said meanwhile."""

    seconds: float
    cpu: float
    said: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One long prompt beside the streams, and the two alone: each a time on the clock and one of the processors."""

    alone: Spent
    streams: Spent
    beside: Spent
    gap: float

    def ratio(self, of: Callable[[Spent], float]) -> float:
        """Compare what both together took with the same work in sequence."""
        return of(self.beside) / (of(self.alone) + of(self.streams) / self.streams.said * self.beside.said)


@dataclass(frozen=True, slots=True)
class Gaps:
    """All of W4."""

    rows: list[Gap]
    judged: bool

    def markdown(self) -> str:
        """Write the table."""
        columns = ["side", "prompt", "longest gap s", "prompt alone s", "beside streams s", "ratio"]
        columns += ["said meanwhile", "streams tok/s", "meanwhile", "over the same in sequence: time", "CPU"]
        rows = [
            [
                row.side,
                row.prompt_tokens,
                f"{row.longest_gap:.2f}",
                f"{row.alone:.2f}",
                f"{row.beside:.2f}",
                f"{row.plain_ratio:.2f}",
                round(row.said),
                row.stream_rate,
                row.stream_rate_beside,
                f"{row.work_ratio:.2f}",
                f"{row.cpu_ratio:.2f}",
            ]
            for row in self.rows
        ]
        return table(columns, rows)

    def verdicts(self) -> list[Verdict]:
        """Judge ours."""
        ours = [row for row in self.rows if row.side == Ours.name and self.judged]
        return [
            verdict
            for row in ours
            for verdict in (
                Verdict("longest gap", row.longest_gap, GAP_BAR, unit=" s"),
                Verdict("long prompt beside streams over the same work in sequence", row.work_ratio, COST_BAR),
            )
        ]


async def run(bench: Bench) -> Gaps:
    """Measure ours, and llama.cpp's server as it comes and with small batches."""
    model = bench.models.medium
    prompts = bench.models.prompts(model)
    long = 1500 if bench.smoke else 6000
    setup = Setup(model, bench.threads, 8, 4 * long, memory_mib=64)
    small = replace(setup, batch_tokens=TUNED_BATCH)
    rows: list[Gap] = []
    async for side in bench.sides(setup, "llama-server", "batch"):
        row = await _measure(bench, side, prompts, long, side.name)
        rows.append(row)
    async with bench.peer("llama-server", small) as tuned:
        if tuned is not None:
            rows.append(await _measure(bench, tuned, prompts, long, f"{tuned.name}, batches of {TUNED_BATCH}"))
    return Gaps(rows, judged=not bench.smoke)


async def _measure(bench: Bench, side: Side, prompts: Prompts, long: int, name: str) -> Gap:
    rounds: list[Round] = []
    for number in range(1 if bench.smoke else bench.rounds):
        rounds.append(found := await _round(side, prompts, long, f"{number}"))
        ratio = found.ratio(lambda spent: spent.seconds)
        bench.say(f"W4 {name}, round {number + 1}: gap {found.gap:.2f} s, {ratio:.2f} of the same work in sequence")

    def middle(of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, rounds))

    row = Gap(
        side=name,
        prompt_tokens=long,
        longest_gap=max(each.gap for each in rounds),
        alone=middle(lambda each: each.alone.seconds),
        beside=middle(lambda each: each.beside.seconds),
        said=middle(lambda each: each.beside.said),
        stream_rate=middle(lambda each: each.streams.said / each.streams.seconds),
        stream_rate_beside=middle(lambda each: each.beside.said / each.beside.seconds),
        work_ratio=middle(lambda each: each.ratio(lambda spent: spent.seconds)),
        cpu_ratio=middle(lambda each: each.ratio(lambda spent: spent.cpu)),
    )
    bench.say(f"W4 {name}: longest gap {row.longest_gap:.2f} s, {row.work_ratio:.2f} of the same work in sequence")
    return row


async def _round(side: Side, prompts: Prompts, long: int, label: str) -> Round:
    prompt = Turn(f"long-{label}", (prompts.message(f"long-{label}", long),), 1)
    cpu = side.cpu_seconds()
    first = await side.ask(Turn(f"alone-{label}", (prompts.message(f"alone-{label}", long),), 1))
    alone = Spent(first.first_token_seconds, side.cpu_seconds() - cpu)
    side.forget(f"alone-{label}")
    async with _streams(side, prompts, label) as streams:
        await until(lambda: all(len(stream.arrivals) >= SETTLED for stream in streams))
        watch = Watch(side, streams)
        await until(lambda: watch.said >= STREAMS * 4 * SETTLED)
        rest = watch.spent()
        watch = Watch(side, streams)
        answer = await side.ask(prompt)
        beside = watch.spent()
        seen = [len(stream.arrivals) for stream in streams]
        await until(lambda: all(len(stream.arrivals) > many for stream, many in zip(streams, seen, strict=True)))
        gap = max(stream.longest_gap(answer.asked, time.perf_counter()) for stream in streams)
    side.forget(prompt.session)
    return Round(alone, rest, beside, gap)


class Watch:
    """Measures from now on."""

    def __init__(self, side: Side, streams: list[Answer]) -> None:
        self._side, self._streams = side, streams
        self._before = sum(stream.tokens for stream in streams)
        self._cpu = side.cpu_seconds()
        self._began = time.perf_counter()

    @property
    def said(self) -> int:
        """Tokens of the streams since then."""
        return sum(stream.tokens for stream in self._streams) - self._before

    def spent(self) -> Spent:
        """What was spent since then."""
        return Spent(time.perf_counter() - self._began, self._side.cpu_seconds() - self._cpu, self.said)


@contextlib.asynccontextmanager
async def _streams(side: Side, prompts: Prompts, label: str) -> AsyncIterator[list[Answer]]:
    """Let streams run for as long as the block lasts."""
    streams = [Answer() for _ in range(STREAMS)]
    turns = [
        Turn(f"stream-{label}-{n}", (prompts.message(f"stream-{label}-{n}", 128),), ENDLESS) for n in range(STREAMS)
    ]
    tasks = [asyncio.create_task(side.ask(turn, stream)) for turn, stream in zip(turns, streams, strict=True)]
    try:
        yield streams
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(side)
        for turn in turns:
            side.forget(turn.session)
