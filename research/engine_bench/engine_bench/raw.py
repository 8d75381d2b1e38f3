"""The roofline: a bare `llama_decode` loop in a process of its own, told what to run by lines of JSON.

    python -m engine_bench.raw '{"model": FILE, ...}' true|false

The fields are those of `sides.Setup`; the last word is whether to use the library's fastest code (`probe`).
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from llama_cpp import llama_cpp as lib

from cfs_server.engine.llama.ffi import DecodeResult, LlamaContext, NativeLog, TokenBatch
from cfs_server.engine.llama.model import load
from engine_bench.ours import options_of
from engine_bench.processes import cpu_seconds, end
from engine_bench.sides import Setup


@dataclass(frozen=True, slots=True)
class Loop:
    """One run: seconds for the prompts and for the replies, and the CPU time of both."""

    prompt_seconds: float
    reply_seconds: float
    cpu: float


class RawLoop:
    """The loop's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._cpu = psutil.Process(process.pid)

    @classmethod
    async def start(cls, setup: Setup, *, extra_buffers: bool) -> "RawLoop":
        """Load the model."""
        wanted = json.dumps(asdict(setup), default=str)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine_bench.raw",
            wanted,
            json.dumps(extra_buffers),
            cwd=Path(__file__).parents[1],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        loop = cls(process)
        await loop._answer()
        return loop

    async def run(self, streams: int, prompt: int, tokens: int) -> Loop:
        """Measure one loop: `streams` prompts of so many tokens and replies of so many."""
        if self._process.stdin is None:
            raise RuntimeError("no way to speak to the raw loop")
        before = cpu_seconds([self._cpu])
        self._process.stdin.write(json.dumps([streams, prompt, tokens]).encode() + b"\n")
        await self._process.stdin.drain()
        prompts, replies = await self._answer()
        return Loop(prompts, replies, cpu_seconds([self._cpu]) - before)

    async def stop(self) -> None:
        """End the process."""
        await end(self._process)

    async def _answer(self) -> list[float]:
        if self._process.stdout is None or not (line := await self._process.stdout.readline()):
            raise RuntimeError("the raw loop ended")
        answer: list[float] = json.loads(line)
        return answer


def loop(context: LlamaContext, streams: int, prompt: int, tokens: int) -> list[float]:
    """Read all prompts, as many together as fit; then one greedy token for each sequence, again and again."""
    batch = TokenBatch(context.batch_size)
    sampler = lib.llama_sampler_init_greedy()

    def compute(inputs: list[tuple[int, list[int]]], position: int) -> list[int]:
        batch.clear()
        places = [batch.add(sequence, words, position, output=True) for sequence, words in inputs]
        if context.decode(batch) is not DecodeResult.DONE:
            raise RuntimeError("the raw loop failed")
        return [lib.llama_sampler_sample(sampler, context.raw, place) for place in places]

    began = time.perf_counter()
    prompts = [(sequence, [(sequence * 31 + n * 7) % 250 for n in range(prompt)]) for sequence in range(streams)]
    together = max(1, context.batch_size // prompt)
    newest = [token for first in range(0, streams, together) for token in compute(prompts[first : first + together], 0)]
    read = time.perf_counter()
    for step in range(tokens - 1):
        newest = compute([(sequence, [token]) for sequence, token in enumerate(newest)], prompt + step)
    lib.llama_sampler_free(sampler)
    return [read - began, time.perf_counter() - read]


def main() -> None:
    """Serve loops until standard input ends."""
    fields = json.loads(sys.argv[1])
    setup = Setup(**fields | {"model": Path(fields["model"])})
    log = NativeLog(lambda _level, _text: None)
    loaded = load(str(setup.model), options_of(setup), log, extra_buffers=json.loads(sys.argv[2]))
    print("[]", flush=True)
    for line in sys.stdin:
        streams, prompt, tokens = json.loads(line)
        print(json.dumps(loop(loaded.context, streams, prompt, tokens)), flush=True)
        for sequence in range(streams):
            loaded.context.clear(sequence)


if __name__ == "__main__":
    main()
