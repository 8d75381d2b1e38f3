"""What lies below `/dav`: which mount a request is for, and what its caller sees there (W1, W3, W5)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cfs.errors import CfsError, NotFound, from_problem, to_problem
from cfs_filesystem import FileSystemError
from cfs_server.access.principals import Principal
from cfs_server.dav import reading
from cfs_server.dav.destinations import require_plain_parts, with_plain_destination
from cfs_server.dav.kept import Keeper
from cfs_server.dav.optional import ROOT
from cfs_server.dav.root import RootTree
from cfs_server.dav.sessions import SessionTree
from cfs_server.dav.sub_sessions import SubSessionTree
from cfs_server.dav.workspaces import WorkspaceTree
from cfs_server.errors import MEDIA_TYPE
from cfs_server.routes.contents import content_of
from cfs_server.routes.context import Caller
from cfs_server.sessions.paths import WORKSPACES
from cfs_server.uploads import received
from cfs_webdav import Call, Mount, Tree

T = TypeVar("T")

SESSIONS = f"{ROOT}/sessions"
SUB_SESSIONS = f"{ROOT}/sub_sessions"
WORKSPACES_MOUNT = f"{ROOT}/workspaces"
_MOUNTS = (SESSIONS, SUB_SESSIONS, WORKSPACES_MOUNT, ROOT)
_NAMES = ("sessions", "sub_sessions", "workspaces")


@dataclass(frozen=True, slots=True)
class _Shown:
    """Stands for the route in the metrics."""

    path_format: str


class Dav:
    """An ASGI application for everything at and below `/dav`."""

    def __init__(self) -> None:
        self._mounts = {path: Mount(path, _describe) for path in _MOUNTS}
        self._keeper: Keeper | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep what lives longer than a request, on the running loop; end the threads when the block ends."""
        self._keeper = Keeper()
        try:
            yield
        finally:
            for mount in self._mounts.values():
                mount.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises `CfsError`."""
        path = scope["path"]
        require_plain_parts(path)
        mount = next((each for each in self._mounts if path == each or path.startswith(each + "/")), None)
        if mount is None:
            raise NotFound(f"there is nothing at {path}")
        scope["route"] = _Shown(mount)
        caller = Caller(scope["cfs.principal"], scope["app"].state.cfs)
        below = path.removeprefix(mount).rstrip("/") or "/"
        tree = self._tree(mount, caller, Headers(scope=scope).get("user-agent", ""))
        if scope["method"] == "GET":  # or HEAD, which the guard has made one
            response = await self._read(Request(scope, receive), caller, tree, below)
            await response(scope, receive, send)
            return
        await self._write(with_plain_destination(scope), receive, send, self._mounts[mount], caller.principal, tree)

    async def _write(
        self, scope: Scope, receive: Receive, send: Send, mount: Mount, principal: Principal, tree: Tree
    ) -> None:
        body, size = await received(receive)
        with body:
            await mount(scope, receive, send, Call(principal.name, tree, body, size))

    def _tree(self, mount: str, caller: Caller, user_agent: str) -> Tree:
        if mount in (SESSIONS, SUB_SESSIONS):
            assert self._keeper is not None  # noqa: S101 - requests come while the block lasts
            kind = SessionTree if mount == SESSIONS else SubSessionTree
            return kind(caller.sessions, self._keeper.of(caller.principal), user_agent)
        return WorkspaceTree(caller.principal) if mount == WORKSPACES_MOUNT else RootTree(_NAMES)

    async def _read(self, request: Request, caller: Caller, tree: Tree, path: str) -> Response:
        if isinstance(tree, SessionTree):
            return await reading.read(request, tree, path)
        logical = WORKSPACES + path[1:]
        header = request.headers.get
        try:
            if isinstance(tree, RootTree) or path == "/":
                raise NotFound(f"{path!r} is no file")
            opened = await caller.files.open(logical)
        except NotFound:
            if await _threaded(_is_collection, tree, path):
                return await _threaded(_listing, tree, path)
            raise
        return content_of(request, logical, opened, header("range"), header("if-range"), header("if-none-match"))


async def _threaded(look: Callable[[Tree, str], T], tree: Tree, path: str) -> T:
    try:
        return await to_thread.run_sync(look, tree, path)
    except FileSystemError as error:
        raise tree.refusal(error) from None


def _is_collection(tree: Tree, path: str) -> bool:
    entry = tree.look(path)
    return entry is not None and entry.collection


def _listing(tree: Tree, path: str) -> Response:
    names = [entry.path.rpartition("/")[2] + "/" * entry.collection for entry in tree.members(path)]
    return PlainTextResponse("".join(f"{name}\n" for name in names), headers={"Cache-Control": "no-cache"})


def _describe(status: int, detail: str, cause: Exception | None) -> tuple[str, bytes]:
    """Write the error that a tree raised as every face does; the library's own are known by their status alone."""
    error = cause if isinstance(cause, CfsError) else from_problem(status, {"detail": detail})
    return MEDIA_TYPE, json.dumps(to_problem(error) | {"status": status}).encode()
