"""Creates the configured engines and reads the keys of upstreams (E4)."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from cfs_server.config import models_file
from cfs_server.config.models_file import ModelEntry, UpstreamEntry
from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.connect.configured_models import ConfiguredModels
from cfs_server.engine.contract.interface import Engine
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.models import EMBEDDED
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.journal.journal import Journal

if TYPE_CHECKING:
    from cfs_server.engine.host.memory_budget import MemoryBudget
    from cfs_server.engine.host.supervisor import LlamaEngine
    from cfs_server.engine.host.token_log_store import TokenLogStore
    from cfs_server.engine.upstream.options import PersistentTexts

KEY_VARIABLE = "CFS_UPSTREAM_KEY"
_SIGNED = "upstream.signed"
_TRIAL_TOKENS = 1024


def make_engine(settings: ServerSettings, journal: Journal | None = None) -> Engine:
    """Create the engine. What it must keep over a restart goes to the journal.

    Raises `ConfigurationError` if settings contradict each other or a key cannot be read.

    Each engine is imported here, because it imports libraries that the others do not need.
    """
    if settings.models is not None and (settings.model or settings.upstream or settings.engine == "scripted"):
        raise ConfigurationError("--models cannot be combined with --model, --upstream or --engine scripted")
    if settings.models_path is not None:
        return make_router(settings, settings.models_path, journal)
    if settings.upstream is not None:
        return make_upstream(settings, journal)
    if settings.engine == "scripted":
        return ScriptedEngine(interval=settings.scripted_interval)
    return _make_local(settings, settings.model, _options(settings))


def make_router(settings: ServerSettings, path: Path, journal: Journal | None = None) -> ConfiguredModels:
    """Create the engines of all models of the file. Raises `ConfigurationError`.

    Unless the file is that of `--models`, the embedded model is one of them, too.
    """
    from cfs_server.engine.host.memory_budget import MemoryBudget

    budget = MemoryBudget(settings.models_memory)
    make = partial(_make_model, settings, journal=journal, budget=budget)
    if settings.models is not None:
        return ConfiguredModels(path, make)
    on_demand = ModelEntry(name=EMBEDDED, model=models_file.EMBEDDED)

    def embedded(at_once: bool) -> Engine:
        return _make_local(settings, None, _options(settings)) if at_once else make(on_demand)

    return ConfiguredModels(path, make, embedded, settings.price)


def _make_model(
    settings: ServerSettings, entry: ModelEntry, *, journal: Journal | None, budget: "MemoryBudget"
) -> Engine:
    if entry.upstream is not None:
        return make_listed_upstream(settings, entry, journal)
    from cfs_server.engine.host.on_demand import IDLE_SECONDS, OnDemandEngine

    options = replace(_options(settings), context_tokens=entry.context or 0)
    if entry.parallel is not None:
        options = replace(options, parallel=entry.parallel)
    if entry.kv_type is not None:
        options = replace(options, kv_type=entry.kv_type)
    spec = None if entry.model == models_file.EMBEDDED else entry.model
    return OnDemandEngine(
        entry.name,
        partial(_make_local, settings, spec, options),
        budget,
        spec=spec,
        models_folder=settings.models_folder,
        context_tokens=options.context_tokens,
        idle=IDLE_SECONDS if entry.idle is None else entry.idle,
    )


def make_trial(settings: ServerSettings, entry: ModelEntry, seconds: float) -> Engine:
    """Create an engine for one short reply of a model, which takes as little memory as possible.

    Raises `ConfigurationError`.
    """
    if entry.upstream is not None:
        return make_listed_upstream(settings, entry.model_copy(update={"retries": 0, "timeout": seconds}))
    spec = None if entry.model == models_file.EMBEDDED else entry.model
    return _make_local(
        settings, spec, WorkerOptions(parallel=1, pool_tokens=_TRIAL_TOKENS, context_tokens=_TRIAL_TOKENS)
    )


def make_listed_upstream(
    settings: ServerSettings, entry: ModelEntry, journal: Journal | None = None, *, check: bool | None = None
) -> Engine:
    """Create the engine of an upstream of the file. `check` overrides its setting."""
    documents, sampling = _documents(journal, f"{_SIGNED}/{entry.name}"), ",".join(entry.sampling)
    keys = [_key_of(upstream) or _key_of(entry) for upstream in entry.upstream or ()]
    return _make_upstream(settings, entry, keys, documents, sampling, check=check)


def _options(settings: ServerSettings) -> WorkerOptions:
    disk = str(settings.engine_folder.absolute()) if settings.engine_folder is not None else ""
    return WorkerOptions(
        disk=disk,
        disk_bytes=settings.engine_disk_bytes,
        disk_rate=settings.engine_disk_rate,
        pool_bytes=settings.engine_pool or 0,
        kv_type=settings.kv_type,
        speculation=settings.speculation,
    )


def _make_local(
    settings: ServerSettings, model: str | None, options: WorkerOptions, logs: "TokenLogStore | None" = None
) -> "LlamaEngine":
    from cfs_server.engine.host.process import Heartbeat
    from cfs_server.engine.host.supervisor import LlamaEngine

    heartbeat = Heartbeat(limit=settings.engine_hang_seconds)
    folder = settings.models_folder
    return LlamaEngine(model, options, heartbeat=heartbeat, models_folder=folder, logs=logs)


def make_upstream(settings: ServerSettings, journal: Journal | None = None, *, check: bool | None = None) -> Engine:
    """Create the engine of the upstream that the settings name. `check` overrides the setting."""
    if settings.model is not None or settings.engine == "scripted":
        raise ConfigurationError("--upstream cannot be combined with --model or --engine scripted")
    entry = ModelEntry.model_construct(
        name="",
        upstream=(UpstreamEntry.model_construct(url=settings.upstream or ""),),
        kind=settings.upstream_kind,
        upstream_model=settings.upstream_model,
        thinking_tokens=settings.upstream_thinking_tokens,
    )
    key, documents = read_key(settings.upstream_key_file), _documents(journal, _SIGNED)
    try:
        return _make_upstream(settings, entry, [key], documents, settings.upstream_sampling, check=check)
    except ConfigurationError as error:
        raise ConfigurationError(f"upstream: {error}") from None


def _make_upstream(
    settings: ServerSettings,
    entry: ModelEntry,
    keys: Sequence[SecretStr | None],
    documents: "PersistentTexts",
    sampling: str,
    *,
    check: bool | None,
) -> Engine:
    """Create the engine of one or several upstreams. What the entry lacks is as the settings say."""
    from cfs_server.engine.upstream import options as upstream_options
    from cfs_server.engine.upstream.engine import UpstreamEngine
    from cfs_server.engine.upstream.failures import RetryPolicy
    from cfs_server.engine.upstream.group import Upstream, UpstreamGroup

    if check is None:
        check = settings.upstream_check if entry.check is None else entry.check
    retries = settings.upstream_retries if entry.retries is None else entry.retries
    upstreams: list[Upstream] = []
    try:
        for upstream, key in zip(entry.upstream or (), keys, strict=True):
            url = upstream_options.base_url(upstream.url)
            kind = upstream_options.kind_of(url) if entry.kind == "auto" else entry.kind
            options = upstream_options.UpstreamOptions(
                url,
                kind,
                model=entry.upstream_model,
                key=key,
                sampling=upstream_options.sampling_of(sampling, kind),
                thinking_tokens=upstream_options.thinking_of(entry.thinking_tokens, kind),
                silence=settings.upstream_timeout if entry.timeout is None else entry.timeout,
                parallel=entry.parallel or settings.upstream_parallel,
                affinity=upstream_options.affinity_of(entry.affinity or settings.upstream_affinity, kind),
                reply_bytes=settings.max_reply_bytes,
                check=check,
                context_tokens=entry.context or 0,
                documents=documents,
                retries=RetryPolicy(retries, first=settings.upstream_retry_pause),
            )
            continues = upstream_options.continues_of(kind, continues=upstream.continues)
            upstreams.append(Upstream(options, continues))
    except upstream_options.InvalidOptions as error:
        raise ConfigurationError(str(error)) from None
    return UpstreamEngine(upstreams[0].options) if len(upstreams) == 1 else UpstreamGroup(upstreams)


def _documents(journal: Journal | None, space: str) -> "PersistentTexts":
    from cfs_server.engine.upstream.options import PersistentTexts

    return PersistentTexts() if journal is None else PersistentTexts(journal.kept(space), partial(journal.keep, space))


def _key_of(entry: ModelEntry | UpstreamEntry) -> SecretStr | None:
    """Read the key of a model. One without a named key has none: keys of others must not reach its upstream."""
    if entry.key_variable is None:
        return None if entry.key_file is None else read_key(entry.key_file)
    key = read_key(None, entry.key_variable)
    if key is None:
        raise ConfigurationError(f"the variable {entry.key_variable} is not set")
    return key


def read_key(file: Path | None, variable: str = KEY_VARIABLE) -> SecretStr | None:
    """Read an upstream's key from a file, or else from a variable of the environment.

    The key is neither a flag nor part of the configuration file, because other users may read those. Raises
    `ConfigurationError`. Its text never contains the key.
    """
    if file is None:
        key, source = os.environ.get(variable, ""), variable
    else:
        try:
            key, source = file.read_text(encoding="utf-8"), str(file)
        except OSError as error:
            raise ConfigurationError(f"{file}: {(error.strerror or str(error)).lower()}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file}: not a text file") from None
    key = key.strip()
    if file is not None and not key:
        raise ConfigurationError(f"{source}: the file is empty")
    if any(character <= " " or character > "~" for character in key):
        raise ConfigurationError(f"{source}: a key is one line of printable ASCII characters without spaces")
    return SecretStr(key) if key else None
