"""Shared by the routes of all protocols: begin a completion, in a session if one is named, and answer with it (H4)."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from typing import Annotated, Any, cast
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Header, Request, Response

from cfs.contract.ids import check_id
from cfs.errors import (
    CfsError,
    Conflict,
    EngineError,
    Gone,
    InvalidIdentifier,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    StorageFull,
    TooLarge,
    TooMany,
    Unavailable,
    UnsupportedMedia,
    UpstreamRefused,
)
from cfs_server.completions.requests import CompletionSpec
from cfs_server.completions.run import RunningCompletion
from cfs_server.domain.quotas import StoreLimits
from cfs_server.engine.contract.interface import Delta, Finished
from cfs_server.http.bodies import apart
from cfs_server.http.caller import Caller
from cfs_server.http.disconnects import DisconnectChoice, attend, cancel_unless_ended, cancels_turn
from cfs_server.http.event_streams import Frames
from cfs_server.http.idempotency import BoundTurn, Ticket

_PATIENCE = 1.0
"""Seconds that a stream waits for its first piece before the status is sent. An earlier error gets its own status."""

_PLAIN = r"A-Za-z0-9_~!$&'()*+,;=:@\-"
"""Characters that a URL path may contain without an escape (RFC 3986, 3.3), except the dot."""
_NAME_PATTERN = rf"^[{_PLAIN}][{_PLAIN}.]{{0,62}}(/[A-Za-z0-9_-]{{1,64}}){{0,15}}$"
"""The pattern of names without an escape. The server validates longer ones."""
_ENCODED = re.compile(rf"([{_PLAIN}./]|%[0-9A-Fa-f]{{2}})+")

ERRORS = (InvalidRequest, TooLarge, UnsupportedMedia, EngineError, TooMany, Unavailable, UpstreamRefused)
"""The errors of a route that uses the model, for `problems`."""
RECORDED_ERRORS = (*ERRORS, Conflict, Gone, ModelNotFound, NotFound, StorageFull)
"""The errors of a completion that a session may record."""


async def _session(
    _: DisconnectChoice = None,
    name: Annotated[
        str | None,
        Header(
            alias="X-CFS-Session",
            description="Session that records the completion, percent-encoded; made if there is none.",
            json_schema_extra={"pattern": _NAME_PATTERN},
        ),
    ] = None,
) -> str | None:
    if name is None:
        return None
    if not _ENCODED.fullmatch(name):
        raise InvalidIdentifier(f"X-CFS-Session is percent-encoded, as in a URL; this is not: {name[:80]!r}")
    try:
        return check_id(unquote_to_bytes(name).decode())
    except UnicodeDecodeError:
        raise InvalidIdentifier("X-CFS-Session is not UTF-8 behind its escapes") from None


NamedSession = Annotated[str | None, Depends(_session)]
"""The session that `X-CFS-Session` names, as the parameter of a route."""


async def begin(
    request: Request,
    me: Caller,
    ticket: Ticket,
    session: str | None,
    model: str,
    read: Callable[[StoreLimits], CompletionSpec],
) -> "StartedCompletion":
    """Begin a completion, in a session if one is named. A request that was carried out before begins nothing.

    `read` converts the request; it runs in a thread if the body is long. A completion is cancelled when its client
    disconnects; for a turn of a session see `routes.disconnects`. Raises `ModelNotFound` for an unknown model, see
    `AuthorizedCompletions.choose`.
    """
    gate = me.completions
    chosen = gate.choose(model)
    if (bound := ticket.bound) is not None:
        return StartedCompletion(await gate.resume(bound.session, bound.turn, bound.event - 1))
    spec = (await apart(request, partial(read, gate.limits))).by(chosen)
    return StartedCompletion(
        await gate.begin(spec, session, lambda at, turn, event: ticket.bind(BoundTurn(at.key, turn.id, event.number)))
    )


async def begin_ephemeral(me: Caller, spec: CompletionSpec) -> "StartedCompletion":
    """Begin a completion that no session records."""
    return StartedCompletion(await me.completions.begin(spec, None, lambda *_: None))


class StartedCompletion:
    """The pieces of a completion, which may begin before they are read, and the name of the model that answers.

    `recorded` says where it is recorded, if so.
    """

    def __init__(self, started: RunningCompletion) -> None:
        self.recorded = started.recorded
        self.model = started.model
        self._session = started.session
        self._turn = started.turn
        self._whole = started.whole
        self._items = cast("AsyncGenerator[Delta | Finished]", started.items)
        self._first: asyncio.Task[Delta | Finished] | None = None

    async def whole(self, request: Request, text: Coroutine[Any, Any, str]) -> Response:
        """Return the JSON that work makes of the pieces."""
        if self._whole is not None:
            self._items = cast("AsyncGenerator[Delta | Finished]", self._whole)
        try:
            whole = await attend(request, self._when_ended(text), partial(self._left, request))
            return Response(whole + "\n", media_type="application/json")
        finally:
            text.close()
            await self.close()

    async def _when_ended(self, text: Coroutine[Any, Any, str]) -> str:
        """Read the pieces of a turn when it has ended: until then its reply may begin again."""
        if self._turn is not None:
            await asyncio.wait((self._turn.result,))
        return await text

    async def stream(
        self, request: Request, me: Caller, frames: Frames, *, lines: bool = False, background: bool = False
    ) -> Response:
        """Return the stream of frames that are made of the pieces. An early error gets a status of its own.

        `lines`: each frame is a line of JSON, not an event. `background`: the turn goes on without its client.
        """
        left = None if background else partial(self._left, request)
        try:
            await attend(request, self._begin(_PATIENCE), left)
        except BaseException:
            await self.close()
            raise
        return me.stream(frames, self.close, left, lines=lines)

    def _left(self, request: Request) -> None:
        """Cancel the turn whose client has disconnected, unless it goes on without one."""
        if self._session is not None and self._turn is not None and cancels_turn(request, self._session):
            cancel_unless_ended(self._session, self._turn)

    async def _begin(self, seconds: float) -> None:
        """Wait at most `seconds` for the first piece. Raises the error that arrives in its place."""
        self._first = asyncio.ensure_future(anext(self._items))
        done, _ = await asyncio.wait((self._first,), timeout=seconds)
        for first in done:
            first.result()

    async def __aiter__(self) -> AsyncIterator[Delta | Finished]:
        if self._first is not None:
            yield await asyncio.shield(self._first)
        async for item in self._items:
            yield item

    async def close(self) -> None:
        """Close the iterator. Text that is not read is not generated."""
        if self._first is not None and not self._first.done():
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._items.aclose()


async def frames_of(
    items: StartedCompletion,
    write: Callable[[Delta | Finished], Iterable[bytes]],
    failed: Callable[[CfsError], bytes],
    *,
    first: bytes = b"",
    last: bytes = b"",
) -> Frames:
    """Yield a completion as the frames of a protocol, those of a piece together.

    An error ends the stream with the protocol's frame for it, in place of `last`.
    """
    try:
        if first:
            yield first
        async for item in items:
            if frame := b"".join(write(item)):
                yield frame
    except CfsError as error:
        yield failed(error)
    else:
        if last:
            yield last


def data(text: str) -> bytes:
    """Return a server-sent event without a name."""
    return f"data: {text}\n\n".encode()


def named(event: str, text: str) -> bytes:
    """Return a server-sent event with a name."""
    return f"event: {event}\ndata: {text}\n\n".encode()
