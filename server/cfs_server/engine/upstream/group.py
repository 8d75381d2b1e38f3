"""Several upstreams of one model: each session stays at one of them, and another takes over when that one fails."""

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import cast

import structlog

from cfs.errors import EngineError
from cfs.wire import Usage
from cfs_server.engine.contract.interface import (
    COUNTERS,
    GAUGES,
    TOO_LONG,
    Delta,
    EmbeddingRequest,
    Embeddings,
    EngineStats,
    Finished,
    GenerationRequest,
    Hint,
    Kind,
    ModelInfo,
    ModelLoadError,
    ReplyLost,
    delayed,
)
from cfs_server.engine.upstream.affinity import value_of
from cfs_server.engine.upstream.engine import UpstreamEngine
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.options import UpstreamOptions

_FIRST_REST, _LONGEST_REST = 1.0, 60.0
"""Seconds for which an upstream is left alone after a failure; doubled with each further one."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Upstream:
    """One of the upstreams, and whether it can continue a reply that another one has begun."""

    options: UpstreamOptions
    continues: bool = False

    def engine(self, **changes: object) -> UpstreamEngine:
        """Make its engine, which sends each request once: the group decides on retries."""
        options = replace(self.options, **changes) if changes else self.options  # type: ignore[arg-type]
        return UpstreamEngine(replace(options, retries=replace(options.retries, most=0)))


@dataclass(eq=False, slots=True)
class _Member:
    upstream: Upstream
    engine: UpstreamEngine
    failures: int = 0
    rests_until: float = 0.0

    def failed(self, now: float, after: float | None) -> None:
        """Leave it alone for a while, or for as long as it has asked for."""
        rest = min(_FIRST_REST * 2**self.failures, _LONGEST_REST)
        self.failures += 1
        self.rests_until = now + max(rest, after or 0.0)

    def worked(self) -> None:
        """Forget its failures."""
        self.failures, self.rests_until = 0, 0.0

    def score(self, value: str) -> bytes:
        """Return its rank for a family of sessions (rendezvous hashing): only families of a lost upstream move."""
        return hashlib.sha256(f"{value} {self.upstream.options.url}".encode()).digest()


@dataclass(slots=True)
class _Reply:
    """The reply to one request, which several upstreams may make together."""

    request: GenerationRequest
    clock: Callable[[], float]
    came: float = 0.0
    first: float | None = None
    tokens: int = 0
    texts: list[str] = field(default_factory=list)
    is_plain: bool = True
    speaks: bool = False
    """Whether the present upstream has said something."""
    _seam: str = ""

    def __post_init__(self) -> None:
        self.came = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the request."""
        return self.clock() - self.came

    @property
    def can_be_continued(self) -> bool:
        """Whether an upstream could continue it: it is text only, and no grammar has begun with it."""
        request = self.request
        free = request.options.json_schema is None and request.options.tool_choice != "required"
        return self.is_plain and free and request.settings.prompt_style != "transcript"

    @property
    def is_full(self) -> bool:
        """Whether it has all tokens that it may have."""
        return self.tokens >= self.request.settings.max_tokens

    def next_request(self) -> GenerationRequest:
        """Return the request for the rest of the reply. Raises `EngineError` after the deadline."""
        limit, text = self.request.deadline_seconds, "".join(self.texts)
        if limit is not None and self.elapsed >= limit:
            raise EngineError(TOO_LONG.format(limit))
        left = None if limit is None else limit - self.elapsed
        self.speaks = False
        partial = text.rstrip()
        self._seam = text[len(partial) :]
        settings = self.request.settings
        if text:
            settings = settings.model_copy(update={"max_tokens": settings.max_tokens - self.tokens})
        return replace(self.request, deadline_seconds=left, partial=partial, settings=settings)

    def add(self, delta: Delta) -> Delta:
        """Add a piece. Spaces at a seam are not said twice."""
        if self.first is None:
            self.first = self.elapsed
        while self._seam and delta.text.startswith(self._seam[0]):
            delta, self._seam = replace(delta, text=delta.text[1:]), self._seam[1:]
        self._seam = "" if delta.text else self._seam
        self.speaks, self.tokens = True, self.tokens + delta.tokens
        self.texts.append(delta.text)
        self.is_plain = self.is_plain and not delta.thinking and not delta.calls
        return delta

    def usage(self, usage: Usage, *, before: int, began: float) -> Usage:
        """Return the usage of the whole reply. `before` are the tokens that others had made when this one `began`."""
        usage = delayed(usage, began)
        if not before:
            return usage
        completion = before + usage.completion_tokens
        return usage.model_copy(update={"completion_tokens": completion, "first_token_seconds": self.first})


class UpstreamGroup:
    """Lets one of several servers answer.

    Before the first text, a request that fails goes to the next upstream. After it, an upstream that can continues the
    reply; otherwise `ReplyLost` is raised, and the reply has to begin again.
    """

    def __init__(self, upstreams: Sequence[Upstream], clock: Callable[[], float] = time.monotonic) -> None:
        """Take the upstreams; nothing is connected yet."""
        self._members = [_Member(upstream, upstream.engine()) for upstream in upstreams]
        self._retries = upstreams[0].options.retries
        self._clock = clock
        self._cancelled: dict[str, asyncio.Event] = {}
        self._moved = self._continued = 0

    async def start(self) -> ModelInfo:
        """Look at all upstreams. One that is away may come later; raises `ModelLoadError` if all are."""
        results = await asyncio.gather(*(member.engine.start() for member in self._members), return_exceptions=True)
        infos = [info for info in results if isinstance(info, ModelInfo)]
        for member, result in zip(self._members, results, strict=True):
            if isinstance(result, ModelInfo):
                continue
            if not infos or not _passes(result):
                raise result
            _log.warning("upstream.away", reason=str(result))
            await member.engine.stop()
            model = member.upstream.options.model or infos[0].name
            member.engine = member.upstream.engine(check=False, model=model)
            await member.engine.start()
            member.failed(self._clock(), None)
        return replace(infos[0], context_tokens=self.context_tokens)

    async def stop(self) -> None:
        """End at once; turns that are not finished fail."""
        await asyncio.gather(*(member.engine.stop() for member in self._members))

    @property
    def ready(self) -> bool:
        """Whether one of the upstreams was there when it was last needed."""
        return any(member.engine.ready for member in self._members)

    @property
    def context_tokens(self) -> int:
        """How many tokens a prompt and its reply can have at each of them; 0 if none reports it."""
        return min((size for member in self._members if (size := member.engine.context_tokens)), default=0)

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """Seconds that an owner's turn of a kind would wait for its place, at the best of them."""
        return min(member.engine.predicted_wait(owner, kind) for member in self._members)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Yield text as it arrives, then exactly one `Finished`; see `Engine.generate`. Raises `ReplyLost`."""
        reply = _Reply(request, self._clock)
        cancelled = self._cancelled[request.id] = asyncio.Event()
        error: EngineError | None = None
        try:
            for attempt in range(self._retries.most + 1):
                if attempt:
                    await self._pause(attempt, cancelled)
                for member in self._choices(reply):
                    if cancelled.is_set() or (reply.tokens and reply.is_full):
                        yield Finished("cancelled" if cancelled.is_set() else "length", self._so_far(reply))
                        return
                    try:
                        async with aclosing(self._from(member, reply)) as items:
                            async for item in items:
                                yield item
                    except EngineError as failed:
                        error = self._failed(member, reply, failed)
                    else:
                        member.worked()
                        return
            if reply.tokens:  # it could not be continued, but a new one may come from the others
                raise ReplyLost(error.detail if error else "the upstreams are away") from error
            error = error or EngineError("there is no upstream")
            if self._retries.most:
                error.extra["should_retry"] = False  # all of them have been tried several times
            raise error
        finally:
            del self._cancelled[request.id]

    async def _from(self, member: _Member, reply: _Reply) -> AsyncGenerator[Delta | Finished]:
        before, began = reply.tokens, reply.elapsed
        self._continued += bool(before)
        items = member.engine.generate(reply.next_request())
        async with aclosing(cast("AsyncGenerator[Delta | Finished]", items)) as followed:
            async for item in followed:
                if isinstance(item, Delta):
                    yield reply.add(item)
                else:
                    yield replace(item, usage=reply.usage(item.usage, before=before, began=began))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Let the first upstream that can make the vectors; see `Embeds.embed`."""
        now = self._clock()
        for member in (members := sorted(self._members, key=lambda member: max(member.rests_until - now, 0.0))):
            try:
                embeddings = await member.engine.embed(request)
            except EngineError as error:
                failure = error.__cause__
                if not isinstance(failure, Failure) or not failure.repeat:
                    raise
                member.failed(self._clock(), failure.after)
                if member is members[-1]:
                    raise
                self._moved += 1
            else:
                member.worked()
                return embeddings
        raise AssertionError("unreachable")  # pragma: no cover

    def cancel(self, request_id: str) -> None:
        """Close the connection of a turn; unknown ids are ignored."""
        if request_id in self._cancelled:
            self._cancelled[request_id].set()
            for member in self._members:
                member.engine.cancel(request_id)

    def forget(self, cache_key: str) -> None:
        """Drop what is kept of a session that was deleted."""
        for member in self._members:
            member.engine.forget(cache_key)

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Do nothing: the upstreams manage their own caches."""

    async def stats(self) -> EngineStats:
        """Return the sums of all counters and gauges."""
        all_stats = await asyncio.gather(*(member.engine.stats() for member in self._members))
        now = self._clock()
        gauges = {
            "upstreams": float(len(self._members)),
            "upstreams_resting": float(sum(member.rests_until > now for member in self._members)),
            "upstream_requests_moved": float(self._moved),
            "upstream_replies_continued": float(self._continued),
        }
        for stats in all_stats:
            for name, value in stats.gauges.items():
                gauges[name] = gauges.get(name, 0.0) + value
        best = next((stats for stats in all_stats if stats.state == "ready"), all_stats[0])
        sums = {name: sum(getattr(stats, name) for stats in all_stats) for name in (*COUNTERS, *GAUGES)}
        return replace(best, gauges=gauges, **sums)

    def _choices(self, reply: _Reply) -> list[_Member]:
        """Return the upstreams in the order in which they are tried: resting ones last, those of the session first."""
        now, value = self._clock(), value_of(reply.request)
        members = [member for member in self._members if member.upstream.continues or not reply.tokens]
        members.sort(key=lambda member: member.score(value), reverse=True)
        return sorted(members, key=lambda member: max(member.rests_until - now, 0.0))

    def _failed(self, member: _Member, reply: _Reply, error: EngineError) -> EngineError:
        """Note the failure of an upstream. Raises the error if no other one can help, and `ReplyLost`."""
        failure = error.__cause__
        if not isinstance(failure, Failure):
            raise error
        if not failure.repeat:
            if reply.tokens and not reply.speaks:
                member.upstream = replace(member.upstream, continues=False)
                _log.warning("upstream.refused", setting="continues", said=failure.said)
                raise ReplyLost(error.detail) from failure
            raise error
        member.failed(self._clock(), failure.after)
        _log.warning("upstream.moves", reason=error.detail, upstreams=len(self._members))
        self._moved += 1
        others = [other for other in self._members if other is not member and other.upstream.continues]
        if reply.tokens and not (others and reply.can_be_continued):
            raise ReplyLost(error.detail) from failure
        return error

    async def _pause(self, attempt: int, cancelled: asyncio.Event) -> None:
        """Wait before all upstreams are tried again, unless the turn is cancelled."""
        longest = min(self._retries.first * 2 ** (attempt - 1), self._retries.longest)
        tasks = [
            asyncio.ensure_future(self._retries.sleep(random.uniform(0, longest))),
            asyncio.ensure_future(cancelled.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _so_far(self, reply: _Reply) -> Usage:
        """Return the usage of a reply that no upstream has ended."""
        seconds = round(reply.elapsed, 6)
        return Usage(
            completion_tokens=reply.tokens, first_token_seconds=round(reply.first or seconds, 6), total_seconds=seconds
        )


def _passes(error: BaseException) -> bool:
    """Whether an upstream that cannot be used at the start may be there later."""
    failure = error.__cause__
    return isinstance(error, ModelLoadError) and isinstance(failure, Failure) and failure.repeat
