"""The server sessions of a tree's agents: creates, claims, and watches them, and sends messages to them (S10, B3).

A message to a session gives its agent a task or steers it. A cancel of a session ends its agent's task. One event
stream covers all sessions. The runtime waits until an outage ends.

Each request is for the session that the runtime has seen, whatever has its name now. If that session is not there, the
server says why. A deleted session ends the task of its agent, and so does another name. A session that the server has
lost is created again from the stored state, and its turn is claimed again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from cfs import api
from cfs.contract.transcript import render_one
from cfs.errors import (
    AlreadyExists,
    CfsError,
    Conflict,
    Forbidden,
    InvalidSettings,
    NotFound,
    SessionDeleted,
    SessionLost,
    SessionRenamed,
    Unreachable,
    departed,
)
from cfs.state.stream import StreamEvent
from cfs.transports.async_http import AsyncClient
from cfs.wire import (
    LEASE_SECONDS,
    AgentFinish,
    AgentUpdate,
    CallDecision,
    Message,
    NewMessage,
    SessionDetail,
    SessionTree,
    Settings,
    SettingsPatch,
)
from cfs_agents.loop.retries import Retries, is_outage
from cfs_agents.tools import CommandRequest, RemoteQuestion
from cfs_agents.tree.questions import ServerQuestion
from cfs_agents.tree.record import LeaseRecord
from cfs_agents.tree.server_lease import ServerLease, T, arrived, end_elsewhere, in_life, new_key
from cfs_agents.tree.session_backend import ClaimedTurn, DeletedCallback, LostCallback
from cfs_agents.tree.session_journal import SessionJournal, StoredSession

_FIRST_LEASE = 5.0
"""Seconds for which a turn is claimed before the claim is stored."""
_CLAIM_SECONDS = 20.0
_WATCH_PAUSE = 1.0
_LONGEST_TRANSCRIPT = 4 << 20
"""Bytes of the transcript of a session that is made again: the newest messages that fit."""

_AGAIN = "the server had lost this session when this message came: send it again"


def _ignore(*_: str) -> None:
    pass


@dataclass(slots=True)
class ServerSessions:
    """The sessions of a tree on a server. Raises the server's errors, and the error of an outage that is too long.

    A request for the next message waits until any outage ends.
    """

    client: AsyncClient
    lease_seconds: float = LEASE_SECONDS
    retries: Retries = field(default_factory=Retries)
    _waiting: set[str] = field(default_factory=set)
    _leases: dict[str, ServerLease] = field(default_factory=dict)
    _lives: dict[str, str] = field(default_factory=dict)
    _paused: set[str] = field(default_factory=set)
    _unpaused: asyncio.Event = field(default_factory=asyncio.Event)
    _store: str | None = None
    """Id of the server's store with the tree's sessions."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _journals: Mapping[str, SessionJournal] = field(default_factory=dict)
    _on_message: Callable[[str], None] = _ignore
    _on_deleted: DeletedCallback = _ignore

    @property
    def away(self) -> float:
        """For how many seconds a request has waited for the server."""
        return self.retries.outages.seconds

    def attach(
        self,
        journals: Mapping[str, SessionJournal],
        on_message: Callable[[str], None],
        on_deleted: DeletedCallback,
    ) -> None:
        """Work for this tree."""
        self._journals, self._on_message, self._on_deleted = journals, on_message, on_deleted

    async def open(self, session_id: str) -> None:
        """Create the session from its stored state, unless it exists, and let an agent answer it.

        Raises `SessionDeleted` or `SessionRenamed` if that has happened to the session that the agent had.
        """

        async def once() -> None:
            async with self._opening:
                if await self._open(session_id):
                    await self._open_all()

        before = self._life(session_id)
        await self.retries.call(once)
        if session_id in self._journals and self._life(session_id) != before:
            await self._journals[session_id].save()  # else a kill would forget which session is its own

    async def begin(self, session_id: str, content: str, on_lost: LostCallback) -> ClaimedTurn:
        """Post a message to the session, unless it has it already, and claim the next turn."""
        key = new_key()
        return _turn(await self._call(lambda: self._begin(session_id, content, on_lost, key)))

    async def next(self, session_id: str, on_lost: LostCallback, wait: float = 0.0) -> ClaimedTurn | None:
        """Claim the next turn; None if there is none within so many seconds."""
        self._waiting.discard(session_id)
        key = new_key()
        lease = await self._call(lambda: self._claim(session_id, wait, on_lost, key), forever=wait > 0)
        return None if lease is None else _turn(lease)

    async def resume(
        self, session_id: str, record: LeaseRecord, sent: Sequence[Message], on_lost: LostCallback
    ) -> ClaimedTurn | None:
        """Continue a turn of another process, which had stored the messages `sent` in it; None if the turn is over.

        The lease may still hold, or the turn wait again as the lease has expired. Raises `SessionDeleted` or
        `SessionRenamed`; the turn of a renamed session is ended.
        """
        key = new_key()
        return await self._call(lambda: self._resume(session_id, record, sent, on_lost, key))

    async def _resume(
        self, session_id: str, record: LeaseRecord, sent: Sequence[Message], on_lost: LostCallback, key: str
    ) -> ClaimedTurn | None:
        try:
            detail = await self._read(session_id, record.life)
        except SessionRenamed as error:
            await end_elsewhere(self.client, error.renamed_to, record, error.detail)
            raise
        except NotFound:
            return await self._resume_lost(session_id, record, sent, on_lost)
        self._lives[session_id] = life_of(detail.etag)
        if detail.state == "idle":
            return None
        try:
            proof = AgentUpdate(claim=record.claim, lease=self.lease_seconds)
            await self.client.call(api.update(session_id, record.turn, proof))
        except (NotFound, Forbidden):  # its lease has expired, or it was over and the next had been claimed
            if (claimed := await self._claim(session_id, _CLAIM_SECONDS, on_lost, key)) is None:
                return None
            detail, lease = await self.client.call(api.read(session_id)), claimed
        else:
            lease = self._lease(session_id, record, on_lost)
        if lease.record.turn != record.turn:
            return _turn(lease)
        lease.catch_up(sent, arrived(detail, record.content))
        return ClaimedTurn(lease, record.content, resumed=True)

    async def _resume_lost(
        self, session_id: str, record: LeaseRecord, sent: Sequence[Message], on_lost: LostCallback
    ) -> ClaimedTurn:
        """Continue a turn whose session the server has lost."""
        if (detail := await self._restored_turn(session_id, record)) is not None:
            lease = self._lease(session_id, record.model_copy(update={"life": life_of(detail.etag)}), on_lost)
            lease.catch_up(sent, arrived(detail, record.content))
        else:
            async with self._opening:
                await self._open(session_id)
                await self._open_all()
            lease = self._lease(session_id, await self._reclaim(session_id, record.content), on_lost)
            lease.catch_up(sent, 0)
        return _turn(lease, resumed=True)

    async def is_waiting(self, session_id: str) -> bool:
        """Whether a message waits in this session.

        A request is sent only after an event; the session's own message may have caused the event.
        """
        if session_id not in self._waiting:
            return False
        detail = await self._call(lambda: self._ask(session_id, api.read(session_id)))
        lease, queue = self._leases.get(session_id), detail.queue
        if lease is not None and not lease.ended and queue and detail.state != "generating":
            queue = queue[1:]  # no turn runs, so the first is this agent's: the claim was late, and it is still free
        if not queue:
            self._waiting.discard(session_id)
        return bool(queue)

    def paused(self, session_id: str) -> bool:
        """Whether this session, or one above it, is paused according to the events."""
        return any(session_id == ancestor or session_id.startswith(f"{ancestor}/") for ancestor in self._paused)

    async def unpaused(self, session_id: str) -> None:
        """Wait until it is not paused."""
        while self.paused(session_id):
            self._unpaused.clear()
            await self._unpaused.wait()

    async def watch(self, root: str) -> None:
        """Follow the events of the sessions of a tree, until cancelled."""
        while True:
            stream = api.Stream(api.events().request, None, announce=True)
            try:
                async with aclosing(self.client.events(stream, attempts=float("inf"))) as events:
                    async for event in events:
                        if event.type in ("connected", "stale"):
                            await self._look(root)
                        elif event.session == root or event.session.startswith(f"{root}/"):
                            await self._handle(event)
            except CfsError as error:  # the server was away when the stream began
                if not is_outage(error):
                    raise
            await asyncio.sleep(_WATCH_PAUSE)

    async def cancel(self, session_id: str) -> None:
        """Cancel all turns of a session and of those below it."""
        await self._ask(session_id, api.cancel(session_id, queued=True, cascade=True))

    def decided(self, session_id: str, decision: CallDecision) -> None:
        """Report what was decided about a call in the running turn, if there is one."""
        if (lease := self._leases.get(session_id)) is not None:
            lease.decided(decision)

    def question(self, session_id: str, request: CommandRequest, key: str) -> RemoteQuestion | None:
        """Return a question about a command in the running turn; None if there is no turn."""
        lease = self._leases.get(session_id)
        if lease is None or lease.ended:
            return None
        return ServerQuestion(self.client, session_id, lease, request, key, self.retries)

    async def _begin(self, session_id: str, content: str, on_lost: LostCallback, key: str) -> ServerLease:
        return self._lease(session_id, await self._claim_of(session_id, content, key), on_lost)

    async def _claim_of(self, session_id: str, content: str, key: str) -> LeaseRecord:
        """Post a message, unless the session has it already, and claim the next turn. The keys begin with `key`."""
        detail = await self._ask(session_id, api.read(session_id))
        self._lives[session_id] = life_of(detail.etag)
        if not _has(detail, content):
            post = api.post(session_id, NewMessage(content=content))
            await self._ask(session_id, post, idempotency_key=f"{key}-post")
        record, attempt = None, 0
        while record is None:  # with a key for each attempt: one whose lease was lost would be answered the same way
            record = await self._claimed(session_id, _CLAIM_SECONDS, f"{key}-{attempt}")
            attempt += 1
        return record

    async def _reclaim(self, session_id: str, content: str) -> LeaseRecord:
        """Post and claim a message again in a session that had been lost. Messages that came earlier are refused."""
        record = await self._claim_of(session_id, content, new_key())
        while record.content != content:
            end = AgentFinish(claim=record.claim, error=_AGAIN)
            await self._ask(session_id, api.finish(session_id, record.turn, end))
            record = await self._claim_of(session_id, content, new_key())
        return record

    async def _follow_rewind(self, session_id: str, version: int) -> None:
        """Let the agent continue from the history that its session has since its last rewind, to this version."""
        journal = self._journals.get(session_id)
        if journal is not None and version not in (0, journal.record.rewound):
            history = (await self._ask(session_id, api.read(session_id))).history
            await journal.rewind(history[:-1], version)  # the last message is that of the turn

    async def _claim(self, session_id: str, wait: float, on_lost: LostCallback, key: str) -> ServerLease | None:
        record = await self._claimed(session_id, wait, key)
        return None if record is None else self._lease(session_id, record, on_lost)

    async def _claimed(self, session_id: str, wait: float, key: str) -> LeaseRecord | None:
        call = api.claim(session_id, min(_FIRST_LEASE, self.lease_seconds), wait)
        claim = await self._ask(session_id, call, idempotency_key=f"{key}-claim")
        if claim is None:
            return None
        await self._follow_rewind(session_id, claim.rewound)
        life = self._life(session_id)
        return LeaseRecord(
            turn=claim.turn,
            claim=claim.claim,
            content=claim.message.content,
            life=life,
            traceparent=claim.traceparent,
        )

    def _lease(self, session_id: str, record: LeaseRecord, on_lost: LostCallback) -> ServerLease:
        lease = ServerLease(self.client, session_id, record, self.lease_seconds, on_lost, self.retries, self._regain)
        self._leases[session_id] = lease
        return lease

    def _life(self, session_id: str) -> str | None:
        """Return the life of a session that the runtime has seen; None if it has seen none."""
        journal = self._journals.get(session_id)
        return self._lives.get(session_id) if journal is None else journal.record.life or self._lives.get(session_id)

    async def _ask(self, session_id: str, call: api.Call[T], *, idempotency_key: str | None = None) -> T:
        """Send a call for the session that the runtime has seen by this name."""
        return await self._ask_in(self._life(session_id), session_id, call, idempotency_key)

    async def _ask_in(
        self, life: str | None, session_id: str, call: api.Call[T], idempotency_key: str | None = None
    ) -> T:
        try:
            return await self.client.call(in_life(life, call), idempotency_key=idempotency_key)
        except (SessionDeleted, SessionRenamed) as error:
            await self._note_gone(session_id, error.detail)
            raise

    async def _read(self, session_id: str, life: str | None) -> SessionDetail:
        return await self._ask_in(life, session_id, api.read(session_id))

    async def _note_gone(self, session_id: str, reason: str) -> None:
        """Store that a session was deleted or renamed, so that it is not created if the server loses its store."""
        if session_id in self._journals:
            with suppress(CfsError):  # the disk is full: it is stored with the next step
                await self._journals[session_id].session_gone(reason)

    async def _seen(self, session_id: str) -> SessionDetail | None:
        """Return the session that the agent has had; None if it has had none, or the server has lost it.

        Raises `SessionDeleted` or `SessionRenamed` if it is not to be created again.
        """
        journal = self._journals.get(session_id)
        if journal is None or journal.record.life is None:
            return None
        try:
            return await self._read(session_id, journal.record.life)
        except (SessionDeleted, SessionRenamed):
            raise
        except NotFound:
            if journal.record.gone is not None:
                raise SessionDeleted(journal.record.gone) from None
            return None

    async def _left(self, session_id: str, error: SessionDeleted | SessionRenamed) -> None:
        """End the work of the agent whose session was deleted or renamed."""
        await self._note_gone(session_id, error.detail)
        self._note_pause(session_id, paused=False)
        renamed_to = error.renamed_to if isinstance(error, SessionRenamed) else None
        journal = self._journals.get(session_id)
        if (lease := self._leases.get(session_id)) is not None:
            lease.lose(error.detail, renamed_to)
        elif renamed_to is not None and journal is not None and journal.record.lease is not None:
            await end_elsewhere(self.client, renamed_to, journal.record.lease, error.detail)  # it was to be resumed
        self._on_deleted(session_id, error.detail)

    async def _restored_turn(self, session_id: str, record: LeaseRecord) -> SessionDetail | None:
        """Return a session that has this turn in another life: the server was restored from a backup."""
        try:
            proof = AgentUpdate(claim=record.claim, lease=self.lease_seconds)
            await self.client.call(api.update(session_id, record.turn, proof))
            detail = await self.client.call(api.read(session_id))
        except (NotFound, Forbidden, Conflict):
            return None
        self._opened(session_id, detail.etag, detail.settings.model_dump(exclude_none=True))
        return detail

    async def _call(self, action: Callable[[], Awaitable[T]], *, forever: bool = False) -> T:
        """Do something; again after an outage, and again if sessions were lost and made again."""

        async def once() -> T:
            before = self._store
            try:
                return await action()
            except (SessionDeleted, SessionRenamed):
                raise
            except (NotFound, Conflict) as error:
                if await self._restored(before, lost=isinstance(error, SessionLost)):
                    raise Unreachable("the server has lost its sessions; they have been made again") from error
                raise

        return await self.retries.call(once, lambda: forever)

    async def _regain(self, lease: ServerLease) -> bool:
        """Claim a turn again whose lease the server does not know; return False if it was ended or taken over.

        A server that shuts down fails its turns, so a turn counts as ended only if the server is ready.
        """
        ending = False

        async def once() -> bool:
            nonlocal ending
            before = self._store
            try:
                await self._read(lease.session, lease.record.life)
            except (SessionDeleted, SessionRenamed):
                raise
            except NotFound:
                return await self._regain_lost(lease, before)
            if not ending:
                try:
                    await self.client.call(api.ready())
                except CfsError:
                    ending = True
                    raise
                return False
            lease.replace(await self._reclaim(lease.session, lease.record.content))
            return True

        if not await self._call(once, forever=not lease.ended):
            return False
        if lease.session in self._journals:
            await self._journals[lease.session].turn_retaken(lease.record)
        return True

    async def _regain_lost(self, lease: ServerLease, before: str | None) -> bool:
        """Claim a turn again whose session the server has lost."""
        if (detail := await self._restored_turn(lease.session, lease.record)) is not None:
            record = lease.record.model_copy(update={"life": life_of(detail.etag)})
            lease.replace(record, arrived(detail, lease.record.content))
            return True
        await self._restored(before, lost=True)
        lease.replace(await self._reclaim(lease.session, lease.record.content))
        return True

    async def _restored(self, before: str | None, *, lost: bool = False) -> bool:
        """Whether the server has lost sessions since it had the store `before`; if so they are created again.

        It has lost them if it has a different store, or says so.
        """
        async with self._opening:
            if before is not None and self._store != before:
                return True  # they have just been created
            store = await self.client.call(api.store())
            if self._store is None:
                self._store = store
            if before in (None, store) and not lost:
                return False
            await self._open_all()
            self._store = store
            return True

    async def _open_all(self) -> None:
        """Create all lost sessions of the tree again. If one was deleted or renamed, the work of its agent ends."""
        self._lives.clear()
        for session_id, journal in list(self._journals.items()):
            if journal.record.life is not None:
                try:
                    await self._open(session_id)
                except (SessionDeleted, SessionRenamed) as error:
                    await self._left(session_id, error)

    async def _open(self, session_id: str) -> bool:
        """Create a session, or check that it is the known one; return whether it had been lost.

        Raises `SessionDeleted` or `SessionRenamed` if it is not to be created.
        """
        if self._store is None:
            self._store = await self.client.call(api.store())
        detail = await self._seen(session_id)
        if detail is not None:  # a create would make it anew if it were deleted in the meantime
            await self._attach(session_id, detail)
            return False
        journal = self._journals.get(session_id)
        stored = journal.session() if journal is not None else StoredSession()
        text = _transcript(stored.messages)
        try:
            info = await self.client.call(api.create(session_id, _driven(stored), text or None))
        except (InvalidSettings, Forbidden):  # another engine than before, or a setting that the agent may not set
            info = await self.client.call(api.create(session_id, SettingsPatch(driver="agent"), text or None))
        except AlreadyExists:
            await self._attach(session_id, await self.client.call(api.read(session_id)))
            return False
        if journal is not None and info.messages and journal.is_unknown(info):  # it existed, driven by an agent
            await journal.adopt((await self.client.call(api.read(session_id))).history)
        self._opened(session_id, info.etag, stored.settings)
        return stored.life is not None

    def _opened(self, session_id: str, etag: str, settings: Mapping[str, Any]) -> None:
        self._lives[session_id] = life_of(etag)
        self._note_pause(session_id, paused=bool(settings.get("paused")))
        self._store_settings(session_id, life_of(etag), settings)

    def _store_settings(self, session_id: str, life: str, settings: Mapping[str, Any]) -> None:
        if session_id in self._journals:
            self._journals[session_id].session_opened(life, settings)

    async def _attach(self, session_id: str, detail: SessionDetail) -> None:
        """Become the driver of an existing session."""
        journal = self._journals.get(session_id)
        if journal is not None and journal.is_unknown(detail):
            await journal.adopt(detail.history)
        stored = journal.session() if journal is not None else StoredSession()
        settings = await self._configured(detail, stored)
        self._opened(session_id, detail.etag, settings.model_dump(exclude_none=True))

    async def _configured(self, detail: SessionDetail, stored: StoredSession) -> Settings:
        """Configure an existing session. For a new session of the name, the stored messages precede its history."""
        life = life_of(detail.etag)
        plain = api.configure(detail.id, SettingsPatch(driver="agent"))
        if stored.life in (None, life):
            return await self._ask_in(life, detail.id, plain)
        try:
            settings = await self._ask_in(life, detail.id, api.configure(detail.id, _driven(stored)))
        except Forbidden:
            settings = await self._ask_in(life, detail.id, plain)
        text = _transcript([*stored.messages, *_after(stored.messages, detail.history)])
        with suppress(Conflict):  # it is being written to, and stays as it is
            await self._ask_in(life, detail.id, api.replace(detail.id, text, detail.etag))
        return settings

    async def _handle(self, event: StreamEvent) -> None:
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
                if (life := self._lives.get(event.session)) is not None:
                    overrides = {key: value for key, value in settings.items() if value is not None}
                    self._store_settings(event.session, life, overrides)
            case "session.deleted":
                await self._left(event.session, departed(event.session, event.data.get("renamed_to")))

    def _note(self, session_id: str, queued: object) -> None:
        if queued:
            self._waiting.add(session_id)
            self._on_message(session_id)
        else:
            self._waiting.discard(session_id)

    async def _look(self, root: str) -> None:
        """Read events that may have been missed."""
        lives: dict[str, str] = {}
        try:
            await self._restored(self._store)
            tree = await self.client.call(api.sub_sessions(root))
            lives = {info.id: life_of(info.etag) for info in _all(tree)}
            for info in _all(tree):
                self._note(info.id, info.queued)
                with suppress(CfsError):
                    settings = await self.client.call(api.settings(info.id))
                    self._note_pause(info.id, paused=settings.paused)
        except NotFound:  # not created yet, or deleted
            pass
        except CfsError:  # not reachable: the stream will report more
            return
        for session_id, journal in list(self._journals.items()):
            if journal.record.gone is None and journal.record.life != lives.get(session_id):
                try:
                    await self._seen(session_id)
                except (SessionDeleted, SessionRenamed) as error:
                    await self._left(session_id, error)
                except CfsError:
                    return

    def _note_pause(self, session_id: str, *, paused: bool) -> None:
        if paused:
            self._paused.add(session_id)
        else:
            self._paused.discard(session_id)
            self._unpaused.set()


def _turn(lease: ServerLease, *, resumed: bool = False) -> ClaimedTurn:
    return ClaimedTurn(lease, lease.record.content, resumed)


def _all(tree: SessionTree) -> list[SessionTree]:
    return [tree, *(info for child in tree.children for info in _all(child))]


def _has(detail: SessionDetail, content: str) -> bool:
    """Whether a message waits, or is being answered."""
    if detail.state == "idle":
        return False
    texts = [message.content for message in detail.history if message.role == "user"]
    return content in [*texts[-1:], *(message.content for message in detail.queue)]


def _driven(stored: StoredSession) -> SettingsPatch:
    """Return the stored settings, with an agent as driver."""
    return SettingsPatch.model_validate({**stored.settings, "driver": "agent"})


def life_of(etag: str) -> str:
    """Return the part of the ETag that distinguishes a session from later ones of its name."""
    return api.life_in(etag)


def _after(stored: Sequence[Message], history: Sequence[Message]) -> Sequence[Message]:
    """Return the part of a history that is not stored: a restored session begins with messages of the stored one."""
    pairs = enumerate(zip(stored, history, strict=False))
    return history[next((n for n, (a, b) in pairs if _text(a) != _text(b)), min(len(stored), len(history))) :]


def _text(message: Message) -> tuple[str, str]:
    return message.role, render_one(message)


def _transcript(messages: Sequence[Message]) -> str:
    """Render messages as a transcript: the newest that the server accepts."""
    texts, size = list[str](), 0
    for message in reversed(messages):
        text = render_one(message) + "\n"
        size += len(text.encode())
        if size > _LONGEST_TRANSCRIPT:
            break
        texts.append(text)
    return "".join(reversed(texts))
