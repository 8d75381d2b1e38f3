"""REST client: sends the calls of `cfs.api` and follows event streams (H1, H2, C9).

There is an async and a sync version; tools/unasync.py generates the sync one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast

import httpx

from cfs import api
from cfs.contract.errors import AlreadyExists, Busy, CfsError, EngineError, Timeout, Unreachable
from cfs.contract.transcript import TranscriptMessage, parse
from cfs.contract.wire import (
    MergedFiles,
    Message,
    NewMessage,
    Question,
    RedoRequest,
    RewindRequest,
    Rewound,
    Role,
    SearchResults,
    SessionVersion,
    Settings,
    SettingsPatch,
)
from cfs.state import TurnReader
from cfs.state.event_types import SessionEvent
from cfs.state.replies import MessageOutcome
from cfs.state.stream import EventSource, StreamEvent
from cfs.transports.addresses import (
    ANSWER_SECONDS,
    Attempts,
    address_of,
    arguments,
    error_from,
    lost_stream,
    stream_limits,
    time_limits,
    was_sent,
)
from cfs.transports.deadlines import Deadline
from cfs.transports.proxies import connecting

if TYPE_CHECKING:
    from cfs.completions import ChatChunk


T = TypeVar("T")

_LATE_STREAM = "the stream was not over in time; what it shows goes on"


class AsyncClient:
    """A client of one server. Concurrent calls use separate connections.

    `url` and `token` default to `CFS_URL` and `CFS_TOKEN`. `timeout` is the maximum time in seconds for a response,
    besides the time that the server is asked to wait. Raises `InvalidRequest` if there is no URL, or if
    the proxy or the certificates that the environment names cannot be used.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = ANSWER_SECONDS) -> None:
        address = address_of(url, token)
        self.url = address.url
        self._timeout = timeout
        with connecting(address.url):
            self._http = httpx.AsyncClient(
                base_url=address.url,
                headers=dict(address.headers),
                verify=address.verify,
                proxy=address.proxy,
                trust_env=False,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            )

    async def search(
        self,
        words: str,
        *,
        prefix: str = "",
        limit: int = 20,
        within: str = "",
        role: Role | None = None,
        since: float | None = None,
    ) -> SearchResults:
        """Return the best matches in messages, titles and files that the caller may read.

        `words` must all occur; they may be "phrases" and beginnings (`word*`). Only the session `within` and those
        below it, only messages of this role, and only what is not older than `since`, in seconds since 1970.

        Over HTTP: `GET /v1/search`.
        """
        return await self.call(api.search(words, prefix, limit, within=within, role=role, since=since))

    async def call(self, call: api.Call[T], *, idempotency_key: str | None = None) -> T:
        """Send a call and return its parsed response.

        After a lost connection the call is sent again (C9). A write has an idempotency key, so that the server carries
        it out once; give one to repeat a call yourself, also from another process. Raises the server's error,
        `Unreachable` if there is no server, and `Timeout` if it does not respond.
        """
        request = call.request.keyed(idempotency_key)
        attempts = Attempts(request)
        while True:
            try:
                answer = await self._http.request(**arguments(request, time_limits(request, self._timeout)))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if (pause := attempts.pause(error)) is None:
                    raise error_from(attempts.cause(error), request, self.url) from error
            else:
                if (pause := attempts.pause_after(answer.status_code, answer.headers.get("retry-after", ""))) is None:
                    return call.result(api.ApiResponse(answer.status_code, answer.headers, answer.content))
            await asyncio.sleep(pause)

    async def events(
        self,
        stream: api.Stream,
        *,
        attempts: float = 8,
        deadline: Deadline | None = None,
        late: str = _LATE_STREAM,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[SessionEvent]:
        """Yield the events of a stream, reconnecting as necessary, until the stream ends.

        A lost connection is retried up to `attempts` times in a row with growing pauses; then `Unreachable` is raised.
        A `stale` event reports missed events. A message is never stored twice: a lost request is sent again with its
        idempotency key, which you may give to repeat the call yourself. After the deadline `Timeout` is raised,
        at the latest with the next heartbeat, and names what is `late`. Use `contextlib.aclosing` to close the
        connection at once when you leave the stream; this cancels nothing on the server.
        """
        source = EventSource(replace(stream, request=stream.request.keyed(idempotency_key)), attempts)
        deadline = deadline or Deadline(None)
        while True:
            try:
                async with self._http.stream(**arguments(source.request, stream_limits(deadline))) as response:
                    if response.status_code >= 400:
                        raise api.error_of(
                            api.ApiResponse(response.status_code, response.headers, await response.aread())
                        )
                    for event in source.connected():
                        yield cast("SessionEvent", event)
                    async for data in response.aiter_bytes():
                        for event in source.feed(data):
                            yield cast("SessionEvent", event)
                        if source.cut:
                            return
                        deadline.check(late)
                source.lost()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                deadline.check(late)
                source.lost(lost_stream(error, source.request, self.url), sent=was_sent(error))
            except CfsError as error:
                source.lost(error, sent=False)
            if source.ended:
                return
            await asyncio.sleep(source.pause)

    async def chunks(
        self, stream: api.ChunkStream, *, idempotency_key: str | None = None
    ) -> "AsyncGenerator[ChatChunk]":
        """Yield the chunks of a completion (H4).

        Leaving it early cancels the completion, unless a session records it; use `contextlib.aclosing` to do so at
        once. The request is never repeated: a lost connection raises `Unreachable`. With the same `idempotency_key` you
        may repeat a completion that a session records. Errors of the server are raised, also in the middle.
        """
        from cfs.completions import CompletionReader  # late: most programs do not need it

        reader, request = CompletionReader(), stream.request.keyed(idempotency_key)
        try:
            async with self._http.stream(**arguments(request, stream_limits(Deadline(None)))) as response:
                if response.status_code >= 400:
                    raise api.error_of(api.ApiResponse(response.status_code, response.headers, await response.aread()))
                async for data in response.aiter_bytes():
                    for chunk in reader.feed(data):
                        yield chunk
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise lost_stream(error, request, self.url) from error
        if not reader.ended:
            raise Unreachable("the completion's stream ended before its end")

    async def download(self, request: api.Request, write: Callable[[bytes], object]) -> int:
        """Pass a long response to `write` piece by piece, and return its size in bytes.

        The server may take as long as it needs to prepare it. Raises `Unreachable` if the connection is lost.
        """
        size = 0
        limits = httpx.Timeout(self._timeout, read=None)
        try:
            async with self._http.stream(**arguments(request, limits)) as response:
                if response.status_code >= 400:
                    raise api.error_of(api.ApiResponse(response.status_code, response.headers, await response.aread()))
                async for data in response.aiter_bytes():
                    write(data)
                    size += len(data)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise error_from(error, request, self.url) from error
        return size

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# A session over HTTP (C1)

LONG_POLL_SECONDS = 30.0
"""Maximum wait of one request in seconds; longer waits use several, so that a dead connection is noticed."""

QUICK_SECONDS = 2.0
"""A reply that is ready within this time is returned by the request itself, which is fastest."""

_LATE = "the session is still busy; wait() or read() again, or cancel()"
_LATE_REPLY = "there is no reply yet: the turn continues; wait() for it, or cancel() it"


class AsyncHttpTransport:
    """One session of a server, by its URL."""

    takes_tools = True

    def __init__(self, session: str, url: str, token: str | None) -> None:
        self._id = session
        self._client = AsyncClient(url, token)
        self._life = api.Life()

    async def open(self) -> None:
        """Make the session if there is none."""
        try:
            await self._call(api.create(self._id))
        except AlreadyExists:
            return

    async def require(self) -> None:
        """Raise `NotFound` if there is none."""
        await self._call(api.settings(self._id))

    async def reopen(self) -> None:
        """Use the session that has the name now; create it if there is none."""
        self._life.forget()
        await self.open()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def send(self, message: NewMessage, deadline: Deadline, key: str | None) -> MessageOutcome:
        """Post a message and wait for its reply: first in the same request, then through events."""
        try:
            reply = await self._call(api.say(self._id, message, min(deadline.left, QUICK_SECONDS)), key)
        except Timeout as late:
            if "turn" not in late.extra:
                raise
            deadline.check(_LATE_REPLY)
            return await self._follow(str(late.extra["turn"]), message, deadline)
        return MessageOutcome(
            reply.reply, parse(reply.transcript or ""), reply.error, reply.finish_reason, reply.usage, reply.tool_calls
        )

    async def stream(
        self, message: NewMessage, deadline: Deadline, key: str | None
    ) -> AsyncGenerator[str | MessageOutcome]:
        """Post a message and yield the text of its turn's events, then what came of it."""
        reader = TurnReader(self._id, _turn(message))
        async with aclosing(self._events(api.converse(self._id, message), deadline, key)) as events:
            async for event in events:
                if text := reader.feed(event):
                    yield text
                if reader.caught_up:
                    break
        if reader.error is not None:
            raise EngineError(reader.error)
        yield reader.outcome(())

    async def _follow(self, turn: str, message: NewMessage, deadline: Deadline) -> MessageOutcome:
        reader = TurnReader(self._id, _turn(message))
        async with aclosing(self._events(api.turn_events(self._id, turn), deadline)) as events:
            async for event in events:
                reader.feed(event)
                if reader.caught_up:
                    break
        return reader.outcome(await self._turns())

    def _events(self, stream: api.Stream, deadline: Deadline, key: str | None = None) -> AsyncGenerator[StreamEvent]:
        stream = self._life.stream(stream)
        return self._seen(self._client.events(stream, deadline=deadline, late=_LATE_REPLY, idempotency_key=key))

    async def _seen(self, events: AsyncGenerator[StreamEvent]) -> AsyncGenerator[StreamEvent]:
        async with aclosing(events):
            async for event in events:
                self._life.saw(event.id)
                yield event

    async def _call(self, call: api.Call[T], key: str | None = None) -> T:
        """Send a call for the session that was seen first; raises `Gone` if it was deleted or replaced."""
        return await self._client.call(self._life.call(call), idempotency_key=key)

    async def _turns(self) -> list[TranscriptMessage]:
        return parse((await self._call(api.transcript(self._id))).text)

    async def read(self, deadline: Deadline) -> str:
        """Get the transcript once it is settled."""
        while True:
            view = await self._call(api.transcript(self._id, min(deadline.left, LONG_POLL_SECONDS)))
            if view.settled:
                return view.text
            deadline.check(_LATE)

    async def read_now(self) -> str:
        """Get the transcript, or raise `Busy` while it is not settled."""
        view = await self._call(api.transcript(self._id))
        if view.state != "idle":
            raise Busy(f"session {self._id!r} is generating; read() waits for it")
        return view.text

    async def settings(self) -> Settings:
        """Get the settings."""
        return await self._call(api.settings(self._id))

    async def configure(self, patch: SettingsPatch) -> Settings:
        """Patch the settings."""
        return await self._call(api.configure(self._id, patch))

    async def delete(self) -> None:
        """Delete the session and what is below it."""
        await self._call(api.delete(self._id))
        self._life.forget()

    async def fork(
        self,
        copy: str | None,
        messages: int | None,
        deadline: Deadline,  # noqa: ARG002 - it never waits
        key: str | None,
        *,
        files: bool = True,
    ) -> str:
        """Copy the session on the server."""
        return (await self._call(api.fork(self._id, copy, messages, files=files), key)).id

    async def versions(self, before: int | None, limit: int) -> tuple[SessionVersion, ...]:
        """Return its newest versions, or those before one."""
        return (await self._call(api.versions(self._id, before, limit))).versions

    async def read_at(self, at: int | str) -> tuple[Message, ...]:
        """Return the messages of a version or of a time."""
        return (await self._call(api.read_at(self._id, at))).history

    async def rewind(self, how: RewindRequest) -> Rewound:
        """Take it back to a version or a time, or only plan it."""
        return await self._call(api.rewind(self._id, how))

    async def redo(self, how: RedoRequest) -> Rewound:
        """Undo its last rewind, or only plan it."""
        return await self._call(api.redo(self._id, how))

    async def merge(self, source: str, *, dry_run: bool) -> MergedFiles:
        """Merge the files of another session into its own, or only plan it."""
        return await self._call(api.merge_files(source, self._id, dry_run=dry_run))

    async def cancel(self, *, queued: bool, cascade: bool) -> None:
        """Cancel the running turn, and what else is asked."""
        await self._call(api.cancel(self._id, queued=queued, cascade=cascade))

    async def questions(self) -> tuple[Question, ...]:
        """Return the open questions of its agent."""
        return await self._call(api.questions(self._id))

    async def answer(self, question: str, answer: str) -> None:
        """Answer a question of its agent."""
        await self._call(api.answer(self._id, question, answer))

    async def wait(self, deadline: Deadline) -> None:
        """Wait until it and everything below it is idle."""
        while True:
            try:
                await self._call(api.wait(self._id, min(deadline.left, LONG_POLL_SECONDS)))
            except Timeout:
                deadline.check(_LATE)
            else:
                return


def _turn(message: NewMessage) -> TranscriptMessage:
    return TranscriptMessage(message.role, message.content)
