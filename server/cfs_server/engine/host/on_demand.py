"""A model of this machine whose worker process runs while there are turns for it, and for a while after.

The first turn starts the worker and waits for it. A worker without turns ends after some time, or when another model
needs its place: all models that are loaded fit into a `MemoryBudget`. The workers are separate processes, so one that
crashes does not affect the others.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog

from cfs.errors import EngineError, Unsupported
from cfs.wire import Message, Usage
from cfs_server.base.broadcast import Broadcast
from cfs_server.engine.contract.interface import (
    COUNTERS,
    TOO_LONG,
    Delta,
    EmbeddingRequest,
    Embeddings,
    EngineStats,
    EngineTokenCounts,
    Finished,
    GenerationRequest,
    Hint,
    Kind,
    ModelInfo,
    ModelLoadError,
    delayed,
)
from cfs_server.engine.host import models
from cfs_server.engine.host.embeddings import NO_EMBEDDINGS
from cfs_server.engine.host.memory_budget import MemoryBudget
from cfs_server.engine.host.process import in_thread
from cfs_server.engine.host.supervisor import LlamaEngine, log_download
from cfs_server.engine.host.token_log_store import TokenLogStore
from cfs_server.engine.llama import probe

IDLE_SECONDS = 300.0
"""A worker without turns ends after this time, unless its model says otherwise."""
_log = structlog.get_logger(__name__)


class OnDemandEngine:
    """Runs a GGUF model in a worker process that is started when it is needed."""

    def __init__(
        self,
        name: str,
        make: Callable[[TokenLogStore], LlamaEngine],
        budget: MemoryBudget,
        *,
        spec: str | None,
        models_folder: Path | None = None,
        context_tokens: int = 0,
        idle: float = IDLE_SECONDS,
    ) -> None:
        """Take what makes the engine of a worker. `spec` and its folder are as `models.resolve` takes them.

        `context_tokens` is the limit that the engine has, if any. After `idle` seconds without turns the worker ends; 0
        is never.
        """
        self.size = 0
        self.used_at = 0.0
        self._name = name
        self._make = make
        self._budget = budget
        self._spec = spec
        self._models_folder = models_folder
        self._limit = context_tokens
        self._idle = idle
        self._info = ModelInfo(name, 0, has_chat_template=False, loaded=False)
        self._engine: LlamaEngine | None = None
        self._ending: LlamaEngine | None = None
        """The last one, until its counters are among those of the past."""
        self._task: asyncio.Task[None] | None = None
        self._loading = self._leaving = self._stopped = False
        self._users = 0
        self._waiting: list[LlamaEngine | None] = []
        """For each turn that waits, the worker that it must not use, because that one was to leave already."""
        self._pending: set[str] = set()
        self._cancelled: set[str] = set()
        self._failures = 0
        self._reason = ""
        self._changed = Broadcast()
        self._logs = TokenLogStore()
        self._living: Callable[[], Iterable[str]] | None = None
        self._past = EngineStats("ready")
        self._loads = 0
        self._load_seconds = 0.0

    async def start(self) -> ModelInfo:
        """Find the file of the model and read its header. Raises `ModelLoadError`, also if it never fits the memory."""
        file = await in_thread(partial(models.resolve, self._spec, self._models_folder, on_download=log_download))
        self.size = file.path.stat().st_size
        self._budget.check(file.name, self.size)
        header = await in_thread(partial(probe.describe, file.path))
        self._info = replace(
            self._info,
            context_tokens=min(self._limit or header.context_tokens, header.context_tokens),
            has_chat_template=header.has_chat_template,
            parameters=header.parameters,
            notes=models.notes_of(
                file.name, has_chat_template=header.has_chat_template, makes_texts=header.makes_texts
            ),
            embedded=file.name == models.EMBEDDED,
            pooling=header.pooling,
            makes_texts=header.makes_texts,
        )
        return self._info

    async def stop(self) -> None:
        """End at once; turns that are not finished fail."""
        self._stopped = True
        if self._loading and self._task is not None:
            self._task.cancel()
        if self._engine is not None:
            await self._engine.stop()
        self._changed.fire()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def info(self) -> ModelInfo:
        """Describe the model as it is now."""
        return self._info

    @property
    def ready(self) -> bool:
        """Whether a turn would be taken now; it may have to wait for the worker."""
        return not self._stopped if self._engine is None else self._engine.ready

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and its reply together."""
        return self._info.context_tokens

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """Predict the wait of a turn. Without a worker it is the time that the last one took to load the model."""
        return self._load_seconds if self._engine is None else self._engine.predicted_wait(owner, kind)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Yield text as it is made, then exactly one `Finished`; see `Engine.generate`."""
        came, limit = time.monotonic(), request.deadline_seconds
        self._pending.add(request.id)
        try:
            async with asyncio.timeout(limit):
                engine = await self._acquire(request.id)
        except TimeoutError:
            raise EngineError(TOO_LONG.format(limit)) from None
        finally:
            self._pending.discard(request.id)
            self._cancelled.discard(request.id)
        waited = time.monotonic() - came
        if engine is None:
            yield Finished("cancelled", delayed(Usage(), waited))
            return
        try:
            left = None if limit is None else max(limit - waited, 0.001)
            items = engine.generate(replace(request, deadline_seconds=left))
            async with aclosing(cast("AsyncGenerator[Delta | Finished]", items)) as followed:
                async for item in followed:
                    yield replace(item, usage=delayed(item.usage, waited)) if isinstance(item, Finished) else item
        finally:
            self._release()

    def prepare(self) -> None:
        """Start the worker now, so that the first turn need not wait for it."""
        if self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._live(), name=f"model {self._name}")

    def cancel(self, request_id: str) -> None:
        """Stop a generation within one step; unknown ids are ignored."""
        if request_id in self._pending:
            self._cancelled.add(request_id)
            self._changed.fire()
        elif self._engine is not None:
            self._engine.cancel(request_id)

    def forget(self, cache_key: str) -> None:
        """Free everything stored for a deleted session."""
        if self._engine is None:
            self._logs.forget(cache_key, busy=False)
        else:
            self._engine.forget(cache_key)

    def keep_only(self, living: Callable[[], Iterable[str]]) -> None:
        """Free the state of all sessions of the past but those that exist, now and with each worker."""
        self._living = living
        if self._engine is not None:
            self._engine.keep_only(living)

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Note a session's activity until its next turn. Without a worker there is no state that could stay."""
        if self._engine is not None:
            self._engine.hint(cache_key, hint)

    async def stats(self) -> EngineStats:
        """Return the counters of all workers so far, and the gauges of the running one."""
        engine, past, loaded = self._engine or self._ending, self._past, self._engine is not None
        now = EngineStats("stopped" if self._stopped else "ready") if engine is None else await engine.stats()
        return replace(
            _together(past, now),
            waiting=now.waiting + len(self._waiting),
            worker_pid=now.worker_pid if loaded else None,
            loaded=loaded,
            loads=self._loads,
        )

    async def count_tokens(
        self, texts: Sequence[str], messages: Sequence[Message] | None = None, tools: Sequence[dict[str, Any]] = ()
    ) -> EngineTokenCounts:
        """Count the tokens of texts, and of a conversation's prompt; raises `EngineError` or `Unavailable`."""
        engine = await self._acquire("")
        assert engine is not None  # noqa: S101 - only turns are cancelled
        try:
            return await engine.count_tokens(texts, messages, tools)
        finally:
            self._release()

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Make the vectors of some texts; see `Embeds.embed`."""
        if not self._info.pooling:
            raise Unsupported(NO_EMBEDDINGS)
        try:
            async with asyncio.timeout(request.deadline_seconds):
                engine = await self._acquire("")
        except TimeoutError:
            raise EngineError(TOO_LONG.format(request.deadline_seconds)) from None
        assert engine is not None  # noqa: S101 - only turns are cancelled
        try:
            return await engine.embed(request)
        finally:
            self._release()

    @property
    def busy(self) -> bool:
        """Whether turns use it or wait for it."""
        return self._users > 0 or self._has_waiting_turn

    def leave(self, *, wanted: bool) -> None:
        """Take no more turns and end after those that it has, or go on."""
        if wanted != self._leaving:
            self._leaving = wanted
            self._changed.fire()

    @property
    def _has_waiting_turn(self) -> bool:
        """Whether a turn waits that may use the worker: one that came before the worker was to leave."""
        return any(refused is not self._engine or not self._leaving for refused in self._waiting)

    async def _acquire(self, request_id: str) -> LlamaEngine | None:
        """Wait for the worker, which is started if there is none. None if the request is cancelled meanwhile.

        Raises `EngineError` if the worker cannot be started.
        """
        refused = self._engine if self._leaving else None
        failures = self._failures
        self._waiting.append(refused)
        try:
            while (engine := self._engine) is None or (self._leaving and engine is refused):
                if self._stopped:
                    raise EngineError("the engine was stopped")
                if self._failures > failures:
                    raise EngineError(self._reason)
                if request_id in self._cancelled:
                    return None
                self.prepare()
                await self._changed.wait()
            if request_id in self._cancelled:
                return None
            self._users += 1
            self.used_at = time.monotonic()
            return engine
        finally:
            self._waiting.remove(refused)
            if self._loading and not self._waiting and self._users == 0 and self._task is not None:
                self._task.cancel()  # there is no waiter any more

    def _release(self) -> None:
        self._users -= 1
        self.used_at = time.monotonic()
        if self._users == 0:
            self._changed.fire()
            self._budget.look()

    async def _live(self) -> None:
        """Run a worker from the first turn that needs it until it is not needed any more."""
        self._loading = True
        try:
            await self._budget.take(self)
            try:
                await self._run()
            finally:
                self._budget.give(self)
        except Exception as error:  # noqa: BLE001 - a defect must not leave the turns waiting forever
            is_expected = isinstance(error, ModelLoadError | OSError)
            _log.error("model cannot be loaded", model=self._name, reason=str(error), exc_info=not is_expected)
            self._failures += 1
            self._reason = f"model {self._name!r} cannot be loaded; the log of the server says why"
        finally:
            self._task, self._loading, self._leaving = None, False, False
            self._changed.fire()

    async def _run(self) -> None:
        began = time.monotonic()
        engine = self._make(self._logs)
        if self._living is not None:
            engine.keep_only(self._living)
        try:
            info = await engine.start()
            self._loading = False
            self._load_seconds, self._loads = time.monotonic() - began, self._loads + 1
            self._info = replace(info, name=self._name)
            self._engine, self.used_at = engine, time.monotonic()
            self._changed.fire()
            _log.info("model loaded", model=self._name, seconds=round(self._load_seconds, 2))
            await self._until_unneeded()
            self._engine, self._ending = None, engine  # from here on turns wait for the next worker
            self._info = replace(self._info, loaded=False)
            if not self._stopped:
                self._past, self._ending = _together(self._past, replace(await engine.stats(), gauges={})), None
                _log.info("model unloaded", model=self._name)
        finally:
            self._engine = self._ending = None
            await engine.stop()

    async def _until_unneeded(self) -> None:
        """Wait until no turn needs the worker: for the time that it may be idle, or until its place is needed."""
        while not self._stopped:
            if self.busy:
                await self._changed.wait()
            elif self._leaving:
                return
            else:
                try:
                    async with asyncio.timeout(self._idle or None):
                        await self._changed.wait()
                except TimeoutError:
                    if not self.busy:
                        return


def _together(past: EngineStats, now: EngineStats) -> EngineStats:
    """Add the counters of earlier workers to those of the present one."""
    reasons = Counter(past.restarts_by_reason)
    reasons.update(now.restarts_by_reason)
    sums = {name: getattr(past, name) + getattr(now, name) for name in COUNTERS}
    return replace(now, restarts_by_reason=dict(reasons), **sums)
