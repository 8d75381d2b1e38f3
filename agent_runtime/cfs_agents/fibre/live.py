"""The strands' sessions on the server: made, given messages, claimed, and watched (S10, B3).

Whoever writes to one of them gives its agent a task, or steers it; whoever cancels one ends its agent's work. One
stream of events tells of all of them.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from cfs import api
from cfs.errors import AlreadyExists, CfsError, Forbidden, NotFound
from cfs.following import StreamEvent
from cfs.transports.async_http import AsyncClient
from cfs.wire import AgentUpdate, Message, NewMessage, SessionDetail, SessionTree, SettingsPatch
from cfs_agents.fibre.holds import Hold, LocalHold, Lost, ServerHold, arrived
from cfs_agents.fibre.state import Held

_FIRST_LEASE = 5.0
"""Seconds for which a turn is claimed before it has been written down that it is ours."""
_CLAIM_SECONDS = 20.0


class Watcher(Protocol):
    """Who wants to know what happens to the sessions of a tree."""

    def waiting(self, session_id: str) -> None:
        """A message waits in this session."""
        ...

    def deleted(self, session_id: str) -> None:
        """This session is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn that is ours now, and the message that it answers; `goes_on` where another process had begun to."""

    hold: Hold
    content: str
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Taken(Begun):
    """One of a server."""

    hold: ServerHold


class Live(Protocol):
    """Where the sessions of a tree can be seen while it works."""

    async def open(self, session_id: str) -> None:
        """Make the session if there is none, and let an agent answer it."""
        ...

    async def begin(self, session_id: str, content: str, lost: Lost) -> Begun:
        """Give the session a message, unless it has it already, and take the next one that waits."""
        ...

    async def next(self, session_id: str, lost: Lost, wait: float = 0.0) -> Begun | None:
        """Take the next message that waits; None when none comes within so many seconds."""
        ...

    async def resume(self, session_id: str, held: Held, said: Sequence[Message], lost: Lost) -> Begun | None:
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

    async def watch(self, root: str, watcher: Watcher) -> None:
        """Tell of what happens to the sessions of a tree, until cancelled."""
        ...

    async def cancel(self, session_id: str) -> None:
        """End what runs and waits in a session, and below it."""
        ...


class NoServer:
    """A tree that nobody watches."""

    async def open(self, session_id: str) -> None:
        """Do nothing."""

    async def begin(self, session_id: str, content: str, lost: Lost) -> Begun:  # noqa: ARG002 - as the protocol has it
        """Return a turn of its own."""
        return Begun(LocalHold(), content)

    async def next(self, session_id: str, lost: Lost, wait: float = 0.0) -> Begun | None:  # noqa: ARG002
        """Return None: nobody can write here."""
        return None

    async def resume(self, session_id: str, held: Held, said: Sequence[Message], lost: Lost) -> Begun | None:  # noqa: ARG002
        """Return a turn of its own."""
        return Begun(LocalHold(), held.content, goes_on=True)

    async def is_waiting(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def paused(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    async def unpaused(self, session_id: str) -> None:
        """Go on at once."""

    async def watch(self, root: str, watcher: Watcher) -> None:  # noqa: ARG002
        """Wait for ever."""
        await asyncio.Event().wait()

    async def cancel(self, session_id: str) -> None:
        """Do nothing."""


@dataclass(slots=True)
class ServerLive:
    """The sessions of a tree on a server. Raises what the server reports, and `Unreachable`."""

    client: AsyncClient
    lease: float = 30.0
    _waiting: set[str] = field(default_factory=set)
    _holds: dict[str, ServerHold] = field(default_factory=dict)
    _paused: set[str] = field(default_factory=set)
    _going: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, session_id: str) -> None:
        """Make the session if there is none, and let an agent answer it."""
        driven = SettingsPatch(driver="agent")
        try:
            await self.client.call(api.create(session_id, driven))
        except AlreadyExists:
            settings = await self.client.call(api.configure(session_id, driven))
            self._note_pause(session_id, paused=settings.paused)

    async def begin(self, session_id: str, content: str, lost: Lost) -> Taken:
        """Give the session a message, unless it has it already, and take the next one that waits."""
        detail = await self.client.call(api.read(session_id))
        if not _has(detail, content):
            await self.client.call(api.post(session_id, NewMessage(content=content)))
        while (begun := await self._claim(session_id, _CLAIM_SECONDS, lost)) is None:
            pass
        return begun

    async def next(self, session_id: str, lost: Lost, wait: float = 0.0) -> Begun | None:
        """Take the next message that waits; None when none comes within so many seconds."""
        self._waiting.discard(session_id)
        return await self._claim(session_id, wait, lost)

    async def resume(self, session_id: str, held: Held, said: Sequence[Message], lost: Lost) -> "Taken | None":
        """Go on with a turn of another process, which had written down what it `said`; None when it is over.

        The turn may be held still, or wait again as its lease has run out.
        """
        try:
            detail = await self.client.call(api.read(session_id))
        except NotFound:  # the server has been started anew, without its sessions
            await self.open(session_id)
            begun = await self.begin(session_id, held.content, lost)
            begun.hold.catch_up(said, 0)
            return replace(begun, goes_on=True)
        if detail.state == "idle":
            return None
        try:
            proof = AgentUpdate(claim=held.claim, lease=self.lease)
            await self.client.call(api.update(session_id, held.turn, proof))
        except (NotFound, Forbidden):  # its lease has run out, or it was over and the next had been taken
            if (taken := await self._claim(session_id, _CLAIM_SECONDS, lost)) is None:
                return None
            detail = await self.client.call(api.read(session_id))
        else:
            taken = Taken(self._hold(session_id, held, lost), held.content)
        if taken.hold.held.turn != held.turn:
            return taken
        taken.hold.catch_up(said, arrived(detail, held.content))
        return replace(taken, goes_on=True)

    async def is_waiting(self, session_id: str) -> bool:
        """Whether somebody has written to this session, and the message waits.

        The server is asked only where the events say so; a message of our own may have been the reason.
        """
        if session_id not in self._waiting:
            return False
        detail = await self.client.call(api.read(session_id))
        hold, queue = self._holds.get(session_id), detail.queue
        if hold is not None and not hold.ended and queue and detail.state != "generating":
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

    async def watch(self, root: str, watcher: Watcher) -> None:
        """Tell of what happens to the sessions of a tree, until cancelled."""
        stream = api.Stream(api.events().request, None, announce=True)
        async with aclosing(self.client.events(stream, attempts=float("inf"))) as events:
            async for event in events:
                if event.type in ("connected", "stale"):
                    await self._look(root, watcher)
                elif event.session == root or event.session.startswith(f"{root}/"):
                    self._hear(event, watcher)

    async def cancel(self, session_id: str) -> None:
        """End what runs and waits in a session, and below it."""
        await self.client.call(api.cancel(session_id, queued=True, cascade=True))

    # -- parts ----------------------------------------------------------------------------------------------------

    async def _claim(self, session_id: str, wait: float, lost: Lost) -> Taken | None:
        claim = await self.client.call(api.claim(session_id, min(_FIRST_LEASE, self.lease), wait))
        if claim is None:
            return None
        content = claim.message.content
        return Taken(self._hold(session_id, Held(turn=claim.turn, claim=claim.claim, content=content), lost), content)

    def _hold(self, session_id: str, held: Held, lost: Lost) -> ServerHold:
        hold = self._holds[session_id] = ServerHold(self.client, session_id, held, self.lease, lost)
        return hold

    def _hear(self, event: StreamEvent, watcher: Watcher) -> None:
        hold = self._holds.get(event.session)
        match event.type:
            case "state.changed":
                self._note(event.session, event.data.get("queued"), watcher)
            case "turn.finished" if event.data.get("finish_reason") == "cancelled":
                if hold is not None and hold.held.turn == event.turn:
                    hold.lose("it was cancelled")
            case "settings.changed":
                self._note_pause(event.session, paused=bool(event.data.get("settings", {}).get("paused")))
            case "session.deleted":
                self._note_pause(event.session, paused=False)
                if hold is not None:
                    hold.lose("its session was deleted")
                watcher.deleted(event.session)

    def _note(self, session_id: str, queued: object, watcher: Watcher) -> None:
        if queued:
            self._waiting.add(session_id)
            watcher.waiting(session_id)
        else:
            self._waiting.discard(session_id)

    async def _look(self, root: str, watcher: Watcher) -> None:
        """See what has been missed."""
        try:
            tree = await self.client.call(api.sub_sessions(root))
        except CfsError:  # not there yet, or not reachable: the stream will say more
            return
        for info in _all(tree):
            self._note(info.id, info.queued, watcher)
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
