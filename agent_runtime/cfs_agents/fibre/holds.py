"""A turn of the server that a strand answers: what the strand says goes there while it is said (S10, B3).

One task sends, in order, one request at a time: while one is under way, what comes collects. Each request renews the
lease, and where nothing is said an empty one does. After a lost connection the session itself tells what had arrived.
An outage is waited out. Where the server has lost the turn, it is taken again, and all that was said in it is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from cfs import api
from cfs.errors import CfsError, Conflict, Forbidden, NotFound
from cfs.transports.async_http import AsyncClient
from cfs.wire import AgentFinish, AgentUpdate, Message, SessionDetail, Usage
from cfs_agents.fibre.state import Held
from cfs_agents.retries import Retries, is_outage

_TEXT_SECONDS = 0.05
"""How long text collects before it is sent, so that fifty fast agents do not send a request for each token."""
_MESSAGE_SECONDS = 0.01
"""The same for whole messages: a call and its quick result come together."""

Lost = Callable[[str], None]
"""Told in words why a turn is not ours any more."""


class Hold(Protocol):
    """What a strand is answering."""

    @property
    def held(self) -> Held | None:
        """What has to be known to go on with it in another process; None where there is no server."""
        ...

    def text(self, piece: str) -> None:
        """Say a piece of a reply."""
        ...

    def message(self, message: Message) -> None:
        """Say a whole message: calls, a result, or what the strand was told meanwhile."""
        ...

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """End the turn by a reply, or by an error; one that is not ours any more is left alone."""
        ...

    async def close(self) -> None:
        """Let go, as another process will go on; the turn stays ours until its lease has run out."""
        ...


class LocalHold:
    """A turn where there is no server."""

    held: Held | None = None

    def text(self, piece: str) -> None:
        """Do nothing."""

    def message(self, message: Message) -> None:
        """Do nothing."""

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class ServerHold:
    """A turn that was claimed. `lost` is called once, if it is not ours any more before it was finished.

    `regain` is asked when the server does not know the turn as ours: it takes it again and tells whether it could.
    """

    def __init__(
        self,
        client: AsyncClient,
        session: str,
        held: Held,
        lease: float,
        lost: Lost,
        retries: Retries,
        regain: "Callable[[ServerHold], Awaitable[bool]]",
    ) -> None:
        self.held: Held = held
        self.session = session
        self._client = client
        self._lease = lease
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

    def retake(self, held: Held) -> None:
        """Go on with the turn as the server has it now: nothing of it has arrived there."""
        self.held, self._sent = held, 0

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
            news = AgentFinish(claim=self.held.claim, usage=usage, **told)
            await self._retries.call(lambda: self._client.call(api.finish(self.session, self.held.turn, news)))

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
                    async with asyncio.timeout(self._lease / 3):
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
                self._sent = max(self._sent, min(count, arrived(detail, self.held.content)))
            failed = True
            left = tuple(self._messages[self._sent : count])
            news = AgentUpdate(claim=self.held.claim, text=text, messages=left, lease=self._lease)
            await self._client.call(api.update(self.session, self.held.turn, news))
            self._sent = max(self._sent, count)

        await self._retries.call(once, forever=lambda: not self.ended)


def arrived(detail: SessionDetail, content: str) -> int:
    """Count the messages that a running turn has brought: those after the last message of a user that began it."""
    for back, message in enumerate(reversed(detail.history)):
        if message.role == "user" and message.content == content:
            return back
    return 0
