"""The mean of some models' weights: of checkpoints near each other it is often better than each of them."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from demo_model.export import export
from demo_model.reading import read_vocabulary, read_weights

_SHAPE = {
    "vocabulary": "vocab_size",
    "width": "embedding_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "hidden": "feed_forward_length",
    "context": "context_length",
    "rope_base": "rope.freq_base",
}


def read_shape(path: Path) -> dict[str, int | float]:
    """The dimensions of a model that `export` has written, by the network's names."""
    fields = gguf.GGUFReader(path).fields
    return {name: fields[f"llama.{key}"].contents() for name, key in _SHAPE.items()}


def average(paths: Sequence[Path], out: Path) -> None:
    """Write the mean of models of one shape and vocabulary; of a single one, the same weights in today's format.

    Raises `ValueError` where they differ.
    """
    first, shape = read_vocabulary(paths[0]), read_shape(paths[0])
    for path in paths[1:]:
        if read_vocabulary(path) != first or read_shape(path) != shape:
            raise ValueError(f"{path} is another model than {paths[0]}")
    weights = [read_weights(path) for path in paths]
    mean: dict[str, npt.NDArray[np.float32]] = {}
    for name in weights[0]:
        mean[name] = np.mean([one[name] for one in weights], axis=0).astype(np.float32)
    export(out, first, shape, mean)
