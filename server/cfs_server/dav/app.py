"""The WebDAV application at `/dav`: selects the mount of a request and the caller's view of it (W1, W3, W5)."""

import json
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote, urlsplit

from anyio import to_thread
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cfs.errors import CfsError, Forbidden, InvalidRequest, NotFound, from_problem, to_problem
from cfs_filesystem import OPERATIONS, FileSystemError, Path
from cfs_server.access.auth import Principal
from cfs_server.dav import ROOT, get, past
from cfs_server.dav.fixed import FixedTree
from cfs_server.dav.past import PastTree
from cfs_server.dav.paths import (
    MOUNTS,
    QUESTIONS,
    SESSIONS,
    SUB_SESSIONS,
    WORKSPACES_MOUNT,
    SessionPath,
    in_sub_sessions,
    require_plain_parts,
    split_path,
)
from cfs_server.dav.questions import QuestionTree
from cfs_server.dav.scratch import ClientStates
from cfs_server.dav.sessions import RootSessionTree, SubSessionTree
from cfs_server.domain.events import EventLog
from cfs_server.domain.ids import WORKSPACES
from cfs_server.domain.loop_bridge import LoopBridge
from cfs_server.http.caller import Caller, context_of
from cfs_server.http.errors import MEDIA_TYPE
from cfs_server.http.file_content import content_of
from cfs_server.http.idempotency import Ticket, ticket_of
from cfs_server.http.middleware import plain_path
from cfs_server.http.version_folders import VersionFolders
from cfs_server.journal.journal import Journal
from cfs_server.sessions.store import SessionStore
from cfs_server.workspaces.file_service import alone, problem_of, received, stored
from cfs_webdav import HandleTree, Mount, MountView, PersistentDocuments, Resource, WebDavRequest

# The workspaces as a mount: real files, within the grants and limits of the caller (W3).


class WorkspaceTree(HandleTree):
    """The workspaces that one caller can see."""

    def __init__(self, principal: Principal) -> None:
        super().__init__(principal.handle, WORKSPACES)
        self._authorization = principal.authorization
        self._usage = principal.usage
        self._limit = principal.limits.bytes

    def check(self, path: str) -> None:
        """Raise `InvalidPathError`, or `AccessDeniedError` if the caller has no rights at or below a path."""
        logical = self._logical(path)
        if path != "/" and not any(self._handle.scopes(operation, logical) for operation in OPERATIONS):
            self._handle.require("file", logical)

    def refusal(self, error: CfsError) -> CfsError:
        """Return the API's error, the same as `/v1/files` returns."""
        return problem_of(self._authorization, error) if isinstance(error, FileSystemError) else error

    def delete(self, path: str) -> None:
        """Delete a file or a directory, under the lock of version comparisons."""
        with alone(self._logical(path)), stored(path):
            super().delete(path)

    def make_collection(self, path: str) -> None:
        """Create a directory."""
        with stored(path):
            super().make_collection(path)

    def move(self, path: str, target: str, *, overwrite: bool = True) -> None:
        """Move a file or a directory, under the lock of version comparisons."""
        with alone(self._logical(target)), stored(target):
            super().move(path, target, overwrite=overwrite)

    @contextmanager
    def _writing(self, path: Path, size: int) -> Iterator[None]:
        with alone(path), stored(path), self._usage.room(path, size, self._limit):
            yield

    @contextmanager
    def _copying(self, path: Path, target: Path) -> Iterator[None]:
        with alone(target), stored(target), self._usage.room_for_copy(path, target, self._limit):
            yield


# `/dav` itself: a read-only collection of the mounts.


class RootTree(FixedTree):
    """Lists the mounts by name."""

    flat = True

    def __init__(self, names: Iterable[str]) -> None:
        self._mounts = [Resource(f"/{name}", collection=True) for name in names]

    def look(self, path: str) -> Resource | None:
        """Return the entry of the root. Paths below it belong to the mounts."""
        return Resource(path, collection=True) if path == "/" else None

    def members(self, path: str) -> Iterable[Resource]:
        """Return the entries of the mounts."""
        return self._mounts if path == "/" else ()

    def open(self, path: str) -> BinaryIO:
        """Refuse: the root has no content."""
        raise NotFound(f"there is nothing at {path!r}")

    def refused(self, path: str) -> Forbidden:
        """Return why nothing can be changed here."""
        return Forbidden(f"nothing can be changed at /dav{path}: go into {', '.join(_NAMES[:-1])} or {_NAMES[-1]}")


# The `Destination` of COPY and MOVE, validated as strictly as the path of the request (RFC 4918, 10.3).

_CUT = "?;"


def with_plain_destination(scope: Scope) -> Scope:
    """Return the request with a normalized destination. Raises `InvalidRequest` if it is not one valid path."""
    scheme = scope["scheme"]
    if len(Headers(scope=scope).getlist("destination")) > 1:
        raise InvalidRequest("a request has one Destination")
    headers = [(name, _plain(value, scheme) if name == b"destination" else value) for name, value in scope["headers"]]
    return dict(scope, headers=headers)


def _plain(value: bytes, scheme: str) -> bytes:
    """Normalize a destination. Its scheme becomes that of the request: behind a proxy with TLS they differ."""
    try:
        url = urlsplit(value.decode())
    except (UnicodeDecodeError, ValueError):
        raise InvalidRequest("the Destination is no URL") from None
    if url.netloc and url.scheme not in ("http", "https"):
        raise InvalidRequest("a Destination is a path, or a URL of this server")
    if url.query or url.fragment:
        raise InvalidRequest("a Destination has no query and no fragment; write %3F and %23 for the characters")
    path = plain_path(url.path.encode())
    require_plain_parts(path)
    if any(sign in path for sign in _CUT):
        raise InvalidRequest("a name with '?' or ';' can be no Destination; rename by POST /v1/sessions/{id}/rename")
    authority = f"{scheme}://{url.netloc}" if url.netloc else ""
    return (authority + quote(path)).encode()


T = TypeVar("T")
MountTree = RootSessionTree | QuestionTree | WorkspaceTree | RootTree | PastTree
_NAMES = ("sessions", "sub_sessions", "questions", "workspaces")


class Dav:
    """The ASGI application for all paths at and below `/dav`."""

    def __init__(self) -> None:
        self._mounts = {path: Mount(path, _describe) for path in MOUNTS}
        self._client_states: ClientStates | None = None

    @contextmanager
    def opened(self, store: SessionStore) -> Iterator[None]:
        """Hold the state that outlives a request on the running loop. The threads end with the block.

        Locks and dead properties are in the journal of the store, except the properties of sessions that are gone.
        """
        self._client_states = ClientStates()
        if (journal := store.journal) is not None:
            for name in _NAMES:
                path = f"{ROOT}/{name}"
                locks = _documents(store, journal, f"dav.locks/{name}", lambda _: True)
                properties = _documents(store, journal, f"dav.properties/{name}", partial(_exists, store, path))
                self._mounts[path].load(locks, properties)
        try:
            yield
        finally:
            for mount in self._mounts.values():
                mount.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, which has been admitted. Raises `CfsError`."""
        mount, below = split_path(scope)
        caller = Caller(scope["cfs.principal"], context_of(scope), QueryParams(scope["query_string"]))
        headers = Headers(scope=scope)
        tree = self._tree(mount, caller, headers.get("user-agent", ""), ticket_of(scope))
        if (inside := await _in_past(mount, below, tree)) is not None:
            folders, depth = VersionFolders(caller), headers.get("depth", "infinity")
            if scope["method"] == "GET":
                await (await past.read(Request(scope, receive), folders, inside))(scope, receive, send)
                return
            tree = await past.past_tree(folders, scope["method"], depth, inside, below)
        elif scope["method"] == "GET":  # or HEAD, which the middleware has changed to GET
            response = await self._read(Request(scope, receive), caller, tree, below)
            await response(scope, receive, send)
            return
        if scope["method"] == "LOCK":  # who holds a lock holds up others, and may refresh it for ever
            caller.principal.authorization.require_no_share(scope["path"], scope["path"])
        if scope["method"] == "PUT" and not isinstance(tree, WorkspaceTree):
            _require_write(tree, below)
        scope = with_plain_destination(scope)
        await _require_present(scope, mount, tree)
        await self._write(scope, receive, send, self._mounts[mount], caller.principal, tree)

    async def _write(
        self, scope: Scope, receive: Receive, send: Send, mount: Mount, principal: Principal, tree: MountView
    ) -> None:
        body, size = await received(receive)
        with body:
            await mount(scope, receive, send, WebDavRequest(principal.name, tree, body, size))

    def _tree(self, mount: str, caller: Caller, user_agent: str, ticket: Ticket) -> MountTree:
        if mount in (SESSIONS, SUB_SESSIONS, QUESTIONS):
            assert self._client_states is not None  # noqa: S101 - requests arrive only within the block
            state = self._client_states.of(caller.principal)
            on_loop = _NotingBridge(caller.sessions.log, ticket) if ticket.is_open else state.on_loop
            if mount == QUESTIONS:
                return QuestionTree(caller, on_loop)
            kind = RootSessionTree if mount == SESSIONS else SubSessionTree
            return kind(caller.sessions, state, user_agent, on_loop, caller.fork)
        return WorkspaceTree(caller.principal) if mount == WORKSPACES_MOUNT else RootTree(_NAMES)

    async def _read(self, request: Request, caller: Caller, tree: MountView, path: str) -> Response:
        if isinstance(tree, RootSessionTree):
            return await get.read(request, tree, path)
        if isinstance(tree, QuestionTree) and (content := tree.text(path)) is not None:
            return PlainTextResponse(content[0], headers={"Cache-Control": "no-cache", "ETag": f'"{content[1]}"'})
        logical = WORKSPACES + path[1:]
        header = request.headers.get
        try:
            if isinstance(tree, FixedTree) or path == "/":
                raise NotFound(f"{path!r} is no file")
            opened = await caller.files.open(logical)
        except NotFound:
            if await _threaded(_is_collection, tree, path):
                return await _threaded(_listing, tree, path)
            raise
        return content_of(request, logical, opened, header("range"), header("if-range"), header("if-none-match"))


class _NotingBridge(LoopBridge):
    """Notes on the ticket of a request when it has changed a session. The answer is only known later, in a thread."""

    def __init__(self, log: EventLog, ticket: Ticket) -> None:
        super().__init__()
        self._log = log
        self._ticket = ticket

    def __call__(self, action: Callable[[], T]) -> T:
        """Run an action on the loop."""
        return super().__call__(partial(self._noted, action))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, which changes something unless it raises."""

        async def noted() -> T:
            result = await work
            self._ticket.begin()
            return result

        return super().wait(noted())

    def _noted(self, action: Callable[[], T]) -> T:
        before = self._log.last
        try:
            return action()
        finally:
            if self._log.last != before:
                self._ticket.begin()


def _documents(store: SessionStore, journal: Journal, space: str, counts: Callable[[str], bool]) -> PersistentDocuments:
    """Return the documents of a space. Those that do not count are deleted."""
    on_loop, documents = LoopBridge(), journal.kept(space)
    for name in [name for name in documents if not counts(name)]:
        journal.keep(space, name, None)
        del documents[name]
    return PersistentDocuments(
        documents, lambda name, value: on_loop(partial(journal.keep, space, name, value)), store.clock
    )


def _exists(store: SessionStore, mount: str, url: str) -> bool:
    """Return whether there is something at a URL of a mount. Files of workspaces are not checked."""
    path = unquote(url).removeprefix(mount)
    if mount == SESSIONS:
        return store.find(path.strip("/")) is not None
    target = in_sub_sessions(path) if mount == SUB_SESSIONS else None
    return mount == WORKSPACES_MOUNT or (isinstance(target, SessionPath) and store.find(target.id) is not None)


async def _in_past(mount: str, path: str, tree: MountView) -> str | None:
    """Return the path in the past that a request names; None if it is about the present."""
    if mount == SESSIONS:
        return past.past_in_sessions(path)
    return await past.past_in_workspaces(path, tree) if mount == WORKSPACES_MOUNT else None


async def _require_present(scope: Scope, mount: str, tree: MountView) -> None:
    """Raise `Forbidden` for a copy or move into the past."""
    path = unquote(urlsplit(Headers(scope=scope).get("destination", "")).path)
    below = path.removeprefix(mount)
    if path.startswith(f"{mount}/") and await _in_past(mount, below, tree) is not None:
        raise past.unchangeable(below)


def _require_write(tree: RootSessionTree | QuestionTree | RootTree | PastTree, path: str) -> None:
    """Raise the error of a PUT without the right to write, before its body is received."""
    try:
        tree.check(path)
        tree.require_write(path)
    except FileSystemError as error:
        raise tree.refusal(error) from None


async def _threaded(look: Callable[[MountView, str], T], tree: MountView, path: str) -> T:
    try:
        return await to_thread.run_sync(look, tree, path)
    except FileSystemError as error:
        raise tree.refusal(error) from None


def _is_collection(tree: MountView, path: str) -> bool:
    entry = tree.look(path)
    return entry is not None and entry.collection


def _listing(tree: MountView, path: str) -> Response:
    names = [entry.path.rpartition("/")[2] + "/" * entry.collection for entry in tree.members(path)]
    return PlainTextResponse("".join(f"{name}\n" for name in names), headers={"Cache-Control": "no-cache"})


def _describe(status: int, detail: str, cause: Exception | None) -> tuple[str, bytes]:
    """Return the error of a tree in the form of all interfaces. Errors of the WebDAV library only have a status."""
    error = cause if isinstance(cause, CfsError) else from_problem(status, {"detail": detail})
    return MEDIA_TYPE, json.dumps(to_problem(error) | {"status": status}).encode()
