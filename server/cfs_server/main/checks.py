"""The server's checks of `cfs doctor`: settings, model, native library and port (C10, E2)."""

import asyncio
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from cfs import api
from cfs.cli.base.checks import Check, fine, missing, needed
from cfs.errors import CfsError
from cfs.transports.http import Client
from cfs_server.config import models_file
from cfs_server.config.models_file import ModelEntry
from cfs_server.config.settings import ConfigurationError, ServerSettings, load
from cfs_server.connect.engines import make_listed_upstream, make_upstream
from cfs_server.engine.contract.interface import Engine, ModelInfo, ModelLoadError
from cfs_server.engine.host import models
from cfs_server.main import logs
from cfs_server.main.serve import listen, url_of

_SECONDS = 3.0
_LEAST_BYTES = 1 << 30


def checks() -> Iterator[Check]:
    """Yield the checks of what `cfs serve` needs when it runs without flags."""
    try:
        logs.configure("text", "error")
        settings = load()
    except ConfigurationError as error:
        yield needed("settings", str(error), "correct the variables CFS_*; docs/configuration.md lists them")
        return
    yield _embedded(settings)
    path = settings.models_path
    if path is not None and (settings.models is not None or path.exists()):
        yield from _models(settings, path)
    if settings.upstream is not None:
        yield _upstream(settings)
    if settings.model is not None:
        yield _model(settings.model, settings.models_folder)
    if settings.engine_folder is not None:
        yield _disk(settings.engine_folder, settings.engine_disk_bytes)
    yield from _store(settings)
    yield _port(settings)


def _embedded(settings: ServerSettings) -> Check:
    """Load the embedded model as the server does. This finds faults that version numbers do not show."""
    from cfs_server.engine.contract.protocol import WorkerOptions
    from cfs_server.engine.host.supervisor import LlamaEngine

    what = "llama.cpp"
    try:
        model = asyncio.run(_start(LlamaEngine(options=WorkerOptions(kv_type=settings.kv_type))))
    except ModelLoadError as error:
        return needed(what, str(error), "reinstall: pip install --force-reinstall 'cfs-local[server]'")
    return fine(what, "; ".join([f"runs the embedded model {model.name}: {model.engine}", *model.notes]))


def _models(settings: ServerSettings, path: Path) -> Iterator[Check]:
    """Check each model of the file: its upstream, or the file that it is in."""
    try:
        file = models_file.read(path)
    except ConfigurationError as error:
        yield needed("models", str(error), f"correct {path}; docs/models.md shows how")
        return
    for name, entry in file.models.items():
        what = f"model {name}"
        if entry.upstream is None and entry.model != models_file.EMBEDDED:
            yield _model(entry.model or "", settings.models_folder, what, f"correct {path}")
        elif entry.upstream is not None:
            yield _entry(settings, entry, what, f"correct {path}, or the upstream")


def _entry(settings: ServerSettings, entry: ModelEntry, what: str, advice: str) -> Check:
    """Connect to the upstream of a model as the server does."""
    try:
        model = asyncio.run(_start(make_listed_upstream(settings, entry, check=True)))
    except (ConfigurationError, ModelLoadError) as error:
        return needed(what, str(error), advice)
    urls = ", ".join(upstream.url for upstream in entry.upstream or ())
    return fine(what, f"{urls} has {_described(model)}")


def _upstream(settings: ServerSettings) -> Check:
    """Connect to the configured upstream as the server does: check its address, its key and the model."""
    what = "upstream"
    try:
        model = asyncio.run(_start(make_upstream(settings, check=True)))
    except ConfigurationError as error:
        return needed(what, str(error), "correct the variables CFS_UPSTREAM*; docs/models.md shows how")
    except ModelLoadError as error:
        return needed(what, str(error), "correct CFS_UPSTREAM, CFS_UPSTREAM_MODEL or the key; docs/models.md shows how")
    return fine(what, f"{settings.upstream} has {_described(model)}")


def _described(model: ModelInfo) -> str:
    context = f", context of {model.context_tokens} tokens" if model.context_tokens else ""
    return f"{model.name}{context}"


async def _start(engine: Engine) -> ModelInfo:
    try:
        return await engine.start()
    finally:
        await engine.stop()


def _model(spec: str, folder: Path, what: str = "model", advice: str = "correct CFS_MODEL") -> Check:
    """Find the configured model and read its header. The model is neither downloaded nor loaded."""
    from cfs_server.engine.llama import probe

    try:
        file = models.resolve(spec, folder, fetch=False)
        kind = probe.describe(file.path)
    except ModelLoadError as error:
        return needed(what, str(error), f"cfs model pull {spec}" if models.is_download(spec) else advice)
    return fine(what, f"{file.path} ({file.path.stat().st_size / (1 << 20):.0f} MiB): {kind}")


def _disk(folder: Path, limit: int) -> Check:
    """Check whether the engine can store state in the configured folder. Nothing is created or removed."""
    from cfs_server.engine.kvcache.state_folder import survey

    what = "engine disk"
    try:
        usage = survey(folder)
    except OSError as error:
        return missing(what, f"{folder}: {(error.strerror or str(error)).lower()}", "correct CFS_ENGINE_DISK")
    used = f"{usage.bytes / (1 << 20):.0f} of {limit / (1 << 20):.0f} MiB in {usage.files} files"
    if usage.free < limit - usage.bytes:
        return missing(
            what, f"{used}, but only {usage.free / (1 << 20):.0f} MiB are free", "lower CFS_ENGINE_DISK_BYTES"
        )
    return fine(what, used)


def _store(settings: ServerSettings) -> Iterator[Check]:
    """Look at the file of the sessions, and at what repairs and restores have set aside."""
    from cfs_server.backups.backup import Layout
    from cfs_server.journal.journal import StoreFailed, StoreInUse
    from cfs_server.journal.reserve import Reserve
    from cfs_server.journal.sqlite_wal import size_of
    from cfs_server.sessions import maintenance

    what, path = "sessions", settings.store_file
    if settings.databases:
        yield from _databases(settings.databases)
        return
    if path is None:
        yield fine(what, "kept in memory only: they end with the server")
        return
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    room = f"{free / (1 << 30):.1f} GiB free"
    try:
        text = f"{path}: {size_of(path) / (1 << 20):.1f} MiB, {room}"
        if path.exists():
            count = maintenance.describe(path).sessions
            text += f", {count} session{'' if count == 1 else 's'}"
    except StoreInUse as error:
        text += f", {str(error).partition(' is ')[2].partition(';')[0]}"
    except (StoreFailed, OSError) as error:
        advice = "cfs serve --store-repair sets the file aside and keeps what can be read; or: cfs restore BACKUP"
        yield needed(what, str(error), advice)
        return
    if path.exists() and not Reserve(path).can_be_whole(size_of(path)):
        yield missing(what, f"{text}: the disk is full", "free some space: a server would only read and delete")
    elif free < _LEAST_BYTES:
        yield missing(what, text, "free some space: without it the server only reads and deletes")
    else:
        yield fine(what, text)
    layout = Layout.of(settings) or Layout.beside(path)
    if aside := maintenance.set_aside(*filter(None, [path, layout.workspaces, layout.versions])):
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(aside[-1].stat().st_mtime))
        names = f"last repaired or replaced {at}; set aside: {', '.join(entry.name for entry in aside)}"
        folders = " and ".join(sorted({str(entry.parent) for entry in aside}))
        advice = f"delete what you no longer need in {folders}: it holds conversations and files"
        yield missing("old sessions", names, advice)


def _databases(urls: Iterable[str]) -> Iterator[Check]:
    """Connect to each database, and count the servers that share it. Nothing is created."""
    what = "sessions"
    try:
        from cfs_server.cluster.directory import living
        from cfs_server.journal.journal import StoreFailed
        from cfs_server.journal.postgres_connection import place_of
    except ModuleNotFoundError:
        yield needed(what, "the packages for PostgreSQL are missing", "pip install 'cfs-local[cluster]'")
        return
    for url in urls:
        try:
            count = living(url)
            yield fine(what, f"{place_of(url)}: {count} server{'' if count == 1 else 's'} at work")
        except StoreFailed as error:
            yield needed(what, str(error), "correct CFS_STORE; docs/replicas.md shows what the database needs")


def _port(settings: ServerSettings) -> Check:
    what = f"port {settings.port}"
    try:
        with listen(settings.host, settings.port, settings.send_timeout) as listener:
            return fine(what, f"free: a server would be at {url_of(listener)}")
    except ConfigurationError as error:
        if (version := _version_of_server(settings)) is not None:
            return fine(what, f"CFS {version} answers there")
        return needed(what, str(error), "end what listens there, or choose another port: cfs serve --port")


def _version_of_server(settings: ServerSettings) -> str | None:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "") else settings.host  # noqa: S104 - compared only
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    index = api.Call(api.Request("GET", "/"), lambda answer: json.loads(answer.body))
    try:
        with Client(url, timeout=_SECONDS) as client:
            version = client.call(index)
    except CfsError:
        return None
    return str(version.get("version")) if isinstance(version, dict) and version.get("name") == "cfs" else None
