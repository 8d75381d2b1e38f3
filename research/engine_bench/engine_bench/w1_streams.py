"""W1: independent streams. Tokens a second of all together, against llama.cpp's server and a bare loop."""

import asyncio
import statistics
from dataclasses import dataclass
from pathlib import Path

from engine_bench.bench import Bench
from engine_bench.llama_server import LlamaServer
from engine_bench.ours import Ours
from engine_bench.raw import RawLoop
from engine_bench.servers import PackagedServer
from engine_bench.sides import Setup, Side, Turn
from engine_bench.tables import Verdict, table

BAR = 1.00
OWN_BAR_MS = 0.5
OWN_BAR_STREAMS = 16
OWN_GAUGES = ("own_seconds_per_step", "sampling_seconds_per_step")
"""What the worker spends in a step beside the model: running means of seconds."""
WARM_UP = 8
SERIAL_STREAMS = 2
"""A server that answers one after the other has nothing to show with more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    model: Path
    widths: tuple[int, ...]
    rounds: int
    prompt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one side."""

    rate: float
    cpu: float
    own_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Width:
    """Medians at one number of streams; of ratios too, as the halves of a round have the same neighbours."""

    model: str
    streams: int
    raw: Run
    ours: Run
    peers: dict[str, Run]
    to_raw: float
    to_peers: dict[str, float]


@dataclass(frozen=True, slots=True)
class Speed:
    """A build alone: tokens a second of one prompt and of one stream, where no policy matters."""

    model: str
    build: str
    prompt: float
    decode: float


@dataclass(frozen=True, slots=True)
class Streams:
    """All of W1."""

    widths: list[Width]
    speeds: list[Speed]
    judged: bool

    def markdown(self) -> str:
        """Write the tables."""
        peers = sorted({name for row in self.widths for name in row.peers})
        columns = ["model", "streams", "raw tok/s", "CFS tok/s", *(f"{name} tok/s" for name in peers)]
        columns += ["CFS / raw", *(f"CFS / {name}" for name in peers)]
        columns += ["CPU s raw", "CPU s CFS", *(f"CPU s {name}" for name in peers), "own ms a step"]
        rows = [
            [
                row.model,
                row.streams,
                row.raw.rate,
                row.ours.rate,
                *(row.peers[name].rate if name in row.peers else None for name in peers),
                f"{row.to_raw:.2f}",
                *(f"{row.to_peers[name]:.2f}" if name in row.peers else None for name in peers),
                row.raw.cpu,
                row.ours.cpu,
                *(row.peers[name].cpu if name in row.peers else None for name in peers),
                row.ours.own_ms,
            ]
            for row in self.widths
        ]
        builds = table(
            ["model", "build, alone with one stream", "prompt tok/s", "decode tok/s"],
            [[speed.model, speed.build, speed.prompt, speed.decode] for speed in self.speeds],
            left=2,
        )
        return table(columns, rows) + "\n\n" + builds

    def verdicts(self) -> list[Verdict]:
        """Judge each width."""
        if not self.judged:
            return []
        found = [
            Verdict(f"{row.model}, {row.streams} streams, of {name}'s tokens a second", ratio, BAR, at_least=True)
            for row in self.widths
            for name, ratio in row.to_peers.items()
            if name == LlamaServer.name
        ]
        return found + [
            Verdict(f"{row.model}, own time of a step at {row.streams}", row.ours.own_ms, OWN_BAR_MS, unit=" ms")
            for row in self.widths
            if row.streams == OWN_BAR_STREAMS and row.ours.own_ms is not None
        ]


async def run(bench: Bench) -> Streams:
    """Measure all widths, the half-billion shape at fewer of them."""
    if bench.smoke:
        plans = [Plan(bench.models.small, (1, 4), 1, 64, 16)]
    else:
        plans = [
            Plan(bench.models.medium, (1, 2, 4, 8, 16, 32), bench.rounds, 128, 128),
            Plan(bench.models.large, (1, 8, 16), (bench.rounds + 1) // 2, 128, 128),
        ]
    widths: list[Width] = []
    speeds: list[Speed] = []
    for plan in plans[: 1 if plans[0].model == plans[-1].model else 2]:
        await _measure(bench, plan, widths, speeds)
    return Streams(widths, speeds, judged=not bench.smoke)


async def _measure(bench: Bench, plan: Plan, widths: list[Width], speeds: list[Speed]) -> None:
    most = max(plan.widths)
    # Room for everybody, twice: what the rounds before have left behind is not to be what is measured.
    setup = Setup(plan.model, bench.threads, most, 2 * most * (plan.prompt + plan.tokens) + 1024, memory_mib=64)
    async with bench.together(setup, "llama-server", "batch", "packaged") as sides:
        ours = sides[0]
        assert isinstance(ours, Ours)
        raw = await RawLoop.start(setup, extra_buffers=ours.extra_buffers)
        try:
            speeds += await _speeds(bench, plan, raw, sides)
            runs = {width: [await _round(bench, plan, raw, sides, width, 0)] for width in plan.widths}
            for number in range(1, plan.rounds):
                for width, kept in runs.items():
                    kept.append(await _round(bench, plan, raw, sides, width, number))
        finally:
            await raw.stop()
    widths += [_summary(plan.model.stem, width, found) for width, found in runs.items()]


async def _speeds(bench: Bench, plan: Plan, raw: RawLoop, sides: list[Side]) -> list[Speed]:
    """Warm everything up, and see what each build computes when there is only one stream."""
    prompt, tokens, name = plan.prompt, plan.tokens, plan.model.stem
    await raw.run(1, prompt, WARM_UP)
    alone = await raw.run(1, prompt, tokens)
    found = [Speed(name, "ours, bare loop", prompt / alone.prompt_seconds, (tokens - 1) / alone.reply_seconds)]
    for side in sides:
        await _play(bench, plan, side, 1, "warm")
        if isinstance(side, LlamaServer):
            await _play(bench, plan, side, 1, "alone")
            told = side.timings
            found.append(Speed(name, f"{side.name}'s own", told["prompt_per_second"], told["predicted_per_second"]))
    return found


async def _round(
    bench: Bench, plan: Plan, raw: RawLoop, sides: list[Side], streams: int, number: int
) -> dict[str, Run]:
    """Let everybody run once; who begins changes from round to round."""
    found: dict[str, Run] = {}

    async def bare() -> None:
        loop = await raw.run(streams, plan.prompt, plan.tokens)
        found["raw"] = Run(streams * plan.tokens / (loop.prompt_seconds + loop.reply_seconds), loop.cpu)

    async def played(side: Side) -> None:
        found[side.name] = await _play(bench, plan, side, streams, f"{number}")

    able = [side for side in sides if streams <= SERIAL_STREAMS or not isinstance(side, PackagedServer)]
    turns = [bare, *((lambda side=side: played(side)) for side in able)]
    first = number % len(turns)
    for turn in [*turns[first:], *turns[:first]]:
        await turn()
    rates = ", ".join(f"{name} {run.rate:.1f}" for name, run in found.items())
    bench.say(f"W1 {plan.model.stem}, {streams} streams, round {number + 1}: {rates} tok/s")
    return found


async def _play(bench: Bench, plan: Plan, side: Side, streams: int, label: str) -> Run:
    """Start all streams at once and wait for the last."""
    prompts = bench.models.prompts(plan.model)
    turns = [
        Turn(f"{label}-{streams}-{n}", (prompts.message(f"{label}-{streams}-{n}", plan.prompt),), plan.tokens)
        for n in range(streams)
    ]
    cpu = side.cpu_seconds()
    answers = await asyncio.gather(*(side.ask(turn) for turn in turns))
    seconds = max(answer.ended for answer in answers) - min(answer.asked for answer in answers)
    cpu = side.cpu_seconds() - cpu
    made = sum(answer.tokens for answer in answers)
    if made != streams * plan.tokens:
        raise RuntimeError(f"{side.name}: {made} tokens in place of {streams * plan.tokens}: a reply ended by itself")
    for turn in turns:
        side.forget(turn.session)
    return Run(made / seconds, cpu, await _own(side))


async def _own(side: Side) -> float | None:
    """Milliseconds of a step that our engine spends beside the model, as a mean of the newest steps."""
    if not isinstance(side, Ours):
        return None
    gauges = (await side.stats()).gauges
    return 1000 * sum(gauges[name] for name in OWN_GAUGES)


def _summary(model: str, streams: int, rounds: list[dict[str, Run]]) -> Width:
    def middle(name: str) -> Run:
        runs = [found[name] for found in rounds]
        own = [run.own_ms for run in runs if run.own_ms is not None]
        return Run(
            statistics.median(run.rate for run in runs),
            statistics.median(run.cpu for run in runs),
            statistics.median(own) if own else None,
        )

    def ratio(name: str) -> float:
        return statistics.median(found[Ours.name].rate / found[name].rate for found in rounds)

    peers = [name for name in rounds[0] if name not in ("raw", Ours.name)]
    return Width(
        model,
        streams,
        middle("raw"),
        middle(Ours.name),
        {name: middle(name) for name in peers},
        ratio("raw"),
        {name: ratio(name) for name in peers},
    )
