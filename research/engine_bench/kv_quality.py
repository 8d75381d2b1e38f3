"""What quantised keys and values cost in quality: perplexity, and how often greedy tokens stay the same.

    python research/engine_bench/kv_quality.py [MODEL.gguf ...]

Without a model it takes the embedded one. The text is this repository's documentation, in windows that are computed
from an empty context. `same token`: the most probable next token is that of f16, at each position of the text. `same
reply`: how many of the first 32 tokens of a greedy reply are those of f16, until the first that differs. Rows of
`bytes` are those of a token in the pool, in memory and on disk.
"""

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs_server.engine.contract.interface import KvType
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host import models
from cfs_server.engine.llama.ffi import DecodeResult, NativeLog, TokenBatch, Tokens
from cfs_server.engine.llama.model import LoadedModel, load

WINDOW, WINDOWS = 256, 4
PROMPT, REPLY = 64, 32
DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("sessions.md", "engine.md", "agents.md", "access.md")


@contextmanager
def loaded(path: Path, kv_type: KvType) -> Iterator[LoadedModel]:
    """Load a model with keys and values of a type, for the block."""
    options = WorkerOptions(parallel=1, threads=1, pool_tokens=2 * WINDOW, step_tokens=WINDOW, kv_type=kv_type)
    model = load(str(path), options, NativeLog(lambda _level, _text: None), extra_buffers=False)
    try:
        yield model
    finally:
        lib.llama_free(model.context.raw)
        lib.llama_model_free(model.raw)


def logits_of(model: LoadedModel, tokens: Tokens, start: int = 0) -> NDArray[np.float32]:
    """Compute tokens that follow those of the context; returns a row of logits for each."""
    batch = TokenBatch(len(tokens))
    batch.add_streams([0] * len(tokens), tokens.tolist(), list(range(start, start + len(tokens))))
    if model.context.decode(batch) is not DecodeResult.DONE:
        raise SystemExit("the model cannot compute")
    return model.context.outputs(len(tokens), model.vocabulary.size)


def losses(rows: NDArray[np.float32], following: Tokens) -> NDArray[np.float64]:
    """Return the negative logarithm of the probability of each following token."""
    wide = rows.astype(np.float64)
    top = wide.max(axis=1)
    total = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    found: NDArray[np.float64] = total - wide[np.arange(len(following)), following]
    return found


def read(model: LoadedModel, windows: Sequence[Tokens]) -> tuple[float, NDArray[np.int64]]:
    """Return the perplexity of the windows, and the most probable token behind each position."""
    found, best = [], []
    for window in windows:
        rows = logits_of(model, window)
        found.append(losses(rows[:-1], window[1:]))
        best.append(rows.argmax(axis=1))
        model.context.clear(0)
    return math.exp(np.concatenate(found).mean()), np.concatenate(best)


def reply(model: LoadedModel, prompt: Tokens) -> list[int]:
    """Continue a prompt greedily."""
    rows, tokens = logits_of(model, prompt), []
    for position in range(len(prompt), len(prompt) + REPLY):
        tokens.append(int(rows[-1].argmax()))
        rows = logits_of(model, np.array(tokens[-1:], dtype=np.int32), position)
    model.context.clear(0)
    return tokens


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))


def measure(path: Path) -> Iterator[str]:
    """Yield the rows of a model."""
    measures: dict[KvType, tuple[NDArray[np.int64], list[list[int]]]] = {}
    for kv_type in get_args(KvType):
        with loaded(path, kv_type) as model:
            text = "\n".join((DOCS / page).read_text(encoding="utf-8")[: 8 * WINDOW] for page in PAGES)
            tokens = model.vocabulary.tokenize(text, special=False)
            windows = [tokens[at : at + WINDOW] for at in range(0, len(tokens) - WINDOW, WINDOW)][:WINDOWS]
            perplexity, best = read(model, windows)
            replies = [reply(model, window[:PROMPT]) for window in windows]
            size = model.context.cell_bytes
        measures[kv_type] = best, replies
        usual, expected = measures["f16"]
        same = float((best == usual).mean())
        common = sum(map(agreement, replies, expected)) / (REPLY * len(replies))
        yield f"| {path.stem} | {kv_type} | {size:,} | {perplexity:.3f} | {same:.1%} | {common:.0%} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    print("| model | type | bytes | perplexity | same token | same reply |\n|---|---|--:|--:|--:|--:|")
    for path in parser.parse_args().models or [models.resolve(None).path]:
        for row in measure(path):
            print(row, flush=True)


if __name__ == "__main__":
    main()
