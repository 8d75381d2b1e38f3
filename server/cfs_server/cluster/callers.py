"""Who calls: decided where a request comes in, before its body is read, counted or sent on (G9, H7).

The application of the slot authenticates the caller once more and decides what it may do. Here it matters only that a
stranger costs nothing: neither memory, nor a connection to another replica, nor a place among those who wait.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cfs.errors import CfsError, TooMany, Unauthorized, Unavailable
from cfs_server.access.auth import Principals, secret_of
from cfs_server.access.tokens import digest
from cfs_server.cluster.replica import AGAIN_SECONDS, Replica
from cfs_server.cluster.slots import HostedSlot
from cfs_server.http.middleware import credentials_of

_VALID_SECONDS = 10.0
"""How long a share that another slot knows is not looked up again. The slot refuses one that has ended at once."""
_MOST = 10_000
"""Maximum number of shares that are remembered."""
_BODIES_OF_ONE = 16 << 20
_CALLERS_AT_ONCE = 4
"""How many callers may fill their part of the memory for bodies before others wait."""


class Callers:
    """The callers of a replica: those of the tokens file, and the bearers of shares, each of which one slot knows."""

    def __init__(self, replica: Replica, principals: Callable[[], Principals]) -> None:
        """`principals` returns those of the application without sessions, which knows the tokens file."""
        self._replica = replica
        self._principals = principals
        self._shares: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Until when the share with a hash is not looked up again, and its slot."""

    async def identify(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return a name for the caller of a request; None for who has no valid credentials.

        Raises `Unavailable` if it may bear a share and no database can be asked.
        """
        credentials = credentials_of(headers)
        try:
            principal = self._principals().authenticate(credentials)
        except Unauthorized:
            return await self._bearer(credentials or "")
        return None if principal is None else principal.name

    async def _bearer(self, credentials: str) -> str | None:
        """Return a name for the bearer of a share. Each look at the database answers all who wait for it."""
        try:
            hashed = digest(secret_of(credentials))
        except CfsError:
            return None
        if self.slot_of(hashed) is None:
            slot = await self._replica.slot_of_share(hashed)
            if slot is None:
                return None
            self._shares[hashed] = time.monotonic() + _VALID_SECONDS, slot
            self._shares.move_to_end(hashed)
            while len(self._shares) > _MOST:
                self._shares.popitem(last=False)
        return hashed

    def host_of(self, headers: Mapping[bytes, bytes]) -> HostedSlot | None:
        """Return the slot of this replica that knows the caller, if it bears a share."""
        try:
            hashed = digest(secret_of(credentials_of(headers) or ""))
        except CfsError:
            return None
        return next((slot for slot in self._replica.serving() if slot.context.principals.bearer_of(hashed)), None)

    def slot_of(self, caller: str) -> int | None:
        """Return the slot that knows a caller who bears a share, by the name that `identify` has returned."""
        for slot in self._replica.serving():
            if slot.context.principals.bearer_of(caller):
                return slot.number
        until, number = self._shares.get(caller, (0.0, 0))
        return number if until > time.monotonic() else None


class Bodies:
    """Limits the memory for bodies that are read because they say where their request belongs.

    Bytes count as they come: what a head announces costs nothing yet.
    """

    def __init__(self, body_limit: int) -> None:
        self._most_of_one = max(_BODIES_OF_ONE, body_limit)
        self._most = self._most_of_one * _CALLERS_AT_ONCE
        self._held: dict[str, int] = {}

    @contextmanager
    def reading(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Yield the function that counts the bytes of one body, which are released at the end of the block.

        It raises `TooMany` if the caller has too many on the way, and `Unavailable` if all together have.
        """
        size = 0

        def count(more: int) -> None:
            nonlocal size
            size += more
            held = self._held[caller] = self._held.get(caller, 0) + more
            if held > self._most_of_one:
                raise TooMany("too many of your requests are being read; repeat", retry_after=AGAIN_SECONDS)
            if sum(self._held.values()) > self._most:
                raise Unavailable("too many requests are being read; repeat", retry_after=AGAIN_SECONDS)

        try:
            yield count
        finally:
            held = self._held.get(caller, 0) - size
            if held > 0:
                self._held[caller] = held
            else:
                self._held.pop(caller, None)
