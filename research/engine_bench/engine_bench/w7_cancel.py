"""W7: three turns of ten are cancelled at random moments, running and waiting ones. What is left behind?

The moments are counted in tokens of all turns together and not in seconds, so that each run has the same ones.
"""

import asyncio
import random
from dataclasses import dataclass

from engine_bench.bench import Bench
from engine_bench.ours import Ours
from engine_bench.sides import Answer, Setup, Side, SideError, Turn
from engine_bench.tables import Verdict, table
from engine_bench.waiting import settled

SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Left:
    """What is there after all turns are over: first as it is, then after all sessions were forgotten (ours only)."""

    side: str
    turns: int
    cancelled: int
    complete: int
    failed: int
    busy: int
    cells: int | None = None
    sequences: int | None = None
    nodes: int | None = None
    parked_bytes: int | None = None
    violations: int | None = None
    answers_again: bool = True

    @property
    def leaked(self) -> int:
        """Everything that should be nothing."""
        kept = (self.cells, self.sequences, self.nodes, self.parked_bytes, self.violations)
        return self.busy + self.failed + sum(number or 0 for number in kept) + (not self.answers_again)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """All of W7."""

    rows: list[Left]

    def markdown(self) -> str:
        """Write the table."""
        columns = ["side", "turns", "cancelled", "complete", "failed", "busy after", "cells", "sequence ids"]
        columns += ["nodes", "parked bytes", "violations", "answers again"]
        rows = [
            [
                row.side,
                row.turns,
                row.cancelled,
                row.complete,
                row.failed,
                row.busy,
                row.cells,
                row.sequences,
                row.nodes,
                row.parked_bytes,
                row.violations,
                "yes" if row.answers_again else "**no**",
            ]
            for row in self.rows
        ]
        return table(columns, rows)

    def verdicts(self) -> list[Verdict]:
        """Judge ours: counts say the same in a smoke test."""
        return [Verdict("whatever is left behind", row.leaked, 0) for row in self.rows if row.side == Ours.name]


async def run(bench: Bench) -> Cancelled:
    """Cancel at each side."""
    model = bench.models.small
    turns, tokens = (24, 32) if bench.smoke else (120, 64)
    prompts = bench.models.prompts(model)
    wanted = [Turn(f"some{n}", (prompts.message(f"some{n}", 100),), tokens) for n in range(turns)]
    rows = []
    async for side in bench.sides(Setup(model, bench.threads, 8, 2048, memory_mib=64), "llama-server", "batch"):
        row = await _cancel_some(side, wanted)
        bench.say(f"W7 {row}")
        rows.append(row)
    return Cancelled(rows)


async def _cancel_some(side: Side, turns: list[Turn]) -> Left:
    chances = random.Random(7)
    total = sum(turn.tokens for turn in turns)
    # The turns that go on say more tokens than this, so each of these moments comes.
    moments = [chances.randrange(int(total * (1 - SHARE))) for _ in range(round(SHARE * len(turns)))]
    tasks: dict[str, asyncio.Task[Answer]] = {}
    said = 0

    def heard() -> None:
        nonlocal said
        said += 1
        while moments and min(moments) <= said:
            moments.remove(min(moments))
            open_turns = [task for task in tasks.values() if not (task.done() or task.cancelling())]
            chances.choice(open_turns).cancel()

    for turn in turns:
        tasks[turn.session] = asyncio.create_task(side.ask(turn, Answer(on_text=heard)))
    answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
    busy = await settled(side)
    cancelled = sum(isinstance(answer, asyncio.CancelledError) for answer in answers)
    failed = sum(isinstance(answer, Exception) for answer in answers)
    complete = sum(isinstance(answer, Answer) and answer.tokens == turns[0].tokens for answer in answers)
    again = True
    try:
        await side.ask(Turn("again", turns[0].messages, 4))
    except SideError:
        again = False
    left = Left(side.name, len(turns), cancelled, complete, failed, busy, answers_again=again)
    return await _forgotten(side, [*turns, Turn("again", (), 0)], left) if isinstance(side, Ours) else left


async def _forgotten(side: Ours, turns: list[Turn], left: Left) -> Left:
    """Forget all sessions, and count what the engine still owns."""
    for turn in turns:
        side.forget(turn.session)
    violations = await side.engine.check_integrity()
    stats = await side.stats()
    return Left(
        left.side,
        left.turns,
        left.cancelled,
        left.complete,
        left.failed,
        left.busy,
        stats.cells_used,
        stats.sequences_resident + stats.sequences_parked,
        int(stats.gauges["prefix_nodes"]),
        int(stats.gauges["parked_bytes"]),
        len(violations),
        left.answers_again,
    )
