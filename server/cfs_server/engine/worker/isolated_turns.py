"""Isolated turns: the same seed gives the same text under any load.

A floating-point sum depends on the order of its terms. Here the order depends on the other turns in a batch, on the
pieces of the prompt, and on the cells of other sequences (docs/engine.md has measurements). So such a turn has its
own context, created for it and freed after it. It shares no batch, uses fixed pieces and cells, and reuses no earlier
state. Its steps alternate with those of all other turns, which wait for at most one small step.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import EngineError
from cfs_server.engine.llama.cost_model import TILE
from cfs_server.engine.llama.ffi import DecodeResult, LlamaContext, TokenBatch
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.llama.model_plan import set_kv_type
from cfs_server.engine.worker.generation import Generation
from cfs_server.engine.worker.sampling import Choice, SamplerPool

PIECE = TILE
"""Tokens of a prompt that are read in one step: as few as a step of others reads at least."""


STEP_FAILED = "the model could not compute this step"


MOST = 2
"""Turns that have a context of their own at a time; each takes memory for its whole length."""


@dataclass(frozen=True, slots=True)
class IsolatedStep:
    """One step of one turn: the tokens computed, how many of them of its prompt, and its next token if there is one."""

    turn: Generation
    tokens: int
    prompt: int
    choice: Choice | None
    failed: bool = False


class _Own:
    """One turn's context. Prompt and reply are computed in the same pieces whenever this begins anew."""

    def __init__(self, model: LoadedModel, turn: Generation) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = len(turn.log) + turn.max_tokens - turn.completion_tokens
        params.n_batch = params.n_ubatch = PIECE
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = model.options.threads
        set_kv_type(params, model.options)
        params.swa_full = params.no_perf = True
        raw = lib.llama_init_from_model(model.raw, params)
        if not raw:
            raise EngineError("there is no memory for a context of this turn's own")
        self.turn = turn
        self.computed = 0
        self.context = LlamaContext(raw, model.raw)
        self._batch = TokenBatch(PIECE)

    def next_size(self) -> int:
        """Tokens of the next step: pieces of the prompt, then the reply token by token."""
        left = self.turn.prompt_tokens - self.computed
        return min(left, PIECE) if left > 0 else 1

    def decode(self, count: int) -> DecodeResult:
        """Compute the next tokens; the last of them has logits."""
        end = self.computed + count
        self._batch.clear()
        self._batch.add(0, np.array(self.turn.log[self.computed : end], dtype=np.int32), self.computed, output=True)
        self.computed = end
        return self.context.decode(self._batch)

    def free(self) -> None:
        """Release the context."""
        lib.llama_free(self.context.raw)


class DeterministicRunner:
    """The turns that have a context of their own; they take steps one after the other."""

    def __init__(self, model: LoadedModel, samplers: SamplerPool) -> None:
        self._model = model
        self._samplers = samplers
        self._turns: deque[_Own] = deque()

    @property
    def turns(self) -> list[Generation]:
        """The present turns."""
        return [own.turn for own in self._turns]

    def next_size(self) -> int:
        """Tokens of the next step; 0 without turns."""
        return self._turns[0].next_size() if self._turns else 0

    @property
    def full(self) -> bool:
        """Whether no other turn can start."""
        return len(self._turns) >= MOST

    def begin(self, turn: Generation) -> None:
        """Make a context for a turn; raises `EngineError`."""
        self._turns.append(_Own(self._model, turn))

    def step(self) -> IsolatedStep | None:
        """Continue the turn that waited longest."""
        if not self._turns:
            return None
        isolated = self._turns.popleft()
        self._turns.append(isolated)
        turn, count = isolated.turn, isolated.next_size()
        prompt = count if isolated.computed < turn.prompt_tokens else 0
        if isolated.decode(count) is not DecodeResult.DONE:
            return IsolatedStep(turn, count, prompt, EngineError(STEP_FAILED), failed=True)
        if isolated.computed < len(turn.log):
            return IsolatedStep(turn, count, prompt, None)
        rows = isolated.context.outputs(1, self._model.vocabulary.size)
        return IsolatedStep(turn, count, prompt, self._samplers.choose([turn.sampler], rows)[0])

    def remove(self, turn: Generation) -> None:
        """Free the context of a turn, if it has one here."""
        for isolated in [isolated for isolated in self._turns if isolated.turn is turn]:
            self._turns.remove(isolated)
            isolated.free()

    def close(self) -> None:
        """Free all contexts."""
        for turn in self.turns:
            self.remove(turn)
