"""From the header of a request to the principal that makes it (G9; RFC 6750, RFC 7617)."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog

from cfs.errors import Unauthorized
from cfs_filesystem import Grant
from cfs_server.access import tokens
from cfs_server.access.limits import PrincipalLimits
from cfs_server.access.principals import EVERYTHING, LOCAL, Principal
from cfs_server.access.tokens import Token, TokensError

_LOOK_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Principals:
    """All principals of a server. Without tokens there is one, who may do everything."""

    def __init__(self, make: Callable[[str], Principal], defaults: PrincipalLimits) -> None:
        self._make = make
        self._defaults = defaults
        self._principals: dict[str, Principal] = {}
        self._tokens: dict[str, Token] | None = None
        self._names: dict[str, str] = {}
        """Names by the hashes of their secrets."""
        self._seen: tuple[int, int, int] | None = None
        self._named(LOCAL).allow(EVERYTHING, defaults)

    @property
    def closed(self) -> bool:
        """Whether callers must show a token."""
        return self._tokens is not None

    def use(self, known: Mapping[str, Token]) -> None:
        """Take these tokens from now on, and no others: what a principal may do changes in the middle of what it does.

        One whose token is gone, or expired, keeps its sessions and may do nothing.
        """
        self._tokens = dict(known)
        self._names = {token.hash: name for name, token in known.items()}
        for name in {*self._principals} - set(known):
            self._principals[name].allow((), self._defaults)
        for name, token in known.items():
            self._named(name).allow(
                tuple(Grant(prefix=one.prefix, ops=one.ops) for one in token.grants), _limits(token, self._defaults)
            )
        self._expire()

    def _expire(self) -> None:
        """Take everything from those whose time is over."""
        now = datetime.now(UTC)
        for name, token in (self._tokens or {}).items():
            if token.expired(now) and self._principals[name].handle.grants:
                self._principals[name].allow((), self._defaults)

    def authenticate(self, authorization: str | None) -> Principal | None:
        """Return who calls; None for a caller without credentials where tokens are needed.

        Raises `Unauthorized` for credentials that are not good. What is looked up is the hash of what was sent, so the
        time that it takes says nothing about how much of a token was right.
        """
        if self._tokens is None:
            return self._principals[LOCAL]
        if authorization is None:
            return None
        name = self._names.get(tokens.digest(secret_of(authorization)))
        if name is None or self._tokens[name].expired(datetime.now(UTC)):
            raise Unauthorized("the token is not valid: it is wrong, has expired, or has been revoked")
        return self._principals[name]

    async def load(self, path: Path) -> None:
        """Read the tokens file; raises `TokensError`."""
        self._seen = await asyncio.to_thread(_signature, path)
        self.use(await asyncio.to_thread(tokens.load, path))

    async def watch(self, path: Path) -> None:
        """Follow the changes of the tokens file for ever. One that cannot be read changes nothing, and is logged."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._expire()
            if await asyncio.to_thread(_signature, path) == self._seen:
                continue
            try:
                await self.load(path)
            except TokensError as error:
                _log.error("tokens.unreadable", reason=str(error), kept=len(self._names))
            else:
                _log.info("tokens.changed", tokens=len(self._names))

    def _named(self, name: str) -> Principal:
        if name not in self._principals:
            self._principals[name] = self._make(name)
        return self._principals[name]


def secret_of(authorization: str) -> str:
    """Take the token out of an `Authorization` header: Bearer's, or Basic's password, with any user name.

    Raises `Unauthorized` for other schemes and for what does not decode.
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
    own = token.limits
    return PrincipalLimits(
        sessions=defaults.sessions if own.sessions is None else own.sessions,
        bytes=defaults.bytes if own.bytes is None else own.bytes,
        streams=defaults.streams if own.streams is None else own.streams,
        requests=defaults.requests if own.requests is None else own.requests,
    )


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
