"""The tools: what a model may do on a CFS server, and how each is done by the SDK."""

import base64
import binascii
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from uuid import uuid4

import anyio
from mcp.types import Tool, ToolAnnotations
from pydantic import ValidationError

from cfs import api, wire
from cfs.contract.text_values import read_texts
from cfs.contract.transcript import TranscriptMessage
from cfs.errors import CfsError, EngineError, InvalidParameters, RangeNotSatisfiable, Timeout
from cfs.state import TurnReader
from cfs.transports.async_http import AsyncClient
from cfs_mcp import schemas
from cfs_mcp.questions import Asking, open_questions
from cfs_mcp.schemas import Arguments, Result

A = TypeVar("A", bound=Arguments)

Progress = Callable[[float, str], Awaitable[None]]
"""Reports the tokens so far and the newest piece of text to a client that has asked for it."""

_CANCEL_SECONDS = 5.0
_POLL_SECONDS = 30.0
"""Longest wait of one request, so that a dead connection is noticed."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Who calls a tool, how to report progress, and how to ask the person at the client."""

    client: AsyncClient
    progress: Progress
    asking: Asking


@dataclass(frozen=True, slots=True)
class ServerTool(Generic[A]):
    """A tool: what a client is shown of it, and the function that does it."""

    name: str
    title: str
    description: str
    arguments: type[A]
    result: type[Result]
    run: Callable[[CallContext, A], Awaitable[Result]]
    reads: bool = False
    destroys: bool = False
    repeatable: bool = False

    @property
    def shown(self) -> Tool:
        """The tool as clients see it."""
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.arguments.schema_of(),
            output_schema=self.result.schema_of(),
            annotations=ToolAnnotations(
                read_only_hint=self.reads,
                destructive_hint=self.destroys,
                idempotent_hint=self.reads or self.repeatable,
                open_world_hint=False,
            ),
        )

    async def call(self, call: CallContext, arguments: dict[str, Any]) -> Result:
        """Check the arguments and run the tool. Raises the errors of `cfs.errors`."""
        try:
            checked = self.arguments.model_validate(read_texts(arguments, self.arguments.schema_of()))
        except ValidationError as error:
            raise InvalidParameters("; ".join(_complaints(error))) from None
        return await self.run(call, checked)


def _complaints(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        location = ".".join(map(str, detail["loc"]))
        yield f"{location}: {detail['msg']}" if location else detail["msg"]


def _row(info: wire.SessionInfo) -> schemas.SessionRow:
    return schemas.SessionRow(
        session=info.id,
        title=info.title,
        state=info.state,
        queued=info.queued,
        messages=info.messages,
        updated_at=info.updated_at,
        sub_sessions=info.sub_sessions,
        open_questions=info.open_questions,
    )


async def _list_sessions(call: CallContext, of: schemas.ListSessions) -> schemas.SessionRows:
    page = await call.client.call(api.list_sessions(of.prefix, of.after, of.limit, active=of.active))
    return schemas.SessionRows(sessions=[_row(info) for info in page.sessions], next=page.next)


async def _read_session(call: CallContext, of: schemas.ReadSession) -> schemas.ReadSessionResult:
    session = await call.client.call(api.read(of.session, of.wait_seconds or None))
    first = max(of.first, len(session.history) - of.last if of.last is not None else 0)
    return schemas.ReadSessionResult(
        session=session.id,
        state=session.state,
        total=len(session.history),
        messages=[
            schemas.ReadMessage(
                index=index,
                role=message.role,
                content=message.content,
                tool_calls=[tool_call.model_dump() for tool_call in message.tool_calls],
                name=message.name,
            )
            for index, message in enumerate(session.history[first:], first)
        ],
        queue=[message.content for message in session.queue],
        partial=session.partial,
        open_questions=session.open_questions,
    )


async def _send_message(call: CallContext, of: schemas.SendMessage) -> schemas.Sent:
    message = wire.NewMessage(content=of.message, settings=of.settings)
    if not of.wait_seconds:
        posted = await call.client.call(api.post(of.session, message), idempotency_key=of.idempotency_key)
        return schemas.Sent(session=of.session, turn=posted.turn, finished=False, reply="")
    turn = _FollowedTurn(call, of.session)
    try:
        key = call.asking.key = of.idempotency_key or call.asking.key or uuid4().hex
        with anyio.move_on_after(of.wait_seconds):
            await call.asking.attend(call.client, of.session, lambda: turn.follow(message, key))
    except anyio.get_cancelled_exc_class():
        await turn.cancel()
        raise
    result = turn.result()
    if result.finished or call.asking.pending is not None:
        return result
    return result.model_copy(update={"questions": await open_questions(call.client, of.session)})


class _FollowedTurn:
    """The turn of one message, which is followed until it ends."""

    def __init__(self, call: CallContext, session: str) -> None:
        self._call = call
        self._session = session
        self._id: str | None = None
        self._running = False
        self._ended = False
        self._tokens = 0
        self._text = ""
        self._reader: TurnReader | None = None

    async def follow(self, message: wire.NewMessage, key: str | None) -> None:
        """Send the message and report its reply as it grows."""
        self._reader = reader = TurnReader(self._session, TranscriptMessage(message.role, message.content))
        stream = self._call.client.events(api.converse(self._session, message), idempotency_key=key)
        async with aclosing(stream) as events:
            async for event in events:
                self._id = self._id or event.turn
                self._running = self._running or event.type in ("turn.started", "token")
                text = reader.feed(event)
                self._ended = reader.caught_up or event.type in ("turn.finished", "turn.failed")
                self._text += text
                if event.type == "token":
                    self._tokens += max(1, event.data.get("tokens", 1))
                    await self._call.progress(self._tokens, text)
                if self._ended:
                    break

    async def cancel(self) -> None:
        """Cancel the turn if it is this one that runs."""
        if self._running and not self._ended:
            with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
                try:
                    await self._call.client.call(api.cancel(self._session))
                except CfsError:
                    return  # it has ended, or the server is away

    def result(self) -> schemas.Sent:
        """Return what there is of the reply. Raises `EngineError` if the turn failed."""
        if not self._ended or self._reader is None:
            return schemas.Sent(session=self._session, turn=self._id, finished=False, reply=self._text)
        if self._reader.error is not None:
            raise EngineError(self._reader.error)
        outcome = self._reader.outcome(())
        return schemas.Sent(
            session=self._session,
            turn=self._id,
            finished=True,
            reply=outcome.reply,
            finish_reason=outcome.finish_reason,
            usage=outcome.usage,
        )


async def _wait(call: CallContext, of: schemas.Wait) -> schemas.Waited:
    settled = False

    async def wait() -> None:
        nonlocal settled
        left, began = of.timeout_seconds, anyio.current_time()
        while not settled and left > 0:
            try:
                await call.client.call(api.wait(of.session, min(left, _POLL_SECONDS)))
                settled = True
            except Timeout:
                left = of.timeout_seconds - (anyio.current_time() - began)

    await call.asking.attend(call.client, of.session, wait)
    info = await call.client.call(api.sub_sessions(of.session))
    return schemas.Waited(
        session=info.id,
        settled=settled,
        state=info.state,
        queued=info.queued,
        messages=info.messages,
        open_questions=sum(node.open_questions for node in _flat(info)),
        questions=[] if settled else await open_questions(call.client, of.session),
    )


async def _fork(call: CallContext, of: schemas.ForkSession) -> schemas.Forked:
    copy = await call.client.call(api.fork(of.session, of.name, of.messages))
    return schemas.Forked(session=copy.id, messages=copy.messages, origin=copy.origin)


async def _merge(call: CallContext, of: schemas.MergeSession) -> schemas.Merged:
    merged = await call.client.call(api.merge_files(of.source, of.target, dry_run=of.dry_run))
    return schemas.Merged(**merged.model_dump(exclude={"source", "target"}))


async def _list_versions(call: CallContext, of: schemas.ListVersions) -> schemas.Versions:
    page = await call.client.call(api.versions(of.session, of.before, of.limit))
    return schemas.Versions(versions=list(page.versions), before=page.before)


async def _rewind(call: CallContext, of: schemas.RewindSession) -> schemas.WentBack:
    how = wire.RewindRequest(**of.model_dump(exclude={"session"}))
    return _went_back(await call.client.call(api.rewind(of.session, how)))


async def _redo(call: CallContext, of: schemas.Redo) -> schemas.WentBack:
    how = wire.RedoRequest(others=of.others, dry_run=of.dry_run)
    return _went_back(await call.client.call(api.redo(of.session, how)))


def _went_back(rewound: wire.Rewound) -> schemas.WentBack:
    return schemas.WentBack(**dict(rewound))


async def _cancel(call: CallContext, of: schemas.CancelTurns) -> schemas.CancelledTurns:
    cancelled = await call.client.call(api.cancel(of.session, queued=of.queued, cascade=of.cascade))
    return schemas.CancelledTurns(running=cancelled.running, queued=cancelled.queued)


async def _search(call: CallContext, of: schemas.Search) -> schemas.FoundMessages:
    reply = await call.client.call(api.search(of.words, of.prefix, of.limit))
    return schemas.FoundMessages(results=list(reply.results), truncated=reply.truncated)


async def _watch_tree(call: CallContext, of: schemas.WatchTree) -> schemas.WatchedTree:
    tree = await _tree(call, of)
    if tree.changed or not of.wait_seconds:
        return tree
    stream = replace(api.events(), announce=True)
    with anyio.move_on_after(of.wait_seconds):
        async with aclosing(call.client.events(stream)) as events:
            async for event in events:
                ours = event.session == of.session or event.session.startswith(f"{of.session}/")
                if (ours and event.type != "token") or event.type in ("connected", "stale"):
                    tree = await _tree(call, of)
                    if tree.changed:
                        break
    return tree


async def _tree(call: CallContext, of: schemas.WatchTree) -> schemas.WatchedTree:
    root = await call.client.call(api.sub_sessions(of.session))
    rows = [_row(info) for info in _flat(root)]
    facts = [row.model_dump(exclude={"updated_at"}) for row in rows]
    version = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return schemas.WatchedTree(version=version, changed=version != of.seen, sessions=rows)


def _flat(tree: wire.SessionTree) -> Iterator[wire.SessionTree]:
    yield tree
    for child in tree.children:
        yield from _flat(child)


async def read_part(client: AsyncClient, path: str, offset: int, size: int) -> api.FilePart:
    """Return at most `size` bytes of a file from byte `offset` on; none at its end."""
    try:
        return await client.call(api.read_file(path, offset, size))
    except RangeNotSatisfiable:
        if offset:
            raise
        return await client.call(api.read_file(path))  # an empty file has no ranges


def text_of(content: bytes, *, whole: bool) -> str | None:
    """Decode UTF-8; a character that the end has cut is left out unless the text is whole. None if it is no text."""
    for missing in range(1 if whole else 4):
        try:
            return content[: len(content) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None


async def _list_files(call: CallContext, of: schemas.ListFiles) -> schemas.FileRows:
    page = await call.client.call(api.files(of.prefix, of.after, of.limit))
    rows = [schemas.FileRow(path=file.path, size=file.size, updated_at=file.updated_at) for file in page.files]
    return schemas.FileRows(files=rows, next=page.next)


async def _read_file(call: CallContext, of: schemas.ReadFile) -> schemas.FileText:
    part = await read_part(call.client, of.path, of.offset, of.size)
    whole = of.offset + len(part.content) >= part.size
    text = text_of(part.content, whole=whole)
    taken = len(part.content) if text is None else len(text.encode())
    return schemas.FileText(
        path=of.path,
        content=base64.b64encode(part.content).decode() if text is None else text,
        encoding="base64" if text is None else "utf-8",
        size=part.size,
        next=None if whole else of.offset + taken,
        version=part.etag or None,
    )


async def _write_file(call: CallContext, of: schemas.WriteFile) -> schemas.FileWritten:
    try:
        content = base64.b64decode(of.content, validate=True) if of.encoding == "base64" else of.content.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidParameters(f"content: {error}") from None
    written = await call.client.call(api.write_file(of.path, content, etag=of.version, new=of.new))
    return schemas.FileWritten(
        path=written.info.path, size=written.info.size, version=written.etag or None, created=written.new
    )


TOOLS: dict[str, ServerTool[Any]] = {
    tool.name: tool
    for tool in (
        ServerTool(
            "list_sessions",
            "List sessions",
            "List conversations with language models, in the order of their names, with their state. The prefix `main/`"
            " lists the sub-sessions of `main`.",
            schemas.ListSessions,
            schemas.SessionRows,
            _list_sessions,
            reads=True,
        ),
        ServerTool(
            "read_session",
            "Read a session",
            "Return the messages of a session, what is being generated, and what waits.",
            schemas.ReadSession,
            schemas.ReadSessionResult,
            _read_session,
            reads=True,
        ),
        ServerTool(
            "send_message",
            "Send a message",
            "Send a message to a session and return the reply of its model or agent. A session that does not exist is"
            " created. Cancelling this call cancels the reply.",
            schemas.SendMessage,
            schemas.Sent,
            _send_message,
        ),
        ServerTool(
            "wait",
            "Wait for a session",
            "Wait until nothing is generating or waiting, in a session and in its sub-sessions.",
            schemas.Wait,
            schemas.Waited,
            _wait,
            reads=True,
        ),
        ServerTool(
            "fork",
            "Copy a session",
            "Copy a session, or its first messages, to an independent one. To try another way, copy the messages before"
            " it and send something else.",
            schemas.ForkSession,
            schemas.Forked,
            _fork,
        ),
        ServerTool(
            "merge",
            "Merge the files of a copy",
            "Merge what a copy of a session has changed in its files into the original, or the reverse. Texts are"
            " merged by lines. Of what cannot be merged both contents stay, in files beside it that `conflicts` lists.",
            schemas.MergeSession,
            schemas.Merged,
            _merge,
            destroys=True,
        ),
        ServerTool(
            "list_versions",
            "List the versions of a session",
            "List the versions of a session: each message, edit and rewind is one, with its number, time and author.",
            schemas.ListVersions,
            schemas.Versions,
            _list_versions,
            reads=True,
        ),
        ServerTool(
            "rewind",
            "Go back to a version",
            "Take a session, and the files that its agent has changed, back to an earlier version. Its turns are"
            " cancelled. Nothing is lost: `redo` undoes it.",
            schemas.RewindSession,
            schemas.WentBack,
            _rewind,
            destroys=True,
        ),
        ServerTool(
            "redo",
            "Undo a rewind",
            "Undo the last rewind of a session, unless something was said since.",
            schemas.Redo,
            schemas.WentBack,
            _redo,
            destroys=True,
        ),
        ServerTool(
            "cancel",
            "Cancel a reply",
            "Cancel the reply that is being generated in a session. What it says so far stays.",
            schemas.CancelTurns,
            schemas.CancelledTurns,
            _cancel,
            destroys=True,
            repeatable=True,
        ),
        ServerTool(
            "search",
            "Search in sessions",
            "Find the newest messages that contain some words, in all sessions that may be read.",
            schemas.Search,
            schemas.FoundMessages,
            _search,
            reads=True,
        ),
        ServerTool(
            "watch_tree",
            "Watch a tree of agents",
            "Return the state of a session and all its sub-sessions. With the `version` of the last call in `seen`,"
            " first wait until something has changed.",
            schemas.WatchTree,
            schemas.WatchedTree,
            _watch_tree,
            reads=True,
        ),
        ServerTool(
            "list_files",
            "List files",
            "List the files of workspaces, in the order of their paths.",
            schemas.ListFiles,
            schemas.FileRows,
            _list_files,
            reads=True,
        ),
        ServerTool(
            "read_file",
            "Read a file",
            "Read a file of a workspace, or a part of it.",
            schemas.ReadFile,
            schemas.FileText,
            _read_file,
            reads=True,
        ),
        ServerTool(
            "write_file",
            "Write a file",
            "Write a file of a workspace. With `version` nothing is overwritten that others have written since it was"
            " read.",
            schemas.WriteFile,
            schemas.FileWritten,
            _write_file,
            destroys=True,
            repeatable=True,
        ),
    )
}
