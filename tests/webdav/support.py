"""A store with a scripted engine, and the mounts of sessions as a caller's requests see them."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from cfs.errors import CfsError
from cfs_filesystem import FsHandle, Grant, InMemoryFileSystem
from cfs_server.dav.scratch import ClientStates
from cfs_server.dav.sessions import RootSessionTree, SubSessionTree
from cfs_server.domain.ids import SESSIONS
from cfs_server.domain.quotas import Quota, StoreLimits
from cfs_server.engine.host.scripted import Script, echo
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_webdav.tree import Conditions, MountView, Resource
from tests.filesystem.support import grant
from tests.sessions.support import StoreHarness, running_store

T = TypeVar("T")


class ManualClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


class Principal:
    """Somebody with rights and an account."""

    def __init__(self, d: StoreHarness, name: str, quota: Quota) -> None:
        self.handle: FsHandle = InMemoryFileSystem([SESSIONS]).create_handle(())
        self.gate = AuthorizedSessions(d.store, Authorization(name, self.handle), d.store.account.part(name, quota))


class Caller:
    """What one program of one principal asks for: a tree for each request, whose methods are called by a thread."""

    def __init__(
        self,
        running_server: "Mounts",
        principal: Principal,
        kind: type[RootSessionTree] = RootSessionTree,
        agent: str = "",
    ) -> None:
        self.server = running_server
        self.principal = principal
        self._kind = kind
        self._agent = agent

    @property
    def harness(self) -> StoreHarness:
        """The store behind it."""
        return self.server.harness

    @property
    def tree(self) -> RootSessionTree:
        """A tree for one request."""
        return self._kind(self.principal.gate, self.server.client_states.of(self.principal), self._agent)

    def may(self, *grants: Grant) -> None:
        """Let the principal do just this from now on."""
        self.principal.handle.grants = list(grants)

    def by(self, agent: str = "", kind: type[RootSessionTree] | None = None) -> "Caller":
        """Another program of the same principal, or the same one in another mount."""
        return Caller(self.server, self.principal, kind or self._kind, agent)

    async def do(self, call: Callable[[MountView], T]) -> T:
        """Let a thread make one call of a tree."""
        return await asyncio.to_thread(call, self.tree)

    async def look(self, path: str) -> Resource | None:
        """Describe what is at a path."""
        return await self.do(lambda tree: tree.look(path))

    async def paths(self, path: str = "/") -> list[str]:
        """List a collection."""
        return sorted(entry.path for entry in await self.do(lambda tree: tree.members(path)))

    async def etag(self, path: str) -> str:
        """Return the ETag that a listing shows, quoted."""
        entry = await self.look(path)
        assert entry is not None
        return f'"{entry.etag}"'

    async def put(self, path: str, body: str | bytes, match: str | None = None, none_match: str | None = None) -> str:
        """PUT a body; return the ETag of the answer, quoted."""
        data = body.encode() if isinstance(body, str) else body
        etag = await self.do(lambda tree: tree.write(path, io.BytesIO(data), Conditions(match, none_match)))
        return f'"{etag}"'

    async def bytes_at(self, path: str) -> bytes:
        """Read what is at a path now."""
        return await self.do(lambda tree: tree.open(path).read())

    async def refused(self, status: int, call: Callable[[MountView], object]) -> str:
        """Make a call that must fail and change nothing; return the reason."""
        before = self.everything()
        with pytest.raises(CfsError) as caught:
            await self.do(call)
        assert (caught.value.status, self.everything()) == (status, before), caught.value.detail
        return caught.value.detail

    async def put_refused(self, status: int, path: str, body: str | bytes, **conditions: Any) -> str:
        """PUT a body that must be refused."""
        data = body.encode() if isinstance(body, str) else body
        said = Conditions(conditions.get("match"), conditions.get("none_match"))
        return await self.refused(status, lambda tree: tree.write(path, io.BytesIO(data), said))

    def everything(self) -> list[object]:
        """All that a call could change."""
        store = self.harness.store
        return [store.bus.log.last, *((each.id, each.etag, each.settings, list(each.queue)) for each in store)]


class Mounts:
    """The mounts of one server."""

    def __init__(self, d: StoreHarness) -> None:
        self.harness = d
        self.clock = ManualClock()
        self.client_states = ClientStates(self.clock)

    def caller(self, name: str, *grants: Grant, quota: Quota | None = None) -> Caller:
        """Somebody new."""
        caller = Caller(self, Principal(self.harness, name, quota or Quota()))
        caller.may(*grants)
        return caller


@asynccontextmanager
async def mounts(script: Script = echo, limits: StoreLimits | None = None) -> AsyncIterator[Mounts]:
    """Serve sessions; in the end the store must be sound."""
    async with running_store(script, limits) as d:
        yield Mounts(d)
        d.engine.release()


@asynccontextmanager
async def mount(script: Script = echo, limits: StoreLimits | None = None) -> AsyncIterator[Caller]:
    """Serve sessions to somebody who may do everything."""
    async with mounts(script, limits) as running_server:
        yield running_server.caller("ann", grant("/"))


@asynccontextmanager
async def sub_mount(script: Script = echo) -> AsyncIterator[Caller]:
    """The same for sub-sessions."""
    async with mount(script) as ann:
        yield ann.by(kind=SubSessionTree)
