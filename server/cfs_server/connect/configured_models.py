"""The models of a file, which is read again when it changes, so that a server takes new models without a restart."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from cfs.wire import Price
from cfs_server.base import owned_file
from cfs_server.config import models_file
from cfs_server.config.models_file import ModelEntry, ModelsFile
from cfs_server.config.settings import ConfigurationError
from cfs_server.connect.known_prices import default_price
from cfs_server.engine.contract.interface import Engine, EngineStats, ModelInfo, ModelLoadError, Prepares
from cfs_server.engine.host.models import EMBEDDED
from cfs_server.engine.host.router import ModelRouter

_LOOK_SECONDS = 0.5
_log = structlog.get_logger(__name__)


class ConfiguredModels(ModelRouter):
    """The models of a file. A change that cannot be used is logged and leaves all as it is.

    With an embedded model, the file may be missing, and a model that cannot be used is left out. Without one, each
    model of the file must be usable. A model whose entry stays as it is keeps its engine.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[ModelEntry], Engine],
        embedded: Callable[[bool], Engine] | None = None,
        price: Price | None = None,
    ) -> None:
        """Read the file. `embedded` makes the engine of the embedded model, loaded at once or for its first turn.

        Raises `ConfigurationError`.
        """
        super().__init__({}, EMBEDDED)
        self.path = path
        self.problem = ""
        """Why the present file is not used, if it is not."""
        self.entries: Mapping[str, ModelEntry] = {}
        self.faults: Mapping[str, str] = {}
        """Why a model of the file is left out."""
        self._make = make
        self._embedded = embedded
        self._price = price
        self._seen = owned_file.signature(path)
        self._file = self._read()
        self._prepared = {} if embedded else {name: self._made(entry) for name, entry in self._file.models.items()}
        self._lock = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    @property
    def default(self) -> str:
        """The name of the default model."""
        return self._default

    async def start(self) -> ModelInfo:
        """Start the models and return the default. Raises `ModelLoadError`."""
        await self._use(self._file)
        self._watching = asyncio.create_task(self._watch(), name="file of models")
        return self._infos[self._default]

    async def stop(self) -> None:
        """Stop all engines at once."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await super().stop()

    async def stats(self) -> EngineStats:
        """Return the figures of all models; those of the embedded model alone have no name."""
        stats = await super().stats()
        return stats if self.entries else replace(stats, models={})

    async def reload(self) -> None:
        """Read the file again if it has changed. Returns when its models answer or the log says why they do not."""
        async with self._lock:
            signature = await asyncio.to_thread(owned_file.signature, self.path)
            if signature == self._seen:
                return
            self._seen = signature
            try:
                await self._use(await asyncio.to_thread(self._read))
            except (ConfigurationError, ModelLoadError) as error:
                self.problem = str(error)
                _log.error("models.unusable", reason=self.problem, kept=len(self._engines))
            else:
                self.problem = ""
                _log.info("models.changed", models=", ".join(self._engines), default=self._default)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.reload()

    def _read(self) -> ModelsFile:
        if self._embedded is not None and not self.path.exists():
            return ModelsFile(EMBEDDED, {})
        return models_file.read(self.path)

    def _made(self, entry: ModelEntry) -> Engine:
        try:
            return self._make(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}: model {entry.name!r}: {error}") from None

    async def _use(self, file: ModelsFile) -> None:
        """Start the models that are new or have changed, then use those of the file. Raises if that is impossible."""
        engines: dict[str, Engine] = {}
        infos: dict[str, ModelInfo] = {}
        faults: dict[str, str] = {}
        try:
            for name, entry in file.models.items():
                if self.entries.get(name) == entry and name not in self.faults:
                    engines[name], infos[name] = self._engines[name], self._infos[name]
                    continue
                try:
                    engine = self._prepared.pop(name, None) or self._make(entry)
                    engines[name] = engine
                    infos[name] = await engine.start()
                except (ConfigurationError, ModelLoadError) as error:
                    if self._embedded is None:
                        raise ModelLoadError(f"model {name!r}: {error}") from error
                    faults[name] = str(error)
                    if (failed := engines.pop(name, None)) is not None:
                        await failed.stop()
            if self._embedded is not None and EMBEDDED not in engines:
                is_kept = EMBEDDED in self._engines and EMBEDDED not in self.entries
                engines[EMBEDDED] = self._engines[EMBEDDED] if is_kept else self._embedded(not engines)
                infos[EMBEDDED] = self._infos[EMBEDDED] if is_kept else await engines[EMBEDDED].start()
        except BaseException:
            running = set(self._engines.values())
            await asyncio.gather(*(engine.stop() for engine in engines.values() if engine not in running))
            raise
        for name, reason in faults.items():
            _log.warning("model.unusable", model=name, reason=reason)
        prices = await asyncio.to_thread(_prices, file)
        if self._price is not None:
            prices.setdefault(EMBEDDED, self._price)
        self.change_models(engines, file.default if file.default in engines else next(iter(engines)), infos, prices)
        self.entries, self.faults = file.models, faults
        default = engines[self._default]
        if self._embedded is not None and isinstance(default, Prepares):
            default.prepare()


def _prices(file: ModelsFile) -> dict[str, Price]:
    """Return the prices of the models: those of the file, or else what is known of an upstream's."""
    prices: dict[str, Price] = {}
    for name, entry in file.models.items():
        url = entry.upstream[0].url if entry.upstream else None
        price = entry.price or default_price(url, entry.upstream_model or name)
        if price is not None:
            prices[name] = price
    return prices
