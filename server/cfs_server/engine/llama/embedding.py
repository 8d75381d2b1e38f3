"""Makes vectors of tokens with a loaded model, in contexts of their own.

A text is one sequence. Where tokens only look back, it can be computed in pieces, and the vectors of its tokens are
pooled here. A model that attends in both directions needs the whole text in one step; the library pools its vectors.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs.errors import EngineError
from cfs_server.engine.llama.ffi import DecodeResult, LlamaContext, TokenBatch, Tokens

Vector = NDArray[np.float32]
_MOST_TEXT = 128


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a model makes one vector of those of a text's tokens: `mean`, `cls` (the first) or `last`.

    `whole`: each token attends to all others, so that a text is computed in one step, and the model makes no texts.
    """

    name: str
    whole: bool

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """Read the metadata of a model, loaded with or without its weights; None if it makes no embeddings."""
        architecture = _metadata(model, "general.architecture")
        number = _metadata(model, f"{architecture}.pooling_type")
        name = _NAMES.get(int(number)) if number.isdigit() else None
        return None if name is None else cls(name, attends_both_ways(model))


_NAMES = {lib.LLAMA_POOLING_TYPE_MEAN: "mean", lib.LLAMA_POOLING_TYPE_CLS: "cls", lib.LLAMA_POOLING_TYPE_LAST: "last"}
"""A model of another type, such as one that ranks texts, makes no vectors that could be compared."""


def attends_both_ways(model: Any) -> bool:
    """Whether tokens attend to those behind them, too, so that the model makes no texts."""
    return _metadata(model, f"{_metadata(model, 'general.architecture')}.attention.causal") == "false"


def _metadata(model: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(_MOST_TEXT)
    size = int(lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer)))
    return buffer.value.decode(errors="replace") if size >= 0 else ""


class TextPooling:
    """Pools the vectors of a text's tokens, which arrive in pieces."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling
        self._count = 0
        self._sum: NDArray[np.float64] | None = None

    def add(self, rows: Vector) -> None:
        """Add the vectors of the next tokens, a row each."""
        if self._pooling == "mean":
            total = rows.sum(axis=0, dtype=np.float64)
            self._sum = total if self._sum is None else self._sum + total
        elif self._pooling == "last" or self._sum is None:
            self._sum = rows[-1 if self._pooling == "last" else 0].astype(np.float64)
        self._count += len(rows)

    def vector(self) -> NDArray[np.float64]:
        """Return the vector of the text so far."""
        if self._sum is None:
            raise EngineError("a text without tokens has no embedding")
        return self._sum / self._count if self._pooling == "mean" else self._sum


def normalized(vector: NDArray[Any]) -> Vector:
    """Return a vector of length 1 in the same direction."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length if length else vector).astype(np.float32)


class EmbeddingContext:
    """A context for some sequences at a time; raises `EngineError` if there is no memory for it."""

    def __init__(
        self, model: Any, pooling: Pooling, *, tokens: int, batch: int, sequences: int, threads: int, flash: bool
    ) -> None:
        """Take the number of tokens that all sequences have together, and that a batch has."""
        params = lib.llama_context_default_params()
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.kv_unified = params.swa_full = params.no_perf = params.embeddings = True
        params.pooling_type = lib.LLAMA_POOLING_TYPE_UNSPECIFIED if pooling.whole else lib.LLAMA_POOLING_TYPE_NONE
        raw = lib.llama_init_from_model(model, params)
        if not raw:
            raise EngineError("there is no memory for the embedding of a text of this length")
        self._context = LlamaContext(raw, model)
        self._pooling = pooling
        self._batch = TokenBatch(batch)
        self._size = int(lib.llama_model_n_embd_out(model))

    def vectors(self, texts: Sequence[Tokens]) -> list[Vector]:
        """Compute whole texts together."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context.raw), False)
        rows = self._rows([(text, 0) for text in texts])
        vectors, start = [], 0
        for number, text in enumerate(texts):
            if self._pooling.whole:
                vector = np.ctypeslib.as_array(lib.llama_get_embeddings_seq(self._context.raw, number), (self._size,))
            else:
                pool = TextPooling(self._pooling.name)
                pool.add(rows[start : start + len(text)])
                vector = pool.vector()
            vectors.append(normalized(vector))
            start += len(text)
        return vectors

    def add(self, pool: TextPooling, tokens: Tokens, position: int) -> None:
        """Compute the next piece of one text."""
        pool.add(self._rows([(tokens, position)]))

    def free(self) -> None:
        """Release the context."""
        lib.llama_free(self._context.raw)

    def _rows(self, pieces: Sequence[tuple[Tokens, int]]) -> Vector:
        """Compute a piece of each sequence, and view the vectors of all their tokens."""
        self._batch.clear()
        for number, (tokens, position) in enumerate(pieces):
            self._batch.add(number, tokens, position, output=True)
        self._batch.output_all()
        if self._context.decode(self._batch) is not DecodeResult.DONE:
            raise EngineError("the model could not compute this step")
        if self._pooling.whole:
            return np.empty((0, self._size), dtype=np.float32)
        return np.ctypeslib.as_array(lib.llama_get_embeddings(self._context.raw), (self._batch.size, self._size))
