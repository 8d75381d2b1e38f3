"""The mean of some models' weights: of checkpoints near each other it is often better than each of them."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from demo_model.export import export
from demo_model.network import Shape
from demo_model.reading import read_vocabulary, read_weights


def _shape(path: Path) -> Shape:
    reader = gguf.GGUFReader(path)

    def number(key: str) -> int:
        field = reader.get_field(f"llama.{key}")
        if field is None:
            raise ValueError(f"{path} does not say its {key}")
        return int(field.contents())

    return Shape(
        vocabulary=number("vocab_size"),
        width=number("embedding_length"),
        layers=number("block_count"),
        heads=number("attention.head_count"),
        hidden=number("feed_forward_length"),
        context=number("context_length"),
    )


def average(paths: Sequence[Path], out: Path) -> None:
    """Write the mean of models of one shape and vocabulary; of a single one, the same weights in today's format.

    Raises `ValueError` where they differ.
    """
    first, shape = read_vocabulary(paths[0]), _shape(paths[0])
    for path in paths[1:]:
        if read_vocabulary(path) != first or _shape(path) != shape:
            raise ValueError(f"{path} is another model than {paths[0]}")
    weights = [read_weights(path) for path in paths]
    mean: dict[str, npt.NDArray[np.float32]] = {}
    for name in weights[0]:
        mean[name] = np.mean([one[name] for one in weights], axis=0).astype(np.float32)
    export(out, first, shape.as_dict(), mean)
