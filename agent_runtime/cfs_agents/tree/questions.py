"""Asks a person about a call in the session of a sub-agent, where anyone who may write to it answers (A5)."""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from cfs import api
from cfs.errors import CfsError, Conflict, Forbidden, NotFound
from cfs.transports.async_http import AsyncClient
from cfs.wire import Question
from cfs_agents.loop.retries import Retries
from cfs_agents.tools import Answer, CommandRequest, ToolError
from cfs_agents.tree.record import LeaseRecord

T = TypeVar("T")

_WAIT_SECONDS = 25.0
"""How long one request waits for the answer."""
_PAUSE = 1.0
_SETTLE_SECONDS = 2.0
_NOT_ASKED = "no person could be asked whether this may run, and it was not run"
_NOT_HELD = (NotFound, Forbidden, Conflict)


class QuestionLease(Protocol):
    """What a question needs of the turn that it belongs to."""

    record: LeaseRecord

    def renew(self) -> None:
        """Renew it now; it is claimed again if the server has lost it."""
        ...

    def answered(self, send: Callable[[], Awaitable[object]]) -> None:
        """Send later how a question was answered here."""
        ...

    async def send_answers(self) -> None:
        """Send them now."""
        ...


class ServerQuestion:
    """A question whether a call may run, in a session on the server; an `RemoteQuestion` of `Consent`.

    `key` identifies the call that asks, also after a kill: then the same question is found again, maybe answered. An
    outage is waited out. If the server has withdrawn the question, because the lease had expired, it is asked again.
    """

    def __init__(
        self,
        client: AsyncClient,
        session: str,
        lease: QuestionLease,
        request: CommandRequest,
        key: str,
        retries: Retries,
    ) -> None:
        self._client = client
        self._session = session
        self._lease = lease
        self._request = request
        self._key = key
        self._retries = retries
        self._question: Question | None = None
        self._attempt: int | None = None
        pattern = {request.pattern_choice: Answer.PATTERN} if request.pattern_choice else {}
        self._answers = {"allow": Answer.YES, "always": Answer.ALWAYS, **pattern, "deny": Answer.NO}

    async def answer(self) -> tuple[Answer, str]:
        """Ask, and return the answer and who gave it. Raises `ToolError` if the server refuses the question."""
        for attempt in itertools.count():
            try:
                question = await self._answered(attempt)
            except _NOT_HELD:  # the lease had expired, or the turn has ended: then this task is cancelled
                self._lease.renew()
                await asyncio.sleep(_PAUSE)
                continue
            except (CfsError, ValueError) as error:  # it is too long, or no text
                reason = next(iter(str(error).splitlines()), "")
                raise ToolError(f"{_NOT_ASKED}: {reason}") from None
            # An answer with the claim of the turn is ignored: only this program has the claim, and it gave none.
            if question.answer in self._answers and not question.terminal:
                return self._answers[question.answer], question.by or ""
        raise AssertionError("unreachable")  # pragma: no cover

    async def _answered(self, attempt: int) -> Question:
        """Ask, and return the question when it is not open any more."""
        call, key = self._request_of(attempt)
        await self._lease.send_answers()
        self._question, self._attempt = None, attempt
        question = self._question = await self._call(call, key)
        await self._withdraw_others(question)
        while True:
            question = await self._call(api.question(self._session, question.id, _WAIT_SECONDS))
            if question.state != "open":
                return question

    def _request_of(self, attempt: int) -> "tuple[api.Call[Question], str]":
        """Return the request that asks, and its idempotency key, which is the same after a kill."""
        claim, request = self._lease.record.claim, self._request
        call = api.ask(
            self._session,
            claim,
            request.command,
            kind=request.kind,
            directory=request.directory,
            background=request.background,
            choices=tuple(self._answers),
        )
        parts = [claim, self._key, str(attempt), request.command, request.directory, str(request.background)]
        parts += [request.pattern_choice] if request.pattern_choice else []
        return call, hashlib.blake2b("\n".join(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()

    async def settled(self, answer: Answer | None) -> Answer | None:
        """End the question with the answer that was given here; None withdraws it. Return the answer that counts.

        That is the other one if it came first. Without the server, it learns the answer later.
        """
        if self._attempt is None:
            return answer
        choice = next((choice for choice, other in self._answers.items() if other is answer), None)
        call, key = self._request_of(self._attempt)

        async def send() -> None:  # before the server has said its id, the same request says it again
            question = self._question
            if question is None:
                question = await self._client.call(call, idempotency_key=key)
            await self._client.call(api.answer(self._session, question.id, choice, self._lease.record.claim))

        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                await send()
        except Conflict as error:
            return self._answers.get(error.extra.get("answer", ""), answer)
        except (CfsError, TimeoutError) as error:
            if not isinstance(error, _NOT_HELD):
                self._lease.answered(send)
        return answer

    async def _withdraw_others(self, current: Question) -> None:
        """Withdraw what this agent asked before it was killed, as it waits for one question at a time."""
        for other in await self._call(api.questions(self._session)):
            if other.turn == current.turn and other.id != current.id:
                with suppress(*_NOT_HELD):
                    await self._call(api.answer(self._session, other.id, None, self._lease.record.claim))

    async def _call(self, call: "api.Call[T]", key: str | None = None) -> T:
        """Send a request, and again after an outage, however long it takes: a person may take any time, too."""

        async def send() -> T:
            return await self._client.call(call, idempotency_key=key)

        return await self._retries.call(send, forever=lambda: True)
