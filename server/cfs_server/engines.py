"""Creates the configured engine and reads the key of an upstream (E4)."""

import os
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from cfs_server.engine.interface import Engine
from cfs_server.engine.protocol import Options
from cfs_server.engine.scripted import ScriptedEngine
from cfs_server.sessions.journal.journal import Journal
from cfs_server.settings import ConfigurationError, Settings

KEY_VARIABLE = "CFS_UPSTREAM_KEY"
_SIGNED = "upstream.signed"


def make_engine(settings: Settings, journal: Journal | None = None) -> Engine:
    """Create the engine. What it must keep over a restart goes to the journal.

    Raises `ConfigurationError` if settings contradict each other or the key cannot be read.

    Each engine is imported here, because it imports libraries that the others do not need.
    """
    if settings.upstream is not None:
        return make_upstream(settings, journal)
    if settings.engine == "scripted":
        return ScriptedEngine(interval=settings.scripted_interval)
    from cfs_server.engine.process import Heartbeat
    from cfs_server.engine.supervisor import LlamaEngine

    disk = str(settings.engine_disk.absolute()) if settings.engine_disk is not None else ""
    options = Options(disk=disk, disk_bytes=settings.engine_disk_bytes)
    heartbeat = Heartbeat(limit=settings.engine_hang_seconds)
    return LlamaEngine(settings.model, options, heartbeat=heartbeat, models_folder=settings.models_folder)


def make_upstream(settings: Settings, journal: Journal | None = None, *, check: bool | None = None) -> Engine:
    """Create the engine of an upstream. `check` overrides the setting."""
    from cfs_server.engine.upstream import protocol
    from cfs_server.engine.upstream.engine import UpstreamEngine
    from cfs_server.engine.upstream.failures import Retries

    if settings.model is not None or settings.engine == "scripted":
        raise ConfigurationError("--upstream cannot be combined with --model or --engine scripted")
    documents = protocol.Documents()
    if journal is not None:
        documents = protocol.Documents(journal.kept(_SIGNED), partial(journal.keep, _SIGNED))
    try:
        url = protocol.address(settings.upstream or "")
        kind = protocol.kind_of(url) if settings.upstream_kind == "auto" else settings.upstream_kind
        return UpstreamEngine(
            protocol.Options(
                url,
                kind,
                model=settings.upstream_model,
                key=read_key(settings.upstream_key_file),
                sampling=protocol.sampling_of(settings.upstream_sampling, kind),
                thinking_tokens=protocol.thinking_of(settings.upstream_thinking_tokens, kind),
                silence=settings.upstream_timeout,
                parallel=settings.upstream_parallel,
                affinity=protocol.affinity_of(settings.upstream_affinity, kind),
                reply_bytes=settings.max_reply_bytes,
                check=settings.upstream_check if check is None else check,
                documents=documents,
                retries=Retries(settings.upstream_retries, first=settings.upstream_retry_pause),
            )
        )
    except protocol.InvalidOptions as error:
        raise ConfigurationError(f"upstream: {error}") from None


def read_key(file: Path | None) -> SecretStr | None:
    """Read the upstream's key from a file, or else from the environment.

    The key is neither a flag nor part of the configuration file, because other users may read those. Raises
    `ConfigurationError`. Its text never contains the key.
    """
    if file is None:
        key, place = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
    else:
        try:
            key, place = file.read_text(encoding="utf-8"), str(file)
        except OSError as error:
            raise ConfigurationError(f"{file}: {(error.strerror or str(error)).lower()}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file}: not a text file") from None
    key = key.strip()
    if file is not None and not key:
        raise ConfigurationError(f"{place}: the file is empty")
    if any(character <= " " or character > "~" for character in key):
        raise ConfigurationError(f"{place}: a key is one line of printable ASCII characters without spaces")
    return SecretStr(key) if key else None
