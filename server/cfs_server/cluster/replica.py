"""This replica: follows the directory of each database, claims and hands over slots, and knows who has each slot."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace

import psycopg
import structlog

from cfs.errors import Unavailable
from cfs_server.base.broadcast import Broadcast
from cfs_server.cluster.directory import LEASE_SECONDS, SETTLING_SECONDS, Directory, DirectoryView
from cfs_server.cluster.slots import HostedSlot, SlotState
from cfs_server.cluster.usage import CallerUsage
from cfs_server.domain.placement import OPENINGS, ReplicaView, SlotView, moves_of
from cfs_server.sessions.store import SessionStore

_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.15
"""The time between two looks at a directory. It is a part of the time of a take-over."""
_URGENT_SECONDS = 1.0
"""Each time that a slot had no owner for this long, one more replica claims it."""
_HANDOVER_SECONDS = 30.0
"""How long a slot that is to be handed over is kept while turns run in it."""
_PATIENCE_SECONDS = 10.0
"""How long a request waits for an owner of its slot."""
LAST_SECONDS = 1.0
"""How long a request goes on when the replica that answers it has left its slot, or that relays it stops."""
AGAIN_SECONDS = 1.0
"""When a client may repeat a request that found no owner."""
_ANNOUNCE_SECONDS = 2.0
_ERRORS = (psycopg.Error, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class RemoteSlot:
    """A slot that another replica serves."""

    replica: str
    url: str


@dataclass(slots=True)
class _Database:
    """One database, and what it has shown. `index` is its place among the databases."""

    index: int
    directory: Directory
    slots: int
    view: DirectoryView = field(default_factory=DirectoryView)
    problem: str | None = None
    alone_at: float = -math.inf
    """When the other replicas were last asked and could not reach the database either."""
    free_since: dict[int, float] = field(default_factory=dict)


class Replica:
    """The slots of all databases, as this replica sees and serves them.

    Databases share the slots: the number of a slot is its number in its database times the number of databases, plus
    the place of its database.
    """

    def __init__(
        self,
        name: str,
        directories: list[Directory],
        slots: list[int],
        host: Callable[[int], HostedSlot],
        ask: Callable[[str, int], Coroutine[None, None, bool | None]],
    ) -> None:
        """Prepare a replica. `slots` is the number of slots of each database, `host` makes the object of a slot.

        `ask` asks the replica at a URL whether it reaches a database; None if it does not answer.
        """
        self.name = name
        self.slots = sum(slots)
        self.changed = Broadcast()
        """Fires when a slot has another owner or another state."""
        self.usage = CallerUsage(self._stores)
        self._databases = [_Database(at, *parts) for at, parts in enumerate(zip(directories, slots, strict=True))]
        self._host = host
        self._ask = ask
        self._hosted: dict[int, HostedSlot] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._look_now = Broadcast()
        self._looked = Broadcast()
        self._strangers = 0
        """How many requests wait to know whether their bearer is known."""

    @property
    def hosted(self) -> int:
        """The number of slots that this replica has, also those that it does not serve yet, or no longer."""
        return len(self._hosted)

    def serving(self) -> list[HostedSlot]:
        """Return the slots that this replica answers for, by number."""
        return [slot for _, slot in sorted(self._hosted.items()) if slot.serves and self.is_sure(slot.number)]

    def owner(self, slot: int) -> HostedSlot | RemoteSlot | None:
        """Return who serves a slot; None while that is not known."""
        hosted = self._hosted.get(slot)
        if hosted is not None and hosted.state is not SlotState.LEAVING:
            return hosted if hosted.serves and self.is_sure(slot) else None
        database = self._database_of(slot)
        view = next(
            (candidate for candidate in database.view.slots if candidate.slot == slot // len(self._databases)), None
        )
        if view is None or view.owner in (None, self.name) or not view.held:
            return None
        owner = database.view.replicas[str(view.owner)]
        return RemoteSlot(owner.id, owner.url)

    async def until_moved(self, slot: int, owner: RemoteSlot) -> None:
        """Return when a slot is not known any more to have this owner."""
        while self.owner(slot) == owner:
            await self.changed.wait()

    def is_sure(self, slot: int) -> bool:
        """Return whether this replica may answer for a slot that it has: no other can have taken it over.

        Either it reaches the database and its heartbeat is younger than the lease, or no other replica reaches it: the
        locks of one that loses its connection are free at once.
        """
        database, now = self._database_of(slot), time.monotonic()
        is_alive = database.problem is None and now - database.view.beat_at < LEASE_SECONDS
        return is_alive or now - database.alone_at < SETTLING_SECONDS

    def sees(self, index: int) -> bool:
        """Return whether this replica reaches a database."""
        return self._databases[index].problem is None

    async def slot_of_share(self, hashed: str) -> int | None:
        """Return the slot that has the share with this hash, wherever it is served; None if there is none.

        All who ask wait for the next look, so their number does not matter. Raises `Unavailable` if a database cannot
        be reached.
        """
        asked_at = time.monotonic()
        self._strangers += 1
        try:
            while True:
                looked = [candidate for candidate in self._databases if candidate.view.asked_at >= asked_at]
                looked = [candidate for candidate in looked if candidate.view.shares is not None]
                for database in looked:
                    if (slot := (database.view.shares or {}).get(hashed)) is not None:
                        return self._number(database, slot)
                if len(looked) == len(self._databases):
                    return None
                if self.problem is not None:
                    raise Unavailable(f"the token cannot be checked: {self.problem}", retry_after=AGAIN_SECONDS)
                await self._looked.wait()
        finally:
            self._strangers -= 1

    def _stores(self) -> dict[int, SessionStore]:
        return {number: slot.context.store for number, slot in self._hosted.items() if slot.serves}

    @property
    def others(self) -> list[ReplicaView]:
        """The other replicas that live."""
        replicas = {replica.id: replica for database in self._databases for replica in database.view.replicas.values()}
        return [replica for name, replica in sorted(replicas.items()) if replica.alive and name != self.name]

    @property
    def problem(self) -> str | None:
        """Why a database cannot be reached."""
        return next((database.problem for database in self._databases if database.problem is not None), None)

    @property
    def is_leaving(self) -> bool:
        """Whether this replica hands over what it has."""
        return self._leaving

    @property
    def has_left(self) -> bool:
        """Whether this replica stops, and has handed over everything."""
        return self._leaving and not self._hosted

    def _database_of(self, slot: int) -> _Database:
        return self._databases[slot % len(self._databases)]

    async def run(self) -> None:
        """Follow the directories until cancelled."""
        async with asyncio.TaskGroup() as group:
            for database in self._databases:
                group.create_task(self._follow(database))

    async def _follow(self, database: _Database) -> None:
        while True:
            await self._look(database)
            self._looked.fire()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look_now.wait()

    async def _look(self, database: _Database) -> None:
        try:
            usage = self.usage.summary if database.index == 0 else str
            view = await database.directory.look(usage, leaving=self._leaving, shares=self._strangers > 0)
        except _ERRORS as error:
            if database.problem is None:
                _log.warning("directory.unreachable", database=database.index, reason=_line(error))
            database.problem = _line(error)
            await self._ask_others(database)
            return
        if database.problem is not None:
            _log.info("directory.reached", database=database.index)
        changed = (view.slots, view.replicas) != (database.view.slots, database.view.replicas)
        database.view, database.problem = view, None
        if view.usage is not None:
            self.usage.learn(view.usage)
        if view.spent is not None:
            self.usage.learn_spent(database.index, ((self._number(database, row[0]), *row[1:]) for row in view.spent))
        self._drop_lost(database)
        self._act(database)
        if changed:
            self.changed.fire()

    async def _ask_others(self, database: _Database) -> None:
        """Find out whether the database is away, or only this replica cut off from it, which others replace then."""
        asked_at = time.monotonic()
        answers = await asyncio.gather(*[self._ask(other.url, database.index) for other in self.others])
        if True in answers and asked_at - database.view.beat_at > LEASE_SECONDS:
            for hosted in list(self._hosted.values()):
                if hosted.serves and self._database_of(hosted.number) is database:
                    _log.warning("slot.cut_off", slot=hosted.number)
                    hosted.lose()
        elif not {True, None} & set(answers):
            database.alone_at = asked_at

    def _drop_lost(self, database: _Database) -> None:
        """Leave the slots that have another owner now."""
        for view in database.view.slots:
            hosted = self._hosted.get(self._number(database, view.slot))
            if hosted is not None and hosted.serves and view.owner != self.name and view.epoch > hosted.epoch:
                _log.warning("slot.lost", slot=hosted.number, owner=view.owner)
                hosted.lose()

    def _act(self, database: _Database) -> None:
        now = time.monotonic()
        slots = [replace(view, held=view.held and not self._has_ended(database, view)) for view in database.view.slots]
        free = {view.slot for view in slots if not view.held}
        database.free_since = {slot: database.free_since.get(slot, now) for slot in free}
        late = {slot: int((now - since) / _URGENT_SECONDS) for slot, since in database.free_since.items()}
        opening = sum(hosted.state is SlotState.OPENING for hosted in self._hosted.values())
        moves = moves_of(self.name, slots, database.view.replicas, late, OPENINGS - opening)
        for slot in moves.claim:
            self._claim(self._number(database, slot))
        for slot in moves.release:
            hosted = self._hosted.get(self._number(database, slot))
            if hosted is not None and hosted.serves and not self._leaving:
                hosted.leave(_HANDOVER_SECONDS)

    def _has_ended(self, database: _Database, view: SlotView) -> bool:
        """Return whether the database says that this replica has a slot, but it has left it: it could not say so."""
        return view.owner == self.name and self._number(database, view.slot) not in self._hosted

    def _number(self, database: _Database, slot: int) -> int:
        return slot * len(self._databases) + database.index

    def _claim(self, number: int) -> None:
        if number in self._hosted or self._leaving:
            return
        hosted = self._hosted[number] = self._host(number)
        self._share_limits()
        task = asyncio.create_task(self._serve(hosted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _share_limits(self) -> None:
        """Let the slots of this replica share its memory."""
        for store in self._stores().values():
            store.share_limits(self.hosted)

    async def _serve(self, hosted: HostedSlot) -> None:
        try:
            await hosted.run()
        finally:
            del self._hosted[hosted.number]
            self._share_limits()
            self.changed.fire()

    async def drain(self, grace: float) -> None:
        """Hand over all slots: those without running turns at once, the others in `grace` seconds at the latest."""
        self._leaving, asked_at = True, time.monotonic()
        with suppress(TimeoutError):  # the others should know before they see slots without an owner
            async with asyncio.timeout(_ANNOUNCE_SECONDS):
                while any(
                    database.problem is None and database.view.asked_at < asked_at for database in self._databases
                ):
                    self._look_now.fire()
                    await self._looked.wait()
        for hosted in list(self._hosted.values()):
            hosted.leave(grace)
        while self._hosted:
            await self.changed.wait()

    async def close(self) -> None:
        """End what this replica still serves, and leave the directories."""
        await self.drain(0)
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for database in self._databases:
            with suppress(*_ERRORS):
                await database.directory.forget()
            with suppress(*_ERRORS):
                await database.directory.close()


class OwnerWait:
    """The time that one request waits for the owners of its slots."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._since = time.monotonic()

    async def wait(self, problem: str) -> None:
        """Wait until something may have changed. Raises `Unavailable` with the problem when the time is over.

        The time is short when this replica stops: it would not stop before.
        """
        patience = LAST_SECONDS if self._replica.has_left else _PATIENCE_SECONDS
        left = self._since + patience - time.monotonic()
        if left <= 0:
            why = f": {self._replica.problem}" if self._replica.problem else ""
            raise Unavailable(f"{problem}{why}", retry_after=AGAIN_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                await self._replica.changed.wait()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
