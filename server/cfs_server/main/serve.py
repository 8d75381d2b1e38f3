"""The life cycle of the server process: load the model, listen, serve and shut down cleanly (E2, P3)."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import sniffio
import structlog
import uvicorn
from starlette.types import ASGIApp

from cfs.cli.base import imports
from cfs.cli.base.output import print_error
from cfs.errors import CfsError, InvalidRequest, Unavailable, Unsupported
from cfs.transports import tracing
from cfs_filesystem import ObjectStore
from cfs_filesystem.versions import VersionStore
from cfs_server.access import tokens
from cfs_server.app import create_app
from cfs_server.base.limits import ConnectionLimits
from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.connect import search
from cfs_server.connect.engines import make_engine
from cfs_server.context import opened
from cfs_server.engine.contract.interface import Engine, ModelInfo, ModelLoadError
from cfs_server.http.caller import Context
from cfs_server.http.connections import SWEEPS_A_SECOND, Connections
from cfs_server.http.middleware import is_loopback
from cfs_server.journal.journal import Backend, Journal, StoreFailed, StoreInUse
from cfs_server.journal.memory import MemoryBackend
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.main import logs
from cfs_server.sessions.maintenance import remove_leftovers, require_no_restore
from cfs_server.sessions.tracing import serving
from cfs_server.workspaces.workspaces import SharedVersions, Workspaces, open_workspaces

_log = structlog.get_logger(__name__)

CANNOT_START = 2
_CLOSING_SECONDS = 5
_FORCED_SECONDS = 1.0
_BACKLOG = 2048
_SWITCH_SECONDS = 0.001
"""The switch interval of threads in seconds. Python's default of 0.005 makes the loop slow during long reads."""


class UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers. `serve` installs its own, which let turns finish."""

    def __init__(self, config: "Config", on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._connections = config.connections
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `on_started`."""
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def on_tick(self, counter: int) -> bool:
        """Check the unfinished connections. uvicorn calls this ten times a second."""
        if counter % (10 // SWEEPS_A_SECOND) == 0:
            self._connections.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers unchanged."""
        yield


def run(settings: ServerSettings) -> int:
    """Serve until a signal arrives. Returns the exit code of the process."""
    logs.configure(settings.log_format, settings.log_level)
    try:
        check_access(settings)
        _start_tracing()
        config = server_config(None)
        with on_asyncio(), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(serve(settings))
    except (ConfigurationError, ModelLoadError) as error:
        print_error(str(error))
        return CANNOT_START
    except KeyboardInterrupt:
        return 130
    finally:
        tracing.stop()
    return 0


@contextlib.contextmanager
def on_asyncio() -> Iterator[None]:
    """Set the name of the event loop that anyio looks up: this thread runs asyncio.

    It asks for every time limit, which are several for each token of an upstream. Otherwise the answer is searched for
    each time, by way of the current task, which takes a tenth of the server's processor time.
    """
    before, sniffio.thread_local.name = sniffio.thread_local.name, "asyncio"
    try:
        yield
    finally:
        sniffio.thread_local.name = before


def _start_tracing() -> None:
    try:
        if tracing.start("cfs-server"):
            _log.info("traces and metrics are exported", protocol="OpenTelemetry")
    except InvalidRequest as error:
        raise ConfigurationError(error.detail) from None


def check_access(settings: ServerSettings) -> None:
    """Check that the tokens can be read. Without tokens, refuse to listen on a public address (G9).

    Raises `ConfigurationError`.
    """
    if settings.tokens is not None:
        try:
            tokens.load(settings.tokens)
        except tokens.TokensError as error:
            raise ConfigurationError(str(error)) from None
        return
    if is_loopback(settings.host):
        return
    if not settings.allow_remote_without_tokens:
        raise ConfigurationError(
            f"listening on {settings.host} would let everyone who reaches it read and write all sessions: make a token"
            " with 'cfs token create NAME --grant / --tokens tokens.toml' and serve with --tokens tokens.toml, or use"
            " --host 127.0.0.1, or accept the risk with --allow-remote"
        )
    _log.warning(
        "NO ACCESS CONTROL: everyone who reaches this address may read, write and delete every session",
        host=settings.host,
    )


async def serve(settings: ServerSettings) -> None:
    """Bind the address, start the engine, then listen and serve until a signal arrives.

    Raises `ConfigurationError` or `ModelLoadError` before it listens. The address is bound before the model is loaded,
    so that a busy address fails early. No client can connect before the model is loaded.
    """
    gc.disable()  # until the server is ready: collecting while 100,000 sessions are restored doubles the time
    if settings.data_dir is not None:
        make_data_dir(settings.data_dir)
    with bind(settings.host, settings.port, settings.send_timeout) as listener:
        try:
            if settings.databases:
                _require_cluster()
                async with _workspaces(settings) as workspaces:
                    await _serve_replica(settings, workspaces, listener)
                return
            if settings.store_file is not None:
                await asyncio.to_thread(require_no_restore, settings.store_file)
            async with opened(backend_of(settings)) as journal:
                if settings.store_file is not None:
                    await asyncio.to_thread(remove_leftovers, settings.store_file)
                async with _workspaces(settings) as workspaces:
                    await _serve_with(settings, journal, workspaces, listener)
        except StoreInUse as error:
            advice = "end that one (`cfs down` does in the background), or choose another --data-dir, or --store memory"
            raise ConfigurationError(f"{error}; {advice}") from None
        except StoreFailed as error:
            raise ConfigurationError(str(error)) from None


@contextlib.asynccontextmanager
async def _workspaces(settings: ServerSettings) -> AsyncIterator[Workspaces]:
    """Open the workspaces. Raises `ConfigurationError` if they cannot be used."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            where, retention = (settings.workspaces, settings.data_dir), settings.version_retention
            shared = _shared_versions(settings) if settings.databases else None
            opening = open_workspaces(*where, retention, settings.versions_absent, shared)
            workspaces = await stack.enter_async_context(opening)
        except (Unavailable, Unsupported, OSError) as error:
            detail = error.detail if isinstance(error, CfsError) else error.strerror or str(error)
            raise ConfigurationError(f"workspaces in {settings.workspaces or settings.data_dir}: {detail}") from None
        yield workspaces


def _shared_versions(settings: ServerSettings) -> SharedVersions:
    """Return what opens the versions of a folder or bucket that replicas share."""

    def opened_in(place: Path | ObjectStore) -> VersionStore:
        from cfs_server.versions.shared_folder import open_shared_versions

        return open_shared_versions(settings.databases[0], settings.slots, place)

    return opened_in


async def _serve_with(
    settings: ServerSettings, journal: Journal, workspaces: Workspaces, listener: socket.socket
) -> None:
    engine = make_engine(settings, journal)
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        model = await engine.start()
        serving(model.name)
        if model.engine is not None:
            _log.debug("engine started", model=model.name, plan=str(model.engine))
        listen_on(listener)
        app = create_app(settings, engine, model, journal, workspaces)

        async def drain(grace: float) -> None:
            context: Context = app.state.cfs
            await asyncio.gather(context.store.drain(grace), context.completions.drain(grace))

        await _serve(settings, engine, model, app, drain, listener)
    finally:
        await engine.stop()


def _require_cluster() -> None:
    """Raise `ConfigurationError` unless the packages are installed that replicas need."""
    try:
        import cfs_server.cluster.app  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_binary", "httpcore"):
            raise
        raise ConfigurationError("PostgreSQL needs more packages: pip install 'cfs-local[cluster]'") from None


async def _serve_replica(settings: ServerSettings, workspaces: Workspaces, listener: socket.socket) -> None:
    """Serve as one of the replicas of a database. Raises as `serve`."""
    from cfs_server.cluster.app import Cluster

    if settings.workspaces is None:
        _log.warning("each replica has workspaces of its own: name a shared folder or bucket with --workspaces")
    engine = make_engine(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        url = settings.replica_url or url_of(listener)
        model = await engine.start()
        serving(model.name)
        cluster = await asyncio.to_thread(Cluster, settings, engine, model, workspaces, url)
        listen_on(listener)
        await _serve(settings, engine, model, cluster.app, cluster.drain, listener)
    finally:
        await engine.stop()


def backend_of(settings: ServerSettings) -> Backend:
    """Return the backend that the settings name."""
    if settings.store_file is None:
        return MemoryBackend()
    return SqliteBackend(settings.store_file, fast=settings.store == "fast", repair=settings.store_repair)


def make_data_dir(folder: Path) -> None:
    """Create the data folder for this user only. Raises `ConfigurationError` if the server cannot write to it.

    A folder that is there keeps its mode: others may have reasons to read the workspaces.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = os.access(folder, os.R_OK | os.W_OK | os.X_OK)
        reason = "not writable for this user" if not usable else None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    if reason:
        raise ConfigurationError(f"data folder {folder}: {reason}; choose another with --data-dir")


def bind(host: str, port: int, send_timeout: float) -> socket.socket:
    """Bind an address without listening yet. Raises `ConfigurationError` if the address is not available.

    Connections inherit the time-out. The kernel closes a connection that accepts no data for this time.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(send_timeout * 1000) + 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from None
    listener.setblocking(False)
    return listener


def listen_on(listener: socket.socket) -> None:
    """Listen. Raises `ConfigurationError` if another process has begun to listen on the address."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _taken(host, port, error) from None


def listen(host: str, port: int, send_timeout: float) -> socket.socket:
    """Bind an address and listen. Raises `ConfigurationError` if the address is not available."""
    listener = bind(host, port, send_timeout)
    listen_on(listener)
    return listener


def _taken(host: str, port: int, error: OSError) -> ConfigurationError:
    hint = " (another server may be running; choose another --port)" if port else ""
    return ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}{hint}")


def url_of(listener: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _serve(
    settings: ServerSettings,
    engine: Engine,
    model: ModelInfo,
    app: ASGIApp,
    drain: Callable[[float], Coroutine[None, None, None]],
    listener: socket.socket,
) -> None:
    url = url_of(listener)
    server = UvicornServer(server_config(app, settings.connection_limits), lambda: _announce(url, model, settings))
    ending = asyncio.create_task(_end_on_signal(settings, engine, server, drain))
    hinting = asyncio.create_task(_hint(settings, model))
    try:
        with contextlib.suppress(SystemExit):  # some versions of uvicorn exit the process when the start fails
            await server.serve(sockets=[listener])
        if not server.started:
            raise ConfigurationError("the application could not be started; its log says why")
    finally:
        ending.cancel()
        hinting.cancel()
        await asyncio.gather(ending, hinting, return_exceptions=True)
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
    _log.info("stopped")


async def _hint(settings: ServerSettings, model: ModelInfo) -> None:
    """Log which models could answer in place of the embedded one."""
    if settings.models_path is not None and model.embedded and (names := await search.hints(os.environ)):
        _log.info("models can be connected: run `cfs connect`", sources=", ".join(names))


class Config(uvicorn.Config):
    """uvicorn's configuration: few log lines, connection limits, and a shutdown within seconds."""

    def __init__(self, app: object, limits: ConnectionLimits) -> None:
        self.connections = Connections(limits)
        super().__init__(
            app,  # type: ignore[arg-type]
            http=cast("Any", self.connections.protocol),  # called like a class
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=_CLOSING_SECONDS,
            timeout_keep_alive=75,
            backlog=_BACKLOG,
        )


def server_config(app: object, limits: ConnectionLimits | None = None) -> Config:
    """Return the configuration with which uvicorn serves an application."""
    return Config(app, limits or ConnectionLimits())


def _say(text: str) -> None:
    """Write a line to standard output, for which parent processes wait. A full disk there does not end the server."""
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as error:
        _log.warning("standard output cannot be written", reason=error.strerror)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard the line


def _announce(url: str, model: ModelInfo, settings: ServerSettings) -> None:
    _say(f"listening on {url}")
    store = str(settings.store_file or ("postgresql" if settings.databases else "memory"))
    models = {"models": str(settings.models_path)} if settings.models_path and not model.embedded else {}
    _log.info("ready", url=url, model=model.name, context=model.context_tokens, store=store, pid=os.getpid(), **models)
    if settings.ready_file is not None:
        try:
            settings.ready_file.write_text(url + "\n")
        except OSError as error:
            _log.warning("the ready file cannot be written", file=str(settings.ready_file), reason=error.strerror)
    gc.collect()
    gc.enable()
    imports.end()  # long-lived objects are excluded from garbage collection, which would take tens of milliseconds


async def _end_on_signal(
    settings: ServerSettings,
    engine: Engine,
    server: UvicornServer,
    drain: Callable[[float], Coroutine[None, None, None]],
) -> None:
    """Wait for a signal, let turns finish and streams end, then close. A second signal ends the server at once."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    first = await signals.get()
    _log.info("stopping", signal=first.name, grace=settings.shutdown_grace)
    second = asyncio.create_task(signals.get())
    draining = asyncio.create_task(drain(settings.shutdown_grace))
    await asyncio.wait((second, draining), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    if not second.done():
        await second  # cancelled when the server has ended without a signal
    _log.warning("stopped at once", signal=second.result().name)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FORCED_SECONDS):
            await engine.stop()
    os._exit(128 + second.result())
