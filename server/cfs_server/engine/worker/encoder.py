"""The engine's thread for a model that makes embeddings only: it has no turns."""

import queue
from collections.abc import Callable

from cfs_server.engine.contract.protocol import Alive, AskStats, Counters, FromWorker, Ping, Stats, StopEmbedding
from cfs_server.engine.llama.model import LoadedEncoder
from cfs_server.engine.worker.embeddings import EmbeddingJob, EmbeddingRunner
from cfs_server.engine.worker.step_clock import announcement


class EncoderLoop:
    """Computes embeddings. `inbox` takes work from other threads; `send` is called with frames for the server."""

    def __init__(self, model: LoadedEncoder, send: Callable[[FromWorker], None]) -> None:
        self.inbox: queue.SimpleQueue[EmbeddingJob | StopEmbedding | AskStats | Ping] = queue.SimpleQueue()
        self._send = send
        self._runner = EmbeddingRunner(model)
        self._steps = self._tokens = 0

    def run_forever(self) -> None:
        """Serve. While there is nothing to compute, this blocks and costs nothing."""
        while True:
            self.step()

    def step(self) -> None:
        """Take the work that has arrived, or wait for some, and compute a step."""
        while not self.inbox.empty() or not self._runner.waiting:
            self._take(self.inbox.get())
        if (step := self._runner.next_step(beside_turns=False)) is None:
            return
        if (long := announcement(self._runner.cost.seconds(step.tokens))) is not None:
            self._send(long)
        for answer in self._runner.compute(step):
            self._send(answer)
        self._steps += 1
        self._tokens += step.tokens

    def close(self) -> None:
        """Free all contexts."""
        self._runner.close()

    def _take(self, work: EmbeddingJob | StopEmbedding | AskStats | Ping) -> None:
        match work:
            case EmbeddingJob():
                self._runner.add(work)
            case StopEmbedding(number):
                for answer in self._runner.stop(number):
                    self._send(answer)
            case AskStats(number, check):
                self._send(self._stats(number, self._runner.check_integrity() if check else []))
            case Ping():
                self._send(Alive())

    def _stats(self, number: int, violations: list[str]) -> Stats:
        waiting = self._runner.waiting
        return Stats(
            number=number,
            counters=Counters(self._steps, self._tokens),
            running=0,
            waiting=0,
            sequences_resident=0,
            sequences_parked=0,
            cells_used=0,
            gauges={"embedding_texts_waiting": float(waiting)},
            violations=violations,
        )
