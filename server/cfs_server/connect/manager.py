"""The models that a running server has connected, and those that it could connect."""

import asyncio
import os
from collections.abc import Sequence

from cfs.errors import Conflict, InvalidParameters, NotFound
from cfs.wire import CandidateList, Connection, ConnectionList
from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.connect import connections, search
from cfs_server.connect.configured_models import ConfiguredModels
from cfs_server.connect.trials import Trial, try_all
from cfs_server.engine.contract.interface import Engine


class ModelConnections:
    """Lists, finds and connects models of a server that reads a file of models."""

    def __init__(self, settings: ServerSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._trials: dict[str, Trial] = {}
        self._searching = asyncio.Lock()

    async def list(self) -> ConnectionList:
        """List the models of the file, which is read again if it has changed. Raises `Conflict` without a file."""
        models = self._models
        await models.reload()
        return ConnectionList(
            file=str(models.path.absolute()),
            default=models.default,
            problem=models.problem,
            connections=tuple([await self._described(name) for name in models.entries]),
        )

    async def _described(self, name: str) -> Connection:
        models, entry = self._models, self._models.entries[name]
        fault = models.faults.get(name, "")
        engine = None if fault else models.engine_of(name)
        return Connection(
            name=name,
            where=connections.place_of(entry),
            default=name == models.default,
            usable=engine is not None and engine.ready,
            reason=fault if engine is None else (await engine.stats()).reason,
            context=(engine and engine.context_tokens) or entry.context,
            key_variable=entry.key_variable,
        )

    async def search(self) -> CandidateList:
        """Find models and try each of them. Raises `Conflict` without a file."""
        models = self._models
        async with self._searching:
            candidates = await search.everything(os.environ, self._settings.models_folder)
            self._trials = {trial.candidate.name: trial for trial in await try_all(self._settings, candidates)}
        connected = {(connections.place_of(entry), entry.upstream_model) for entry in models.entries.values()}

        def is_connected(trial: Trial) -> bool:
            entry = trial.candidate.entry
            return entry is not None and (connections.place_of(entry), entry.upstream_model) in connected

        return CandidateList(
            candidates=tuple(
                trial.summary().model_copy(update={"connected": is_connected(trial)}) for trial in self._trials.values()
            )
        )

    async def connect(self, names: Sequence[str], default: str | None) -> ConnectionList:
        """Connect models of the last search. Raises `InvalidParameters` for those that it has not found working."""
        models = self._models
        entries = []
        for name in names:
            trial = self._trials.get(name)
            if trial is None or trial.entry is None:
                reason = trial.fault if trial else "the last search has not found it; search again"
                raise InvalidParameters(f"the model {name!r} cannot be connected: {reason}")
            entries.append(trial.entry)
        if default is not None and default not in {*names, *models.entries}:
            raise InvalidParameters(f"the default {default!r} is not one of the models")
        try:
            await asyncio.to_thread(connections.add, models.path, entries, default)
        except ConfigurationError as error:
            raise Conflict(str(error)) from None
        return await self.list()

    async def disconnect(self, name: str) -> None:
        """Take a model out of the file. Raises `NotFound`."""
        models = self._models
        if name not in models.entries:
            raise NotFound(f"no model {name!r} is connected")
        try:
            await asyncio.to_thread(connections.remove, models.path, name)
        except ConfigurationError as error:
            raise Conflict(str(error)) from None
        await models.reload()

    @property
    def _models(self) -> ConfiguredModels:
        if not isinstance(self._engine, ConfiguredModels):
            raise Conflict("this server has the model of its flags: start it without --model and --upstream")
        return self._engine
