"""A trained network read back from its GGUF file, so that training can go on where a shipped model is."""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from demo_model.export import LAYER_NAMES
from demo_model.tokenizer import Vocabulary

_PARTS = {name: part for part, name in LAYER_NAMES.items()}


def _weight_name(tensor: str) -> str:
    if tensor == "token_embd.weight":
        return "embedding"
    if tensor == "output_norm.weight":
        return "norm"
    _, index, part, _ = tensor.split(".")
    return f"layers.{index}.{_PARTS[part]}"


def read_weights(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The weights of a model that `export` has written, by the network's names."""
    tensors = gguf.GGUFReader(path).tensors
    return {_weight_name(tensor.name): tensor.data.astype(np.float32) for tensor in tensors}


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a model that `export` has written."""
    reader = gguf.GGUFReader(path)
    tokens, merges = (reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    pairs = [merge.split(" ") for merge in merges]
    return Vocabulary(list(tokens), [(first, second) for first, second in pairs])
