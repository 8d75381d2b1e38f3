"""Models for engine tests: a tiny one with random weights, made once, and the embedded one."""

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as lib

import make_random_gguf
from cfs_server.engine.host import models
from tests.engine.hub import Hub


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 140,000 random weights that never ends a reply by itself."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights whose state has no parts."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "recurrent.gguf", "recurrent")


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, one layer of which is recurrent and one attention."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "hybrid.gguf", "hybrid")


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, one layer of which sees the last 64 tokens only."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "windowed.gguf", "windowed")


@pytest.fixture(scope="session")
def demo() -> Path:
    """The embedded model."""
    return models.resolve(None).path


@pytest.fixture(scope="session")
def smollm2_q8_0(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """SmolLM2 with its weights in blocks of eight bits."""
    path = tmp_path_factory.mktemp("models") / "smollm2-q8_0.gguf"
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = lib.LLAMA_FTYPE_MOSTLY_Q8_0, True
    assert lib.llama_model_quantize(bytes(smollm2), bytes(path), ctypes.byref(params)) == 0
    return path


@pytest.fixture
def base(tmp_path: Path, tiny: Path) -> Path:
    """A model without a chat template."""
    path = tmp_path / "base.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatE"))
    return path


@pytest.fixture
def hub(tiny: Path) -> Iterator[Hub]:
    """A stand-in of the hub. Its file begins as a model does."""
    with Hub.serving(tiny.read_bytes() + random.Random(1).randbytes(3 << 20)) as server:
        yield server
