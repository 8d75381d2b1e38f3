"""What the grammar of calls costs a token, in a vocabulary as large as those of present models.

    scripts/bench call_grammar [--vocabulary 151936] [--tools 1,5,20]

Random logits choose the tokens: text first, then the arguments of a call. `sample` is the whole choice of a token, with
the sampler's own work, with and without tools.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import make_random_gguf
from cfs.wire import Settings
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load_weights
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.candidates import Candidates
from cfs_server.engine.worker.grammar import Constraint, Grammars
from cfs_server.engine.worker.sampling import Sampler

TOKENS = 300
OPENING = '<tool_call>{"name": "tool_0", "arguments": {"text": "'


def tools(count: int) -> list[dict[str, Any]]:
    """Describe so many tools."""
    properties = {"text": {"type": "string"}, "count": {"type": "integer"}, "mode": {"enum": ["a", "b"]}, "more": {}}
    schema = {"type": "object", "properties": properties, "required": ["text"]}
    return [{"type": "function", "function": {"name": f"tool_{n}", "parameters": schema}} for n in range(count)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Run something and say how many seconds it took."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def shown(times: list[float]) -> str:
    """Write median and 99th percentile in microseconds."""
    median, high = np.percentile(np.array(times) * 1e6, [50, 99])
    return f"{median:7.0f} us (p99 {high:.0f})"


def run(vocabulary: Vocabulary, grammar: Constraint | None, begin: str) -> list[float]:
    """Choose tokens behind a beginning; return what each took."""
    random = np.random.default_rng(1)
    buffer = Candidates(vocabulary.size)
    sampler = Sampler(Settings(seed=1), grammar)
    for token in vocabulary.tokenize(begin, special=False):
        if grammar is not None:
            grammar.accept(int(token))
    times: list[float] = []
    while len(times) < TOKENS:
        logits = random.standard_normal(vocabulary.size).astype(np.float32) * 2
        seconds, token = timed(lambda logits=logits: sampler.sample(logits, buffer))  # type: ignore[misc]
        times.append(seconds)
        if vocabulary.ends(token):
            break
    return times


def main() -> None:
    """Make a vocabulary and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--tools", default="1,5,20")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = replace(make_random_gguf.SHAPES["tiny"], vocabulary=options.vocabulary)
        make_random_gguf.SHAPES["large"] = shape
        path = make_random_gguf.make(Path(folder) / "large.gguf", "large")
        vocabulary = Vocabulary(load_weights(str(path), NativeLog(lambda *_: None), extra_buffers=True))
        grammars = Grammars(vocabulary, print)
        print(f"first use of a vocabulary of {vocabulary.size}: {timed(lambda: grammars.of_calls(tools(1)))[0]:.2f} s")
        print(f"sample without tools        {shown(run(vocabulary, None, ''))}")
        for count in map(int, options.tools.split(",")):
            some = [*tools(count), {"type": "function", "function": {"name": "last"}}]
            seconds, _ = timed(lambda some=some: grammars.of_calls(some))  # type: ignore[misc]
            print(f"{count:3} tools: compiled in {seconds * 1000:.0f} ms")
            for what, begin in (("text", ""), ("call", OPENING)):
                print(f"    sample in a {what}          {shown(run(vocabulary, grammars.of_calls(some), begin))}")


if __name__ == "__main__":
    main()
