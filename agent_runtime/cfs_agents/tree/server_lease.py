"""A claimed turn of a session on a server: written to while it runs, and renewed until it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from uuid import uuid4

from cfs import api
from cfs.errors import (
    CfsError,
    Conflict,
    Forbidden,
    NotFound,
    SessionDeleted,
    SessionRenamed,
    Unreachable,
)
from cfs.transports.async_http import AsyncClient
from cfs.wire import (
    AgentFinish,
    AgentUpdate,
    AgentWork,
    CallDecision,
    Message,
    SessionDetail,
    Usage,
)
from cfs_agents.loop.retries import Retries, is_outage
from cfs_agents.tree.record import LeaseRecord
from cfs_agents.tree.session_backend import LostCallback

T = TypeVar("T")

_TEXT_SECONDS = 0.05
"""How long text is collected before it is sent, so that fifty fast agents do not send a request for each token."""
_MESSAGE_SECONDS = 0.01
"""The same for whole messages: a call and its quick result are sent together."""

_MOST_DECISIONS = 100
"""How many decisions about calls one request has."""


class ServerLease:
    """A claimed turn. `on_lost` is called at most once, if the turn is lost before its end.

    One task sends one request at a time. Messages that arrive during a request are collected for the next. Each
    request renews the lease; an empty request does so when there is nothing to send. A request is repeated with its
    idempotency key until it is answered, however long an outage takes. If the server does not know the lease, `regain`
    claims the turn again and returns its success. Then all messages of the turn are sent again.
    """

    def __init__(
        self,
        client: AsyncClient,
        session: str,
        record: LeaseRecord,
        seconds: float,
        on_lost: LostCallback,
        retries: Retries,
        regain: "Callable[[ServerLease], Awaitable[bool]]",
    ) -> None:
        self.record: LeaseRecord = record
        self.session = session
        self._client = client
        self._seconds = seconds
        self._on_lost: LostCallback | None = on_lost
        self._retries = retries
        self._regain = regain
        self._pieces: list[str] = []
        self._messages: list[Message] = []
        """All of the turn; the first `_sent` have arrived."""
        self._sent = 0
        self._work: AgentWork | None = None
        self._decisions: list[CallDecision] = []
        """Those that have not arrived."""
        self._answers: list[Callable[[], Awaitable[object]]] = []
        """Requests with answers to questions that were given here."""
        self._answering = asyncio.Lock()
        self.ended = False
        self._renamed_to: str | None = None
        self._failure: CfsError | None = None
        self._woken = asyncio.Event()
        with api.acting_as(agent=session, call=""):  # even if a tool call sent the message
            self._sender = asyncio.create_task(self._send())

    def text(self, piece: str) -> None:
        """Send a piece of a reply."""
        self._pieces.append(piece)
        self._woken.set()

    def message(self, message: Message) -> None:
        """Send a whole message, which contains the text that has not been sent yet."""
        if message.role == "assistant":
            self._pieces.clear()
        self._messages.append(message)
        self._woken.set()

    def work(self, work: AgentWork) -> None:
        """Send what the agent says of its work."""
        self._work = work

    def decided(self, decision: CallDecision) -> None:
        """Send what was decided about a call, before the messages that come after it."""
        self._decisions.append(decision)
        self._woken.set()

    def catch_up(self, messages: Sequence[Message], arrived: int) -> None:
        """Send the messages that another process stored in this turn, but for the first `arrived`."""
        self._messages, self._sent = list(messages), min(arrived, len(messages))
        self._woken.set()

    def replace(self, record: LeaseRecord, arrived: int = 0) -> None:
        """Continue with another lease of the same turn, in which so many messages have arrived."""
        self.record, self._sent = record, min(arrived, len(self._messages))

    def renew(self) -> None:
        """Send a request now. If the server does not know the lease, the turn is claimed again or lost."""
        self._woken.set()

    def answered(self, send: Callable[[], Awaitable[object]]) -> None:
        """Send how a question of the turn was answered here, as soon as the server can be reached."""
        self._answers.append(send)
        self._woken.set()

    async def send_answers(self) -> None:
        """Send the answers that were given here and have not been sent."""
        async with self._answering:
            while self._answers:
                with suppress(NotFound, Forbidden, Conflict):  # answered elsewhere, or withdrawn with the lease
                    await self._retries.call(self._answers[0], forever=lambda: not self.ended)
                self._answers.pop(0)

    def lose(self, reason: str, renamed_to: str | None = None) -> None:
        """Report that the turn was cancelled or taken over, or that its session has another name."""
        on_lost, self._on_lost = self._on_lost, None
        self._renamed_to = renamed_to
        if on_lost is not None:
            on_lost(reason)

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """Send the remaining messages and end the turn. Raises `CfsError` if the server cannot be reached."""
        self.ended = True
        self._woken.set()
        await asyncio.wait([self._sender])  # it sends the rest; a cancel would hide which messages arrived
        if self._failure is not None:
            raise self._failure
        if self._on_lost is None:
            if self._renamed_to is not None:
                await end_elsewhere(self._client, self._renamed_to, self.record, error or reply)
            return
        result = {"error": error} if error else {"reply": reply}

        async def end() -> None:
            if self._left:  # the turn has been claimed again
                await self._deliver()
            finish = AgentFinish(claim=self.record.claim, usage=usage, work=self._work, **result)
            call, key = in_life(self.record.life, api.finish(self.session, self.record.turn, finish)), new_key()
            await self._retries.call(lambda: self._client.call(call, idempotency_key=key))

        with suppress(NotFound, Forbidden, Conflict):  # cancelled, deleted, or ended by a request without an answer
            await self._or_regain(end)
        self._on_lost = None

    async def close(self) -> None:
        """Stop sending."""
        self._sender.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._sender])

    async def _send(self) -> None:
        try:
            await self._or_regain(self._deliver)  # the turn was claimed for a short time only
            while self._on_lost is not None:
                if self.ended and not self._left:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds / 3):
                        await self._woken.wait()
                if not self.ended:
                    await asyncio.sleep(_MESSAGE_SECONDS if self._left else _TEXT_SECONDS)
                self._woken.clear()
                await self._or_regain(self._deliver)
        except SessionRenamed as error:
            self.lose(error.detail, error.renamed_to)
        except SessionDeleted as error:
            self.lose(error.detail)
        except (NotFound, Forbidden, Conflict) as error:
            self.lose(f"its turn was cancelled, or taken over ({error.detail})")
        except CfsError as error:
            if self.ended and is_outage(error):
                self._failure = error
            else:
                self.lose(f"nothing could be sent to the server: {error.detail}")

    @property
    def _left(self) -> bool:
        return self._sent < len(self._messages) or bool(self._decisions)

    async def _or_regain(self, action: Callable[[], Awaitable[None]]) -> None:
        """Run an action on the turn; if the server does not know the lease, claim the turn again and repeat it."""
        while True:
            try:
                return await action()
            except (SessionDeleted, SessionRenamed):
                raise
            except (NotFound, Forbidden, Conflict):
                if self._on_lost is None or not await self._regain(self):
                    raise

    async def _deliver(self) -> None:
        """Send the collected messages in one request, and repeat it until it is answered, also after an outage."""
        text, count = "".join(self._pieces), len(self._messages)
        self._pieces.clear()
        left = tuple(self._messages[self._sent : count])
        decisions = tuple(self._decisions[:_MOST_DECISIONS])
        update = AgentUpdate(claim=self.record.claim, text=text, messages=left, lease=self._seconds, work=self._work)
        if decisions:  # else the member is left out, which older servers do not know
            update = update.model_copy(update={"decisions": decisions})
        call, key = in_life(self.record.life, api.update(self.session, self.record.turn, update)), new_key()
        await self._retries.call(lambda: self._client.call(call, idempotency_key=key), forever=lambda: not self.ended)
        self._sent = max(self._sent, count)
        del self._decisions[: len(decisions)]
        await self.send_answers()


def in_life(life: str | None, call: api.Call[T]) -> api.Call[T]:
    """Restrict a call to one life of its session, if that is known."""
    guard = api.Life()
    guard.saw(life)
    return guard.call(call)


async def end_elsewhere(client: AsyncClient, session_id: str, record: LeaseRecord, reason: str) -> None:
    """End a turn in a session that has got another name, so that it does not wait for an agent."""
    end = AgentFinish(claim=record.claim, error=reason)
    with suppress(NotFound, Forbidden, Conflict, Unreachable):
        await client.call(in_life(record.life, api.finish(session_id, record.turn, end)))


def arrived(detail: SessionDetail, content: str) -> int:
    """Count the messages that have arrived in a running turn: those after the last user message with this content."""
    for back, message in enumerate(reversed(detail.history)):
        if message.role == "user" and message.content == content:
            return back
    return 0


def new_key() -> str:
    """Return an idempotency key: for all attempts of one action."""
    return uuid4().hex
