"""All sessions in memory, as a tree of ids (S2, S11-S14).

The store manages ids, limits and families. `Session` manages the inside of one session. The store is an asynchronous
context manager. Its tasks (one for each running turn) live in one task group and end with the block.
"""

import asyncio
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Any, Self

import structlog

from cfs.contract.ids import check_id
from cfs.errors import AlreadyExists, CfsError, Conflict, NotFound, PreconditionFailed, Unavailable
from cfs.wire import CostRow, Message, Settings, SettingsPatch, Usage
from cfs_server.base.clock import steady_time
from cfs_server.domain.changes import (
    NO_MESSAGES,
    WHOLE,
    Created,
    Deleted,
    HistoryReplaced,
    MessageAdded,
    Record,
    Renamed,
    Rewind,
    TokensSpent,
)
from cfs_server.domain.events import EventArchive, EventBus, LoggedEvent, new_nonce
from cfs_server.domain.history import Window
from cfs_server.domain.ids import ancestors_of, copy_ids, family_of, is_within, new_id, parent_of
from cfs_server.domain.message_sizes import check_content
from cfs_server.domain.past import Past, PastChange, RecentPast
from cfs_server.domain.quotas import Quota, StorageUsage, StoreLimits, Used
from cfs_server.domain.spending import Spent
from cfs_server.domain.transcripts import SizedMessages, read_history
from cfs_server.domain.turns import Turn, TurnRequest, kind_of
from cfs_server.domain.words import Criteria
from cfs_server.engine.contract.interface import Engine, ModelInfo, predicted_wait
from cfs_server.journal.journal import Journal
from cfs_server.journal.records import decode
from cfs_server.sessions import tracing
from cfs_server.sessions.answering import answer
from cfs_server.sessions.former import FormerNames
from cfs_server.sessions.hints import Hints
from cfs_server.sessions.history_cache import HistoryCache
from cfs_server.sessions.index import LookAlikes, SessionIndex
from cfs_server.sessions.search import MatchPage, search
from cfs_server.sessions.session import Services, Session
from cfs_server.sessions.spending import Spending

_CHECKPOINT_SECONDS = 5.0
_HEADS_AT_ONCE = 200

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of all sessions a store has, if there are several stores: each has its keys and its names."""

    new_key: Callable[[], str] = lambda: uuid.uuid4().hex
    """Returns a new session's key: 32 hexadecimal digits."""
    may_create: Callable[[str], bool] = lambda _root: True
    """Returns whether a session with this id, which has no parent, may be created here."""
    used_elsewhere: Callable[[str], Used] | None = None
    """Returns what an owner has in the other stores."""
    spent_elsewhere: Callable[[str, str], Spent] | None = None
    """Returns what a principal has spent in a day in the other stores."""
    durable_spending: Callable[[], Spending | None] = lambda: None
    """Returns the counts of another store, if this one is not durable."""
    clock: Callable[[], float] = steady_time
    """Returns the time that all stores share, in seconds since 1970."""


def _archive(journal: Journal) -> EventArchive:
    opened = journal.opened
    return EventArchive(opened.epoch, opened.life, opened.position, journal.events, journal.last_of, journal.settled)


class SessionStore:
    """All sessions of the server. All methods run on the event loop."""

    def __init__(
        self,
        engine: Engine,
        limits: StoreLimits | None = None,
        defaults: Settings | None = None,
        journal: Journal | None = None,
        part: Part | None = None,
        models: Collection[str] = (),
        model_of: Callable[[str | None], ModelInfo | None] = lambda _name: None,
    ) -> None:
        """Create an empty store. An opened journal receives each change of each session.

        `models` are the names that the setting `model` may have; if it is empty, they are not known.
        `model_of` describes the model that such a name, or None, chooses.

        The shutdown of the store is not recorded. If the journal is durable, histories leave the memory when they are
        not used, and are read from it again.
        """
        self.limits = limits or StoreLimits()
        self.bus = EventBus(self.limits, None if journal is None else _archive(journal))
        self._defaults = defaults or Settings()
        self._part = part or Part()
        self.clock = self._part.clock
        """Tells the time, in seconds since 1970."""
        self._sessions = SessionIndex()
        self._tasks = asyncio.TaskGroup()
        self.draining = False
        self.histories = HistoryCache(journal, self.limits.memory, self._spawn)
        busy = StorageUsage("sessions with turns", Quota(size=self.limits.busy_bytes), None, self.histories.needed)
        self._busy = busy
        self.account = StorageUsage("the server", Quota(self.limits.sessions, self.limits.total_bytes), busy)
        self.accounts: dict[str, StorageUsage] = {}
        """The account of each owner."""
        self._hints = Hints(engine, self.find)
        self.journal = journal
        self.former = FormerNames(journal, self.clock)
        self.on_removed: Callable[[Session], None] = lambda _session: None
        """Called when a session is deleted or gets another name."""
        self.on_deleted: Callable[[str], None] = lambda _id: None
        """Called with the id of a session that is deleted."""
        part = self._part
        self.spending = Spending(journal, self.clock, model_of, part.spent_elsewhere, part.durable_spending)
        self._changed: dict[str, Session] = {}
        self._recent: dict[str, RecentPast] = {}
        """The past of each session, by its key, if the store keeps nothing."""
        self._services = self._make_services(engine, models)

    def _make_services(self, engine: Engine, models: Collection[str]) -> Services:
        return Services(
            engine,
            self.bus,
            self.limits,
            self._spawn,
            self._state_changed,
            self._tools_changed,
            self._recorded,
            self._root_key,
            self._attended,
            answer,
            self.spending,
            models,
            self.clock,
        )

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.checkpoint(len(self._changed))
        for root in list(self._sessions.roots):  # they are not deleted: only this store of them ends
            for session in self._end(root, Session.close):
                tracing.closed(session)
        self.bus.log.close(goodbye=True)
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:  # of the block's own error too, which then goes on as it is
            if group.exceptions != (error,):
                raise

    def __len__(self) -> int:
        return len(self._sessions)

    def share_limits(self, stores: int) -> None:
        """Use a part of the limits of the server from now on: this many stores share its memory."""
        limits = self.limits
        self.histories.budget = limits.memory // stores
        self._busy.quota = Quota(size=limits.busy_bytes // stores)
        self.account.quota = Quota(-(-limits.sessions // stores), limits.total_bytes // stores)
        self.bus.share_limits(stores)

    def account_for(self, owner: str) -> StorageUsage:
        """Create the account of an owner of sessions."""
        account = self.account.part(owner, Quota())
        account.pays = True
        if (used := self._part.used_elsewhere) is not None:
            account.elsewhere = lambda: used(owner)
        self.accounts[owner] = account
        return account

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session_id: str) -> Session:
        """Return a session. Raises `NotFound`, or `InvalidIdentifier` for an invalid id."""
        session = self.find(session_id)
        if session is None:
            raise NotFound(f"there is no session {check_id(session_id)!r}")
        return session

    def find(self, session_id: str) -> Session | None:
        """Return a session, or None if there is none with this id."""
        return self._sessions.get(session_id)

    def loaded(self, which: str | Session) -> AbstractAsyncContextManager[None]:
        """Keep the messages of a session in memory during a block. There may be none with this id."""
        if isinstance(which, Session):
            return self.histories.loaded(which)
        return self.histories.loaded_by_id(which, self.find)

    async def load_busy(self) -> None:
        """Load the histories of all sessions with turns, after a start and before the turns go on.

        Turns whose history cannot be read fail. Raises `Unavailable` if it can be read later.
        """
        for session in [session for session in self if not session.idle]:
            try:
                async with self.histories.loaded(session):
                    pass
            except CfsError as error:
                if error.retry_after is not None:  # the database is away, and the turns are still in it
                    raise
                session.abandon(error.detail)

    def with_key(self, key: str) -> Session | None:
        """Return the session with this key, whatever its id is now."""
        return self._sessions.with_key(key)

    def open(self, session_id: str, account: StorageUsage | None = None) -> Session:
        """Return a session. It is created if it does not exist (S2), and then counts for the account."""
        return self._sessions.get(session_id) or self._create(check_id(session_id), self._defaults, None, account)

    def is_free(self, session_id: str) -> bool:
        """Return whether a session with this id can be created here."""
        root = family_of(session_id)
        return session_id not in self._sessions and (root in self._sessions or self._part.may_create(root))

    def missing(self, session_id: str) -> list[str]:
        """Return the ids of the sessions that are created with this one: missing parents and itself."""
        return [name for name in (*ancestors_of(session_id), session_id) if name not in self._sessions]

    def page(self, prefix: str = "", after: str = "", limit: int = 100) -> list[Session]:
        """Return sessions by id: the roots, or, if the prefix contains a `/`, the direct children that it selects."""
        parent, slash, _ = prefix.rpartition("/")
        ids = self._sessions.children(parent) if slash else self._sessions.roots
        start = bisect_left(ids, max(prefix, after + "\0" if after else ""))
        page: list[Session] = []
        for at in range(start, min(start + limit, len(ids))):
            if not ids[at].startswith(prefix):
                break
            page.append(self._sessions[ids[at]])
        return page

    def busy(self) -> list[Session]:
        """Return the sessions in which a turn runs or waits, in any order."""
        return [self._sessions[session_id] for session_id in self._hints.busy]

    def costs(self) -> list[CostRow]:
        """Return what was spent on models, the newest day first."""
        return self.spending.rows()

    async def search(self, sessions: Sequence[Session], criteria: Criteria, limit: int, owner: str) -> MatchPage:
        """Return the best matches in some sessions."""
        with_key = self.with_key if len(sessions) == len(self._sessions) else None
        return await search(sessions, self.journal, criteria, limit, owner, with_key)

    def children(self, session: Session) -> list[Session]:
        """Return the direct sub-sessions by id."""
        return [self._sessions[child] for child in self._sessions.children(session.id)]

    def family(self, session: Session) -> list[Session]:
        """Return a session and everything below it, parents first."""
        return [session] + [member for child in self.children(session) for member in self.family(child)]

    def create(
        self,
        session_id: str | None = None,
        patch: SettingsPatch | None = None,
        transcript: str | SizedMessages | None = None,
        account: StorageUsage | None = None,
        delay: float = 0.0,
        tokens: int = 0,
        cost: float = 0.0,
    ) -> Session:
        """Create a session. A transcript, as text or already parsed, becomes its history (S14).

        `tokens` are those that it has used on another server, and `cost` what it has spent there.

        A transcript that ends with an unanswered user message starts a turn, after `delay` seconds. The same is true
        for `replace` and, without a delay, for `fork`. Raises `AlreadyExists`.
        """
        name = new_id(self.is_free) if session_id is None else check_id(session_id)
        if name in self._sessions:
            raise AlreadyExists(f"there is a session {name!r} already")
        patch = patch or SettingsPatch()
        self._services.check_model(patch)
        history, settings = self.read(transcript or ""), self._defaults.patched(patch)
        self._check_unanswered(name, history.messages, settings, account or self.account)
        session = self._create(name, settings, history, account)
        if tokens or cost:
            session.apply(TokensSpent(Usage(prompt_tokens=tokens, cost=cost or None)))
        session.answer_last(delay)
        return session

    def submit(
        self, session_id: str, request: TurnRequest, account: StorageUsage | None = None
    ) -> tuple[Session, Turn, LoggedEvent]:
        """Accept a message for a session, which is created if it is new (S3, S4).

        Returns the session, the turn of the message and the event that announces it.
        """
        if self.draining:
            raise Unavailable("the server is shutting down", retry_after=5)
        self.limits.check_messages(len(request.view.messages if request.view else ()) + 1)
        self._services.check_model(request.settings)
        existing = self._sessions.get(session_id)
        payer = existing.account if existing else account or self.account
        replaced = existing.history.cost if existing and request.view is not None else 0
        payer.require_room(size=request.cost - replaced)
        if existing is None and request.generate and self._defaults.driver == "model":  # a refusal makes no session
            self._check_turn(request.model(self._defaults), payer, session_id, self._defaults)
        session = existing or self.open(session_id, account)
        return session, *session.accept(request)

    def delete(self, session_id: str) -> None:
        """Delete a session and everything below it (S2)."""
        for session in self._end(session_id, Session.delete):
            self.former.add(session.id, session.nonce, session.key)
            self.on_removed(session)
            self.on_deleted(session.id)
            self._services.engine.forget(session.key)

    def _end(self, session_id: str, end: Callable[[Session], None]) -> list[Session]:
        """Remove a session and everything below it from memory, end each, and return them."""
        family = self.family(self.get(session_id))
        for session in reversed(family):
            self._remove(session.id)
            end(session)
            self._hints.forget(session.key)
        self._wake_above(session_id)
        return family

    def cancel(self, session_id: str, *, queued: bool = False, cascade: bool = False) -> tuple[int, int]:
        """Cancel the running turn, and on request waiting turns and those of sub-sessions (S12)."""
        session = self.get(session_id)
        counts = [member.cancel(queued=queued) for member in (self.family(session) if cascade else [session])]
        return sum(running for running, _ in counts), sum(waiting for _, waiting in counts)

    def fork(
        self, session_id: str, new: str | None = None, messages: int | None = None, account: StorageUsage | None = None
    ) -> Session:
        """Copy a session's settings, and its history or the first `messages` of it (S14).

        Without this number, the copy of a busy session ends before the running turn, and nothing is generated. With
        it, a copy that ends with a user message answers it. An agent answers its session only: the copy has the driver
        of a new session, and is not paused.
        """
        source, at = self.get(session_id), messages
        name = next(filter(self.is_free, copy_ids(session_id))) if new is None else check_id(new)
        if name in self._sessions:
            raise AlreadyExists(f"there is a session {name!r} already")
        if at is not None and at > len(source.history):
            raise Conflict(f"session {session_id!r} has {len(source.history)} messages; it cannot fork at {at}")
        history = source.settled_history() if at is None else source.history.until(at)
        settings = source.settings.model_copy(update={"driver": self._defaults.driver, "paused": False})
        if at is not None:
            self._check_unanswered(name, history.messages, settings, account or self.account)
        whole = at is None or at >= len(source.history)
        window = source.history.window if whole and source.history.window.cut < len(history.messages) else WHOLE
        copy = self._create(name, settings, history, account, window=window, forked_from=source.id)
        if at is not None:
            copy.answer_last()
        return copy

    def rename(self, session_id: str, new: str) -> Session:
        """Change the id of a session and of everything below it (S14). Raises `AlreadyExists`."""
        session = self.get(session_id)
        check_id(new)
        if new == session_id:
            return session
        if new in self._sessions:
            raise AlreadyExists(f"there is a session {new!r} already")
        if is_within(new, session_id):
            raise Conflict("a session cannot become a sub-session of itself")
        family = self.family(session)
        names = [(member, new + member.id.removeprefix(session_id)) for member in family]
        for _, name in names:
            check_id(name)
        if family_of(new) not in self._sessions:
            self._require_part(family_of(new))
        session.account.require_room(sessions=len(self.missing(new)) - 1)
        self._make_ancestors(new, session.account)
        for member in reversed(family):
            self._remove(member.id)
            self.on_removed(member)
        for member, name in names:
            self.former.add(member.id, member.nonce, member.key)
            member.rename(name)
            self._add(member)
            self._hints.look(member)
        self._wake_above(session_id)
        return session

    def read(self, transcript: str | SizedMessages, existing: Iterable[Message] = ()) -> SizedMessages:
        """Parse a transcript, unless it is already parsed; see `read_history`."""
        if isinstance(transcript, SizedMessages):
            return transcript
        return read_history(transcript, self.limits.messages, existing)

    def replace(self, session_id: str, transcript: str | SizedMessages, etag: str, delay: float = 0.0) -> Session:
        """Replace the history with an edited transcript if `etag` is the current one (S14).

        A turn that this starts begins after `delay` seconds; see `TurnRequest`.
        """
        session = self.get(session_id)
        history = self.read(transcript, () if isinstance(transcript, SizedMessages) else session.history.messages)
        if etag not in ("*", session.etag):
            raise PreconditionFailed(f"session {session_id!r} has changed: its transcript is {session.etag} now")
        session.require_idle("its history cannot be replaced")
        session.account.require_room(size=history.cost - session.history.cost)
        self._check_unanswered(session_id, history.messages, session.settings, session.account)
        session.replace_history(history)
        self.histories.touch(session)
        session.answer_last(delay)
        return session

    async def past(self, session: Session) -> Past:
        """Return the versions of a session.

        A store that keeps nothing has them in memory: of those that are not shown any more, 4 MiB at most. Raises
        `Gone` if the session is deleted meanwhile.
        """
        async with self.histories.loaded(session):
            if (recent := self._recent.get(session.key)) is not None:
                return Past.of(recent.changes, session.history, session.id, recent.first)
            changes = [] if self.journal is None else await self.journal.past(session.key)
            session.require_going_on()
            return Past.of(changes, session.history, session.id)

    def rewind(self, steps: Iterable[tuple[Session, SizedMessages, Rewind]]) -> None:
        """Give idle sessions the histories of earlier versions, all or none of them.

        A history that ends with an unanswered user message gets its turn (S14). Raises `Conflict`, `StorageFull`, or
        what refuses the turn.
        """
        planned = list(steps)
        growth = Counter[StorageUsage]()
        for session, history, _ in planned:
            session.require_going_on()
            session.require_idle("it cannot be rewound")  # a message may have come while files were looked at
            growth[session.account] += history.cost - session.history.cost
            self._check_unanswered(session.id, history.messages, session.settings, session.account)
        for account, size in growth.items():
            account.require_room(size=size)
        for session, history, how in planned:
            session.rewind(history, how)
            self.histories.touch(session)
        for session, _, how in planned:
            if how.messages:
                session.answer_last()

    def recall_agents(self, session_id: str) -> None:
        """Let the agents that wait for a turn in a session, or above it, look at their files."""
        for name in (session_id, *ancestors_of(session_id)):
            if (session := self.find(name)) is not None:
                session.attendance.recalled = True
                session.changed.fire()

    def _check_unanswered(
        self, session_id: str, history: Sequence[Message], settings: Settings, account: StorageUsage
    ) -> None:
        """Raise an error if the last message needs a turn that cannot be accepted. Called before any change."""
        if not history or history[-1].role != "user":
            return
        if self.draining:
            raise Unavailable("the server is shutting down", retry_after=5)
        check_content(history[-1].content, limit=self.limits.message_bytes)
        if settings.driver == "model":
            self._check_turn(settings.model, account, session_id, settings)

    def _check_turn(self, model: str | None, account: StorageUsage, session_id: str, settings: Settings) -> None:
        """Raise `TooMany` if a turn of a session would wait too long for the engine, or exceed a limit of spending."""
        wait = predicted_wait(self._services.engine, model, account.owner, kind_of(session_id))
        self.limits.check_wait(wait)
        self.spending.check(account, model, settings, self.find(session_id))

    def is_settled(self, session: Session) -> bool:
        """Return whether a session and everything below it is idle (S13)."""
        return session.idle and not self._hints.is_busy_below(session.id)

    async def wait_settled(self, session: Session, timeout: float | None = None) -> bool:
        """Wait until a session is settled (S7, S13). Return False if the time-out is reached first.

        Raises `Gone` if it is deleted during the wait, and `Unavailable` if the store ends. A waiter costs one future,
        which the change itself wakes. A delayed turn begins at once.
        """
        session.hurry()
        try:
            async with asyncio.timeout(timeout):
                while not session.deleted and not self.is_settled(session):
                    session.require_going_on()
                    await session.changed.wait()
        except TimeoutError:
            return False
        if session.deleted:
            session.require_going_on()
        return True

    async def drain(self, grace: float) -> None:
        """Accept no new messages, let turns finish for `grace` seconds, then end all streams and waits (P3).

        The other turns are resumed by the next start, or fail if the sessions end with the process.
        """
        self.draining = True
        busy = [session for session in self if not session.idle]
        try:
            async with asyncio.timeout(grace):
                for session in busy:
                    while not session.idle and not session.deleted:
                        await session.changed.wait()
        except TimeoutError:
            for session in busy:
                if self.durable:
                    session.suspend(Unavailable("the server is shutting down; the turn goes on when it is back"))
                else:
                    session.abandon("the server was shut down")
        for session in self:
            session.say_goodbye()
        self.bus.log.close(goodbye=True)

    @property
    def look_alikes(self) -> LookAlikes:
        """The root sessions by what their names look like."""
        return self._sessions.look_alikes

    @property
    def durable(self) -> bool:
        """Whether the sessions outlive the process."""
        return self.journal is not None and self.journal.durable_store

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored now."""
        return None if self.journal is None else self.journal.problem

    async def restore(self, account_of: Callable[[str], StorageUsage]) -> None:
        """Restore the sessions of the journal, and resume their turns. `account_of` returns the account of an owner."""
        if self.journal is None:
            return
        began, opened = time.monotonic(), self.journal.opened
        for head in sorted(opened.heads, key=lambda head: head.id):  # so that each is added at the end of a list
            self._add(Session.restored(head, self._services, account_of(head.owner)))
        self.replay(((row.seq, decode(row)) for row in opened.rows), account_of)
        await self.load_busy()
        self.journal.opened = replace(opened, heads=(), rows=())  # they take more memory than the sessions
        resumed = Counter(filter(None, [session.resume() for session in list(self)]))
        if not self._sessions and not opened.repairs:
            return  # a first start has nothing to say
        _log.info(
            "sessions.restored",
            sessions=len(self),
            records=len(opened.rows),
            turns=", ".join(f"{count} {how}" for how, count in resumed.items()) or "none",
            repairs="; ".join(opened.repairs) or "none",
            seconds=round(time.monotonic() - began, 3),
        )

    def replay(self, records: Iterable[tuple[int, Record]], account_of: Callable[[str], StorageUsage]) -> None:
        """Apply recorded changes in order. Nothing is recorded or published, and the engine is not called.

        The records have their sequence numbers; those that a restored session includes are skipped. The sessions and
        their turns are restored as recorded. Turns that were running are restored as running, without a task or a
        timer.
        """
        sessions = {session.key: session for session in self}
        for seq, record in records:
            key, change = record.key, record.change
            if isinstance(change, Created) and key not in sessions:
                session = sessions[key] = Session(change, self._services, account_of(change.owner), (seq, record))
                self._changed[key] = session
                self._add(session)
                continue
            if isinstance(change, Deleted) and key not in sessions:
                continue  # nothing else is left of the session
            session = sessions[key]
            if seq <= session.seq:
                continue
            name = session.id
            session.redo(seq, record)
            self._changed[key] = session
            if isinstance(change, Renamed | Deleted):
                self._remove(name)
            if isinstance(change, Renamed):
                self._add(session)
            if isinstance(change, Deleted):
                session.log.close()
                del self._changed[key]
        for session in self:
            self.histories.touch(session)
            if not session.idle:  # the engine has nothing of the others
                self._hints.look(session)

    async def find_topics(self) -> None:
        """Read the histories of sessions that an older version has stored without their topics."""
        for session in [session for session in self if session.history.topic is None]:
            with suppress(CfsError):  # its title stays unknown until somebody reads it
                async with self.histories.loaded(session):
                    self._changed[session.key] = session

    async def checkpoints(self) -> None:
        """Store the heads of changed sessions now and then, until cancelled."""
        while True:
            await asyncio.sleep(_CHECKPOINT_SECONDS)
            while self._changed:
                self.checkpoint(_HEADS_AT_ONCE)
                await asyncio.sleep(0)

    def checkpoint(self, limit: int) -> None:
        """Store the heads of this many changed sessions, those that changed first."""
        if self.journal is None:
            return
        taken = [self._changed.pop(key) for key in list(islice(self._changed, limit))]
        self.journal.checkpoint(session.head() for session in taken)

    def _create(
        self,
        name: str,
        settings: Settings,
        history: SizedMessages | None = None,
        account: StorageUsage | None = None,
        window: Window = WHOLE,
        forked_from: str | None = None,
    ) -> Session:
        account, history = account or self.account, history or NO_MESSAGES
        account.require_room(sessions=len(self.missing(name)), size=history.cost)
        self._make_ancestors(name, account)
        return self._make(name, settings, account, history, window, forked_from)

    def _make(
        self,
        name: str,
        settings: Settings,
        account: StorageUsage,
        history: SizedMessages = NO_MESSAGES,
        window: Window = WHOLE,
        forked_from: str | None = None,
    ) -> Session:
        self._require_part(name)
        created = Created(
            name, self._part.new_key(), new_nonce(), account.owner, settings, history, window, forked_from
        )
        session = Session(created, self._services, account)
        self._add(session)
        return session

    def _require_part(self, name: str) -> None:
        """Raise `Unavailable` for a root that belongs to another store, which it can only just have got."""
        if parent_of(name) is None and not self._part.may_create(name):
            raise Unavailable(f"the name {name!r} has just been given to another replica; repeat", retry_after=1)

    def _make_ancestors(self, name: str, account: StorageUsage) -> None:
        for ancestor in ancestors_of(name):
            if ancestor not in self._sessions:
                self._make(ancestor, self._defaults, account)

    def _add(self, session: Session) -> None:
        self._sessions.add(session)
        self.histories.touch(session)

    def _remove(self, session_id: str) -> None:
        self.histories.forget(self._sessions.remove(session_id))
        self._hints.taken_away(session_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    def _recorded(self, session: Session, record: Record) -> int:
        tracing.changed(session, record.change)
        if not self.durable:
            self._remember(session, record)
        if self.journal is None:
            return 0
        if session.deleted:
            self._changed.pop(session.key, None)
        else:
            self._changed[session.key] = session
        return self.journal.append(record)

    def _remember(self, session: Session, record: Record) -> None:
        if session.deleted:
            self._recent.pop(session.key, None)
        elif isinstance(change := record.change, Created | HistoryReplaced | MessageAdded):
            self._recent.setdefault(session.key, RecentPast()).add(PastChange(record.at, change, record.author))

    def _root_key(self, session: Session) -> str:
        """Return the key of the root of a session's tree; its own if the root has been deleted."""
        root = self._sessions.get(family_of(session.id))
        return session.key if root is None else root.key

    def _attended(self, session: Session) -> bool:
        """Return whether an agent is attached to a session, or to one above it: an agent answers in its whole tree."""
        lineage = (session, *filter(None, map(self._sessions.get, ancestors_of(session.id))))
        return any(one.has_agent for one in lineage)

    def _state_changed(self, session: Session) -> None:
        session.changed.fire()
        self.histories.touch(session)
        self._hints.look(session)
        self._wake_above(session.id)

    def _tools_changed(self, session: Session) -> None:
        self.histories.touch(session)
        self._hints.look(session)

    def _wake_above(self, session_id: str) -> None:
        for ancestor in ancestors_of(session_id):
            if above := self._sessions.get(ancestor):
                above.changed.fire()

    def check_integrity(self) -> None:
        """Raise `AssertionError` if ids, families or sessions contradict each other."""
        self.bus.check_integrity()
        self.histories.check_integrity()
        self._sessions.check_integrity()
        busy = {session.id for session in self if not session.idle}
        self._hints.check_integrity(busy, {session.key for session in self})
        size = sum(session.history.cost + session.waiting_bytes for session in self)
        if (self.account.sessions, self.account.bytes) != (len(self), size):
            raise AssertionError("what is counted is not what there is")
        for session in self:
            session.check_integrity()
