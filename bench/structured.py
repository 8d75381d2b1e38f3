"""What a JSON schema costs a token, in a vocabulary as large as those of present models.

    scripts/bench structured [--vocabulary 151936] [--replies 20]

Each schema is compiled once. Its replies are written by random logits, as no trained model would: nearly each token is
refused at first and chosen again under the mask. `mask` is the question what may come next, a choice has that and
the sampler's own work. Of the first reply, masks are given apart: it meets what the matcher has not seen yet.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from cfs_server.engine.worker.grammar import Grammars
from cfs_server.engine.worker.sampling import Sampler

TOKENS = 200
_WORD: dict[str, Any] = {"type": "string"}
_PERSON = {
    "type": "object",
    "properties": {
        "name": _WORD,
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 8},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["name", "age", "tags"],
}
SCHEMAS: dict[str, Any] = {
    "any JSON": {},
    "a string": _WORD,
    "a person": _PERSON,
    "a tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"value": _PERSON, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["value", "children"],
            }
        },
        "$ref": "#/$defs/node",
    },
    "1 of 50 calls": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"name": {"const": f"tool_{n}"}, "arguments": _PERSON},
                "required": ["name", "arguments"],
            }
            for n in range(50)
        ]
    },
    "1,000 values": {"enum": [f"value number {n}" for n in range(1000)]},
}


@dataclass(slots=True)
class Times:
    """What the choices of some replies took, in microseconds."""

    sample: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Write median, 99th percentile and the longest mask, and the median of whole choices."""
        median, high = np.percentile(self.mask, [50, 99])
        return f"{median:.0f} | {high:.0f} | {max(self.mask):.0f} | {np.median(self.sample):.0f}"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Run something and say how many microseconds this thread computed for it: other programs cannot lengthen that."""
    began = time.thread_time()
    found = work()
    return (time.thread_time() - began) * 1e6, found


def write(grammars: Grammars, vocabulary: Vocabulary, schema: dict[str, Any], seed: int, times: Times) -> None:
    """Write a reply, and time its tokens."""
    random = np.random.default_rng(seed)
    buffer = Candidates(vocabulary.size)
    constraint = grammars.of_schema(schema)
    assert constraint is not None
    sampler = Sampler(Settings(seed=seed), constraint)
    for _ in range(TOKENS):
        mask, _ = timed(constraint.mask)
        times.mask.append(mask)
        logits = random.standard_normal(vocabulary.size).astype(np.float32) * 2
        took, token = timed(lambda logits=logits: sampler.sample(logits, buffer))  # type: ignore[misc]
        times.sample.append(mask + took)
        if vocabulary.ends(token):
            break
    sampler.free()


def main() -> None:
    """Make a vocabulary and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--replies", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = replace(make_random_gguf.SHAPES["tiny"], vocabulary=options.vocabulary)
        make_random_gguf.SHAPES["large"] = shape
        path = make_random_gguf.make(Path(folder) / "large.gguf", "large")
        vocabulary = Vocabulary(load_weights(str(path), NativeLog(lambda *_: None), extra_buffers=True))
        grammars = Grammars(vocabulary, print)
        first, _ = timed(lambda: grammars.of_schema({"type": "null"}))
        print(f"first use of a vocabulary of {vocabulary.size}: {first / 1e6:.2f} s\n")
        print("| schema | compiled, ms | replies | masks | mask µs: median | p99 | longest | a choice µs |")
        print("|---|--:|---|--:|--:|--:|--:|--:|")
        for name, schema in SCHEMAS.items():
            compiled, _ = timed(lambda schema=schema: grammars.of_schema(schema))  # type: ignore[misc]
            for replies, seeds in (("first", range(1)), ("later", range(1, options.replies + 1))):
                times = Times()
                for seed in seeds:
                    write(grammars, vocabulary, schema, seed, times)
                print(f"| {name} | {compiled / 1000:.1f} | {replies} | {len(times.mask)} | {times.row()} |")


if __name__ == "__main__":
    main()
