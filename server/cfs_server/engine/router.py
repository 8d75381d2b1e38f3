"""Routes turns to the engines of several models: each model has an engine of its own, and one is the default."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from cfs.errors import EngineError
from cfs.wire import Price
from cfs_server.engine.interface import (
    COUNTERS,
    GAUGES,
    Delta,
    DescribesItself,
    Engine,
    EngineStats,
    Finished,
    GenerationRequest,
    Hint,
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
        self._engines = {default: engines[default], **engines}
        self._default = default
        self._prices = prices or {}
        self._infos: dict[str, ModelInfo] = {}

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
        await asyncio.gather(*(engine.stop() for engine in self._engines.values()))

    # -- several models -------------------------------------------------------------------------------------------

    def engine_of(self, model: str | None) -> Engine:
        """Return the engine of a model, or of the default. Raises `EngineError` if there is no such model."""
        engine = self._engines.get(model or self._default)
        if engine is None:
            raise EngineError(f"there is no model {model!r} here any more; there are {', '.join(self._engines)}")
        return engine

    def infos(self) -> tuple[ModelInfo, ...]:
        """Describe all models as they are now, the default first."""
        return tuple(
            self._described(name, engine.info()) if isinstance(engine, DescribesItself) else self._infos[name]
            for name, engine in self._engines.items()
        )

    def _described(self, name: str, info: ModelInfo) -> ModelInfo:
        return replace(info, name=name, price=self._prices.get(name))

    # -- all models together --------------------------------------------------------------------------------------

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

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Let the engine of the request's model answer; see `Engine.generate`."""
        try:
            engine = self.engine_of(request.settings.model)
        except EngineError as error:
            return _refused(error)
        return engine.generate(request)

    def cancel(self, request_id: str) -> None:
        """Stop a generation within one step; unknown ids are ignored."""
        for engine in self._engines.values():
            engine.cancel(request_id)

    def forget(self, cache_key: str) -> None:
        """Free all state of a deleted session: each of the models may have answered in it."""
        for engine in self._engines.values():
            engine.forget(cache_key)

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Note a session's activity until its next turn. Engines that do not know the session ignore it."""
        for engine in self._engines.values():
            engine.hint(cache_key, hint)

    async def stats(self) -> EngineStats:
        """Return the sums of all counters, the state of the default, and the figures of each model."""
        found = await asyncio.gather(*(engine.stats() for engine in self._engines.values()))
        stats = dict(zip(self._engines, found, strict=True))
        total = replace(stats[self._default], models=stats, gauges={}, restarts_by_reason={})
        total = replace(total, **{name: sum(getattr(each, name) for each in found) for name in (*COUNTERS, *GAUGES)})
        for each in found:
            for name, value in each.gauges.items():
                total.gauges[name] = total.gauges.get(name, 0.0) + value
            for reason, count in each.restarts_by_reason.items():
                total.restarts_by_reason[reason] = total.restarts_by_reason.get(reason, 0) + count
        return total


async def _refused(error: EngineError) -> AsyncIterator[Delta | Finished]:
    """Fail as a generation does: when it is read."""
    raise error
    yield  # it is a generator
