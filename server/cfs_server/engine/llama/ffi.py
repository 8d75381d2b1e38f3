"""Bindings to the calls of llama.cpp's C interface that the engine needs, and its log.

NumPy views replace slow loops. Only the engine's thread may use a `LlamaContext`. Sequences are numbers below
`Context.sequences`.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

_MEANT = (
    "possible training context overflow",
    "failed to find a memory slot",
    "using full-size SWA cache",
    "model default pooling_type is",
)
"""Warnings about intended settings.

They are a pool larger than one context, more turns than fit into it, full windows, and vectors that are pooled here.
"""
_NO_FLASH_ATTENTION = "Flash Attention not supported"
_LEVELS = {3: "warning", 4: "error"}


class DecodeResult(Enum):
    """The outcome of a batch; after `ABORTED` and `FAILED` its sequences may hold a part of it."""

    DONE = "done"
    NO_ROOM = "no room"
    ABORTED = "aborted"
    FAILED = "failed"


_OUTCOMES = {0: DecodeResult.DONE, 1: DecodeResult.NO_ROOM, 2: DecodeResult.ABORTED}


class TokenBatch:
    """Tokens of several sequences that are computed together."""

    def __init__(self, capacity: int) -> None:
        self.size = 0
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._outputs = np.zeros(capacity, dtype=np.int8)
        self._pointers = self._sequences.ctypes.data + self._sequences.itemsize * np.arange(capacity, dtype=np.uintp)
        self.raw = lib.llama_batch(
            token=_pointer(self._tokens, ctypes.c_int32),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def clear(self) -> None:
        """Start an empty batch."""
        self.size = 0

    def add(
        self,
        sequence: int,
        tokens: Tokens | Sequence[int],
        position: int,
        *,
        output: bool,
        all_outputs: bool = False,
    ) -> int:
        """Append tokens of one sequence and return the index of the last, whose logits are computed if `output`.

        With `all_outputs` those of the others are, too.
        """
        start, end = self.size, self.size + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(position, position + len(tokens), dtype=np.int32)
        self._sequences[start:end] = sequence
        self._outputs[start:end] = all_outputs
        self._outputs[end - 1] = output
        self.size = self.raw.n_tokens = end
        return end - 1

    def output_all(self) -> None:
        """Request the output of every token."""
        self._outputs[: self.size] = 1

    def add_streams(self, sequences: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Append one token for each of several sequences, all with logits: together they cost as much as one."""
        start, end = self.size, self.size + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = positions
        self._sequences[start:end] = sequences
        self._outputs[start:end] = 1
        self.size = self.raw.n_tokens = end


class AbortFlag:
    """Ends a step that is being computed, from another thread, without Python in the way.

    The library calls a C function with one argument to decide whether to stop. Here it is `strlen` on a buffer of two
    bytes (ENGINE.md): an empty string lets the step continue, a string of length 1 stops it.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self.function = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        """End the step that is being computed."""
        self._buffer[0] = b"\x01"

    def clear(self) -> None:
        """Allow the next step to run."""
        self._buffer[0] = b"\x00"


class LlamaContext:
    """A context with one pool of cells that all sequences share.

    `partial`: a part of a sequence can be dropped and shared. Attention allows this, recurrent state does not. If
    layers have a `window` (in tokens, 0 for none), the library reuses any cell before it that belongs to only one
    sequence, even in a pool with the full window. So each sequence there has a second id, its guard. Its cells also
    belong to the guard, except for the last half of a window. Saved state takes about `cell_bytes` for each token and
    `state_bytes` for each sequence. `tiled`: attention is computed in tiles of tokens (`tiles`).
    """

    def __init__(
        self,
        raw: Any,
        model: Any,
        abort_flag: AbortFlag | None = None,
        *,
        partial: bool = True,
        window: int = 0,
        cell_bytes: int = 0,
        state_bytes: int = 0,
        tiled: bool = False,
    ) -> None:
        self.raw = raw
        self.abort_flag = abort_flag or AbortFlag()
        self.model = model
        self._rows: NDArray[np.float32] | None = None
        self._rows_at = (0, 0, 0)
        self._memory = lib.llama_get_memory(raw)
        self.cells = int(lib.llama_n_ctx(raw))
        self.sequences = int(lib.llama_n_seq_max(raw)) // (2 if window else 1)
        self.batch_size = int(lib.llama_n_batch(raw))
        self.partial = partial
        self.window = window
        self.cell_bytes = cell_bytes
        self.state_bytes = state_bytes
        self.tiled = tiled

    def decode(self, batch: TokenBatch) -> DecodeResult:
        """Compute a batch; logits of its outputs are valid until the next call."""
        self.abort_flag.clear()
        return _OUTCOMES.get(lib.llama_decode(self.raw, batch.raw), DecodeResult.FAILED)

    def truncate(self, sequence: int, length: int) -> bool:
        """Keep the first `length` positions; false when this kind of model cannot drop a part of a sequence."""
        return bool(lib.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def drop(self, sequence: int, start: int, end: int) -> None:
        """Take the positions from `start` to `end` (-1: all that follow) from a sequence; only where `partial`."""
        for number in self._ids(sequence):
            lib.llama_memory_seq_rm(self._memory, number, start, end)

    def share(self, source: int, target: int, start: int = -1, end: int = -1) -> None:
        """Share positions of one sequence with another: no state is copied. A range only if `partial`."""
        for number in self._ids(target):
            lib.llama_memory_seq_cp(self._memory, source, number, start, end)

    def guard(self, sequence: int, start: int, end: int) -> None:
        """Keep positions that were just computed, in pieces of half a window."""
        piece = max(1, self.window // 2)
        if self.window and start // piece != end // piece:
            lib.llama_memory_seq_cp(self._memory, sequence, sequence + self.sequences, start // piece * piece, -1)

    def clear(self, sequence: int) -> None:
        """Free all cells of a sequence."""
        self.drop(sequence, -1, -1)

    def span(self, sequence: int) -> tuple[int, int]:
        """First and last position that the pool holds of a sequence; (-1, -1) when none."""
        first = lib.llama_memory_seq_pos_min(self._memory, sequence)
        return int(first), int(lib.llama_memory_seq_pos_max(self._memory, sequence))

    def save(self, sequence: int) -> NDArray[np.uint8]:
        """Copy the state of a sequence out of the pool."""
        size = int(lib.llama_state_seq_get_size_ext(self.raw, sequence, 0))
        state = np.empty(size, dtype=np.uint8)
        written = int(lib.llama_state_seq_get_data_ext(self.raw, _pointer(state, ctypes.c_uint8), size, sequence, 0))
        return state[:written]

    def restore(self, sequence: int, state: NDArray[np.uint8]) -> bool:
        """Copy a saved state back; false when the pool has no room for it."""
        read = lib.llama_state_seq_set_data_ext(self.raw, _pointer(state, ctypes.c_uint8), len(state), sequence, 0)
        if self.window:
            lib.llama_memory_seq_cp(self._memory, sequence, sequence + self.sequences, -1, -1)
        return bool(read)

    def outputs(self, count: int, size: int) -> NDArray[np.float32]:
        """View the logits of all outputs of a batch, one row each in the batch's order; other threads may read them.

        The library sorts its rows on the first request. So one thread requests them here once.
        """
        place = (ctypes.addressof(lib.llama_get_logits(self.raw).contents), count, size)
        if self._rows is None or self._rows_at != place:  # asking the old view for its address would take 25 µs
            floats = np.ctypeslib.as_array((ctypes.c_float * (count * size)).from_address(place[0]))
            self._rows, self._rows_at = floats.reshape(count, size), place
        return self._rows

    def logits(self, index: int, size: int) -> NDArray[np.float32]:
        """View the logits of a batch's output."""
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self.raw, index), (size,))

    def _ids(self, sequence: int) -> tuple[int, ...]:
        return (sequence, sequence + self.sequences) if self.window else (sequence,)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


class NativeLog:
    """Receives the library's log; keeps the last errors and hands warnings and errors on."""

    _installed: ClassVar[Any] = None  # the library calls it until the process ends, so a reference must stay

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self.errors: list[str] = []
        self.no_flash_attention = False
        self._report = report
        self._lock = threading.Lock()
        self._held: list[tuple[str, str]] | None = None
        NativeLog._installed = lib.llama_log_callback(self._receive)
        lib.llama_log_set(NativeLog._installed, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _data: Any) -> None:
        name = _LEVELS.get(level)
        line = text.decode(errors="replace").strip() if name else ""
        if name is None or not line or any(phrase in line for phrase in _MEANT):
            return
        with self._lock:
            self.no_flash_attention |= _NO_FLASH_ATTENTION in line
            self.errors = [*self.errors[-15:], line] if name == "error" else self.errors
            if self._held is not None:
                self._held.append((name, line))
                return
        self._report(name, line)

    def hold(self) -> None:
        """Hold the library's log lines from now on: a failed step then logs one line."""
        self._held = []

    def take(self, *, failed: bool) -> str:
        """Log the held lines, or return them as one line after a failure."""
        with self._lock:
            held, self._held = self._held or [], None
        if failed:
            return "; ".join(line for _, line in held) or "the library does not say why"
        for name, line in held:
            self._report(name, line)
        return ""
