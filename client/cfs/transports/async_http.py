"""A client of the REST interface: sends the calls of `cfs.api`, follows streams of events (H1, H2, C9).

There are two, with and without `async`; tools/unasync.py makes the second from the first.
"""

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import httpx

from cfs import api
from cfs.deadlines import Deadline
from cfs.errors import CfsError, Unreachable
from cfs.following import FIRST_PAUSE, Follower, StreamEvent
from cfs.transports.addresses import (
    ANSWER_SECONDS,
    RETRIES,
    address_of,
    arguments,
    error_from,
    lost_stream,
    may_repeat,
    stream_limits,
    time_limits,
)

if TYPE_CHECKING:
    from cfs.completions import ChatChunk

T = TypeVar("T")

_LATE_STREAM = "the stream was not over in time; what it shows goes on"


class AsyncClient:
    """Speaks to one server, over as many connections at a time as there are calls.

    `url` and `token` are `CFS_URL` and `CFS_TOKEN` unless given. `timeout` is the longest time in seconds that an
    answer may take, beyond what the server is asked to wait. Raises `InvalidRequest` when there is no URL.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = ANSWER_SECONDS) -> None:
        address = address_of(url, token)
        self.url = address.url
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers=dict(address.headers),
            verify=address.encrypted,
            trust_env=address.through_proxies,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )

    async def call(self, call: api.Call[T]) -> T:
        """Send a call and return what its answer says.

        Sent again after a failure is only what cannot be done twice: what reads, and what never left (C9). Raises
        what the server reports, `Unreachable` when there is none, `Timeout` when it does not answer.
        """
        request = call.request
        for attempt in range(RETRIES):
            try:
                answer = await self._http.request(**arguments(request, time_limits(request, self._timeout)))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if attempt == RETRIES - 1 or not may_repeat(request, error):
                    raise error_from(error, request, self.url) from error
                await asyncio.sleep(FIRST_PAUSE * 2**attempt)
            else:
                return call.result(api.Answer(answer.status_code, answer.headers, answer.content))
        raise AssertionError("unreachable")  # pragma: no cover

    async def events(
        self, stream: api.Stream, *, attempts: float = 8, deadline: Deadline | None = None, late: str = _LATE_STREAM
    ) -> AsyncGenerator[StreamEvent]:
        """Yield the events of a stream as they come, over lost connections, until it is over.

        A lost connection is made again, up to `attempts` times in a row with growing pauses; then `Unreachable` is
        raised. What was missed is told by a `stale` event. A message is never sent twice. After the deadline
        `Timeout` is raised, at the latest with the next heartbeat, and says what is `late`. Leave the stream through
        `contextlib.aclosing`, and its connection is closed at once; that cancels nothing on the server.
        """
        follower = Follower(stream, attempts)
        deadline = deadline or Deadline(None)
        while True:
            try:
                async with self._http.stream(**arguments(follower.request, stream_limits(deadline))) as response:
                    if response.status_code >= 400:
                        raise api.error_of(api.Answer(response.status_code, response.headers, await response.aread()))
                    for event in follower.connected():
                        yield event
                    async for data in response.aiter_bytes():
                        for event in follower.feed(data):
                            yield event
                        if follower.cut:
                            return
                        deadline.check(late)
                follower.lost()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                deadline.check(late)
                follower.lost(lost_stream(error, follower.request, self.url))
            except CfsError as error:
                follower.lost(error)
            if follower.ended:
                return
            await asyncio.sleep(follower.pause)

    async def chunks(self, stream: api.ChunkStream) -> "AsyncGenerator[ChatChunk]":
        """Yield a completion's chunks as they come (H4).

        Leaving it before its end, at once through `contextlib.aclosing`, cancels the completion, unless a session
        records it. It is never asked for twice: raises `Unreachable` when the connection is lost, and what the server
        reports, also in the middle.
        """
        from cfs.completions import CompletionReader  # late: most programs do not need it

        reader = CompletionReader()
        try:
            async with self._http.stream(**arguments(stream.request, stream_limits(Deadline(None)))) as response:
                if response.status_code >= 400:
                    raise api.error_of(api.Answer(response.status_code, response.headers, await response.aread()))
                async for data in response.aiter_bytes():
                    for chunk in reader.feed(data):
                        yield chunk
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise lost_stream(error, stream.request, self.url) from error
        if not reader.ended:
            raise Unreachable("the completion's stream ended before its end")

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
