"""W11: a day of agents, replayed from a trace. How many of their replies come in time?

The agents of `traces/agents.json` call tools, wait for them, ask again after a broken reply, and hand work to children
that continue their history. A reply is in time if its first token comes within `FIRST_SECONDS` and no pause within it
is longer than `GAP_SECONDS`. Goodput is the number of such replies a second.

Tools take as long as in the trace. The hours between the agents shrink, so that a bare loop that computes each new
token once would be busy for `LOAD` of the day. The clock is the same for all sides.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cfs.wire import Message
from engine_bench.bench import Bench
from engine_bench.llama_server import LlamaServer
from engine_bench.ours import Ours
from engine_bench.prompts import Prompts, assistant
from engine_bench.sides import Answer, Setup, Side, SideError, Turn
from engine_bench.tables import Verdict, table
from engine_bench.w2_sessions import PARALLEL, costs

TRACE = Path(__file__).parents[1] / "traces" / "agents.json"
FIRST_SECONDS, GAP_SECONDS = 1.0, 0.3
LOAD = 0.6
POOL = 32_768
"""Holds all turns that run together: what happens otherwise is W6."""
BAR = 1.5
SMOKE_AGENTS = 5


@dataclass(frozen=True, slots=True)
class Step:
    """A request of an agent, and what its reply leads to."""

    reply: int
    """Tokens of the reply."""
    retries: int
    """How often the same request is sent again."""
    pause: float
    """Seconds that the tool takes."""
    children: tuple["Agent", ...]
    """Agents that continue the history; all are awaited."""
    result: Message | None
    """What the tool or the children gave; none after the last step."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, or the child of one."""

    name: str
    owner: str
    start: float
    """Hour of the day."""
    opening: tuple[Message, ...]
    """Its task, behind the rules of its role or its parent's history."""
    steps: tuple[Step, ...]

    def all_steps(self) -> Iterator[Step]:
        """Yield its steps and those of its children."""
        for step in self.steps:
            yield step
            for child in step.children:
                yield from child.all_steps()


@dataclass(slots=True)
class Tally:
    """What came of the replies of one replay."""

    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, answer: Answer) -> None:
        """Count a reply."""
        self.first_tokens.append(answer.first_token_seconds)
        self.gaps.append(max((after - before for before, after in pairwise(answer.arrivals)), default=0.0))

    @property
    def in_time(self) -> int:
        """Replies whose tokens came in time."""
        pairs = zip(self.first_tokens, self.gaps, strict=True)
        return sum(first <= FIRST_SECONDS and gap <= GAP_SECONDS for first, gap in pairs)


@dataclass(frozen=True, slots=True)
class Replay:
    """One side in one round."""

    side: str
    replies: int
    failed: int
    in_time: int
    late_first: int
    long_gap: int
    goodput: float
    first_p50: float
    first_p95: float
    gap_p95: float
    seconds: float
    evaluated: int | None
    cpu: float


@dataclass(frozen=True, slots=True)
class Day:
    """All of W11."""

    agents: int
    planned_seconds: float
    replays: list[Replay]
    judged: bool

    def markdown(self) -> str:
        """Write the table; a side's row has the medians of its rounds."""
        columns = ["side", "replies", "failed", "in time", "first token late", "gap too long", "in time a second"]
        columns += ["first token p50 s", "p95 s", "longest gap p95 s", "seconds", "prompt tokens evaluated", "CPU s"]
        rows = []
        for side in dict.fromkeys(replay.side for replay in self.replays):
            own = [replay for replay in self.replays if replay.side == side]
            median = {name: statistics.median(getattr(replay, name) for replay in own) for name in _MEDIANS}
            rows.append([side, *(round(median[n]) if n in _COUNTS else float(median[n]) for n in _MEDIANS)])
        count = len(self.replays) // max(1, len(rows))
        text = f"{self.agents} agents in a day of {self.planned_seconds:.0f} seconds; medians of {count} rounds."
        return f"{text}\n\n{table(columns, rows)}"

    def verdicts(self) -> list[Verdict]:
        """Judge ours by llama.cpp's server, round by round; the time only in a full run."""
        ours = [replay for replay in self.replays if replay.side == Ours.name]
        theirs = [replay for replay in self.replays if replay.side == LlamaServer.name]
        verdicts = [Verdict("replies that failed", sum(replay.failed for replay in ours), 0)]
        if self.judged and theirs:
            ratios = [a.goodput / max(b.goodput, 1e-9) for a, b in zip(ours, theirs, strict=False)]
            what = f"replies in time a second over {LlamaServer.name}'s"
            verdicts.append(Verdict(what, statistics.median(ratios), BAR, at_least=True))
        return verdicts


_COUNTS = ("replies", "failed", "in_time", "late_first", "long_gap", "evaluated")
_MEDIANS = (
    *("replies", "failed", "in_time", "late_first", "long_gap"),
    *("goodput", "first_p50", "first_p95", "gap_p95", "seconds", "evaluated", "cpu"),
)


async def run(bench: Bench) -> Day:
    """Replay the day with each side, by turns."""
    model = bench.models.medium
    setup = Setup(model, bench.threads, PARALLEL, POOL)
    agents = read(TRACE, bench.models.prompts(model))
    if bench.smoke:
        agents = agents[:SMOKE_AGENTS]
    seconds = await _day(bench, setup, agents)
    bench.say(f"W11: a day of {seconds:.0f} s")
    replays: list[Replay] = []
    for _ in range(1 if bench.smoke else bench.rounds):
        async for side in bench.sides(setup, "llama-server"):
            replays.append(await _replay(side, agents, seconds))
            last = replays[-1]
            bench.say(f"W11 {last.side}: {last.in_time} of {last.replies} in time, {last.goodput:.2f} a second")
    return Day(len(agents), seconds, replays, judged=not bench.smoke)


def read(trace: Path, prompts: Prompts) -> list[Agent]:
    """Read a trace, and write messages of the lengths that it has."""
    record = json.loads(trace.read_text(encoding="utf-8"))
    rules = {role: prompts.message(role, tokens, role="system") for role, tokens in record["roles"].items()}

    def agent_of(entry: dict[str, Any], name: str, owner: str, before: tuple[Message, ...]) -> Agent:
        steps = [
            Step(
                step["reply"],
                step.get("retries", 0),
                step.get("pause", 0.0),
                tuple(
                    agent_of(child, f"{name}.{place}.{number}", owner, ())
                    for number, child in enumerate(step.get("children", ()))
                ),
                prompts.message(f"{name} {place}", step["result"]) if "result" in step else None,
            )
            for place, step in enumerate(entry["steps"])
        ]
        opening = (*before, prompts.message(name, entry["task"]))
        return Agent(name, owner, entry.get("start", 0.0), opening, tuple(steps))

    return [
        agent_of(entry, f"{entry['role']}{number}", entry["owner"], (rules[entry["role"]],))
        for number, entry in enumerate(record["agents"])
    ]


async def _day(bench: Bench, setup: Setup, agents: list[Agent]) -> float:
    """Choose the length of the day by what a bare loop can do here."""
    prompt_seconds, reply_seconds = await costs(bench, setup)
    prompts = bench.models.prompts(setup.model)
    steps = [step for agent in agents for step in agent.all_steps()]
    openings = [agent.opening for agent in agents]
    openings += [child.opening for step in steps for child in step.children]
    read_tokens = sum(len(prompts.tokens(opening)) for opening in openings)
    read_tokens += sum(len(prompts.tokens([step.result])) for step in steps if step.result)
    replied = sum(step.reply * (1 + step.retries) for step in steps)
    return (read_tokens * prompt_seconds + replied * reply_seconds) / LOAD


async def _replay(side: Side, agents: list[Agent], seconds: float) -> Replay:
    tally = Tally()
    cpu, began = side.cpu_seconds(), time.perf_counter()

    async def work(agent: Agent, before: list[Message]) -> None:
        history = [*before, *agent.opening]
        for step in agent.steps:
            turn = Turn(agent.name, tuple(history), step.reply, owner=agent.owner, kind="agent")
            for _ in range(1 + step.retries):
                answer = await side.ask(turn)
                tally.add(answer)
            if step.result is None:
                break
            history.append(assistant(answer.text))
            await asyncio.gather(*(attempt(child, history) for child in step.children), asyncio.sleep(step.pause))
            history.append(step.result)
        side.forget(agent.name)

    async def attempt(agent: Agent, before: list[Message]) -> None:
        try:
            await work(agent, before)
        except SideError:
            tally.failed += 1

    async def come(agent: Agent) -> None:
        first, last = agents[0].start, agents[-1].start
        moment = began + seconds * (agent.start - first) / max(last - first, 1e-9)
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        await attempt(agent, [])

    await asyncio.gather(*map(come, agents))
    took = time.perf_counter() - began
    return Replay(
        side.name,
        len(tally.first_tokens),
        tally.failed,
        tally.in_time,
        sum(first > FIRST_SECONDS for first in tally.first_tokens),
        sum(gap > GAP_SECONDS for gap in tally.gaps),
        tally.in_time / took,
        statistics.median(tally.first_tokens),
        _p95(tally.first_tokens),
        _p95(tally.gaps),
        took,
        await side.evaluated(),
        side.cpu_seconds() - cpu,
    )


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[18]
