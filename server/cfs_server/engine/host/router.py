"""Routes turns to the engines of several models: each model has an engine of its own, and one is the default."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import cast

from cfs.errors import EngineError, Unsupported
from cfs.wire import Price
from cfs_server.base.broadcast import Broadcast
from cfs_server.engine.contract.interface import (
    COUNTERS,
    GAUGES,
    Delta,
    DescribesItself,
    EmbeddingRequest,
    Embeddings,
    Embeds,
    Engine,
    EngineStats,
    Finished,
    GenerationRequest,
    Hint,
    KeepsState,
    Kind,
    ModelInfo,
    ModelLoadError,
)


class ModelRouter:
    """An engine of several models. A model whose engine fails does not affect the others."""

    def __init__(
        self, engines: Mapping[str, Engine], default: str, prices: Mapping[str, Price | None] | None = None
    ) -> None:
        """Take the engine of each name, which nothing has started yet, and the name of the default."""
        self._engines = {name: engines[name] for name in (default, *engines) if name in engines}
        self._default = default
        self._prices = dict(prices or {})
        self._infos: dict[str, ModelInfo] = {}
        self._turns: Counter[Engine] = Counter()
        self._retiring: dict[Engine, asyncio.Task[None]] = {}
        self._turn_ended = Broadcast()
        self._past: Counter[str] = Counter()
        """The counters of engines that have been replaced."""
        self._living: Callable[[], Iterable[str]] | None = None

    async def start(self) -> ModelInfo:
        """Start all engines and return the default model. Raises `ModelLoadError`, which names the model."""
        for name, engine in self._engines.items():
            try:
                info = await engine.start()
            except ModelLoadError as error:
                raise ModelLoadError(f"model {name!r}: {error}") from error
            self._infos[name] = self._described(name, info)
        return self._infos[self._default]

    async def stop(self) -> None:
        """Stop all engines at once."""
        retirements = list(self._retiring.values())
        for task in retirements:
            task.cancel()
        await asyncio.gather(*retirements, return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self._engines.values()))

    def change_models(
        self, engines: Mapping[str, Engine], default: str, infos: Mapping[str, ModelInfo], prices: Mapping[str, Price]
    ) -> None:
        """Use other engines, all of which have been started. Those that are left out stop after their running turns."""
        before = set(self._engines.values())
        if self._living is not None:
            _keep_only(set(engines.values()) - before, self._living)
        models = {default: engines[default], **engines}
        self._engines.clear()
        self._engines.update(models)
        self._default = default
        self._prices = dict(prices)
        self._infos = {name: self._described(name, infos[name]) for name in models}
        for engine in before - set(models.values()):
            self._retiring[engine] = asyncio.create_task(self._retire(engine), name="retiring engine")

    async def _retire(self, engine: Engine) -> None:
        try:
            while self._turns[engine]:
                await self._turn_ended.wait()
        finally:
            stats = await engine.stats()
            self._past.update({name: getattr(stats, name) for name in COUNTERS})
            await engine.stop()
            del self._retiring[engine]

    def engine_of(self, model: str | None) -> Engine:
        """Return the engine of a model, or of the default. Raises `EngineError` if there is no such model."""
        engine = self._engines.get(model or self._default)
        if engine is None:
            raise EngineError(f"there is no model {model!r} here any more; there are {', '.join(self._engines)}")
        return engine

    @property
    def names(self) -> Collection[str]:
        """The names of all models, the default first. The collection changes when the models change."""
        return self._engines.keys()

    def infos(self) -> tuple[ModelInfo, ...]:
        """Describe all models as they are now, the default first."""
        return tuple(
            self._described(name, engine.info()) if isinstance(engine, DescribesItself) else self._infos[name]
            for name, engine in self._engines.items()
        )

    def _described(self, name: str, info: ModelInfo) -> ModelInfo:
        return replace(info, name=name, price=self._prices.get(name))

    @property
    def ready(self) -> bool:
        """Whether a turn would start now, for one of the models at least."""
        return any(engine.ready for engine in self._engines.values())

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and its reply together, with the default model; 0 if unknown."""
        return self._engines[self._default].context_tokens

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """Predict the wait of a turn for the default model."""
        return self._engines[self._default].predicted_wait(owner, kind)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Let the engine of the request's model answer; see `Engine.generate`."""
        engine = self.engine_of(request.settings.model)
        with self._using(engine):
            items = cast("AsyncGenerator[Delta | Finished]", engine.generate(request))
            async with aclosing(items) as answer:
                async for item in answer:
                    yield item

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Let the engine of the request's model make the vectors; see `Embeds.embed`."""
        engine = self.engine_of(request.model)
        if not isinstance(engine, Embeds):
            raise Unsupported("the engine of this model makes no embeddings")
        with self._using(engine):
            return await engine.embed(request)

    @contextmanager
    def _using(self, engine: Engine) -> Iterator[None]:
        """Keep an engine while it answers."""
        self._turns[engine] += 1
        try:
            yield
        finally:
            self._turns[engine] -= 1
            if not self._turns[engine]:
                del self._turns[engine]
            self._turn_ended.fire()

    def cancel(self, request_id: str) -> None:
        """Stop a generation within one step; unknown ids are ignored."""
        for engine in (*self._engines.values(), *self._retiring):
            engine.cancel(request_id)

    def forget(self, cache_key: str) -> None:
        """Free all state of a deleted session: each of the models may have answered in it."""
        for engine in self._engines.values():
            engine.forget(cache_key)

    def keep_only(self, living: Callable[[], Iterable[str]]) -> None:
        """Free the state of all sessions of the past but those that exist, now and with each new model."""
        self._living = living
        _keep_only(self._engines.values(), living)

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Note a session's activity until its next turn. Engines that do not know the session ignore it."""
        for engine in self._engines.values():
            engine.hint(cache_key, hint)

    async def stats(self) -> EngineStats:
        """Return the sums of all counters, the state of the default, and the figures of each model."""
        all_stats = await asyncio.gather(*(engine.stats() for engine in self._engines.values()))
        stats = dict(zip(self._engines, all_stats, strict=True))
        sums = {
            name: self._past[name] + sum(getattr(engine_stats, name) for engine_stats in all_stats)
            for name in (*COUNTERS, *GAUGES)
        }
        total = replace(stats[self._default], models=stats, gauges={}, restarts_by_reason={}, **sums)
        for engine_stats in all_stats:
            for name, value in engine_stats.gauges.items():
                total.gauges[name] = total.gauges.get(name, 0.0) + value
            for reason, count in engine_stats.restarts_by_reason.items():
                total.restarts_by_reason[reason] = total.restarts_by_reason.get(reason, 0) + count
        return total


def _keep_only(engines: Iterable[Engine], living: Callable[[], Iterable[str]]) -> None:
    for engine in engines:
        if isinstance(engine, KeepsState):
            engine.keep_only(living)
