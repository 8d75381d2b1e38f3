"""W9: half of the requests must follow a JSON schema. Are the replies valid, and what do they cost everybody?

Random weights want none of what a schema allows, so nearly each token is chosen a second time, from the whole
vocabulary: no trained model is as bad. The run without schemas has replies of the same lengths.
"""

import asyncio
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine_bench.bench import Bench
from engine_bench.ours import Ours
from engine_bench.sides import Answer, Setup, Side, SideError, Turn
from engine_bench.tables import Verdict, table

BAR = 1.10
LONGEST = 400
PLAIN_TOKENS = 48


class Sighting(BaseModel):
    """What a reply must be: short in any case, so that each ends by itself."""

    model_config = ConfigDict(extra="forbid")
    bird: Literal["heron", "wren", "swift", "owl"]
    count: Annotated[int, Field(ge=0, le=99)]
    sure: bool
    marks: Annotated[list[Literal["ring", "white", "dark"]], Field(min_length=2, max_length=3)]


@dataclass(frozen=True, slots=True)
class Run:
    """All turns once, with schemas or without."""

    seconds: float
    cpu: float
    answers: list[Answer]
    failed: int

    def token_ms(self, *, schema: bool) -> float:
        """Milliseconds between two tokens, of the half with a schema or of the other."""
        half = self.answers[::2] if schema else self.answers[1::2]
        spans = [(a.ended - a.arrivals[0]) / (a.tokens - 1) for a in half if a.tokens > 1 and a.arrivals]
        return 1000 * statistics.median(spans) if spans else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One side with one model, medians over the rounds."""

    side: str
    model: str
    ended: int
    valid: int
    failed: int
    seconds: float
    plain_seconds: float
    slowdown: float
    cpu_ratio: float
    schema_ms: float
    beside_ms: float
    plain_ms: float


@dataclass(frozen=True, slots=True)
class Schemas:
    """All of W9."""

    rows: list[Row]
    judged: bool

    def markdown(self) -> str:
        """Write the table."""
        columns = ["side", "model", "ended", "valid", "failed", "s with", "s without", "ratio", "CPU ratio"]
        columns += ["ms a token: schema", "beside it", "without"]
        rows = [
            [
                row.side,
                row.model,
                row.ended,
                row.valid,
                row.failed,
                row.seconds,
                row.plain_seconds,
                f"{row.slowdown:.2f}",
                f"{row.cpu_ratio:.2f}",
                row.schema_ms,
                row.beside_ms,
                row.plain_ms,
            ]
            for row in self.rows
        ]
        return table(columns, rows, left=2)

    def verdicts(self) -> list[Verdict]:
        """Judge ours; times only in a full run."""
        ours = [row for row in self.rows if row.side == Ours.name]
        found = [Verdict(f"{row.model}, replies that are not valid", row.ended - row.valid, 0) for row in ours]
        return found + [Verdict(f"{row.model}, time with schemas", row.slowdown, BAR) for row in ours if self.judged]


async def run(bench: Bench) -> Schemas:
    """Run with and without schemas in turns, on a vocabulary of 32,000 and on one of 152,000."""
    rows: list[Row] = []
    models = [(bench.models.rough_medium, 1 if bench.smoke else bench.rounds), (bench.models.rough_large, 1)]
    for model, rounds in models[: 1 if bench.smoke else 2]:
        async for side in bench.sides(Setup(model, bench.threads, 8, 8192), "llama-server", "batch"):
            rows.append(await _measure(bench, side, model, rounds))
            bench.say(f"W9 {rows[-1]}")
    return Schemas(rows, judged=not bench.smoke)


async def _measure(bench: Bench, side: Side, model: Path, rounds: int) -> Row:
    count = 8 if bench.smoke else 16
    await _play(bench, side, model, "warm", [4, 4], schemas=True)
    pairs = []
    for number in range(rounds):
        lengths = [LONGEST if n % 2 == 0 else PLAIN_TOKENS for n in range(count)]
        forced = await _play(bench, side, model, f"{number}", lengths, schemas=True)
        free = await _play(bench, side, model, f"{number}b", [a.tokens for a in forced.answers], schemas=False)
        pairs.append((forced, free))
    replies = [answer for forced, _ in pairs for answer in forced.answers[::2] if answer.stopped]
    return Row(
        side=side.name,
        model=model.stem,
        ended=len(replies),
        valid=sum(map(_valid, replies)),
        failed=sum(forced.failed + free.failed for forced, free in pairs),
        seconds=statistics.median(forced.seconds for forced, _ in pairs),
        plain_seconds=statistics.median(free.seconds for _, free in pairs),
        slowdown=statistics.median(forced.seconds / free.seconds for forced, free in pairs),
        cpu_ratio=statistics.median(forced.cpu / free.cpu for forced, free in pairs),
        schema_ms=statistics.median(forced.token_ms(schema=True) for forced, _ in pairs),
        beside_ms=statistics.median(forced.token_ms(schema=False) for forced, _ in pairs),
        plain_ms=statistics.median(free.token_ms(schema=True) for _, free in pairs),
    )


async def _play(bench: Bench, side: Side, model: Path, label: str, lengths: list[int], *, schemas: bool) -> Run:
    """Start all turns at once; every other one has a schema."""
    prompts, schema = bench.models.prompts(model), Sighting.model_json_schema()
    turns = [
        Turn(
            f"{label}-{n}",
            (prompts.message(f"{label}-{n}", 64),),
            max(1, length),
            schema if schemas and n % 2 == 0 else None,
        )
        for n, length in enumerate(lengths)
    ]
    cpu = side.cpu_seconds()
    answers = await asyncio.gather(*(side.ask(turn) for turn in turns), return_exceptions=True)
    cpu = side.cpu_seconds() - cpu
    good = [answer if isinstance(answer, Answer) else Answer() for answer in answers]
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, SideError):
            raise answer
    for turn in turns:
        side.forget(turn.session)
    seconds = max(answer.ended for answer in good) - min(answer.asked for answer in good)
    return Run(seconds, cpu, good, sum(isinstance(answer, SideError) for answer in answers))


def _valid(answer: Answer) -> bool:
    try:
        Sighting.model_validate_json(answer.text)
    except ValidationError:
        return False
    return True
