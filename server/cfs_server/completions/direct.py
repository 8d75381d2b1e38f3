"""Completions that no session records: made for whoever reads them, and ended when nobody does."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import cast

from cfs.errors import EngineError, TooMany, Unavailable
from cfs.wire import Settings
from cfs_server.completions.conversations import Conversations
from cfs_server.completions.orders import DEFAULT_TOKENS, Order
from cfs_server.engine.interface import Delta, Engine, Finished, GenerationRequest, Kind
from cfs_server.pulse import Pulse
from cfs_server.sessions.limits import Limits

_DEFAULTS = Settings(max_tokens=DEFAULT_TOKENS)
_KIND: Kind = "agent"
COUNTS_AT_A_TIME = 2
"""Requests of one owner whose tokens are counted side by side."""

Items = AsyncIterator[Delta | Finished]
"""What an engine yields: pieces, then exactly one end."""


class Direct:
    """Makes completions with an engine, as many at a time as are asked for; it counts them until they are over."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._conversations = Conversations(engine.forget)
        self._running: dict[str, str] = {}
        """Why each running completion was ended; empty as long as it was not."""
        self._changed = Pulse()
        self._draining = False
        self._counting: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """How many completions are being made."""
        return len(self._running)

    def check(self, owner: str) -> None:
        """Raise `Unavailable` when the server ends, and `TooMany` when the engine would not come to them for long."""
        if self._draining:
            raise Unavailable("the server is shutting down", retry_after=5)
        self._limits.check_wait(self._engine.predicted_wait(owner, _KIND))

    @contextlib.contextmanager
    def counting(self, owner: str) -> Iterator[None]:
        """Count tokens for an owner; raises `TooMany` for more at a time than one owner may ask for."""
        if self._counting[owner] >= COUNTS_AT_A_TIME:
            raise TooMany(
                f"tokens are counted for you {COUNTS_AT_A_TIME} requests at a time; try again when one is answered",
                retry_after=1.0,
            )
        self._counting[owner] += 1
        try:
            yield
        finally:
            self._counting[owner] -= 1
            if not self._counting[owner]:
                del self._counting[owner]

    async def make(self, order: Order, owner: str) -> Items:
        """Yield the pieces of a completion, then its end; closing this ends the generation.

        Raises `EngineError`, also when it takes too long.
        """
        request = GenerationRequest(
            uuid.uuid4().hex,
            self._conversations.key(owner, order.messages),
            order.messages,
            _DEFAULTS.patched(order.patch),
            json_schema=order.json_schema,
            logprobs=order.logprobs,
            tools=order.tools,
            tool_choice=order.tool_choice,
            parallel_calls=order.parallel_calls,
            owner=owner,
            account=order.account,
            kind=_KIND,
            deadline_seconds=self._limits.turn_seconds,
        )
        self._running[request.id] = ""
        items = cast("AsyncGenerator[Delta | Finished]", self._engine.generate(request))
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    if isinstance(item, Finished) and (reason := self._running[request.id]):
                        raise EngineError(reason)
                    yield item
        finally:
            del self._running[request.id]
            self._changed.fire()

    async def drain(self, grace: float) -> None:
        """Take no more orders, let the completions finish for `grace` seconds, and end the others (P3)."""
        self._draining = True
        try:
            async with asyncio.timeout(grace):
                while self._running:
                    await self._changed.wait()
        except TimeoutError:
            for request_id in self._running:
                self._running[request_id] = "the server was shut down"
                self._engine.cancel(request_id)
