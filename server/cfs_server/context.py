"""Opens what answers requests for one store of sessions: its journal, workspaces, callers and streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from cfs.errors import StorageFull
from cfs_server.access.auth import Principal, Principals, Traffic
from cfs_server.access.shares import Shares
from cfs_server.completions.run import EphemeralCompletions
from cfs_server.config.settings import ServerSettings
from cfs_server.connect.known_prices import default_price
from cfs_server.connect.manager import ModelConnections
from cfs_server.dav.optional import make_dav
from cfs_server.engine.contract.interface import Engine, HasModels, KeepsState, ModelInfo, info_of
from cfs_server.http.caller import Context
from cfs_server.http.event_streams import Streams
from cfs_server.http.idempotency import Requests
from cfs_server.http.markup import Renderer
from cfs_server.http.metrics import Metrics
from cfs_server.journal.journal import Backend, Journal
from cfs_server.journal.memory import MemoryBackend
from cfs_server.sessions.joint_store import JointStore
from cfs_server.sessions.retention import Retention
from cfs_server.sessions.store import Part, SessionStore
from cfs_server.workspaces.forgetting import Forgetting
from cfs_server.workspaces.forking import FileForks
from cfs_server.workspaces.merging import FileMerges
from cfs_server.workspaces.rewinding import FileRewinds
from cfs_server.workspaces.workspaces import Workspaces, open_workspaces


@asynccontextmanager
async def open_context(
    settings: ServerSettings,
    engine: Engine,
    model: ModelInfo | None = None,
    journal: Journal | None = None,
    workspaces: Workspaces | None = None,
    part: Part | None = None,
    traffic_of: Callable[[str], Traffic] | None = None,
    stores: Callable[[], Sequence[SessionStore]] | None = None,
) -> AsyncIterator[Context]:
    """Open a store of sessions with all that answers requests for them, to the end of the block.

    Without a journal, sessions end with the block. Without workspaces, it opens those of the settings. `part` is what
    it has of the sessions of many stores, and `traffic_of` returns what all stores of the process count together of a
    caller. With `stores`, callers see the sessions of these stores, to which creations do not belong.
    """
    model = await _priced(settings, model)
    metrics = Metrics(model.engine if model else None)
    dav = await asyncio.to_thread(make_dav)  # imports and inspects the platform
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        log = await enter(opened(MemoryBackend())) if journal is None else journal
        store = await enter(_store(settings, engine, model, log, part))
        sessions = store if stores is None else _joint(settings, engine, part, stores, store)
        folders = workspaces
        if folders is None:
            where, retention = (settings.workspaces, settings.data_dir), settings.version_retention
            folders = await enter(open_workspaces(*where, retention, settings.versions_absent))
        principals = Principals(
            lambda name: Principal(name, sessions, folders, traffic_of and traffic_of(name)),
            settings.principal_limits,
            store.clock,
        )
        if settings.tokens is not None:
            await principals.load(settings.tokens)
        await store.restore(principals.account_of)
        if settings.store_file is not None and isinstance(engine, KeepsState):
            engine.keep_only(lambda: [session.key for session in store])
        store.spending.on_counted = metrics.count_spent
        context = Context(
            settings=settings,
            engine=engine,
            model=model,
            store=store,
            sessions=sessions,
            workspaces=folders,
            principals=principals,
            metrics=metrics,
            streams=Streams(settings, metrics.streams),
            completions=EphemeralCompletions(engine, settings.limits, store.spending),
            requests=Requests(log, store.clock),
            renderer=await enter(aclosing(Renderer())),
            shares=Shares(principals, store, log),
            connections=ModelConnections(settings, engine),
            dav=dav,
        )
        context = await enter(_with_versions_of_files(context, log))
        stack.enter_context(dav.opened(store))
        await enter(background(_watches(context)))
        yield context


async def _priced(settings: ServerSettings, model: ModelInfo | None) -> ModelInfo | None:
    """Return a model with its price: its own, that of the settings, or a known one."""
    if model is None or model.price is not None:
        return model
    default = await asyncio.to_thread(default_price, settings.upstream, model.name)  # imports its data
    return replace(model, price=settings.price or default)


def _store(
    settings: ServerSettings, engine: Engine, model: ModelInfo | None, journal: Journal, part: Part | None
) -> SessionStore:
    names = engine.names if isinstance(engine, HasModels) else () if model is None else (model.name,)
    model_of = partial(info_of, engine, model)
    return SessionStore(engine, settings.limits, journal=journal, models=names, part=part, model_of=model_of)


def _joint(
    settings: ServerSettings,
    engine: Engine,
    part: Part | None,
    stores: Callable[[], Sequence[SessionStore]],
    local: SessionStore,
) -> JointStore:
    joint = JointStore(engine, settings.limits, part, stores)
    joint.spending = local.spending  # completions without a session are counted there
    return joint


@asynccontextmanager
async def _with_versions_of_files(context: Context, journal: Journal) -> AsyncIterator[Context]:
    """Finish the rewinds, forks and merges of files that a kill has interrupted, and return the context with them.

    During the block, the versions of deleted sessions are forgotten.
    """
    folders, store = context.workspaces, context.store
    if folders.history is None:
        if folders.lacks_versions:
            store.on_deleted = partial(Forgetting.note, journal)
        yield context
        return
    rewinds = FileRewinds(folders, folders.history, journal)
    with suppress(StorageFull):  # it is logged, and tried again with the next rewind
        await rewinds.finish()
    forgetting = Forgetting(folders.history, journal)
    forks = FileForks(folders, journal, forgetting)
    await forks.undo()
    merges = FileMerges(folders, journal)
    with suppress(StorageFull):  # it is tried again with the next merge
        await merges.finish()
    store.on_deleted = forgetting.session_deleted
    async with background([forgetting.run()]):
        yield replace(context, rewinds=rewinds, forks=forks, merges=merges)


def _watches(context: Context) -> Iterator[Coroutine[None, None, None]]:
    """Yield the endless work of a context."""
    settings, store = context.settings, context.store
    yield context.metrics.watch(store)
    yield store.checkpoints()
    yield store.find_topics()
    yield context.shares.watch()
    yield Retention(store, settings.keep, store.clock).run()
    if settings.tokens is not None:
        yield context.principals.watch(settings.tokens)


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[Journal]:
    """Open a journal, and close it. Raises `StoreFailed`."""
    journal = Journal(backend)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


@asynccontextmanager
async def background(work: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run endless tasks for the duration of the block."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
