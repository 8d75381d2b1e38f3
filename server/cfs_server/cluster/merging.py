"""Answers requests about all sessions: each replica answers for its own ones, and the answers are merged.

The application of a replica answers once for the sessions of all its slots. Only WebDAV is answered slot by slot,
because each slot has the locks of its sessions. The replica that the client has asked merges the answers of the
replicas: a merged answer has the form of a single one. An answer that lacks a slot is never sent: it would hide
sessions.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import parse_qs

import httpcore
from starlette.types import ASGIApp, Message, Scope, Send

from cfs import wire
from cfs_server.cluster.callers import Callers
from cfs_server.cluster.event_merging import EventMerging
from cfs_server.cluster.relay import ALL, Incoming, Order, Relay, RelayedResponse, send_whole
from cfs_server.cluster.replica import OwnerWait, Replica
from cfs_server.cluster.slots import HostedSlot
from cfs_server.cluster.targets import TargetKind, target_of
from cfs_server.dav import ROOT as DAV
from cfs_server.http.etags import content_etag, unchanged
from cfs_server.sessions.spending import newest_first

COVERED = b"x-cfs-slots"
"""Header of a replica's merged answer: the slots that it is about."""
_CONDITIONS = frozenset({b"if-none-match", b"if-modified-since", b"accept-encoding", b"range"})
"""Headers that are about the merged answer, not about its parts."""
_BODY_BYTES = 64 << 10

Merge = Callable[[list[bytes], Scope], bytes]
"""Merges the bodies of the answers to one request."""


def merge_sessions(pages: list[bytes], scope: Scope) -> bytes:
    """Merge pages of sessions."""
    limit = _limit(scope, 100)
    parsed = [wire.SessionPage.model_validate_json(page) for page in pages]
    rows = sorted((row for page in parsed for row in page.sessions), key=lambda row: row.id)
    goes_on = len(rows) > limit or any(page.next is not None for page in parsed)
    page = wire.SessionPage(sessions=tuple(rows[:limit]), next=rows[:limit][-1].id if goes_on and rows else None)
    return page.model_dump_json().encode() + b"\n"


def merge_files(pages: list[bytes], scope: Scope) -> bytes:
    """Merge pages of files. All slots know the same workspaces."""
    limit = _limit(scope, 1000)
    parsed = [wire.FilePage.model_validate_json(page) for page in pages]
    rows = sorted({row.path: row for page in parsed for row in page.files}.values(), key=lambda row: row.path)
    goes_on = len(rows) > limit or any(page.next is not None for page in parsed)
    page = wire.FilePage(files=tuple(rows[:limit]), next=rows[:limit][-1].path if goes_on and rows else None)
    return page.model_dump_json().encode() + b"\n"


def merge_search(pages: list[bytes], scope: Scope) -> bytes:
    """Merge search results: the best first, of equal ones the newest. All replicas may know a file."""
    limit = _limit(scope, 20)
    parts = [wire.SearchResults.model_validate_json(page) for page in pages]
    rows = sorted((row for part in parts for row in part.results), key=lambda row: (row.score, row.time), reverse=True)
    rows = list({(row.kind, row.session, row.index, row.path): row for row in rows}.values())
    merged = wire.SearchResults(
        results=tuple(rows[:limit]),
        truncated=len(rows) > limit or any(part.truncated for part in parts),
        indexing=any(part.indexing for part in parts),
    )
    return merged.model_dump_json().encode() + b"\n"


def merge_costs(parts: list[bytes], scope: Scope) -> bytes:  # noqa: ARG001 - as the others
    """Merge what was spent, the newest day first."""
    rows = newest_first(row for part in parts for row in wire.Costs.model_validate_json(part).costs)
    return wire.Costs(costs=tuple(rows)).model_dump_json().encode() + b"\n"


def merge_lines(texts: list[bytes], scope: Scope) -> bytes:  # noqa: ARG001 - as the others
    """Merge lists of names, one a line."""
    return b"".join(sorted({line for text in texts for line in text.splitlines(keepends=True)}))


_RESPONSES = re.compile(rb"<((?:[A-Za-z0-9_]+:)?)response(?: [^>]*)?>.*?</\1response>", re.DOTALL)
_HREF = re.compile(rb"<(?:[A-Za-z0-9_]+:)?href>([^<]*)</")


def merge_multistatus(documents: list[bytes], scope: Scope) -> bytes:  # noqa: ARG001
    """Merge answers to PROPFIND, which one library has written in one form. Each resource is listed once."""
    first = documents[0]
    rows: dict[bytes, bytes] = {}
    for document in documents:
        for match in _RESPONSES.finditer(document):
            href = _HREF.search(match[0])
            rows.setdefault(href[1] if href else match[0], match[0])
    spans = [response.span() for response in _RESPONSES.finditer(first)]
    if not spans:
        return first
    collection, *members = rows.items()
    return first[: spans[0][0]] + collection[1] + b"".join(row for _, row in sorted(members)) + first[spans[-1][1] :]


def _limit(scope: Scope, otherwise: int) -> int:
    value = parse_qs(scope["query_string"].decode("latin-1")).get("limit", [""])[0]
    return int(value) if value.isdigit() else otherwise


_BY_PATH: dict[str, Merge] = {
    "/v1/sessions": merge_sessions,
    "/v1/costs": merge_costs,
    "/v1/files": merge_files,
    "/v1/search": merge_search,
}


def merge_of(scope: Scope) -> Merge:
    """Return how the answers to a request are merged."""
    if scope["method"] == "PROPFIND":
        return merge_multistatus
    return _BY_PATH.get(scope["path"].rstrip("/"), merge_lines)


class Merging:
    """The answers of all slots to one request."""

    def __init__(self, replica: Replica, relay: Relay, app: ASGIApp, callers: Callers, ping: float) -> None:
        """Merge the answers of all replicas. `app` answers for all slots of this one.

        `ping` is the time between heartbeats of streams in seconds.
        """
        self._replica = replica
        self._app = app
        self._callers = callers
        self._relay = relay
        self._events = EventMerging(replica, relay, ping)

    async def answer(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Answer a client. Raises `Unavailable` if a slot has no owner for too long."""
        if scope["path"] == "/v1/events":
            await self._events.answer(scope, request, send)
            return
        await request.whole(_BODY_BYTES)
        patience = OwnerWait(self._replica)
        while (parts := await self._gather(scope, request)) is None:
            await patience.wait("some sessions have no replica that serves them now")
        await send_whole(_conditional(self._merged(parts, scope), request), scope, send)

    async def answer_here(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Answer another replica for the slots of this one."""
        if scope["path"] == "/v1/events":
            await self._events.answer_here(scope, request, send)
            return
        await request.whole(_BODY_BYTES)
        is_one = target_of(request.method, request.raw_path, b"", {}).kind is TargetKind.EACH
        slots, parts = await self._here(scope, request, is_one=is_one)
        merged = RelayedResponse(200, [], b"")
        if parts:
            merged = _answer_of_owner(parts) if is_one else self._merged(parts, scope)
        covered = ",".join(str(slot.number) for slot in slots).encode()
        await send_whole(
            RelayedResponse(merged.status, [*merged.headers, (COVERED, covered)], merged.body), scope, send
        )

    async def answer_first(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Answer a request about an id that one slot knows: the first answer that is not 404."""
        await request.whole(_BODY_BYTES)
        patience = OwnerWait(self._replica)
        while (parts := await self._gather(scope, request, is_one=True)) is None:
            await patience.wait("some sessions have no replica that serves them now")
        await send_whole(_answer_of_owner(parts), scope, send)

    async def _gather(self, scope: Scope, request: Incoming, *, is_one: bool = False) -> list[RelayedResponse] | None:
        """Return the answers of all slots; None if some are missing or there twice. Those of this replica come first.

        A slot that moves just now may be answered for by both of its owners.
        """
        asking = asyncio.gather(*[self._ask(other.url, request) for other in self._replica.others])
        (slots, local), remote = await asyncio.gather(self._here(scope, request, is_one=is_one), asking)
        covered = [slot.number for slot in slots if slot.serves]
        answers = list(local)
        for answer in remote:
            if answer is None:
                continue
            numbers = {int(number) for number in answer.header(COVERED).split(",") if number}
            if numbers:
                covered += numbers
                answers.append(answer)
        return answers if sorted(covered) == list(range(self._replica.slots)) else None

    async def _here(
        self, scope: Scope, request: Incoming, *, is_one: bool
    ) -> tuple[list[HostedSlot], list[RelayedResponse]]:
        """Return slots of this replica, and answers for all of them: one, unless each slot has to be asked.

        Each slot is asked about an id that one of them knows (`is_one`).
        """
        headers = [(name, value) for name, value in request.headers if name not in _CONDITIONS]
        inner = dict(scope, headers=headers)
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
        if is_one or scope["path"].startswith(DAV):
            slots = self._replica.serving()
            return slots, list(await asyncio.gather(*[captured(slot, inner, request) for slot in slots]))
        while slots := self._replica.serving():
            with ExitStack() as stack:
                for slot in slots:
                    stack.enter_context(slot.in_use())
                answer = await captured(self._callers.host_of(dict(headers)) or self._app, inner, request)
            if self._replica.serving() == slots:
                return slots, [answer]
        return [], []

    async def _ask(self, url: str, request: Incoming) -> RelayedResponse | None:
        headers = [(name, value) for name, value in request.headers if name not in _CONDITIONS]
        plain = request.copy("GET" if request.method == "HEAD" else request.method, headers)
        try:
            return await self._relay.fetch(url, Order(ALL), plain)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            return None

    def _merged(self, parts: list[RelayedResponse], scope: Scope) -> RelayedResponse:
        """Return one answer. A caller that only some slots know (the bearer of a share) gets what these say."""
        authorized = [part for part in parts if part.status != 401] or parts
        refused = next((part for part in authorized if part.status >= 300), None)
        if refused is not None:
            return refused
        if len(authorized) == 1:
            return RelayedResponse(
                authorized[0].status, [row for row in authorized[0].headers if row[0] != COVERED], authorized[0].body
            )
        body = merge_of(scope)([part.body for part in authorized], scope)
        dropped = (b"content-length", b"etag", COVERED)
        headers = [(name, value) for name, value in authorized[0].headers if name not in dropped]
        if any(name == b"etag" for name, _ in authorized[0].headers):
            headers.append((b"etag", content_etag(body).encode()))
        return RelayedResponse(authorized[0].status, headers, body)


def _answer_of_owner(parts: list[RelayedResponse]) -> RelayedResponse:
    """Return the answer of the slot that knows an id, or else one that says that it is not known."""
    return next((part for part in parts if part.status not in (401, 404)), max(parts, key=lambda part: part.status))


async def captured(slot: ASGIApp, scope: Scope, request: Incoming) -> RelayedResponse:
    """Return the whole answer of an application."""
    status, headers, pieces = 0, list[tuple[bytes, bytes]](), list[bytes]()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], [(name.lower(), value) for name, value in message["headers"]]
        else:
            pieces.append(message.get("body", b""))

    await slot(dict(scope), request.copy(request.method, request.headers).receive, send)
    return RelayedResponse(status, headers, b"".join(pieces))


def _conditional(response: RelayedResponse, request: Incoming) -> RelayedResponse:
    """Answer 304 if the client has this version."""
    condition = next((value.decode("latin-1") for name, value in request.headers if name == b"if-none-match"), None)
    etag = response.header(b"etag")
    if response.status != 200 or not etag or not unchanged(condition, etag):
        return response
    return RelayedResponse(304, [header for header in response.headers if header[0] != b"content-type"], b"")
