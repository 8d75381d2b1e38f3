"""W3: many sessions that begin alike. Counts the prompt tokens that are evaluated; noise cannot touch them.

Four kinds of fan-out: cold (the first children), warm (the next children of the same prompt), a second level
(children of one of the children), and the first parent's next turn after all of them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cfs.wire import Message
from engine_bench.bench import Bench
from engine_bench.ours import Ours
from engine_bench.prompts import Ideal, Prompts, assistant, user
from engine_bench.sides import Setup, Side, SideError, Turn
from engine_bench.tables import Verdict, table

BAR = 1.05
TOKENS = 6
TASK = 50
MIDDLE = 300


@dataclass(frozen=True, slots=True)
class Case:
    """One fan-out with one side; `evaluated` is None where the side does not say, `failed` counts its errors."""

    side: str
    shared: int
    children: int
    kind: str
    evaluated: int | None
    ideal: int
    seconds: float
    failed: int = 0

    @property
    def ratio(self) -> float | None:
        """Evaluated over ideal."""
        return None if self.evaluated is None else self.evaluated / self.ideal


@dataclass(frozen=True, slots=True)
class FanOut:
    """All of W3."""

    cases: list[Case]

    def markdown(self) -> str:
        """Write the table."""
        columns = ["side", "shared", "children", "case", "evaluated", "ideal", "ratio", "seconds", "failed"]
        rows = [
            [
                case.side,
                case.shared,
                case.children,
                case.kind,
                case.evaluated,
                case.ideal,
                None if case.ratio is None else f"{case.ratio:.2f}",
                case.seconds,
                case.failed,
            ]
            for case in self.cases
        ]
        return table(columns, rows)

    def verdicts(self) -> list[Verdict]:
        """Judge our worst case: counts say the same in a smoke test."""
        ours = [case.ratio for case in self.cases if case.side == Ours.name and case.ratio is not None]
        failed = sum(case.failed for case in self.cases if case.side == Ours.name)
        return [
            Verdict("tokens evaluated over ideal, worst case", max(ours), BAR),
            Verdict("turns that failed", failed, 0),
        ]


async def run(bench: Bench) -> FanOut:
    """Run all sizes with each side, fresh for each of them."""
    sizes = [(2000, 4)] if bench.smoke else [(2000, 4), (2000, 16), (2000, 32), (8000, 4), (8000, 16)]
    cases: list[Case] = []
    model = bench.models.small
    prompts = bench.models.prompts(model)
    for shared, children in sizes:
        # Enough for every child to hold its own copy of what is shared: what is measured is work, not room.
        setup = Setup(model, bench.threads, 8, 8 * 2 * (shared + 1000))
        async for side in bench.sides(setup, "llama-server", "batch"):
            found = await _fan_out(side, prompts, shared, children)
            cases += found
            for case in found:
                bench.say(f"W3 {case.side}, {children} children of {shared} tokens, {case.kind}: {case.evaluated}")
    return FanOut(cases)


async def _fan_out(side: Side, prompts: Prompts, shared: int, children: int) -> list[Case]:
    """Run the four kinds, one after the other."""
    ideal, cases = Ideal(prompts), []
    rules = prompts.message("rules", shared, role="system")

    def task(before: Sequence[Message], label: str) -> list[Message]:
        return [*before, prompts.message(label, TASK, before)]

    async def measure(kind: str, turns: dict[str, list[Message]]) -> list[str]:
        wanted = sum(ideal.add(history) for history in turns.values())
        before, began = await side.evaluated(), time.perf_counter()
        asked = (side.ask(Turn(key, tuple(history), TOKENS)) for key, history in turns.items())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        seconds, after = time.perf_counter() - began, await side.evaluated()
        evaluated = None if before is None or after is None else after - before
        failed = sum(isinstance(answer, SideError) for answer in answers)
        cases.append(Case(side.name, shared, children, kind, evaluated, wanted, round(seconds, 3), failed))
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, SideError):
                raise answer
        return ["" if isinstance(answer, BaseException) else answer.text for answer in answers]

    await measure("cold", {f"cold{n}": task([rules], f"cold{n}") for n in range(children)})
    warm = {f"warm{n}": task([rules], f"warm{n}") for n in range(children)}
    replies = await measure("warm", warm)
    grown = [*warm["warm0"], assistant(replies[0])]
    ideal.answer(warm["warm0"], replies[0])
    middle = [*grown, prompts.message("middle", MIDDLE, grown)]
    await measure("second level", {f"deep{n}": [*middle, user(f"part {n}: do it now")] for n in range(children)})
    await measure("parent resumes", {"warm0": [*grown, user("what came of it? " * 4)]})
    return cases
