"""W10: agents' edits. What does guessing by lookup gain, beside llama.cpp's server with guesses of its own?

An edit writes a file of the history again with one changed line. Its reply is kept to that text by a schema, so the
quality of the model does not matter: it chooses the tokens, and guesses are verified, as ever. A copy writes the file
as it stands twice in the history; nothing keeps the reply to it. Sampled replies at a high temperature repeat nothing.

Both sides run with guesses and without, by turns. Prompts are read before. llama.cpp's server has several ways to
guess. Each is tried on edits, and the fastest takes part.
"""

import asyncio
import contextlib
import json
import math
import random
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine_bench.bench import Bench
from engine_bench.llama_server import LlamaServer
from engine_bench.ours import Ours
from engine_bench.prompts import assistant, user
from engine_bench.sides import Setup, Side, Turn
from engine_bench.tables import Verdict, table

TEXT = Path(__file__).read_text(encoding="utf-8")
CHARACTERS = 700
"""Of a file that is edited."""
MOST_TOKENS = 900
COPIED_TOKENS, SAMPLED_TOKENS = 160, 128
WIDTHS = (1, 4)
TEMPERATURE = 1.5

GUESSING, PLAIN = Ours.name, f"{Ours.name}, no guesses"
THEIR_GUESSING, THEIR_PLAIN = f"{LlamaServer.name}, guessing", LlamaServer.name
BARS = {PLAIN: 1.5, THEIR_GUESSING: 1.1}
"""How many times as fast as these sides CFS must be where text repeats."""
SAMPLED_BARS = {PLAIN: 0.98}
"""The same where nothing repeats."""

WAYS = {
    "ngram-simple": "--spec-type ngram-simple",
    "ngram-simple, 4 tokens, then 16": (
        "--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 16"
    ),
    "ngram-map-k": "--spec-type ngram-map-k",
    "ngram-map-k, 4 tokens, then 16": (
        "--spec-type ngram-map-k --spec-ngram-map-k-size-n 4 --spec-ngram-map-k-size-m 16"
    ),
    "ngram-map-k4v": "--spec-type ngram-map-k4v",
    "ngram-mod": "--spec-type ngram-mod",
    "ngram-mod, 16 tokens, then 4 to 48": (
        "--spec-type ngram-mod --spec-ngram-mod-n-match 16 --spec-ngram-mod-n-min 4 --spec-ngram-mod-n-max 48"
    ),
    "ngram-cache": "--spec-type ngram-cache",
}
"""Flags by which llama.cpp's server guesses: its defaults, and shorter matches, which short files need."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the replies of some turns took, from the first text to the last."""

    seconds: float
    cpu: float
    tokens: int
    texts: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Tokens in a second of the processors."""
        return self.tokens / self.cpu


@dataclass(frozen=True, slots=True)
class Row:
    """One side with one kind of work, medians over the rounds; ratios of CFS with guesses to it."""

    work: str
    streams: int
    side: str
    tokens: int
    rate: float
    cpu: float
    ratio: float
    cpu_ratio: float
    same: int
    replies: int


@dataclass(frozen=True, slots=True)
class Way:
    """One way of llama.cpp's server to guess: tokens a second of edits by number of streams."""

    name: str
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Edits:
    """All of W10."""

    model: str
    rounds: int
    ways: list[Way]
    rows: list[Row]
    judged: bool

    def markdown(self) -> str:
        """Write the tables."""
        columns = ["work", "streams", "side", "tokens a round", "tok/s", "CPU s", "CFS is faster by", "by CPU"]
        rows = [
            [
                row.work,
                row.streams,
                row.side,
                row.tokens,
                row.rate,
                row.cpu,
                f"{row.ratio:.2f}",
                f"{row.cpu_ratio:.2f}",
                f"{row.same} of {row.replies}",
            ]
            for row in self.rows
        ]
        text = f"{self.model}; medians of {self.rounds} rounds.\n\n{table([*columns, 'texts as CFS'], rows, left=3)}"
        if self.ways:
            heads = ["llama.cpp server guesses by", *(f"tok/s, {width} streams" for width in WIDTHS)]
            text += "\n\n" + table(heads, [[way.name, *way.rates] for way in self.ways])
        return text

    def verdicts(self) -> list[Verdict]:
        """Judge edits, and replies in which nothing repeats."""
        found = []
        for row in self.rows if self.judged else ():
            bar = (SAMPLED_BARS if row.work == SAMPLED else BARS).get(row.side)
            if bar is not None:
                what = f"{row.work}, {row.streams} streams, times as fast as {row.side}"
                found.append(Verdict(what, row.ratio, bar, at_least=True))
        return found


def edits(number: int, streams: int) -> list[Turn]:
    """Make edits of a file, another one in each round."""
    turns = []
    for stream in range(streams):
        before = _part(number * streams + stream)
        lines = before.splitlines()
        lines[len(lines) // 2] = f"    changed = {stream + number}"
        file = {"path": "work.py", "content": before}
        changed = {"path": "work.py", "content": "\n".join(lines)}
        order = f"Replace line {len(lines) // 2} and leave all else as it is."
        history = (user("Write work.py."), assistant(json.dumps(file)), user(order))
        schema = {
            "type": "object",
            "properties": {name: {"const": value} for name, value in changed.items()},
            "required": [*changed],
            "additionalProperties": False,
        }
        turns.append(Turn(f"edit {number} {stream} of {streams}", history, MOST_TOKENS, schema))
    return turns


def copies(number: int, streams: int) -> list[Turn]:
    """Make requests for a file that was written twice before."""
    turns = []
    for stream in range(streams):
        written = assistant(_part(number * streams + stream))
        history = (user("Write work.py."), written, user("Write it again."), written, user("Write it again."))
        turns.append(Turn(f"copy {number} {stream} of {streams}", history, COPIED_TOKENS, exact=True))
    return turns


def sampled(number: int, streams: int) -> list[Turn]:
    """Make questions of random words; the replies are random, too."""
    dice = random.Random(number)
    words = sorted(set(TEXT.split()))
    return [
        Turn(
            f"sampled {number} {stream} of {streams}",
            (user(" ".join(dice.sample(words, 80))),),
            SAMPLED_TOKENS,
            exact=True,
            temperature=TEMPERATURE,
            seed=number * streams + stream,
        )
        for stream in range(streams)
    ]


def _part(number: int) -> str:
    start = number * 211 % (len(TEXT) - CHARACTERS)
    return "\n".join(TEXT[start : start + CHARACTERS].splitlines())


EDITS, COPIES, SAMPLED = "edits", "copies", "nothing repeats"
WORKS: dict[str, Callable[[int, int], list[Turn]]] = {EDITS: edits, COPIES: copies, SAMPLED: sampled}


async def run(bench: Bench) -> Edits:
    """Choose llama.cpp's way to guess, and let all sides do all the work by turns."""
    model = bench.models.trained
    setup = Setup(model, bench.threads, max(WIDTHS), 8192)
    ways = await _ways(bench, setup)
    best = max(ways, key=lambda way: math.prod(way.rates), default=None)
    rounds = 1 if bench.smoke else bench.rounds
    rows = []
    async with _sides(bench, setup, best.name if best else "") as sides:
        for side in sides.values():
            await _play(side, edits(-1, 2))
        for work, make in WORKS.items():
            for width in WIDTHS[: 1 if bench.smoke else None]:
                found = [await _round(sides, make(number, width), number) for number in range(rounds)]
                rows += [_row(work, width, name, found) for name in sides]
                bench.say("\n".join(f"W10 {row}" for row in rows[-len(sides) :]))
    return Edits(model.stem, rounds, ways, rows, judged=not bench.smoke)


async def _ways(bench: Bench, setup: Setup) -> list[Way]:
    """Try each way of llama.cpp's server to guess. Only the compiled server takes its flags."""
    found = []
    for name in WAYS if LlamaServer.source and not bench.smoke else ():
        async with bench.peer("llama-server", replace(setup, guess_flags=WAYS[name])) as side:
            if side is None:
                break
            await _play(side, edits(-1, 2))
            rates = [(await _play(side, edits(bench.rounds, width))).rate for width in WIDTHS]
        found.append(Way(name, tuple(rates)))
        bench.say(f"W10 {found[-1]}")
    return found


@contextlib.asynccontextmanager
async def _sides(bench: Bench, setup: Setup, way: str) -> AsyncIterator[dict[str, Side]]:
    """Start all sides."""
    async with contextlib.AsyncExitStack() as stack:
        sides: dict[str, Side] = {
            GUESSING: await stack.enter_async_context(bench.ours(setup)),
            PLAIN: await stack.enter_async_context(bench.ours(replace(setup, speculation="off"))),
        }
        wanted = {THEIR_PLAIN: setup}
        if way:
            wanted[THEIR_GUESSING] = replace(setup, guess_flags=WAYS[way])
        for name, theirs in wanted.items():
            side = await stack.enter_async_context(bench.peer("llama-server", theirs))
            if side is not None:
                sides[name] = side
        yield sides


async def _round(sides: dict[str, Side], turns: list[Turn], number: int) -> dict[str, Taken]:
    """Let each side do the work once; who begins changes from round to round."""
    names = list(sides)
    first = number % len(names)
    return {name: await _play(sides[name], turns) for name in [*names[first:], *names[:first]]}


async def _play(side: Side, turns: Sequence[Turn]) -> Taken:
    """Let a side read the prompts of some turns, and then run the turns together."""
    await asyncio.gather(*(side.ask(replace(turn, tokens=1)) for turn in turns))
    cpu = side.cpu_seconds()
    answers = await asyncio.gather(*(side.ask(turn) for turn in turns))
    cpu = side.cpu_seconds() - cpu
    for turn in turns:
        side.forget(turn.session)
    seconds = max(answer.ended for answer in answers) - min(answer.arrivals[0] for answer in answers)
    return Taken(seconds, cpu, sum(answer.tokens for answer in answers), tuple(answer.text for answer in answers))


def _row(work: str, width: int, name: str, rounds: list[dict[str, Taken]]) -> Row:
    own = [found[name] for found in rounds]
    pairs = [(found[GUESSING], found[name]) for found in rounds]
    same = [a == b for ours, theirs in pairs for a, b in zip(ours.texts, theirs.texts, strict=True)]
    return Row(
        work,
        width,
        name,
        round(statistics.median(taken.tokens for taken in own)),
        statistics.median(taken.rate for taken in own),
        statistics.median(taken.cpu for taken in own),
        statistics.median(ours.rate / theirs.rate for ours, theirs in pairs),
        statistics.median(ours.cpu_rate / theirs.cpu_rate for ours, theirs in pairs),
        sum(same),
        len(same),
    )
