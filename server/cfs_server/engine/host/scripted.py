"""The deterministic engine for tests and demonstrations (E4): it generates the tokens of a script.

A test can stop it between any two tokens, so it controls the middle of a turn without sleeping.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from cfs.errors import EngineError
from cfs.wire import FinishReason, TokenLogprob, Usage
from cfs_server.base.broadcast import Broadcast
from cfs_server.engine.chat.reply_parser import ReplyReader
from cfs_server.engine.contract.interface import (
    TOO_LONG,
    Delta,
    EngineState,
    EngineStats,
    Finished,
    GenerationRequest,
    Hint,
    Kind,
    ModelInfo,
)

Script = Callable[[GenerationRequest], Iterable[str | Delta | Finished]]
"""Gives the tokens of a reply, which are read as a model's are where there are tools; a `Delta` is taken as it is.

A `Finished` ends the reply for its reason. The script may raise `EngineError`, at once or between tokens, to fail the
turn.
"""


def echo(request: GenerationRequest) -> Iterable[str]:
    """Answer with the words of the last message."""
    words = request.messages[-1].content.split()
    return [word if index == 0 else " " + word for index, word in enumerate(words)]


class ScriptedEngine:
    """An `Engine` that plays a script.

    `interval` is the time between two tokens in seconds. After `hold` it generates nothing until `step` lets a number
    of tokens pass, or `release` all.
    """

    def __init__(self, script: Script = echo, *, interval: float = 0.0, context_tokens: int = 2048) -> None:
        self.requests: list[GenerationRequest] = []
        self.forgotten: list[str] = []
        self.wait = 0.0
        self.waits: dict[tuple[str, Kind], float] = {}
        self.hints: list[tuple[str, Hint]] = []
        self._script = script
        self._interval = interval
        self._context_tokens = context_tokens
        self._running: dict[str, bool] = {}
        self._permits: int | None = None
        self._changed = Broadcast()
        self._state: EngineState = "starting"
        self._prompt_tokens = 0
        self._tokens = 0

    async def start(self) -> ModelInfo:
        """Be ready at once."""
        self._state = "ready"
        return ModelInfo("scripted", self._context_tokens, has_chat_template=False)

    async def stop(self) -> None:
        """Cancel everything that runs."""
        self._state = "stopped"
        for request_id in list(self._running):
            self.cancel(request_id)

    @property
    def ready(self) -> bool:
        """Whether `start` has been called and `stop` has not."""
        return self._state == "ready"

    @property
    def context_tokens(self) -> int:
        """Unknown: a script decides when a prompt is too long."""
        return 0

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """The time that a test has set, for all or for an owner's work of this kind."""
        return self.waits.get((owner, kind), self.wait)

    def hold(self) -> None:
        """Generate nothing more, not even the end of a reply, until `step` or `release`."""
        self._permits = 0

    def step(self, tokens: int = 1) -> None:
        """Release some tokens, of any turn."""
        self._permits = (self._permits or 0) + tokens
        self._changed.fire()

    def release(self) -> None:
        """End the hold."""
        self._permits = None
        self._changed.fire()

    def cancel(self, request_id: str) -> None:
        """End a generation before its next token."""
        if request_id in self._running:
            self._running[request_id] = True
            self._changed.fire()

    def forget(self, cache_key: str) -> None:
        """Remember which session was forgotten."""
        self.forgotten.append(cache_key)

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Record the hint for a session."""
        self.hints.append((cache_key, hint))

    async def stats(self) -> EngineStats:
        """Count tokens; a word is a token here."""
        return EngineStats(
            state=self._state,
            running=len(self._running),
            prompt_tokens_evaluated=self._prompt_tokens,
            tokens_generated=self._tokens,
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Play the script for one request."""
        started = time.monotonic()
        self.requests.append(request)
        self._running[request.id] = False
        prompt_tokens = sum(len(message.content.split()) for message in request.messages)
        self._prompt_tokens += prompt_tokens
        deadline = asyncio.get_running_loop().time() + (request.deadline_seconds or math.inf)
        sent = 0
        reader = ReplyReader(request.options.tools if request.options.tool_choice != "none" else ())
        reason: FinishReason = "stop"
        stop = ""
        try:
            for token in self._script(request):
                if not await self._may_speak(request, deadline):
                    reason = "cancelled"
                    break
                if sent == request.settings.max_tokens:
                    reason = "length"
                    break
                if isinstance(token, Finished):
                    reason, stop = token.reason, token.stop
                    break
                sent += 1
                self._tokens += 1
                delta = token if isinstance(token, Delta) else _read(reader, token, tools=bool(request.options.tools))
                if request.options.logprobs is not None and isinstance(token, str):
                    delta = replace(delta or Delta("", 0), logprobs=(_certain(token),))
                if delta is not None:
                    yield delta
            else:
                reason = "stop" if await self._may_speak(request, deadline) else "cancelled"
            if (rest := reader.finish()) is not None:
                yield rest
        finally:
            del self._running[request.id]
        usage = Usage(
            prompt_tokens=prompt_tokens, completion_tokens=sent, total_seconds=round(time.monotonic() - started, 6)
        )
        yield Finished(reader.reason(reason), usage, stop)

    async def _may_speak(self, request: GenerationRequest, deadline: float) -> bool:
        """Wait for the interval and the hold; False when the request was cancelled meanwhile."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._pause(request.id)
                while self._permits == 0 and not self._running[request.id]:
                    await self._changed.wait()
        except TimeoutError:
            raise EngineError(TOO_LONG.format(request.deadline_seconds)) from None
        if self._permits:
            self._permits -= 1
        return not self._running[request.id]

    async def _pause(self, request_id: str) -> None:
        """Wait for the interval, or until the request is cancelled."""
        if not self._interval:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval):
                while not self._running[request_id]:
                    await self._changed.wait()


def _read(reader: ReplyReader, token: str, *, tools: bool) -> Delta | None:
    return reader.feed(token, 1) if tools else Delta(token, 1)


def _certain(token: str) -> TokenLogprob:
    return TokenLogprob(token=token, bytes=tuple(token.encode()), logprob=0.0)


def failing(reason: str, after: Iterable[str] = ()) -> Script:
    """Make a script that generates some tokens and then fails with `EngineError`."""

    def script(_: GenerationRequest) -> Iterable[str]:
        yield from after
        raise EngineError(reason)

    return script
