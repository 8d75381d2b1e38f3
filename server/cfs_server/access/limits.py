"""How much a connection may take before it is known who calls, and then one principal (H7)."""

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

from cfs.errors import TooMany

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of each connection, and of the unfinished ones of one address; sizes are bytes, times are seconds."""

    head_bytes: int = 64 << 10
    head_fields: int = 128
    head_seconds: float = 10.0
    stall_seconds: float = 30.0
    unfinished: int = 256
    trusted_proxies: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """Bounds for one principal; None sets none. Sizes are bytes; `requests` is how many a second, in the long run."""

    sessions: int | None = None
    bytes: int | None = None
    streams: int | None = None
    requests: float | None = None


class Rate:
    """A token bucket: `limit` a second in the long run, and two seconds' worth, at least one, at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_second: float | None = None
        self._left = 0.0
        self._seen = clock()

    def limit(self, per_second: float | None) -> None:
        """Change the limit; None takes it away."""
        if per_second != self._per_second:
            self._per_second = per_second
            self._left = self._most

    def take(self) -> None:
        """Count one; raises `TooMany`, which says when there is room again."""
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
