"""Authenticates the principal of a request by its `Authorization` header (G9; RFC 6750, RFC 7617)."""

import asyncio
import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import structlog
from anyio import CancelScope, CapacityLimiter

from cfs.errors import TooMany, Unauthorized
from cfs_filesystem import OPERATIONS, Grant, RouterFileSystem
from cfs_server.access import tokens
from cfs_server.access.tokens import Token, TokensError
from cfs_server.base import owned_file
from cfs_server.base.limits import PrincipalLimits
from cfs_server.domain.ids import SESSIONS, WORKSPACES
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.domain.spending import SpendingLimit
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.filesystem import SessionFileSystem
from cfs_server.sessions.store import SessionStore
from cfs_server.workspaces.workspaces import Workspaces, WorkspaceUsage


class Rate:
    """A token bucket: `limit` requests a second in the long term. A burst is two seconds' worth, at least one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_second: float | None = None
        self._left = 0.0
        self._seen = clock()

    def limit(self, per_second: float | None) -> None:
        """Change the limit. None removes it."""
        if per_second != self._per_second:
            self._per_second = per_second
            self._left = self._most

    def take(self) -> None:
        """Count one request. Raises `TooMany` with the time until the next one is allowed."""
        if self._per_second is None:
            return
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._seen) * self._per_second)
        self._seen = now
        if self._left < 1:
            raise TooMany(
                f"your token may make {self._per_second:g} requests a second",
                retry_after=(1 - self._left) / self._per_second,
            )
        self._left -= 1

    @property
    def _most(self) -> float:
        return max(1.0, 2 * (self._per_second or 0))


class Traffic:
    """The open streams and the rate of requests of one caller, which all stores of a process count together."""

    def __init__(self) -> None:
        self.streams = 0
        self.rate = Rate()


# Principals: the callers, their rights and their limits (G9, H7).

_SEARCHES = 2
"""Maximum number of concurrent searches of one principal. Each may use a processor for a second."""
LOCAL = "local"
"""The caller's name on a server without tokens."""
EVERYTHING = (Grant(prefix="/", ops=OPERATIONS),)


class Principal:
    """A caller. All access goes through its handle; its account counts what it has created."""

    def __init__(self, name: str, store: SessionStore, workspaces: Workspaces, traffic: Traffic | None = None) -> None:
        self.name = name
        self.is_share = False
        self.account = store.account_for(name)
        sessions = SessionFileSystem(store, self.account)
        self.handle = RouterFileSystem({SESSIONS: sessions, WORKSPACES: workspaces}).create_handle(())
        self.authorization = Authorization(name, self.handle)
        self.usage = WorkspaceUsage(self.handle, workspaces)
        self.searches = CapacityLimiter(_SEARCHES)
        self.limits = PrincipalLimits()
        self.traffic = traffic or Traffic()
        self._lives: set[CancelScope] = set()

    def share(self, name: str, grant: Grant) -> Self:
        """Return a principal with a part of these rights. What it takes counts for this one.

        Raises `AccessDeniedError` if this one does not have them. Rights that this one loses later, that one loses too.
        """
        bearer = copy(self)
        bearer.name, bearer.is_share, bearer.handle = name, True, self.handle.narrow([grant])
        bearer.authorization = Authorization(name, bearer.handle, is_share=True)
        bearer.account = self.account.part(name, Quota())  # its cached prompts are its own, not those of others
        bearer.searches, bearer._lives = CapacityLimiter(_SEARCHES), set()  # noqa: SLF001
        bearer.traffic = Traffic()
        bearer.traffic.rate = self.traffic.rate
        return bearer

    def end(self) -> None:
        """Remove all rights, and end the connections."""
        self.handle.grants = []
        for life in self._lives:
            life.cancel()

    def allow(self, grants: tuple[Grant, ...], limits: PrincipalLimits) -> None:
        """Set its rights and limits. A principal without rights loses its connections."""
        self.handle.grants = list(grants)
        self.limits = limits
        if not grants:
            self.end()
        self.account.quota = Quota(limits.sessions, limits.bytes, SpendingLimit(limits.daily_tokens, limits.daily_cost))
        self.traffic.rate.limit(limits.requests)

    @contextmanager
    def connected(self, life: CancelScope) -> Iterator[None]:
        """Cancel a connection when the principal loses its rights."""
        self._lives.add(life)
        try:
            yield
        finally:
            self._lives.discard(life)


_LOOK_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Principals:
    """All principals of a server. Without tokens there is one, with all rights."""

    def __init__(
        self, make: Callable[[str], Principal], defaults: PrincipalLimits, clock: Callable[[], float] = time.time
    ) -> None:
        """Admit everybody until there are tokens. `clock` tells the time by which they expire."""
        self._make = make
        self._clock = clock
        self._defaults = defaults
        self._principals: dict[str, Principal] = {}
        self._tokens: dict[str, Token] | None = None
        self._names: dict[str, str] = {}
        """Names by the hash of their secret."""
        self._seen: tuple[int, int, int] | None = None
        self.bearer_of: Callable[[str], Principal | None] = lambda _hash: None
        """Returns the principal of a share by the hash of its secret."""
        self.named(LOCAL).allow(EVERYTHING, defaults)

    @property
    def closed(self) -> bool:
        """Whether callers must send a token."""
        return self._tokens is not None

    def use(self, tokens: Mapping[str, Token]) -> None:
        """Replace the tokens. The rights of a principal change at once, also during a request.

        A principal whose token is deleted or expired keeps its sessions but loses all rights.
        """
        self._tokens = dict(tokens)
        self._names = {token.hash: name for name, token in tokens.items()}
        for name in {*self._principals} - set(tokens):
            self._principals[name].allow((), self._defaults)
        for name, token in tokens.items():
            self.named(name).allow(
                tuple(Grant(prefix=one.prefix, ops=one.ops) for one in token.grants), _limits(token, self._defaults)
            )
        self._expire()

    def _expire(self) -> None:
        """Remove all rights from principals with expired tokens."""
        now = self._now()
        for name, token in (self._tokens or {}).items():
            if token.expired(now) and self._principals[name].handle.grants:
                self._principals[name].allow((), self._defaults)

    def authenticate(self, authorization: str | None) -> Principal | None:
        """Return the principal; None for a caller without credentials where tokens are required.

        Raises `Unauthorized` for invalid credentials. The lookup uses the hash of the secret, so its time does not
        reveal how much of a token was correct.
        """
        if self._tokens is None:
            return self._principals[LOCAL]
        if authorization is None:
            return None
        hashed = tokens.digest(secret_of(authorization))
        name = self._names.get(hashed)
        if name is None and (bearer := self.bearer_of(hashed)) is not None:
            return bearer
        if name is None or self._tokens[name].expired(self._now()):
            raise Unauthorized("the token is not valid: it is wrong, has expired, or has been revoked")
        return self._principals[name]

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def account_of(self, owner: str) -> StorageUsage:
        """Return the account of a principal, which may have no token any more."""
        return self.named(owner).account

    async def load(self, path: Path) -> None:
        """Read the tokens file. Raises `TokensError`."""
        self._seen = await asyncio.to_thread(owned_file.signature, path)
        self.use(await asyncio.to_thread(tokens.load, path))

    async def watch(self, path: Path) -> None:
        """Apply changes of the tokens file until cancelled. An invalid file changes nothing and is logged."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._expire()
            if await asyncio.to_thread(owned_file.signature, path) == self._seen:
                continue
            try:
                await self.load(path)
            except TokensError as error:
                _log.error("tokens.unreadable", reason=str(error), kept=len(self._names))
            else:
                _log.info("tokens.changed", tokens=len(self._names))

    def named(self, name: str) -> Principal:
        """Return the principal with this name, which may have no token."""
        if name not in self._principals:
            self._principals[name] = self._make(name)
        return self._principals[name]


def secret_of(authorization: str) -> str:
    """Return the token of an `Authorization` header: Bearer, or the password of Basic with any user name.

    Raises `Unauthorized` for other schemes and for invalid encodings.
    """
    scheme, _, credentials = authorization.strip().partition(" ")
    credentials = credentials.strip()
    if scheme.lower() == "bearer" and credentials:
        return credentials
    if scheme.lower() == "basic":
        try:
            _, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except ValueError:
            colon = ""
        if colon:
            return password
    raise Unauthorized("send the token as 'Authorization: Bearer TOKEN', or as the password of Basic credentials")


def _limits(token: Token, defaults: PrincipalLimits) -> PrincipalLimits:
    limits = token.limits
    return PrincipalLimits(
        sessions=defaults.sessions if limits.sessions is None else limits.sessions,
        bytes=defaults.bytes if limits.bytes is None else limits.bytes,
        streams=defaults.streams if limits.streams is None else limits.streams,
        requests=defaults.requests if limits.requests is None else limits.requests,
        daily_tokens=defaults.daily_tokens if limits.daily_tokens is None else limits.daily_tokens,
        daily_cost=defaults.daily_cost if limits.daily_cost is None else limits.daily_cost,
    )
