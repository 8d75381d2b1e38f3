"""The memory use of the sessions of one owner, and its limits (H7)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from cfs.errors import StorageFull, TooLarge, TooMany
from cfs_server.domain.spending import NO_LIMIT, SpendingLimit


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one store. A message and a body are in bytes of UTF-8, their total in bytes of memory.

    If the store is durable, idle sessions leave the memory beyond `memory`, and the others have `busy_bytes` at most.
    """

    sessions: int = 100_000
    message_bytes: int = 4 << 20
    messages: int = 20_000
    total_bytes: int = 1 << 30
    memory: int = 512 << 20
    busy_bytes: int = 1 << 30
    queued_turns: int = 64
    turn_seconds: float = 600.0
    wait_seconds: float = 300.0
    session_events: int = 2_048
    session_event_bytes: int = 32 << 20
    all_events: int = 65_536
    all_event_bytes: int = 128 << 20

    def check_messages(self, count: int) -> None:
        """Raise `TooLarge` if one request has more than the maximum of messages."""
        if count > self.messages:
            raise TooLarge(f"a conversation has {self.messages} messages at most; this one has more")

    def check_wait(self, predicted: float) -> None:
        """Raise `TooMany` if the predicted wait for the engine is too long."""
        if predicted > self.wait_seconds:
            raise TooMany(
                f"a turn would wait for about {predicted:.0f} seconds; try again later",
                retry_after=round(predicted - self.wait_seconds, 1),
            )


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one account; None means no limit. Sizes are bytes of memory as counted by `history.cost_of`."""

    sessions: int | None = None
    size: int | None = None
    daily: SpendingLimit = NO_LIMIT
    """What may be spent on models in a day."""


Used = tuple[int, int]
"""Numbers of sessions and of bytes."""


class StorageUsage:
    """Counts the sessions of one owner and their bytes, in this account and its parent accounts.

    `limited` returns the bytes to which the quota applies, if these are not all.
    """

    def __init__(
        self,
        owner: str,
        quota: Quota,
        within: "StorageUsage | None" = None,
        limited: Callable[[], int] | None = None,
    ) -> None:
        self.owner = owner
        self._limited = limited
        self.quota = quota
        self.sessions = 0
        self.bytes = 0
        self.within = within
        self.pays = False
        """Whether it is the account of a principal, for which spending is counted."""
        self.elsewhere: Callable[[], Used] | None = None
        """Returns what the owner has in other stores, to which the same quota applies."""

    def part(self, owner: str, quota: Quota) -> Self:
        """Create an account within this one."""
        return type(self)(owner, quota, self)

    def _chain(self) -> "Iterator[StorageUsage]":
        account: StorageUsage | None = self
        while account is not None:
            yield account
            account = account.within

    @property
    def payer(self) -> "StorageUsage":
        """The account of the principal that pays for this one: a share's is within that of its principal."""
        return next((account for account in self._chain() if account.pays), self)

    def add(self, *, sessions: int = 0, size: int = 0) -> None:
        """Add sessions and bytes. Negative numbers subtract."""
        for account in self._chain():
            account.sessions += sessions
            account.bytes += size

    @property
    def limited(self) -> int:
        """The bytes to which the quota applies."""
        return self.bytes if self._limited is None else self._limited()

    @property
    def held(self) -> Used:
        """What the owner has in this store and in the others."""
        sessions, size = (0, 0) if self.elsewhere is None else self.elsewhere()
        return self.sessions + sessions, self.bytes + size

    def require_room(self, *, sessions: int = 0, size: int = 0) -> None:
        """Raise `StorageFull` if this many more sessions or bytes exceed a limit."""
        for account in self._chain():
            quota = account.quota
            held, more_bytes = account.held[0], account.held[1] - account.bytes
            if sessions > 0 and quota.sessions is not None and held + sessions > quota.sessions:
                raise StorageFull(f"{account.owner} may hold {quota.sessions} sessions at most; delete some")
            if size > 0 and quota.size is not None and account.limited + more_bytes + size > quota.size:
                raise StorageFull(f"{account.owner} may hold {quota.size} bytes of messages at most; delete some")
