"""What is chosen from given logits: by the settings, whatever the way there."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs.errors import EngineError
from cfs.wire import Settings
from cfs_server.engine.worker import sampling
from cfs_server.engine.worker.candidates import LARGE, Candidates, most_probable, nucleus
from cfs_server.engine.worker.sampling import Sampler, SamplerPool
from tests.census import Census

Logits = NDArray[np.float32]
ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
SIZE = 3 * LARGE


def logits(seed: int, rows: int = 1, size: int = SIZE) -> Logits:
    """Make rows of random logits."""
    return (np.random.default_rng(seed).standard_normal((rows, size)) * 3).astype(np.float32)


def native(row: Logits, samplers: list[Any]) -> tuple[int, set[int]]:
    """Let the library's samplers work on the whole vocabulary: the choice, and the candidates that they left."""
    entries = np.zeros(len(row), dtype=ENTRY)
    entries["id"], entries["logit"] = np.arange(len(row)), row
    pointer = ctypes.cast(entries.ctypes.data, lib.llama_token_data_p)
    array = lib.llama_token_data_array(data=pointer, size=len(row), selected=-1, sorted=False)
    for sampler in samplers:
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        lib.llama_sampler_free(sampler)
    left = set(entries["id"][: array.size].tolist())
    return int(entries["id"][array.selected]) if array.selected >= 0 else -1, left


@pytest.mark.parametrize("size", [300, LARGE - 1, LARGE, SIZE + 7])
@pytest.mark.parametrize("top_k", [1, 40, 200])
def test_a_draw_is_that_of_the_librarys_whole_chain(size: int, top_k: int) -> None:
    """The vocabulary is narrowed to candidates first; the same seed draws the same token as without that."""
    buffer = Candidates(size)
    for seed in range(20):
        row = logits(seed, size=size)[0]
        settings = Settings(seed=seed, top_k=top_k, temperature=1.3)
        sampler = Sampler(settings)
        chain = [
            lib.llama_sampler_init_top_k(top_k),
            lib.llama_sampler_init_top_p(settings.top_p, 1),
            lib.llama_sampler_init_min_p(settings.min_p, 1),
            lib.llama_sampler_init_temp(settings.temperature),
            lib.llama_sampler_init_dist(seed),
        ]
        assert sampler.sample(row, buffer) == native(row, chain)[0]
        sampler.free()


@pytest.mark.parametrize(("top_p", "min_p"), [(0.95, 0.05), (0.5, 0.0), (0.999, 0.0), (0.9, 0.3), (1.0, 0.05)])
def test_without_top_k_the_same_tokens_are_left(top_p: float, min_p: float) -> None:
    """`top_k` 0 means all: `top_p` counts the whole vocabulary's probability, and only then does `min_p` cut."""
    scratch = np.empty(SIZE, dtype=np.float32)
    for seed in range(5):
        row = logits(seed)[0]
        found = nucleus(row, top_p, min_p, scratch)
        assert found is not None
        chain = [lib.llama_sampler_init_top_p(top_p, 1), lib.llama_sampler_init_min_p(min_p, 1)]
        differing = list(set(found.tolist()) ^ native(row, chain)[1])
        shares = np.exp(row.astype(np.float64) - row.max())
        assert shares[differing].sum() / shares.sum() < 1e-4  # the library adds up in single precision


def test_without_any_limit_all_tokens_are_left() -> None:
    """Then the whole vocabulary is drawn from."""
    assert nucleus(logits(1)[0], 1.0, 0.0, np.empty(SIZE, dtype=np.float32)) is None


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(LARGE, LARGE + 200), st.integers(1, 50))
def test_the_most_probable_are_found(seed: int, count: int, size: int, values: int) -> None:
    """All of them and no other, also when many are equally probable."""
    row = np.random.default_rng(seed).integers(0, values**2, size).astype(np.float32)
    found = most_probable(row, count)
    if found is None:
        assert count >= size // 64
        return
    least = np.sort(row)[-count]
    assert len(found) >= count
    assert set(np.flatnonzero(row > least).tolist()) <= set(found.tolist())
    assert len(set(found.tolist())) == len(found)


def test_no_temperature_takes_the_most_probable_token() -> None:
    """Of equal ones the first, as the library's greedy sampler does."""
    row = logits(3)[0]
    row[[70, 700, 7000]] = 99
    sampler = Sampler(Settings(temperature=0))
    assert sampler.sample(row, Candidates(SIZE)) == 70 == native(row, [lib.llama_sampler_init_greedy()])[0]


@pytest.mark.parametrize("changes", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"temperature": 0}])
def test_threads_change_no_token(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """The pool chooses for 16 turns what one thread chooses, step after step, and leaves no thread behind."""
    chosen = []
    before = Census.now()
    for pays_from in (10**12, 0):
        monkeypatch.setattr(sampling, "PAYS_FROM", pays_from)
        pool = SamplerPool(SIZE, 3)
        samplers = [Sampler(Settings(seed=seed, **changes)) for seed in range(16)]
        chosen.append([pool.choose(samplers, logits(step, 16)) for step in range(10)])
        assert len(before.added()) == (2 if pays_from == 0 else 0)
        pool.close()
        for sampler in samplers:
            sampler.free()
    assert chosen[0] == chosen[1]
    assert before.added() == []


@pytest.mark.parametrize("size", [300, LARGE - 1, SIZE])
def test_turns_of_one_step_get_what_each_would_get_alone(size: int) -> None:
    """They use one buffer after the other; settings may differ, and logits may be equal."""
    settings = [Settings(seed=seed, top_k=seed % 5 * 20, temperature=seed % 3, top_p=1) for seed in range(13)]
    rows = logits(9, len(settings), size).round()
    together = SamplerPool(size, 1).choose([Sampler(each) for each in settings], rows)
    alone = [Sampler(each).sample(row, Candidates(size)) for each, row in zip(settings, rows, strict=True)]
    ranks = [np.sort(row)[::-1] for row in rows]
    for each, row, token, other, rank in zip(settings, rows, together, alone, ranks, strict=True):
        assert isinstance(token, int)
        assert row[token] == row[other]  # of equal ones the library's sort takes any
        assert row[token] >= rank[0 if each.temperature == 0 else (each.top_k or size) - 1]


def test_threads_are_started_for_large_work_only() -> None:
    """A few candidates of each vocabulary, or a small vocabulary, are chosen from on the caller's thread."""
    before = Census.now()
    for size, changes in ((SIZE, {}), (2048, {"top_k": 0})):
        pool = SamplerPool(size, 4)
        pool.choose([Sampler(Settings(**changes)) for _ in range(16)], logits(0, 16, size))
        assert before.added() == []
        pool.close()


class Broken(Sampler):
    """A sampler for which there is no token."""

    def sample(self, _logits: Logits, _buffer: Candidates) -> int:
        """Fail."""
        raise EngineError("none")


def test_one_turn_without_a_token_fails_alone() -> None:
    """The others get theirs."""
    samplers = [Sampler(Settings(temperature=0)), Broken(Settings()), Sampler(Settings(temperature=0))]
    rows = logits(0, 3)
    choices = SamplerPool(SIZE, 1).choose(samplers, rows)
    assert choices[0::2] == rows.argmax(axis=1)[0::2].tolist()
    assert isinstance(choices[1], EngineError)
