"""Builds the application of a replica: its databases, its slots, and the front that answers for all of them."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog
from starlette.applications import Starlette

from cfs.errors import Unavailable
from cfs_server.app import create_app
from cfs_server.cluster.callers import Callers
from cfs_server.cluster.directory import LEASE_SECONDS, Directory, shared
from cfs_server.cluster.front import Front, sees
from cfs_server.cluster.names import Names
from cfs_server.cluster.relay import Relay, Signer
from cfs_server.cluster.replica import AGAIN_SECONDS, Replica
from cfs_server.cluster.slots import HostedSlot, OpenSlot
from cfs_server.config.settings import ServerSettings
from cfs_server.context import open_context, opened
from cfs_server.domain.placement import new_key, slot_of
from cfs_server.engine.contract.interface import Engine, ModelInfo
from cfs_server.http.caller import Context
from cfs_server.journal.postgres import PostgresBackend
from cfs_server.journal.postgres_database import prepare
from cfs_server.sessions.store import Part, SessionStore
from cfs_server.workspaces.workspaces import Workspaces

_log = structlog.get_logger(__name__)

_NO_SLOT = -1


class Cluster:
    """One replica: what it shares with the others, and its application."""

    def __init__(
        self, settings: ServerSettings, engine: Engine, model: ModelInfo | None, workspaces: Workspaces, url: str
    ) -> None:
        """Check the databases. `url` is where the other replicas reach this one. Raises `StoreFailed`. Blocks."""
        self._settings = settings
        self._engine = engine
        self._model = model
        self._workspaces = workspaces
        databases = [prepare(database, settings.slots) for database in settings.databases]
        for prepared in databases:
            for warning in prepared.warnings:
                _log.warning("database.weak", reason=warning)
        self.name = secrets.token_hex(6)
        common = shared(settings.databases[0])
        self._clock = common.clock
        first, *others = settings.databases
        directories = [Directory(first, self.name, url, common.clock)]
        directories += [Directory(database, self.name, url) for database in others]
        signer = Signer(common.secret, common.clock)
        self._relay = Relay(signer)
        self.replica = Replica(
            self.name, directories, [database.slots for database in databases], self._host, partial(sees, self._relay)
        )
        usage = self.replica.usage
        part = Part(
            may_create=_nowhere,
            used_elsewhere=partial(usage.elsewhere, _NO_SLOT),
            spent_elsewhere=partial(usage.spent_elsewhere, _NO_SLOT),
            durable_spending=usage.spending_of_any,
            clock=self._clock,
        )
        self._app = create_app(settings, engine, model, None, workspaces, part, usage.traffic_of, self._stores)
        callers = Callers(self.replica, lambda: self._context().principals)
        self.app = Front(
            self.replica, self._relay, signer, self._app, self._context, callers, settings, common.life, self._run
        )

    def _stores(self) -> list[SessionStore]:
        return [slot.context.store for slot in self.replica.serving()]

    def _context(self) -> Context:
        """Return the context without a slot, for requests about no session or about all."""
        context: Context = self._app.state.cfs
        return context

    @asynccontextmanager
    async def _run(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._app.router.lifespan_context(self._app):
            running = asyncio.create_task(self.replica.run())
            try:
                yield
            finally:
                await self.replica.close()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await self._relay.close()

    async def drain(self, grace: float) -> None:
        """Hand over all slots (see `Replica.drain`), and end what was sent on to other replicas."""
        until = time.monotonic() + grace
        await self.replica.drain(grace)
        left = max(0.0, until - time.monotonic())
        await asyncio.gather(self._relay.drain(left), self._context().completions.drain(left))

    def _host(self, number: int) -> HostedSlot:
        return HostedSlot(number, self._app, self._open, self.replica.changed, lambda: self.replica.hosted)

    @asynccontextmanager
    async def _open(self, number: int) -> AsyncIterator[OpenSlot]:
        """Claim a slot and open its sessions, to the end of the block."""
        databases = self._settings.databases
        database, slot = databases[number % len(databases)], number // len(databases)
        backend = PostgresBackend(
            database, slot, replica=self.name, lease=LEASE_SECONDS, has_versions=database == databases[0]
        )
        async with opened(backend) as journal:
            names = Names(number, partial(slot_of, slots=self.replica.slots), journal)
            usage = self.replica.usage
            part = Part(
                partial(new_key, number),
                names.may_create,
                partial(usage.elsewhere, number),
                partial(usage.spent_elsewhere, number),
                clock=self._clock,
            )
            async with open_context(
                self._settings, self._engine, self._model, journal, self._workspaces, part, usage.traffic_of
            ) as context:
                yield OpenSlot(context, journal, names, backend.epoch)
                keys = [session.key for session in context.store]
            for key in keys:  # what the engine has computed of them is of no use here
                self._engine.forget(key)


def _nowhere(name: str) -> bool:
    """Refuse a session in the application without sessions, to which no request for one is sent."""
    raise Unavailable(f"no slot was found for {name!r}; repeat", retry_after=AGAIN_SECONDS)
