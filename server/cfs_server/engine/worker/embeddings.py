"""Embeddings: requests are prepared outside of the engine's thread, and computed in small steps between those of turns.

Short texts of several requests are computed together. A long text is computed alone, in pieces if the model can, so
that turns wait for at most one small step. Owners and their accounts have fair shares of these steps.
"""

import base64
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import CfsError, ContextTooLong, EngineError, TokenRefused
from cfs_server.engine.contract.fair_queue import FairQueue
from cfs_server.engine.contract.fairness import Fairness, Path
from cfs_server.engine.contract.protocol import Embed, Embedded, StopEmbedding, WorkerOptions
from cfs_server.engine.llama.cost_model import TILE, StepCost
from cfs_server.engine.llama.embedding import EmbeddingContext, TextPooling, Vector, normalized
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.model import LoadedEncoder, LoadedModel
from cfs_server.engine.llama.tokenizer import Vocabulary

BESIDE_TURNS = TILE
"""Most tokens of a step while turns are running: as few as a step of others reads at least."""
WHOLE_TOKENS, PIECE_TOKENS = 512, 128
"""Most tokens of a step else. Models that make texts compute logits for each token, which take much memory."""
SEQUENCES = 16
"""Texts that are computed together at most."""
_LOOKED_AT = 256
"""Waiting texts that are looked at for a step: thousands of long ones do not hold up the turns."""


@dataclass(eq=False, slots=True)
class EmbeddingJob:
    """The texts of one request, as tokens, and the vectors so far."""

    number: int
    share: Path
    texts: list[Tokens]
    vectors: dict[int, str] = field(default_factory=dict)

    def answer(self) -> Embedded:
        """Return the answer when all vectors are there."""
        vectors = [self.vectors[index] for index in range(len(self.texts))]
        return Embedded(self.number, vectors, sum(map(len, self.texts)))


class EmbeddingPreparer:
    """Cuts the texts of requests into tokens (`run_forever`)."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        context_tokens: int,
        deliver: Callable[[EmbeddingJob | StopEmbedding], None],
        send: Callable[[Embedded], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._deliver = deliver
        self._send = send
        self._ends = {lib.llama_vocab_eos(vocabulary.raw), lib.llama_vocab_sep(vocabulary.raw)}
        self._commands: queue.SimpleQueue[Embed | StopEmbedding] = queue.SimpleQueue()

    def put(self, command: Embed | StopEmbedding) -> None:
        """Add a request or its cancellation from the connection's thread."""
        self._commands.put(command)

    def run_forever(self) -> None:
        """Prepare requests in their order."""
        while True:
            self.step()

    def step(self) -> None:
        """Wait for a command, prepare it, and hand it on."""
        command = self._commands.get()
        if isinstance(command, StopEmbedding):
            return self._deliver(command)
        try:
            texts = [self._tokens(text, truncate=command.truncate) for text in command.inputs]
        except CfsError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - one bad request must not end the worker
            failure = EngineError(f"{type(error).__name__}: {error}")
        else:
            return self._deliver(EmbeddingJob(command.number, (command.owner, "agent", command.account), texts))
        return self._send(Embedded(command.number, kind=type(failure).__name__, error=failure.detail))

    def _tokens(self, text: str | list[int], *, truncate: bool) -> Tokens:
        limit = self._context_tokens
        if isinstance(text, str):
            characters = limit * self._vocabulary.longest
            if len(text) > characters and not truncate:
                raise ContextTooLong(f"a text has {len(text)} characters; the model's context holds {limit} tokens")
            tokens = self._vocabulary.tokenize(text[:characters], special=False, framed=True)
        else:
            if wrong := [token for token in text if not 0 <= token < self._vocabulary.size]:
                raise TokenRefused(f"the model has no token {wrong[0]}: its numbers end at {self._vocabulary.size - 1}")
            tokens = np.array(text, dtype=np.int32)
        if not len(tokens):
            raise EngineError("a text without tokens has no embedding")
        if len(tokens) <= limit:
            return tokens
        if not truncate:
            raise ContextTooLong(f"a text takes {len(tokens)} tokens; the model's context holds {limit}")
        end = tokens[-1:] if int(tokens[-1]) in self._ends else tokens[:0]
        return np.concatenate([tokens[: limit - len(end)], end])


@dataclass(frozen=True, slots=True)
class _JobText:
    job: EmbeddingJob
    index: int

    @property
    def tokens(self) -> Tokens:
        return self.job.texts[self.index]


@dataclass(eq=False, slots=True)
class _LongText:
    """A text that is computed alone, and how far it is."""

    text: _JobText
    context: EmbeddingContext
    pool: TextPooling
    computed: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingStep:
    """What is computed next: short texts together, or so many tokens of one text that is longer."""

    texts: list[_JobText]
    tokens: int
    is_piece: bool


class EmbeddingRunner:
    """Computes the waiting texts, step by step, on the engine's thread."""

    def __init__(self, model: "LoadedModel | LoadedEncoder") -> None:
        self.cost = StepCost()
        self._model = model.raw
        self._options: WorkerOptions = model.options
        self._pooling = model.pooling
        self._capacity = WHOLE_TOKENS if model.pooling and model.pooling.whole else PIECE_TOKENS
        self._fairness = Fairness()
        self._jobs: dict[int, EmbeddingJob] = {}
        self._waiting: FairQueue[_JobText] = FairQueue(self._fairness)
        self._long: _LongText | None = None
        self._short: EmbeddingContext | None = None

    @property
    def waiting(self) -> int:
        """The number of texts that are not computed yet."""
        return len(self._waiting) + (self._long is not None)

    def add(self, job: EmbeddingJob) -> None:
        """Add a request."""
        self._jobs[job.number] = job
        self._fairness.join(job.share)
        for index in range(len(job.texts)):
            self._waiting.add(_JobText(job, index), job.share)

    def stop(self, number: int) -> list[Embedded]:
        """Drop a request whose client has left, if it is still here."""
        job = self._jobs.get(number)
        return [] if job is None else [self._failed(job, EngineError("its client has left"))]

    def next_step(self, *, beside_turns: bool) -> EmbeddingStep | None:
        """Choose what is computed next; None when there is nothing."""
        limit = min(self._capacity, BESIDE_TURNS) if beside_turns else self._capacity
        long, order = self._long, islice(self._waiting.in_order(), _LOOKED_AT)
        if long is not None:
            first = next((text for text in order if len(text.tokens) <= limit), None)  # one long text at a time
            if first is None or self._rank(long.text) <= self._rank(first):
                return self._piece(long.text, long.computed, limit)
        elif (first := next(order, None)) is None:
            return None
        elif len(first.tokens) > limit:
            return self._piece(first, 0, limit)
        batch: list[_JobText] = []
        left = limit
        for text in chain((first,), order):
            if len(text.tokens) <= left:
                batch.append(text)
                left -= len(text.tokens)
            if len(batch) == SEQUENCES or not left:
                break
        return EmbeddingStep(batch, limit - left, is_piece=False)

    def compute(self, step: EmbeddingStep) -> list[Embedded]:
        """Compute a step, and return the answers that are complete."""
        began = time.perf_counter()
        try:
            vectors = self._advance(step) if step.is_piece else self._together(step)
        except EngineError as error:
            return [self._failed(job, error) for job in dict.fromkeys(text.job for text in step.texts)]
        seconds = time.perf_counter() - began
        self.cost.saw(step.tokens, seconds)
        for text in step.texts:
            share = 1 if step.is_piece else len(text.tokens) / step.tokens
            self._fairness.charge(text.job.share, seconds * share)
        for text, vector in zip(step.texts, vectors, strict=False):
            text.job.vectors[text.index] = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        jobs = dict.fromkeys(text.job for text in step.texts)
        return [self._ended(job).answer() for job in jobs if len(job.vectors) == len(job.texts)]

    def close(self) -> None:
        """Free all contexts."""
        self._drop_long()
        if self._short is not None:
            self._short.free()
            self._short = None

    def check_integrity(self) -> list[str]:
        """Compare the records with each other; every line is a violation."""
        return self._fairness.check_integrity([job.share for job in self._jobs.values()])

    def _rank(self, text: _JobText) -> tuple[float, ...]:
        return self._fairness.rank(text.job.share)

    def _piece(self, text: _JobText, computed: int, limit: int) -> EmbeddingStep:
        left = len(text.tokens) - computed
        whole = self._pooling is not None and self._pooling.whole
        return EmbeddingStep([text], left if whole else min(left, limit), is_piece=True)

    def _together(self, step: EmbeddingStep) -> list[Vector]:
        if self._short is None:
            self._short = self._context(self._capacity, self._capacity, SEQUENCES)
        vectors = self._short.vectors([text.tokens for text in step.texts])
        for text in step.texts:
            self._waiting.remove(text)
        return vectors

    def _advance(self, step: EmbeddingStep) -> list[Vector]:
        """Compute the next piece of a long text; its vector after the last one."""
        text = step.texts[0]
        if self._long is None:
            batch = max(step.tokens, self._capacity)
            context = self._context(len(text.tokens), batch, 1)
            self._waiting.remove(text)
            self._long = _LongText(text, context, TextPooling(self._pooling.name if self._pooling else ""))
        long = self._long
        if step.tokens == len(text.tokens):
            vectors = long.context.vectors([text.tokens])
        else:
            end = long.computed + step.tokens
            long.context.add(long.pool, text.tokens[long.computed : end], long.computed)
            long.computed = end
            if end < len(text.tokens):
                return []
            vectors = [normalized(long.pool.vector())]
        self._drop_long()
        return vectors

    def _context(self, tokens: int, batch: int, sequences: int) -> EmbeddingContext:
        if self._pooling is None:
            raise EngineError("the model makes no embeddings")
        options = self._options
        return EmbeddingContext(
            self._model,
            self._pooling,
            tokens=max(tokens, batch),
            batch=batch,
            sequences=sequences,
            threads=options.threads,
            flash=options.flash_attention,
        )

    def _drop_long(self) -> None:
        if self._long is not None:
            self._long.context.free()
            self._long = None

    def _failed(self, job: EmbeddingJob, error: EngineError) -> Embedded:
        if self._long is not None and self._long.text.job is job:
            self._drop_long()
        for text in (_JobText(job, index) for index in range(len(job.texts))):
            if text in self._waiting:
                self._waiting.remove(text)
        self._ended(job)
        return Embedded(job.number, kind=type(error).__name__, error=error.detail)

    def _ended(self, job: EmbeddingJob) -> EmbeddingJob:
        self._fairness.leave(job.share)
        return self._jobs.pop(job.number)
