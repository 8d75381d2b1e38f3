"""What guessing tokens by lookup gains for agents' edits, and what it costs where nothing repeats.

Two engines run the same turns by turns, one with speculation and one without. An edit is a call that writes a file
again with one changed line; the first version stands in the history. The reply is kept to the edited file by a schema,
so the quality of the model does not matter: it chooses the tokens, and the guesses are verified, as ever. Where nothing
repeats, replies are sampled at a high temperature. Shown are medians over the rounds of the ratio without to with:
seconds from the first token to the last, and CPU seconds of the worker, which neighbours on the machine disturb less.

    scripts/bench speculation [--model embedded] [--rounds 5] [--threads 1] [--characters 700] [--json FILE]
"""

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from cfs.wire import Message, Settings
from cfs_server.engine.contract.interface import Finished, GenerationRequest
from cfs_server.engine.contract.protocol import Speculation, WorkerOptions
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.engine.host.supervisor import LlamaEngine

TEXT = Path(__file__).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Work:
    """Turns that run together."""

    name: str
    prompts: tuple[tuple[Message, ...], ...]
    settings: Settings
    schemas: tuple[dict[str, object] | None, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """What the replies of some turns took."""

    seconds: float
    cpu_seconds: float
    tokens: int
    accepted: int
    refused: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one kind of work."""

    name: str
    rounds: int
    ratio: float
    cpu_ratio: float
    tokens: int
    accepted: int
    refused: int
    same: int


def edits(number: int, streams: int, characters: int) -> Work:
    """Make edits of a file, another one in each round."""
    prompts: list[tuple[Message, ...]] = []
    schemas: list[dict[str, object] | None] = []
    for stream in range(streams):
        start = (number * streams + stream) * 211 % max(1, len(TEXT) - characters)
        lines = TEXT[start : start + characters].splitlines()
        before = {"path": "work.py", "content": "\n".join(lines)}
        lines[len(lines) // 2] = f"    changed = {stream + number}"
        after = {"path": "work.py", "content": "\n".join(lines)}
        prompts.append(
            (
                Message(role="user", content="Write work.py."),
                Message(role="assistant", content=json.dumps(before)),
                Message(role="user", content=f"Replace line {len(lines) // 2} and leave all else as it is."),
            )
        )
        properties = {name: {"const": value} for name, value in after.items()}
        schemas.append({"type": "object", "properties": properties, "required": [*after]})
    return Work(f"edits, {streams} streams", tuple(prompts), Settings(temperature=0, max_tokens=900), tuple(schemas))


def talk(number: int, streams: int, _characters: int) -> Work:
    """Make questions of random words; the replies are random, too."""
    dice = random.Random(number)
    words = sorted(set(TEXT.split()))
    prompts = [(Message(role="user", content=" ".join(dice.sample(words, 80))),) for _ in range(streams)]
    settings = Settings(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=number, max_tokens=128, min_tokens=128)
    return Work(f"nothing repeats, {streams} streams", tuple(prompts), settings, (None,) * streams)


async def run(engine: LlamaEngine, name: str, work: Work) -> Taken:
    """Run turns whose prompts are read before."""
    await asyncio.gather(*(reply(engine, f"{name}/{place}", work, place, most=1) for place in range(len(work.prompts))))
    before = await cpu_seconds(engine)
    replies = await asyncio.gather(
        *(reply(engine, f"{name}/{place}", work, place) for place in range(len(work.prompts)))
    )
    usages = [finished.usage for _, finished in replies]
    return Taken(
        max(usage.total_seconds - usage.first_token_seconds for usage in usages),
        await cpu_seconds(engine) - before,
        sum(usage.completion_tokens for usage in usages),
        sum(usage.accepted_prediction_tokens for usage in usages),
        sum(usage.rejected_prediction_tokens for usage in usages),
        tuple(text for text, _ in replies),
    )


async def reply(engine: LlamaEngine, key: str, work: Work, place: int, most: int | None = None) -> tuple[str, Finished]:
    """Run one turn; returns its text and its end."""
    settings = work.settings if most is None else work.settings.model_copy(update={"max_tokens": 1, "min_tokens": 0})
    options = ReplyOptions(json_schema=work.schemas[place])
    items = [
        item
        async for item in engine.generate(
            GenerationRequest(f"{key}-{most}", key, work.prompts[place], settings, options)
        )
    ]
    finished = items.pop()
    if not isinstance(finished, Finished):
        raise TypeError("a generation ends with its outcome")
    return "".join(item.text for item in items if not isinstance(item, Finished)), finished


async def cpu_seconds(engine: LlamaEngine) -> float:
    """Return the CPU time of the worker so far."""
    pid = (await engine.stats()).worker_pid
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


async def measure(model: str | None, rounds: int, threads: int, streams: Sequence[int], characters: int) -> list[Row]:
    """Run each kind of work on both engines, by turns."""
    modes: tuple[Speculation, Speculation] = ("off", "on")
    engines = [LlamaEngine(model, WorkerOptions(threads=threads, speculation=mode, parallel=8)) for mode in modes]
    for engine in engines:
        await engine.start()
    rows = []
    try:
        for make in (edits, talk):
            for count in streams:
                pairs = []
                for number in range(rounds):
                    work = make(number, count, characters)
                    order = engines if number % 2 else engines[::-1]
                    taken = {id(engine): await run(engine, f"{work.name} {number}", work) for engine in order}
                    for engine in engines:
                        for place in range(count):
                            engine.forget(f"{work.name} {number}/{place}")
                    pairs.append((taken[id(engines[0])], taken[id(engines[1])]))
                rows.append(row_of(work.name, pairs))
                print(line(rows[-1]), flush=True)
    finally:
        for engine in engines:
            await engine.stop()
    return rows


def row_of(name: str, pairs: list[tuple[Taken, Taken]]) -> Row:
    """Compare rounds without and with speculation."""
    return Row(
        name,
        len(pairs),
        statistics.median(plain.seconds / guessed.seconds for plain, guessed in pairs),
        statistics.median(plain.cpu_seconds / guessed.cpu_seconds for plain, guessed in pairs),
        sum(guessed.tokens for _, guessed in pairs),
        sum(guessed.accepted for _, guessed in pairs),
        sum(guessed.refused for _, guessed in pairs),
        sum(a == b for plain, guessed in pairs for a, b in zip(plain.texts, guessed.texts, strict=True)),
    )


def line(row: Row) -> str:
    """Write a row of the table."""
    return (
        f"| {row.name} | {row.ratio:.2f} | {row.cpu_ratio:.2f} | {row.tokens} | {row.accepted} | {row.refused}"
        f" | {row.same} |"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="a file in GGUF, or the embedded model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--characters", type=int, default=700, help="of the file that is edited")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    print("| work | times as fast | by CPU seconds | tokens | accepted | refused | same texts |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    model = None if arguments.model == "embedded" else arguments.model
    rows = asyncio.run(measure(model, arguments.rounds, arguments.threads, arguments.streams, arguments.characters))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
