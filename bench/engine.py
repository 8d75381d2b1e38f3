"""The engine against the bare library, and the price of a long conversation.

1. Aggregate tokens a second of 1, 4, 8 and 16 concurrent turns through `LlamaEngine`, against a raw `llama_decode`
   loop in a process of its own: same file, threads, pool, prompt length and number of tokens. Rounds are interleaved
   and medians are shown; the CPU seconds beside them are what a noisy machine cannot touch.
2. Ten turns of one session: prompt tokens evaluated and time to the first token of each.

3. W3: fan-outs from a shared prompt, in tokens evaluated (`engine_fanout`); with `--peer` also llama.cpp's server.

    python bench/engine.py [--model FILE.gguf] [--smoke] [--only W1|turns|W3] [--peer PYTHON] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from llama_cpp import llama_cpp as lib

from cfs.wire import Message, Settings
from cfs_server.engine.frames import Options
from cfs_server.engine.interface import Delta, Finished, GenerationRequest
from cfs_server.engine.llama.ffi import Batch, Context, Outcome
from cfs_server.engine.llama.loading import NativeLog, load
from cfs_server.engine.supervisor import LlamaEngine

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import engine_fanout
import make_random_gguf

WIDTHS = (1, 4, 8, 16)
BAR = 0.85


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    tokens: int
    turns: int
    options: Options


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: `tokens` generated in `seconds`, for `cpu` seconds of all processes that took part."""

    tokens: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Width:
    """The two ways at one number of concurrent turns, medians over the rounds."""

    concurrent: int
    raw_rate: float
    engine_rate: float
    ratio: float
    raw_cpu: float
    engine_cpu: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the long conversation."""

    number: int
    prompt_tokens: int
    evaluated: int
    first_token_seconds: float


def request(key: str, messages: list[Message], tokens: int) -> GenerationRequest:
    """Make a greedy turn of a fixed length."""
    settings = Settings(temperature=0, max_tokens=tokens)
    return GenerationRequest(os.urandom(8).hex(), key, tuple(messages), settings)


async def play(engine: LlamaEngine, wanted: GenerationRequest) -> tuple[str, Finished]:
    """Run one turn to its end."""
    text, last = "", None
    async for item in engine.generate(wanted):
        if isinstance(item, Delta):
            text += item.text
        else:
            last = item
    if last is None:
        raise RuntimeError("a turn ended without a word")
    return text, last


async def engine_run(engine: LlamaEngine, concurrent: int, tokens: int, cpu: list[psutil.Process]) -> tuple[Run, int]:
    """Measure concurrent turns of new sessions; also returns the length of their prompts."""
    keys = [os.urandom(4).hex() for _ in range(concurrent)]
    turns = [request(key, [Message(role="user", content=f"{key} {'word ' * 20}")], tokens) for key in keys]
    before, began = cpu_seconds(cpu), time.perf_counter()
    answers = await asyncio.gather(*(play(engine, turn) for turn in turns))
    seconds = time.perf_counter() - began
    made = sum(finished.usage.completion_tokens for _, finished in answers)
    if made != concurrent * tokens:
        raise RuntimeError(f"{made} tokens in place of {concurrent * tokens}: a reply ended by itself")
    for key in keys:
        engine.forget(key)
    prompt = max(finished.usage.prompt_tokens for _, finished in answers)
    return Run(made, seconds, cpu_seconds(cpu) - before), prompt


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """CPU time that these processes have used so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


class RawLoop:
    """The raw loop, in its own process, told what to run by lines of JSON."""

    def __init__(self, model: Path, options: Options) -> None:
        command = [sys.executable, __file__, "--raw", json.dumps(asdict(options)), "--model", str(model)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._cpu = [psutil.Process(self._process.pid)]
        self._answer()

    def run(self, concurrent: int, prompt: int, tokens: int) -> Run:
        """Measure one loop."""
        if self._process.stdin is None:
            raise RuntimeError("no way to speak to the raw loop")
        before = cpu_seconds(self._cpu)
        self._process.stdin.write(json.dumps([concurrent, prompt, tokens]) + "\n")
        self._process.stdin.flush()
        seconds = float(self._answer())
        return Run(concurrent * tokens, seconds, cpu_seconds(self._cpu) - before)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        if self._process.stdout is None:
            raise RuntimeError("no way to hear the raw loop")
        return json.loads(self._process.stdout.readline())


def raw_main(model: Path, options: Options) -> None:
    """Serve raw loops to the bench, in a process of their own."""
    loaded = load(str(model), options, NativeLog(lambda _level, _text: None), extra_buffers=True)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        concurrent, prompt, tokens = json.loads(line)
        began = time.perf_counter()
        raw_loop(loaded.context, concurrent, prompt, tokens)
        seconds = time.perf_counter() - began
        for sequence in range(concurrent):
            loaded.context.clear(sequence)
        print(json.dumps(seconds), flush=True)


def raw_loop(context: Context, concurrent: int, prompt: int, tokens: int) -> None:
    """Read all prompts, as many together as fit; then one greedy token for each sequence, again and again."""
    batch = Batch(context.batch_size)
    sampler = lib.llama_sampler_init_greedy()

    def compute(inputs: list[tuple[int, list[int]]], position: int) -> list[int]:
        batch.clear()
        places = [batch.add(sequence, words, position, output=True) for sequence, words in inputs]
        if context.decode(batch) is not Outcome.DONE:
            raise RuntimeError("the raw loop failed")
        return [lib.llama_sampler_sample(sampler, context.raw, place) for place in places]

    prompts = [
        (sequence, [(sequence * 31 + place * 7) % 250 for place in range(prompt)]) for sequence in range(concurrent)
    ]
    together = max(1, context.batch_size // prompt)
    newest = [
        token for start in range(0, concurrent, together) for token in compute(prompts[start : start + together], 0)
    ]
    for step in range(tokens - 1):
        newest = compute([(sequence, [token]) for sequence, token in enumerate(newest)], prompt + step)
    lib.llama_sampler_free(sampler)


async def measure_widths(engine: LlamaEngine, raw: RawLoop, plan: Plan) -> list[Width]:
    """Run both ways in turn, round after round."""
    pid = (await engine.stats()).worker_pid
    cpu = [psutil.Process(), psutil.Process(pid)]
    runs: dict[int, list[tuple[Run, Run]]] = {width: [] for width in WIDTHS}
    _, prompt = await engine_run(engine, 1, 2, cpu)
    raw.run(1, prompt, 2)
    for number in range(plan.rounds):
        for width, kept in runs.items():
            first = raw.run(width, prompt, plan.tokens) if number % 2 else None
            ours, _ = await engine_run(engine, width, plan.tokens, cpu)
            kept.append((first or raw.run(width, prompt, plan.tokens), ours))
            theirs = kept[-1][0]
            print(f"round {number + 1}, {width} at once: {theirs.rate:.1f} / {ours.rate:.1f} tok/s", file=sys.stderr)
    return [summary(width, pairs) for width, pairs in runs.items()]


def summary(width: int, pairs: list[tuple[Run, Run]]) -> Width:
    """Take medians; the ratio is the median of the rounds' ratios, whose halves had the same neighbours."""
    return Width(
        concurrent=width,
        raw_rate=statistics.median(raw.rate for raw, _ in pairs),
        engine_rate=statistics.median(ours.rate for _, ours in pairs),
        ratio=statistics.median(ours.rate / raw.rate for raw, ours in pairs),
        raw_cpu=statistics.median(raw.cpu for raw, _ in pairs),
        engine_cpu=statistics.median(ours.cpu for _, ours in pairs),
    )


async def measure_turns(engine: LlamaEngine, turns: int) -> list[Turn]:
    """Hold one conversation."""
    history: list[Message] = []
    measured = []
    for number in range(1, turns + 1):
        history.append(Message(role="user", content=f"turn {number}: " + "word " * 30))
        before = (await engine.stats()).prompt_tokens_evaluated
        text, finished = await play(engine, request("conversation", history, 16))
        evaluated = (await engine.stats()).prompt_tokens_evaluated - before
        measured.append(Turn(number, finished.usage.prompt_tokens, evaluated, finished.usage.first_token_seconds))
        history.append(Message(role="assistant", content=text))
    return measured


async def measure(model: Path, plan: Plan, only: str | None) -> tuple[list[Width], list[Turn]]:
    """Start both sides, measure, and stop them."""
    engine = LlamaEngine(str(model), plan.options)
    raw = RawLoop(model, plan.options) if only != "turns" else None
    try:
        await engine.start()
        widths = await measure_widths(engine, raw, plan) if raw else []
        return widths, await measure_turns(engine, plan.turns) if only != "W1" else []
    finally:
        await engine.stop()
        if raw:
            raw.close()


def report_widths(widths: list[Width], *, judge: bool) -> str:
    """Write the table in Markdown; a smoke test says nothing about the bar."""
    lines = [
        "| concurrent | raw tok/s | engine tok/s | ratio | raw CPU s | engine CPU s |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.concurrent} | {row.raw_rate:.1f} | {row.engine_rate:.1f} | {row.ratio:.2f}"
        f" | {row.raw_cpu:.2f} | {row.engine_cpu:.2f} |"
        for row in widths
    ]
    verdict = "met" if all(row.ratio >= BAR for row in widths) else "MISSED"
    lines += ["", f"Bar: ratio at least {BAR} at each width: {verdict}."] if judge else []
    return "\n".join(lines)


def report_turns(turns: list[Turn]) -> str:
    """Write the table in Markdown."""
    lines = ["| turn | prompt tokens | evaluated | first token s |", "|--:|--:|--:|--:|"]
    lines += [f"| {t.number} | {t.prompt_tokens} | {t.evaluated} | {t.first_token_seconds:.3f} |" for t in turns]
    return "\n".join(lines)


@contextmanager
def model_file(given: Path | None, *, smoke: bool) -> Iterator[Path]:
    """Use the given model, or make a random one for as long as it is needed."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        shape, kind = ("small", "f16") if smoke else ("0.5b", "q8_0")
        yield make_random_gguf.make(Path(folder) / f"random-{shape}-{kind}.gguf", shape, kind)


@contextmanager
def small_model(given: Path | None) -> Iterator[Path]:
    """Use the given model, or make a small random one with room for a fan-out: counts do not depend on its size."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield make_random_gguf.make(Path(folder) / "random-small-f16.gguf", "small", context=8192)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF to use in place of a random one of 0.5B's shape, Q8_0")
    parser.add_argument("--smoke", action="store_true", help="a small model and one short round: does it still run?")
    parser.add_argument("--only", choices=["W1", "turns", "W3"], help="one part")
    parser.add_argument("--peer", type=Path, help="a Python with the xllamacpp wheel: W3 against llama.cpp's server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each reply")
    parser.add_argument("--threads", type=int, default=0, help="of both sides; one is steadier on a busy machine")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--raw", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.raw:
        raw_main(arguments.model, Options(**json.loads(arguments.raw)))
        return
    only, figures = arguments.only, {}
    if only in (None, "W3"):
        with small_model(arguments.model) as model:
            cases = asyncio.run(engine_fanout.measure(model, arguments.peer, smoke=arguments.smoke))
            print(f"W3, {model.name}\n\n{engine_fanout.report(cases)}\n")
        figures["W3"] = [asdict(case) for case in cases]
    if only != "W3":
        figures |= streams(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def streams(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure concurrent turns and the long conversation, and print both."""
    options = Options(parallel=max(WIDTHS), pool_tokens=8192, threads=arguments.threads)
    rounds, tokens, turns = (1, 8, 3) if arguments.smoke else (arguments.rounds, arguments.tokens, 10)
    with model_file(arguments.model, smoke=arguments.smoke) as model:
        widths, conversation = asyncio.run(measure(model, Plan(rounds, tokens, turns, options), arguments.only))
        threads = arguments.threads or "all"
        print(f"{model.name}, {os.cpu_count()} cores, {threads} threads, {rounds} rounds of {tokens} tokens a reply\n")
    if widths:
        print(report_widths(widths, judge=not arguments.smoke) + "\n")
    if conversation:
        print(report_turns(conversation))
    return {"W1": [asdict(row) for row in widths], "turns": [asdict(turn) for turn in conversation]}


if __name__ == "__main__":
    main()
