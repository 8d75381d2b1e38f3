"""The sub-agents' sessions on the server: made, given messages, claimed, and watched (S10, B3).

Whoever writes to one of them gives its agent a task, or steers it; whoever cancels one ends its agent's work. One
stream of events tells of all of them. An outage is waited out; sessions that a restarted server has lost are made anew
from what the runtime keeps, and the turns in them are taken again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from cfs import api
from cfs.errors import AlreadyExists, CfsError, Conflict, Forbidden, InvalidSettings, NotFound, Unreachable
from cfs.stream import StreamEvent
from cfs.transcript import render_one
from cfs.transports.async_http import AsyncClient
from cfs.wire import (
    AgentFinish,
    AgentUpdate,
    Message,
    NewMessage,
    SessionDetail,
    SessionTree,
    Settings,
    SettingsPatch,
    Usage,
)
from cfs_agents.fibre.state import LeaseRecord
from cfs_agents.model import Retries, is_outage

# A turn of the server that a sub-agent answers: what the sub-agent says goes there while it is said (S10, B3).
#
# One task sends, in order, one request at a time: while one is under way, what comes collects. Each request renews the
# lease, and where nothing is said an empty one does. After a lost connection the session itself tells what had arrived.
# An outage is waited out. Where the server has lost the turn, it is taken again, and all that was said in it is sent.

_TEXT_SECONDS = 0.05
"""How long text collects before it is sent, so that fifty fast agents do not send a request for each token."""
_MESSAGE_SECONDS = 0.01
"""The same for whole messages: a call and its quick result come together."""

Lost = Callable[[str], None]
"""Told in words why a turn is not ours any more."""


class TurnLease(Protocol):
    """What a sub-agent is answering."""

    @property
    def record(self) -> LeaseRecord | None:
        """What has to be known to go on with it in another process; None where there is no server."""
        ...

    def text(self, piece: str) -> None:
        """Say a piece of a reply."""
        ...

    def message(self, message: Message) -> None:
        """Say a whole message: calls, a result, or what the sub-agent was told meanwhile."""
        ...

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """End the turn by a reply, or by an error; one that is not ours any more is left alone."""
        ...

    async def close(self) -> None:
        """Let go, as another process will go on; the turn stays ours until its lease has run out."""
        ...


class NoLease:
    """A turn where there is no server."""

    record: LeaseRecord | None = None

    def text(self, piece: str) -> None:
        """Do nothing."""

    def message(self, message: Message) -> None:
        """Do nothing."""

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class ServerLease:
    """A turn that was claimed. `lost` is called once, if it is not ours any more before it was finished.

    `regain` is asked when the server does not know the turn as ours: it takes it again and tells whether it could.
    """

    def __init__(
        self,
        client: AsyncClient,
        session: str,
        record: LeaseRecord,
        seconds: float,
        lost: Lost,
        retries: Retries,
        regain: "Callable[[ServerLease], Awaitable[bool]]",
    ) -> None:
        self.record: LeaseRecord = record
        self.session = session
        self._client = client
        self._seconds = seconds
        self._lost: Lost | None = lost
        self._retries = retries
        self._regain = regain
        self._pieces: list[str] = []
        self._messages: list[Message] = []
        """All of the turn; the first `_sent` have arrived."""
        self._sent = 0
        self.ended = False
        self._failure: CfsError | None = None
        self._woken = asyncio.Event()
        self._sender = asyncio.create_task(self._send())

    def text(self, piece: str) -> None:
        """Say a piece of a reply."""
        self._pieces.append(piece)
        self._woken.set()

    def message(self, message: Message) -> None:
        """Say a whole message; text that has not been sent yet stands in it."""
        if message.role == "assistant":
            self._pieces.clear()
        self._messages.append(message)
        self._woken.set()

    def catch_up(self, messages: Sequence[Message], arrived: int) -> None:
        """Send what another process had written down of this turn, but for what has arrived."""
        self._messages, self._sent = list(messages), min(arrived, len(messages))
        self._woken.set()

    def retake(self, record: LeaseRecord) -> None:
        """Go on with the turn as the server has it now: nothing of it has arrived there."""
        self.record, self._sent = record, 0

    def lose(self, reason: str) -> None:
        """Take notice that the turn is not ours any more."""
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(reason)

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """Send what is left, and end the turn. Raises `CfsError` when the server cannot be reached."""
        self.ended = True
        self._woken.set()
        await asyncio.wait([self._sender])  # it sends what is left: cancelled in a request, it could not say what came
        if self._failure is not None:
            raise self._failure
        if self._lost is None:
            return
        told = {"error": error} if error else {"reply": reply}

        async def end() -> None:
            if self._left:  # the turn has been taken again
                await self._deliver()
            news = AgentFinish(claim=self.record.claim, usage=usage, **told)
            await self._retries.call(lambda: self._client.call(api.finish(self.session, self.record.turn, news)))

        with suppress(
            NotFound, Forbidden, Conflict
        ):  # cancelled, deleted, or ended by the request whose answer was lost
            await self._ours(end)
        self._lost = None  # what is told now is no news

    async def close(self) -> None:
        """End the sending."""
        self._sender.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._sender])

    # -- sending --------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        try:
            await self._ours(self._deliver)  # the claim was for a short time only
            while self._lost is not None:
                if self.ended and not self._left:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds / 3):
                        await self._woken.wait()
                if not self.ended:
                    await asyncio.sleep(_MESSAGE_SECONDS if self._left else _TEXT_SECONDS)
                self._woken.clear()
                await self._ours(self._deliver)
        except (NotFound, Forbidden, Conflict) as error:
            self.lose(f"its turn was cancelled, or taken over ({error.detail})")
        except CfsError as error:
            if self.ended and is_outage(error):
                self._failure = error
            else:
                self.lose(f"the server could not be told: {error.detail}")

    @property
    def _left(self) -> bool:
        return self._sent < len(self._messages)

    async def _ours(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do something with the turn; where the server does not know it as ours, take it again, and then do it."""
        while True:
            try:
                return await action()
            except (NotFound, Forbidden, Conflict):
                if self._lost is None or not await self._regain(self):
                    raise

    async def _deliver(self) -> None:
        """Send what has collected in one request, and again until it has arrived; an outage is waited out."""
        text, count = "".join(self._pieces), len(self._messages)
        self._pieces.clear()
        failed = False

        async def once() -> None:
            nonlocal failed
            if failed:  # did it arrive?
                detail = await self._client.call(api.read(self.session))
                self._sent = max(self._sent, min(count, arrived(detail, self.record.content)))
            failed = True
            left = tuple(self._messages[self._sent : count])
            news = AgentUpdate(claim=self.record.claim, text=text, messages=left, lease=self._seconds)
            await self._client.call(api.update(self.session, self.record.turn, news))
            self._sent = max(self._sent, count)

        await self._retries.call(once, forever=lambda: not self.ended)


def arrived(detail: SessionDetail, content: str) -> int:
    """Count the messages that a running turn has brought: those after the last message of a user that began it."""
    for back, message in enumerate(reversed(detail.history)):
        if message.role == "user" and message.content == content:
            return back
    return 0


_FIRST_LEASE = 5.0
"""Seconds for which a turn is claimed before it has been written down that it is ours."""
_CLAIM_SECONDS = 20.0
_WATCH_PAUSE = 1.0
_LONGEST_TRANSCRIPT = 4 << 20
"""Bytes of a transcript that is made anew: the newest messages that fit."""

_AGAIN = "the server had lost this session when this message came: send it again"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What the runtime keeps of a session, besides the turn that is being answered: enough to make it anew.

    `life` tells one session of a name from the next; None where none has been made.
    """

    messages: Sequence[Message] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    life: str | None = None


class Watcher(Protocol):
    """Who wants to know what happens to the sessions of a tree, and who keeps what is in them."""

    def sessions(self) -> Sequence[str]:
        """Name all sessions, parents first."""
        ...

    def kept(self, session_id: str) -> SavedSession:
        """Return what is kept of a session."""
        ...

    def opened(self, session_id: str, life: str, settings: Mapping[str, Any]) -> None:
        """A session is there, and this is what it is like."""
        ...

    async def retaken(self, session_id: str, record: LeaseRecord) -> None:
        """The turn that is being answered in a session is another one now."""
        ...

    def waiting(self, session_id: str) -> None:
        """A message waits in this session."""
        ...

    def deleted(self, session_id: str) -> None:
        """This session is gone."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A turn that is ours now, and the message that it answers; `goes_on` where another process had begun to."""

    lease: TurnLease
    content: str
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class ServerTurn(ClaimedTurn):
    """One of a server."""

    lease: ServerLease


class SessionBackend(Protocol):
    """Where the sessions of a tree can be seen while it works."""

    @property
    def away(self) -> float:
        """For how many seconds there has been no server, in all."""
        ...

    def attend(self, watcher: Watcher) -> None:
        """Work for this tree from now on."""
        ...

    async def open(self, session_id: str) -> None:
        """Make the session if there is none, and let an agent answer it."""
        ...

    async def begin(self, session_id: str, content: str, lost: Lost) -> ClaimedTurn:
        """Give the session a message, unless it has it already, and take the next one that waits."""
        ...

    async def next(self, session_id: str, lost: Lost, wait: float = 0.0) -> ClaimedTurn | None:
        """Take the next message that waits; None when none comes within so many seconds."""
        ...

    async def resume(
        self, session_id: str, record: LeaseRecord, said: Sequence[Message], lost: Lost
    ) -> ClaimedTurn | None:
        """Go on with a turn of another process, which had written down what it `said`; None when it is over."""
        ...

    async def is_waiting(self, session_id: str) -> bool:
        """Whether somebody has written to this session, and the message waits."""
        ...

    def paused(self, session_id: str) -> bool:
        """Whether somebody has set this session, or one above it, to be paused."""
        ...

    async def unpaused(self, session_id: str) -> None:
        """Wait until it is not, or no longer, paused."""
        ...

    async def watch(self, root: str) -> None:
        """Tell of what happens to the sessions of a tree, until cancelled."""
        ...

    async def cancel(self, session_id: str) -> None:
        """End what runs and waits in a session, and below it."""
        ...


class NoSessions:
    """A tree that nobody watches."""

    away = 0.0

    def attend(self, watcher: Watcher) -> None:
        """Do nothing."""

    async def open(self, session_id: str) -> None:
        """Do nothing."""

    async def begin(self, session_id: str, content: str, lost: Lost) -> ClaimedTurn:  # noqa: ARG002 - as the protocol has it
        """Return a turn of its own."""
        return ClaimedTurn(NoLease(), content)

    async def next(self, session_id: str, lost: Lost, wait: float = 0.0) -> ClaimedTurn | None:  # noqa: ARG002
        """Return None: nobody can write here."""
        return None

    async def resume(
        self,
        session_id: str,  # noqa: ARG002
        record: LeaseRecord,
        said: Sequence[Message],  # noqa: ARG002
        lost: Lost,  # noqa: ARG002
    ) -> ClaimedTurn | None:
        """Return a turn of its own."""
        return ClaimedTurn(NoLease(), record.content, goes_on=True)

    async def is_waiting(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def paused(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    async def unpaused(self, session_id: str) -> None:
        """Go on at once."""

    async def watch(self, root: str) -> None:  # noqa: ARG002
        """Wait for ever."""
        await asyncio.Event().wait()

    async def cancel(self, session_id: str) -> None:
        """Do nothing."""


@dataclass(slots=True)
class ServerSessions:
    """The sessions of a tree on a server. Raises what the server reports, and the error of an outage that is too long.

    Whoever waits for the next message of a session waits out any outage.
    """

    client: AsyncClient
    lease_seconds: float = 30.0
    retries: Retries = field(default_factory=Retries)
    _waiting: set[str] = field(default_factory=set)
    _leases: dict[str, ServerLease] = field(default_factory=dict)
    _lives: dict[str, str] = field(default_factory=dict)
    _paused: set[str] = field(default_factory=set)
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _store: str | None = None
    """Id of the server's store, in which our sessions are."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _watcher: Watcher | None = None

    @property
    def away(self) -> float:
        """For how many seconds somebody has waited for the server."""
        return self.retries.outages.seconds

    def attend(self, watcher: Watcher) -> None:
        """Work for this tree from now on."""
        self._watcher = watcher

    async def open(self, session_id: str) -> None:
        """Make the session if there is none, with what is kept of it, and let an agent answer it."""

        async def once() -> None:
            async with self._opening:
                if await self._open(session_id):
                    await self._open_all()

        await self.retries.call(once)

    async def begin(self, session_id: str, content: str, lost: Lost) -> ServerTurn:
        """Give the session a message, unless it has it already, and take the next one that waits."""
        return await self._call(lambda: self._begin(session_id, content, lost))

    async def next(self, session_id: str, lost: Lost, wait: float = 0.0) -> ClaimedTurn | None:
        """Take the next message that waits; None when none comes within so many seconds."""
        self._waiting.discard(session_id)
        return await self._call(lambda: self._claim(session_id, wait, lost), forever=wait > 0)

    async def resume(
        self, session_id: str, record: LeaseRecord, said: Sequence[Message], lost: Lost
    ) -> "ServerTurn | None":
        """Go on with a turn of another process, which had written down what it `said`; None when it is over.

        The turn may be ours still, or wait again as its lease has run out.
        """
        return await self._call(lambda: self._resume(session_id, record, said, lost))

    async def _resume(
        self, session_id: str, record: LeaseRecord, said: Sequence[Message], lost: Lost
    ) -> "ServerTurn | None":
        try:
            detail = await self.client.call(api.read(session_id))
        except NotFound:  # the server has been started anew, without its sessions
            detail = None
        if detail is None or record.life not in (None, life_of(detail.etag)):
            async with self._opening:
                await self._open(session_id)
                await self._open_all()
            begun = await self._begin(session_id, record.content, lost)
            begun.lease.catch_up(said, 0)
            return replace(begun, goes_on=True)
        self._lives[session_id] = life_of(detail.etag)
        if detail.state == "idle":
            return None
        try:
            proof = AgentUpdate(claim=record.claim, lease=self.lease_seconds)
            await self.client.call(api.update(session_id, record.turn, proof))
        except (NotFound, Forbidden):  # its lease has run out, or it was over and the next had been taken
            if (taken := await self._claim(session_id, _CLAIM_SECONDS, lost)) is None:
                return None
            detail = await self.client.call(api.read(session_id))
        else:
            taken = ServerTurn(self._lease_of(session_id, record, lost), record.content)
        if taken.lease.record.turn != record.turn:
            return taken
        taken.lease.catch_up(said, arrived(detail, record.content))
        return replace(taken, goes_on=True)

    async def is_waiting(self, session_id: str) -> bool:
        """Whether somebody has written to this session, and the message waits.

        The server is asked only where the events say so; a message of our own may have been the reason.
        """
        if session_id not in self._waiting:
            return False
        detail = await self._call(lambda: self.client.call(api.read(session_id)))
        lease, queue = self._leases.get(session_id), detail.queue
        if lease is not None and not lease.ended and queue and detail.state != "generating":
            queue = queue[1:]  # no turn runs, so the first is our own: we were late, and nobody else has claimed it
        if not queue:
            self._waiting.discard(session_id)
        return bool(queue)

    def paused(self, session_id: str) -> bool:
        """Whether this session, or one above it, is paused, as far as the events have told."""
        return any(session_id == each or session_id.startswith(f"{each}/") for each in self._paused)

    async def unpaused(self, session_id: str) -> None:
        """Wait until it is not paused."""
        while self.paused(session_id):
            self._going.clear()
            await self._going.wait()

    async def watch(self, root: str) -> None:
        """Tell of what happens to the sessions of a tree, until cancelled."""
        while True:
            stream = api.Stream(api.events().request, None, announce=True)
            try:
                async with aclosing(self.client.events(stream, attempts=float("inf"))) as events:
                    async for event in events:
                        if event.type in ("connected", "stale"):
                            await self._look(root)
                        elif event.session == root or event.session.startswith(f"{root}/"):
                            self._hear(event)
            except CfsError as error:  # the server was not there when the stream began
                if not is_outage(error):
                    raise
            await asyncio.sleep(_WATCH_PAUSE)

    async def cancel(self, session_id: str) -> None:
        """End what runs and waits in a session, and below it."""
        await self.client.call(api.cancel(session_id, queued=True, cascade=True))

    # -- turns ----------------------------------------------------------------------------------------------------

    async def _begin(self, session_id: str, content: str, lost: Lost) -> ServerTurn:
        record = await self._take(session_id, content)
        return ServerTurn(self._lease_of(session_id, record, lost), record.content)

    async def _take(self, session_id: str, content: str) -> LeaseRecord:
        detail = await self.client.call(api.read(session_id))
        self._lives[session_id] = life_of(detail.etag)
        if not _has(detail, content):
            await self.client.call(api.post(session_id, NewMessage(content=content)))
        while (record := await self._claimed(session_id, _CLAIM_SECONDS)) is None:
            pass
        return record

    async def _claim(self, session_id: str, wait: float, lost: Lost) -> ServerTurn | None:
        record = await self._claimed(session_id, wait)
        return None if record is None else ServerTurn(self._lease_of(session_id, record, lost), record.content)

    async def _claimed(self, session_id: str, wait: float) -> LeaseRecord | None:
        claim = await self.client.call(api.claim(session_id, min(_FIRST_LEASE, self.lease_seconds), wait))
        if claim is None:
            return None
        life = self._lives.get(session_id)
        return LeaseRecord(turn=claim.turn, claim=claim.claim, content=claim.message.content, life=life)

    def _lease_of(self, session_id: str, record: LeaseRecord, lost: Lost) -> ServerLease:
        lease = ServerLease(self.client, session_id, record, self.lease_seconds, lost, self.retries, self._regain)
        self._leases[session_id] = lease
        return lease

    # -- outages --------------------------------------------------------------------------------------------------

    async def _call(self, action: Callable[[], Awaitable[T]], *, forever: bool = False) -> T:
        """Do something, again after an outage, and again where sessions have been lost and made anew."""

        async def once() -> T:
            before = self._store
            try:
                return await action()
            except (NotFound, Conflict) as error:
                if await self._restored() or self._store != before:
                    raise Unreachable("the server has lost its sessions; they have been made anew") from error
                raise

        return await self.retries.call(once, lambda: forever)

    async def _regain(self, lease: ServerLease) -> bool:
        """Take a turn again that the server does not know as ours; False where it was ended, or another has it.

        A server that ends fails the turns that it has, so before a turn counts as ended the server must be ready.
        """
        ending = False

        async def once() -> bool:
            nonlocal ending
            before = self._store
            try:
                detail = await self.client.call(api.read(lease.session))
            except NotFound:
                if not await self._restored() and self._store == before:
                    return False  # it was deleted
                detail = await self.client.call(api.read(lease.session))
            if life_of(detail.etag) == lease.record.life and not ending:
                try:
                    await self.client.call(api.ready())
                except CfsError:
                    ending = True
                    raise
                return False
            await self._restored()
            record = await self._take(lease.session, lease.record.content)
            while record.content != lease.record.content:  # somebody has written while there was nobody to answer
                end = AgentFinish(claim=record.claim, error=_AGAIN)
                await self.client.call(api.finish(lease.session, record.turn, end))
                record = await self._take(lease.session, lease.record.content)
            lease.retake(record)
            return True

        if not await self._call(once, forever=not lease.ended):
            return False
        if self._watcher is not None:
            await self._watcher.retaken(lease.session, lease.record)
        return True

    async def _restored(self) -> bool:
        """Whether the server has another store than the one that had our sessions; then they are made anew."""
        async with self._opening:
            store = await self.client.call(api.store())
            before = self._store
            if before is None:
                self._store = store
            if before in (None, store):
                return False
            await self._open_all()
            self._store = store
            return True

    async def _open_all(self) -> None:
        for session_id in self._watcher.sessions() if self._watcher is not None else ():
            await self._open(session_id)

    async def _open(self, session_id: str) -> bool:
        """Make a session, or see to it that it is the one that we know; tell whether it had been lost."""
        if self._store is None:
            self._store = await self.client.call(api.store())
        kept = self._watcher.kept(session_id) if self._watcher is not None else SavedSession()
        driven = SettingsPatch.model_validate({**kept.settings, "driver": "agent"})
        text = _transcript(kept.messages)
        try:
            info = await self.client.call(api.create(session_id, driven, text or None))
        except InvalidSettings:  # the server has another engine than before
            info = await self.client.call(api.create(session_id, SettingsPatch(driver="agent"), text or None))
        except AlreadyExists:
            detail = await self.client.call(api.read(session_id))
            settings = await self._adopt(detail, kept, driven)
            self._opened(session_id, detail.etag, settings.model_dump(exclude_none=True))
            return False
        self._opened(session_id, info.etag, kept.settings)
        return kept.life is not None

    def _opened(self, session_id: str, etag: str, settings: Mapping[str, Any]) -> None:
        self._lives[session_id] = life_of(etag)
        self._note_pause(session_id, paused=bool(settings.get("paused")))
        if self._watcher is not None:
            self._watcher.opened(session_id, life_of(etag), settings)

    async def _adopt(self, detail: SessionDetail, kept: SavedSession, driven: SettingsPatch) -> Settings:
        """Answer a session that is there. Where it is another one of the name, what we keep goes before what it has."""
        if kept.life in (None, life_of(detail.etag)):
            return await self.client.call(api.configure(detail.id, SettingsPatch(driver="agent")))
        settings = await self.client.call(api.configure(detail.id, driven))
        text = _transcript([*kept.messages, *detail.history])
        with suppress(Conflict):  # it is being written to: then it stays as it is
            await self.client.call(api.replace(detail.id, text, detail.etag))
        return settings

    # -- events ---------------------------------------------------------------------------------------------------

    def _hear(self, event: StreamEvent) -> None:
        lease = self._leases.get(event.session)
        match event.type:
            case "state.changed":
                self._note(event.session, event.data.get("queued"))
            case "turn.finished" if event.data.get("finish_reason") == "cancelled":
                if lease is not None and lease.record.turn == event.turn:
                    lease.lose("it was cancelled")
            case "settings.changed":
                settings = event.data.get("settings", {})
                self._note_pause(event.session, paused=bool(settings.get("paused")))
                if self._watcher is not None and (life := self._lives.get(event.session)) is not None:
                    kept = {key: value for key, value in settings.items() if value is not None}
                    self._watcher.opened(event.session, life, kept)
            case "session.deleted":
                self._note_pause(event.session, paused=False)
                if lease is not None:
                    lease.lose("its session was deleted")
                if self._watcher is not None:
                    self._watcher.deleted(event.session)

    def _note(self, session_id: str, queued: object) -> None:
        if queued:
            self._waiting.add(session_id)
            if self._watcher is not None:
                self._watcher.waiting(session_id)
        else:
            self._waiting.discard(session_id)

    async def _look(self, root: str) -> None:
        """See what has been missed."""
        try:
            await self._restored()
            tree = await self.client.call(api.sub_sessions(root))
        except CfsError:  # not there yet, or not reachable: the stream will say more
            return
        for info in _all(tree):
            self._note(info.id, info.queued)
            with suppress(CfsError):
                settings = await self.client.call(api.settings(info.id))
                self._note_pause(info.id, paused=settings.paused)

    def _note_pause(self, session_id: str, *, paused: bool) -> None:
        if paused:
            self._paused.add(session_id)
        else:
            self._paused.discard(session_id)
            self._going.set()


def _all(tree: SessionTree) -> list[SessionTree]:
    return [tree, *(info for child in tree.children for info in _all(child))]


def _has(detail: SessionDetail, content: str) -> bool:
    """Whether a message waits, or is being answered."""
    if detail.state == "idle":
        return False
    said = [message.content for message in detail.history if message.role == "user"]
    return content in [*said[-1:], *(message.content for message in detail.queue)]


def life_of(etag: str) -> str:
    """Return what tells one session of a name from the next: the first part of its ETag."""
    return etag.strip('"').rpartition("-")[0]


def _transcript(messages: Sequence[Message]) -> str:
    """Render messages, or the newest of them that a server takes."""
    texts, size = list[str](), 0
    for message in reversed(messages):
        text = render_one(message) + "\n"
        size += len(text.encode())
        if size > _LONGEST_TRANSCRIPT:
            break
        texts.append(text)
    return "".join(reversed(texts))
