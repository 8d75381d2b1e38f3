"""Our server and llama.cpp's under a load generator of others, guidellm: SmolLM2, with guesses of tokens and without.

    scripts/bench load_generator --guidellm guide/bin/guidellm --source FOLDER [--rounds 3] [--json FILE]

`FOLDER` has llama-cpp-python's unpacked source (see README.md). Both servers get the same model file, threads and
places, and run by turns, each alone. guidellm sends chats in a number of streams and asks for greedy replies of a given
length. It counts the tokens that the servers report. What it found is kept without its list of requests.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from engine_bench import prompts, w10_edits
from engine_bench.client import Address
from engine_bench.llama_server import LlamaServer
from engine_bench.models import smollm2
from engine_bench.served import serving
from engine_bench.sides import Setup
from engine_bench.source import Source
from engine_bench.tables import table

STREAMS, TOKENS = 4, 128
CHARACTERS = 600
"""Of a text that is to be repeated."""
REPEAT, TELL = "repeats a text", "nothing to repeat"
WAY = "ngram-simple"
"""How llama.cpp's server guesses: what W10 has found to be the fastest."""


@dataclass(frozen=True, slots=True)
class Run:
    """What guidellm reports of one run: counts, tokens a second of all streams, and medians of milliseconds."""

    side: str
    work: str
    requests: int
    successful: int
    tokens_per_second: float
    first_token_ms: float
    between_tokens_ms: float
    latency_ms: float


def write_prompts(path: Path, work: str, number: int, requests: int) -> None:
    """Write the prompts of a round, which no other round has."""
    lines = []
    for place in range(requests):
        start = (number * requests + place) * 97 % (len(w10_edits.TEXT) - CHARACTERS)
        text = w10_edits.TEXT[start : start + CHARACTERS]
        prompt = {
            REPEAT: f"Repeat this three times:\n\n{text}\n\n{text}\n\n",
            TELL: f"Tell a story about these words: {prompts.words(f'{number} {place}', 60)}",
        }
        lines.append(json.dumps({"prompt": prompt[work], "output_tokens_count": TOKENS}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextlib.asynccontextmanager
async def ours(model: Path, speculation: str) -> AsyncIterator[Address]:
    """Run our server for as long as the block lasts."""
    async with serving(model, "--speculation", speculation) as served:
        yield served.address


@contextlib.asynccontextmanager
async def theirs(setup: Setup) -> AsyncIterator[Address]:
    """Run llama.cpp's server for as long as the block lasts."""
    side = await LlamaServer.start(setup)
    try:
        yield side.address
    finally:
        await side.stop()


def generate(program: Path, address: Address, data: Path, found: Path, requests: int) -> dict[str, Any]:
    """Let guidellm send the requests; returns its figures without its requests."""
    target = f"http://{address.host}:{address.port}"
    backend = {"kind": "openai_http", "target": target, "extras": {"body": {"temperature": 0}}}
    done = subprocess.run(
        [
            *(str(program), "run", "--backend", json.dumps(backend)),
            *("--profile", f"kind=concurrent,streams={STREAMS}"),
            *("--constraint", f"kind=max_requests,count={requests}"),
            *("--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={found}"),
        ],
        env=os.environ | {"GUIDELLM__MAX_WORKER_PROCESSES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"guidellm failed:\n{done.stdout.decode(errors='replace')[-2000:]}")
    [benchmark] = json.loads(found.read_text(encoding="utf-8"))["benchmarks"]
    metrics: dict[str, Any] = benchmark["metrics"]
    return metrics


def run_of(side: str, work: str, metrics: dict[str, Any]) -> Run:
    """Take the figures that are shown."""

    def middle(name: str, of: str = "median") -> float:
        return float(metrics[name]["successful"][of])

    totals = metrics["request_totals"]
    return Run(
        side,
        work,
        totals["total"],
        totals["successful"],
        middle("output_tokens_per_second", "mean"),
        middle("time_to_first_token_ms"),
        middle("inter_token_latency_ms"),
        1000 * middle("request_latency"),
    )


async def measure(program: Path, rounds: int, requests: int, threads: int) -> list[Run]:
    """Let all sides answer all requests, by turns."""
    model = smollm2()
    setup = Setup(model, threads)
    sides: dict[str, Callable[[], AbstractAsyncContextManager[Address]]] = {
        w10_edits.GUESSING: lambda: ours(model, "auto"),
        w10_edits.PLAIN: lambda: ours(model, "off"),
        w10_edits.THEIR_GUESSING: lambda: theirs(replace(setup, guess_flags=w10_edits.WAYS[WAY])),
        w10_edits.THEIR_PLAIN: lambda: theirs(setup),
    }
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        data, found = Path(folder) / "prompts.jsonl", Path(folder) / "found.json"
        for number in range(rounds):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                async with sides[name]() as address:
                    for work in (REPEAT, TELL):
                        write_prompts(data, work, number, requests)
                        metrics = await asyncio.to_thread(generate, program, address, data, found, requests)
                        runs.append(run_of(name, work, metrics))
                        print(runs[-1], file=sys.stderr, flush=True)
    return runs


def markdown(runs: list[Run]) -> str:
    """Write the table: medians of the rounds."""
    columns = ["work", "side", "complete", "tok/s", "first token ms", "between tokens ms", "reply ms"]
    rows = []
    for work, side in sorted({(run.work, run.side) for run in runs}):
        own = [run for run in runs if (run.work, run.side) == (work, side)]
        names = ("tokens_per_second", "first_token_ms", "between_tokens_ms", "latency_ms")
        count = f"{sum(run.successful for run in own)} of {sum(run.requests for run in own)}"
        rows.append([work, side, count, *(statistics.median(getattr(run, name) for run in own) for name in names)])
    return table(columns, rows, left=2)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", type=Path, required=True, help="the path of guidellm")
    parser.add_argument("--source", type=Path, required=True, help="where llama-cpp-python's source is unpacked")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=16, help="of each kind in a round")
    parser.add_argument("--json", type=Path, help="also write the figures of each run here")
    options = parser.parse_args()
    LlamaServer.source = Source(options.source.resolve())
    threads = len(os.sched_getaffinity(0))
    runs = asyncio.run(measure(options.guidellm.absolute(), options.rounds, options.requests, threads))
    print(markdown(runs))
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
