"""A slot on this replica: a store with one part of the sessions, from its claim to its hand-over.

A claim is the same as a start of a server, and a hand-over the same as its end: sessions, turns, streams and locks go
on at the next owner as they go on after a restart.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from cfs.errors import Unavailable
from cfs_server.base.broadcast import Broadcast
from cfs_server.cluster.names import Names
from cfs_server.domain.turns import TurnState
from cfs_server.http.caller import Context, scope_in
from cfs_server.journal.journal import Journal, StoreFailed
from cfs_server.journal.postgres import SlotTaken
from cfs_server.sessions.session import Session

_log = structlog.get_logger(__name__)

_CALLS_SECONDS = 5.0
"""How long requests get to end after the streams of a slot were closed."""


class SlotState(Enum):
    """What a replica does with a slot."""

    OPENING = "opening"
    SERVING = "serving"
    LEAVING = "leaving"
    ENDED = "ended"


TRANSITIONS: Mapping[SlotState, frozenset[SlotState]] = MappingProxyType(
    {
        SlotState.OPENING: frozenset({SlotState.SERVING, SlotState.ENDED}),
        SlotState.SERVING: frozenset({SlotState.LEAVING}),
        SlotState.LEAVING: frozenset({SlotState.ENDED}),
        SlotState.ENDED: frozenset(),
    }
)
"""The states that may follow each state."""


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A claimed slot with its sessions."""

    context: Context
    journal: Journal
    names: Names
    epoch: int


class HostedSlot:
    """One slot of this replica. It is used once: a slot that comes back is another object."""

    def __init__(
        self,
        number: int,
        app: ASGIApp,
        opened: Callable[[int], AbstractAsyncContextManager[OpenSlot]],
        changed: Broadcast,
        stores: Callable[[], int],
    ) -> None:
        """Prepare a slot of an application. `opened` claims it. `changed` fires when the state changes.

        `stores` returns how many slots share the memory of this replica.
        """
        self.number = number
        self.state = SlotState.OPENING
        self.epoch = 0
        """The number of the claim: it grows with each owner of the slot."""
        self._changed = changed
        self._stores = stores
        self._opened = opened
        self._app = app
        self._context: Context | None = None
        self._names: Names | None = None
        self._calls = 0
        self._leave = asyncio.Event()
        self._sooner = Broadcast()
        self._grace_until = math.inf
        self._lost = False

    @property
    def context(self) -> Context:
        """What answers requests for its sessions."""
        assert self._context is not None  # noqa: S101 - the slot is served
        return self._context

    @property
    def names(self) -> Names:
        """The names of the slot."""
        assert self._names is not None  # noqa: S101 - the slot is served
        return self._names

    @property
    def serves(self) -> bool:
        """Whether requests are answered here."""
        return self.state is SlotState.SERVING

    def has(self, root: str) -> bool:
        """Return whether there is a session with this name."""
        return self.context.store.find(root) is not None

    async def run(self) -> None:
        """Claim the slot, serve it until it is to be left or is lost, and close it. Errors are logged."""
        try:
            async with self._opened(self.number) as opened:
                self._context, self.epoch = opened.context, opened.epoch
                self._names = opened.names
                opened.journal.on_failed = self._fail
                self.context.store.share_limits(self._stores())
                self._enter(SlotState.SERVING)
                _log.info("slot.serving", slot=self.number, sessions=len(self.context.store))
                await self._leave.wait()
                await self._until_idle()
                self._enter(SlotState.LEAVING)
                await self._close()
        except SlotTaken:
            _log.debug("slot.taken", slot=self.number)
        except (StoreFailed, Unavailable) as error:
            _log.warning("slot.failed", slot=self.number, reason=str(error))
        except Exception:  # noqa: BLE001 - a defect in one slot; the others go on, and another replica may claim it
            _log.exception("slot.defect", slot=self.number)
        finally:
            if self.state is SlotState.SERVING:
                self._enter(SlotState.LEAVING)
            self._enter(SlotState.ENDED)
            _log.info("slot.left", slot=self.number, lost=self._lost)

    def leave(self, grace: float) -> None:
        """Begin to leave the slot: as soon as no turn runs in it, in `grace` seconds at the latest.

        Once it was begun, it can only be made shorter.
        """
        self._grace_until = min(self._grace_until, time.monotonic() + grace)
        self._leave.set()
        self._sooner.fire()

    def lose(self) -> None:
        """Leave the slot at once: another replica has it."""
        self._lost = True
        self.leave(0)

    def _fail(self, error: StoreFailed) -> None:
        _log.warning("slot.lost", slot=self.number, reason=str(error))
        self.lose()

    async def _until_idle(self) -> None:
        """Serve on while the model answers, until the end of the grace. Agents keep their turns elsewhere."""
        completions = self.context.completions
        while (left := self._grace_until - time.monotonic()) > 0 and not self._lost:
            busy = next(filter(_generates, self.context.store), None)
            if busy is None and not completions.running:
                return
            changed = completions.changed if busy is None else busy.changed
            waits = [asyncio.create_task(event.wait()) for event in (changed, self._sooner)]
            await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _close(self) -> None:
        """End turns, completions, streams and waits; the next owner goes on with them."""
        await asyncio.gather(self.context.store.drain(0), self.context.completions.drain(0))
        with suppress(TimeoutError):
            async with asyncio.timeout(_CALLS_SECONDS):
                while self._calls:
                    await self._changed.wait()

    def _enter(self, state: SlotState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"slot {self.number} cannot be {state.value} after {self.state.value}")
        self.state = state
        self._changed.fire()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the sessions of the slot."""
        with self.in_use():
            await self._app(scope_in(self.context, scope), receive, send)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let a hand-over wait for the end of the block."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._changed.fire()


def _generates(session: Session) -> bool:
    """Return whether a turn of the model runs in a session."""
    return session.running is not None and session.running.state is not TurnState.LEASED
