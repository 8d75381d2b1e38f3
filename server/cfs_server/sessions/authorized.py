"""The sessions as one caller may use them: the only way from an interface to a session (G9).

A session has the logical path `/sessions/<id>`, for which the caller's grants name operations. They mean for a session:

    list          show it in a listing, or in the tree below another session
    file          wait for it, and read what a listing shows of it
    read_binary   read its transcript, messages, settings and events
    write         append, change settings, cancel; create it, also as a copy of another session
    delete        delete it; replace or rewind its history; rename it (also with `read_binary`, and `write` for the new
                  id)

A grant for a session covers everything below it. Actions that need more than one operation, or that a share never has,
and the settings, are in `cfs_server.domain.rights`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import islice

from cfs.errors import (
    CfsError,
    Conflict,
    Forbidden,
    Gone,
    InvalidIdentifier,
    LooksAlike,
    SessionDeleted,
    SessionLost,
    departed,
)
from cfs.wire import SettingsPatch
from cfs_filesystem import OPERATIONS, InvalidPathError, Operation, Path
from cfs_server.domain.events import EventLog, LoggedEvent
from cfs_server.domain.ids import SESSIONS, copy_ids, id_of, is_within, new_id, parent_of, path_of
from cfs_server.domain.past import Past
from cfs_server.domain.quotas import StorageUsage, StoreLimits
from cfs_server.domain.rights import SETTINGS, Right
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import TURN_EVENTS, Turn, TurnRequest, ended_turn, has_ended
from cfs_server.domain.words import Criteria
from cfs_server.sessions.authorization import Access, Authorization
from cfs_server.sessions.index import difference
from cfs_server.sessions.rewinding import FileRewind, RewindPlan, carry_out, plan_redo, plan_rewind
from cfs_server.sessions.search import MatchPage
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore

_REWIND: tuple[Operation, ...] = ("read_binary", "write", "delete")
_OUT_OF_VIEW = "session {!r} has been deleted or renamed"
_ORIGINS = ("renamed_to", "renamed_from", "forked_from")


class AuthorizedSessions:
    """The session operations of one caller. New sessions count for its account.

    If the caller allows `look_alikes`, a new session may have a name that looks like that of another one.
    """

    __slots__ = ("_account", "_authorization", "_handle", "_look_alikes", "_store")  # each open stream has one

    def __init__(
        self, store: SessionStore, authorization: Authorization, account: StorageUsage, *, look_alikes: bool = False
    ) -> None:
        self._store = store
        self._look_alikes = look_alikes
        self._authorization = authorization
        self._handle = authorization.handle
        self._account = account

    @property
    def owner(self) -> str:
        """The owner of the caller's account."""
        return self._account.owner

    @property
    def limits(self) -> StoreLimits:
        """The limits of sessions."""
        return self._store.limits

    def require(self, operation: Operation, session_id: str) -> None:
        """Raise unless the caller has this right: `NotGranted` if it has no rights there, else `Forbidden`."""
        self._authorization.require(operation, path_of(session_id), f"session {session_id!r}")

    def require_somewhere(self, operation: Operation) -> None:
        """Raise `Forbidden` unless the caller has this right for at least one path. No session needs to exist."""
        if not self._handle.scopes(operation, SESSIONS):
            self._authorization.log_denial(operation, SESSIONS, Access.FORBIDDEN)
            raise Forbidden(f"your token does not allow {operation!r} for any session, so it may not use the model")

    def require_any(self, session_id: str) -> None:
        """Raise `NotGranted` unless the caller has a right at or below a session. The session need not exist."""
        if not any(self._handle.scopes(operation, path_of(session_id)) for operation in OPERATIONS):
            self.require("file", session_id)

    def require_right(self, right: Right, session_id: str) -> None:
        """Raise unless the caller has a right to an action on a session, which need not exist; see `require`."""
        self._authorization.require_right(right, path_of(session_id), f"session {session_id!r}")

    def _require_settings(self, session_id: str, patch: SettingsPatch | None) -> None:
        """Raise unless the caller may change each setting of a patch (S9)."""
        for name in sorted(patch.model_fields_set) if patch else ():
            label = f"the setting {name!r} of session {session_id!r}"
            self._authorization.require_right(SETTINGS[name], path_of(session_id), label)

    def may(self, operation: Operation, session_id: str) -> bool:
        """Return whether the caller has this right."""
        return self._handle.allows(operation, path_of(session_id))

    def get(self, session_id: str, *operations: Operation) -> Session:
        """Return a session for operations that must all be granted. Raises `NotFound`."""
        for operation in operations:
            self.require(operation, session_id)
        return self._store.get(session_id)

    def known(self, session_id: str) -> Session | None:
        """Return a session for which the caller has any right, so that it may know of its existence; or None."""
        return (
            self._store.find(session_id) if any(self.may(operation, session_id) for operation in OPERATIONS) else None
        )

    def get_for(self, right: Right, session_id: str) -> Session:
        """Return a session for an action. Raises `NotFound`."""
        self.require_right(right, session_id)
        return self._store.get(session_id)

    def with_key(self, key: str, *operations: Operation) -> Session:
        """Return a session by its key, which stays when it is renamed. Raises `Gone` if it is deleted."""
        session = self._store.with_key(key)
        if session is None:
            raise SessionDeleted("the session of this request has been deleted")
        for operation in operations:
            self.require(operation, session.id)
        return session

    def require_life(self, session_id: str, life: str | None) -> None:
        """Raise unless the session is the one that the caller has seen: `life` is its nonce, or None if any will do.

        Raises `SessionDeleted`, `SessionRenamed` or `SessionLost`. A caller without rights gets the error for missing
        rights, so it learns nothing about the session.
        """
        if life is None:
            return
        self.require_any(session_id)
        session, life = self.known(session_id), life.strip()
        if session is not None and session.nonce == life:
            return
        key = self._store.former.key_of(session_id, life)
        if key is None:
            raise SessionLost(
                f"this server has no session {session_id!r} as you knew it: it has lost it, or was restored from a"
                " backup without it"
            )
        session = self._store.with_key(key)
        if session is None:
            raise departed(session_id)
        if self.known(session.id) is None:
            raise SessionDeleted(_OUT_OF_VIEW.format(session_id))
        raise departed(session_id, session.id)

    async def turn(self, session: Session, turn_id: str, after: int) -> Turn:
        """Return a turn, also one that has ended. `after` is the number of an event before it.

        Raises `Gone` if its events are no longer kept.
        """
        living = session.find_turn(turn_id)
        if living is not None:
            return living
        ended = ended_turn(turn_id, await self.events_of(session, turn_id, after))
        if ended is None:
            raise Gone(f"the turn has ended, and its events are no longer kept: read session {session.id!r}")
        return ended

    async def events_of(self, session: Session, turn_id: str, after: int) -> list[LoggedEvent]:
        """Return the events of a turn so far. `after` is the number of an event before it."""
        last, turn_events = session.log.last, list[LoggedEvent]()
        async with aclosing(session.log.follow(after)) as batches:
            while after < last and isinstance(events := await anext(batches), list):
                after = events[-1].number
                turn_events += [
                    event for event in events if event.data.get("turn") == turn_id and event.type in TURN_EVENTS
                ]
                if has_ended(turn_events, after):
                    break
        return turn_events

    def find(self, session_id: str, operation: Operation) -> Session | None:
        """Return a session for an operation that must be granted; None if there is no session with this id."""
        self.require(operation, session_id)
        return self._store.find(session_id)

    def loaded(self, which: str | Session) -> AbstractAsyncContextManager[None]:
        """Keep the messages of a session in memory during a block. Whatever uses messages must be in such a block.

        An id without a session, or without any right of the caller, loads nothing.
        """
        if isinstance(which, Session):
            return self._store.loaded(which)
        return nullcontext() if self.known(which) is None else self._store.loaded(which)

    def page(self, prefix: str = "", after: str = "", limit: int = 100) -> list[Session]:
        """Return sessions that the caller may list, by id: the roots, or the direct children under the prefix."""
        try:
            directory = SESSIONS if "/" not in prefix else path_of(prefix.rpartition("/")[0]) + "/"
        except InvalidIdentifier:
            return []  # an invalid id has no children
        scopes = self._handle.scopes("list", directory)
        if directory in scopes:
            return self._store.page(prefix, after, limit)
        named = [scope for scope in scopes if scope.rpartition("/")[0] + "/" == directory and scope != directory]
        sessions = sorted(_existing(self._store, named), key=lambda session: session.id)
        return [session for session in sessions if session.id > after and session.id.startswith(prefix)][:limit]

    def active(self, prefix: str = "", after: str = "", limit: int = 100) -> list[Session]:
        """Return sessions with turns that the caller may list, at any depth, by id."""
        sessions = [session for session in self._store.busy() if session.id > after and session.id.startswith(prefix)]
        allowed = (session for session in sorted(sessions, key=lambda one: one.id) if self.may("list", session.id))
        return list(islice(allowed, limit))

    def children(self, session: Session) -> list[Session]:
        """Return the direct sub-sessions by id."""
        return self._store.children(session)

    def enter(self, root: str) -> Session | None:
        """Return a root session if the caller has a right at or below it; None if there is none."""
        path = path_of(root)
        return self._store.find(root) if any(self._handle.scopes(operation, path) for operation in OPERATIONS) else None

    def below(self, root: str) -> list[Session]:
        """Return the sessions below a session that the caller may list, at any depth."""
        return self._within(self._handle.scopes("list", path_of(root) + "/"))

    def _within(self, scopes: Iterable[Path]) -> list[Session]:
        """Return the sessions that prefixes below `SESSIONS` cover. No other session is looked at."""
        sessions: list[Session] = []
        for scope in scopes:
            for top in _existing(self._store, [scope.removesuffix("/")]):
                sessions += self._store.family(top)[1 if scope.endswith("/") else 0 :]
        return sessions

    def roots_with_children(self) -> list[Session]:
        """Return the root sessions with sub-sessions that the caller may list."""
        scopes = self._handle.scopes("list", SESSIONS)
        if SESSIONS in scopes:
            roots = self._store.page(limit=len(self._store))
        else:
            named = {"/".join(scope.split("/", 3)[:3]) for scope in scopes}
            roots = sorted(_existing(self._store, named), key=lambda session: session.id)
        return [root for root in roots if self._store.children(root) and (SESSIONS in scopes or self.below(root.id))]

    async def search(self, criteria: Criteria, prefix: str, root: str, limit: int) -> MatchPage:
        """Return the best matches in sessions that the caller may read.

        Their ids begin with `prefix`, and they are the session `root` or below it. An empty text selects all.
        """
        scopes = self._handle.scopes("read_binary", SESSIONS)
        readable = [
            session
            for session in (self._store if SESSIONS in scopes else self._within(scopes))
            if session.id.startswith(prefix) and (not root or is_within(session.id, root))
        ]
        result = await self._store.search(readable, criteria, limit, self._authorization.name)
        allowed = [
            match for match in result.matches if not match.session.deleted and self.may("read_binary", match.session.id)
        ]
        return replace(result, matches=allowed)

    def new_name(self) -> str | None:
        """Return a free id for a session; None if the caller may write to named sessions only."""
        name = new_id(self._store.is_free)
        return name if self.may("write", name) else None

    def is_free(self, session_id: str) -> bool:
        """Return whether a session with this id can be created here; see `SessionStore.is_free`."""
        return self._store.is_free(session_id)

    def create(
        self,
        session_id: str | None = None,
        patch: SettingsPatch | None = None,
        transcript: str | SizedMessages | None = None,
        tokens: int = 0,
        cost: float = 0.0,
    ) -> Session:
        """Create a session; see `SessionStore.create`."""
        name = new_id(self._store.is_free) if session_id is None else session_id
        self._require_new(name)
        self._require_settings(name, patch)
        return self._store.create(name, patch, transcript, self._account, tokens=tokens, cost=cost)

    def open(self, session_id: str) -> Session:
        """Return a session to write to. It is created if it does not exist (S2)."""
        self._require_new(session_id)
        return self._store.open(session_id, self._account)

    def submit(self, session_id: str, request: TurnRequest) -> tuple[Session, Turn, LoggedEvent]:
        """Accept a message; see `SessionStore.submit`. A view that would replace the history requires more rights."""
        self._require_new(session_id)
        self._require_settings(session_id, request.settings)
        if request.view is not None:
            request = replace(request, may_replace=self.may("delete", session_id))
        return self._store.submit(session_id, request, self._account)

    def delete(self, session_id: str) -> None:
        """Delete a session and everything below it (S2)."""
        self.require("delete", session_id)
        self._store.delete(session_id)

    def configure(self, session_id: str, patch: SettingsPatch, *, dry_run: bool = False) -> Session:
        """Change settings of a session, or only check the change; see `Session.change_settings`."""
        session = self.get(session_id, "write")
        self._require_settings(session_id, patch)
        if dry_run:
            session.check_settings(patch)
        else:
            session.change_settings(patch)
        return session

    def cancel(self, session_id: str, *, queued: bool = False, cascade: bool = False) -> tuple[int, int]:
        """Cancel turns; see `SessionStore.cancel`."""
        self.require("write", session_id)
        return self._store.cancel(session_id, queued=queued, cascade=cascade)

    def fork(self, session_id: str, new: str | None = None, messages: int | None = None) -> Session:
        """Copy a session; see `SessionStore.fork`."""
        name = self.name_of_copy(session_id, new)
        return self._store.fork(session_id, name, messages, self._account)

    def name_of_copy(self, session_id: str, new: str | None, taken: Container[str] = ()) -> str:
        """Check the rights to copy a session to the id `new`, and return this, or else the first free id.

        An id in `taken` is not free. Rights come first: who lacks one learns nothing of taken ids.
        """
        self.require("read_binary", session_id)
        self._store.get(session_id)
        name = self._copy_id(session_id, taken) if new is None else new
        self._require_new(name)
        return name

    def _copy_id(self, session_id: str, taken: Container[str]) -> str:
        for name in copy_ids(session_id):
            self.require("write", name)
            if self._store.is_free(name) and name not in taken:
                return name
        raise AssertionError  # pragma: no cover - the ids have no end

    def discard(self, session: Session) -> None:
        """Delete a session that the caller has just made, because it cannot be used."""
        self._store.delete(session.id)

    def rename(self, session_id: str, new: str) -> Session:
        """Change the id of a session; see `SessionStore.rename`."""
        self.require("read_binary", session_id)
        self.require("delete", session_id)
        self._require_new(new, instead_of=session_id)
        return self._store.rename(session_id, new)

    def fill(self, session_id: str, transcript: str | SizedMessages, delay: float = 0.0) -> Session:
        """Set the first messages of a session, which is created if needed (S14). Requires the right to write.

        An unanswered user message at its end gets its turn after `delay` seconds; see `TurnRequest`.

        Raises `Conflict` if the session already has messages.
        """
        self._require_new(session_id)
        session = self._store.find(session_id)
        if session is None:
            return self._store.create(session_id, None, transcript, self._account, delay)
        if len(session.history) > 0:
            raise Conflict(f"session {session_id!r} has a history already")
        return self._store.replace(session_id, transcript, session.etag, delay)

    def replace(self, session_id: str, transcript: str | SizedMessages, etag: str, delay: float = 0.0) -> Session:
        """Replace the history with an edited transcript; see `SessionStore.replace`."""
        self.require("write", session_id)
        self.require("delete", session_id)
        return self._store.replace(session_id, transcript, etag, delay)

    async def past(self, session_id: str) -> tuple[Session, Past]:
        """Return a session with its versions. The right to read the present is the right to read the past."""
        session = self.get(session_id, "read_binary")
        with self.throughout(session, "read_binary"):
            return session, await self._store.past(session)

    async def plan_rewind(
        self, session_id: str, to: float, *, sub_sessions: bool, messages: bool, check: Callable[[Session], None]
    ) -> RewindPlan:
        """Plan to take a session back to a version or a time; see `sessions.rewinding`. `check` is a precondition."""
        members = self._members(session_id) if sub_sessions else [self.get(session_id, *_REWIND)]
        check(members[0])
        return await plan_rewind(self._store, members, to, messages=messages)

    async def plan_redo(self, session_id: str, *, check: Callable[[Session], None]) -> RewindPlan:
        """Plan to undo the last rewind of a session, and of those that were rewound together with it."""
        members = self._members(session_id)
        check(members[0])
        return await plan_redo(self._store, members)

    async def carry_out(self, plan: RewindPlan, files: FileRewind | None, *, check: Callable[[Session], None]) -> None:
        """Carry out a plan to rewind sessions, and let their files follow."""
        for step in plan.steps:
            self.require_still(step.session, step.session.id, *_REWIND)
        check(plan.steps[0].session)
        await carry_out(self._store, plan, files)

    def _members(self, session_id: str) -> list[Session]:
        """Return a session and everything below it. Each must be one that the caller may rewind."""
        members = self._store.family(self.get(session_id, *_REWIND))
        for member in members:
            for operation in _REWIND:
                self.require(operation, member.id)
        return members

    def _require_new(self, session_id: str, instead_of: str | None = None) -> None:
        """Check the right to write, also for the parent sessions that would be created.

        Raises `LooksAlike` for a new name that looks like another one, unless that one is given up for it.
        """
        self.require("write", session_id)
        missing = self._store.missing(session_id)
        for name in missing:
            self.require("write", name)
        if missing and parent_of(missing[0]) is None and not self._look_alikes:
            self._require_distinct(missing[0], instead_of)

    def _require_distinct(self, name: str, instead_of: str | None) -> None:
        """Raise `LooksAlike` if the caller may know of another session whose name looks like this one."""
        for other in self._store.look_alikes.of(name):
            if other != instead_of and self.known(other) is not None:
                raise LooksAlike(
                    f"the session {other!r} has a name that looks like {name!r} (they differ in"
                    f" {difference(name, other)}): use that name, another one, or ?look_alike=allow",
                    existing=other,
                )

    def is_settled(self, session: Session) -> bool:
        """Return whether a session and everything below it is idle (S13)."""
        return self._store.is_settled(session)

    async def wait_settled(self, session: Session, timeout: float | None, operation: Operation) -> bool:
        """Wait until a session is settled; see `SessionStore.wait_settled`. The right is checked again afterwards."""
        with self.throughout(session, operation):
            return await self._store.wait_settled(session, timeout)

    @contextmanager
    def throughout(self, session: Session, *operations: Operation) -> Iterator[None]:
        """Check the rights again after a wait, before its result or error is passed on."""
        requested_id = session.id
        try:
            yield
        except CfsError:
            self.require_still(session, requested_id, *operations)
            raise
        self.require_still(session, requested_id, *operations)

    def require_still(self, session: Session, requested_id: str, *operations: Operation) -> None:
        """Raise unless the caller still has these rights for a session. `requested_id` may be an old id of it.

        A session that was renamed out of the caller's view is `SessionDeleted` for it. The error does not contain the
        new name.
        """
        if all(self.may(operation, session.id) for operation in operations):
            return
        for operation in operations:
            self.require(operation, requested_id)
        self._authorization.log_denial(operations[0], path_of(session.id), Access.HIDDEN)
        raise SessionDeleted(_OUT_OF_VIEW.format(requested_id))

    @property
    def log(self) -> EventLog:
        """The events of all sessions. Only events from `visible` may be shown."""
        return self._store.bus.log

    def visible(self, events: Sequence[LoggedEvent]) -> list[LoggedEvent]:
        """Return the events of sessions that the caller may read, without the names of hidden sessions (S11)."""
        if SESSIONS in self._handle.scopes("read_binary", SESSIONS):
            return list(events)
        readable = {session: self.may("read_binary", session) for session in {event.session for event in events}}
        return [self._without_names(event) for event in events if readable[event.session]]

    def _without_names(self, event: LoggedEvent) -> LoggedEvent:
        named = {key: event.data[key] for key in _ORIGINS if key in event.data}
        if "origin" in event.data:
            named["origin"] = event.data["origin"]["session"]
        hidden = [key for key, name in named.items() if not self.may("read_binary", name)]
        if not hidden:
            return event
        return replace(event, data={key: value for key, value in event.data.items() if key not in hidden})


def _existing(store: SessionStore, paths: Iterable[Path]) -> Iterator[Session]:
    """Yield the existing sessions among some paths. A grant may name an invalid id."""
    for path in paths:
        with suppress(InvalidPathError):
            if (session := store.find(id_of(path))) is not None:
                yield session
