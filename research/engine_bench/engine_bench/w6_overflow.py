"""W6: turns that each fit into the pool, and together need twice of it. None may fail because of the others."""

import asyncio
import time
from dataclasses import dataclass

from engine_bench.bench import Bench
from engine_bench.ours import Ours
from engine_bench.prompts import Ideal
from engine_bench.sides import Setup, SideError, Turn
from engine_bench.tables import Verdict, table


@dataclass(frozen=True, slots=True)
class Side:
    """What became of the turns of one side; `evaluated` counts their prompts' tokens, again where state was lost."""

    side: str
    turns: int
    failed: int
    complete: int
    evaluated: int | None
    ideal: int
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Overflow:
    """All of W6."""

    pool: int
    needed: int
    rows: list[Side]

    def markdown(self) -> str:
        """Write the table."""
        columns = ["side", "what its failures say", "turns", "failed", "complete replies"]
        columns += ["prompt tokens evaluated", "ideal", "seconds"]
        rows = [
            [row.side, row.error, row.turns, row.failed, row.complete, row.evaluated, row.ideal, row.seconds]
            for row in self.rows
        ]
        return f"A pool of {self.pool} cells, turns of {self.needed} together.\n\n" + table(columns, rows, left=2)

    def verdicts(self) -> list[Verdict]:
        """Judge ours: counts say the same in a smoke test."""
        return [
            Verdict("turns that failed or were cut short", row.turns - row.complete, 0)
            for row in self.rows
            if row.side == Ours.name
        ]


async def run(bench: Bench) -> Overflow:
    """Start all turns at once, on each side."""
    model = bench.models.small
    prompts = bench.models.prompts(model)
    turns, prompt, reply = (8, 400, 112) if bench.smoke else (16, 768, 256)
    pool = turns * (prompt + reply) // 2
    rows: list[Side] = []
    ideal = Ideal(prompts)
    wanted = [Turn(f"over{n}", (prompts.message(f"over{n}", prompt),), reply) for n in range(turns)]
    new = sum(ideal.add(turn.messages) for turn in wanted)
    async for side in bench.sides(Setup(model, bench.threads, turns, pool), "llama-server", "batch"):
        began = time.perf_counter()
        answers = await asyncio.gather(*(side.ask(turn) for turn in wanted), return_exceptions=True)
        seconds = time.perf_counter() - began
        failures = [answer for answer in answers if isinstance(answer, SideError)]
        complete = sum(not isinstance(answer, BaseException) and answer.tokens == reply for answer in answers)
        said = str(failures[0])[:120].replace("|", " ").replace("\n", " ") if failures else ""
        evaluated = await side.evaluated() if not failures else None
        row = Side(side.name, turns, len(failures), complete, evaluated, new, round(seconds, 2), said)
        bench.say(f"W6 {row}")
        rows.append(row)
    return Overflow(pool, turns * (prompt + reply), rows)
