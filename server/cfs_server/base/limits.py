"""Limits of a connection before the caller is known, and of one principal (H7).

They stand alone, because the settings need them: `cfs serve --help` must not import the sessions.
"""

import ipaddress
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of each connection, and of the unfinished ones of one address. Sizes are bytes, times are seconds."""

    head_bytes: int = 64 << 10
    head_fields: int = 128
    head_seconds: float = 10.0
    stall_seconds: float = 30.0
    unfinished: int = 256
    trusted_proxies: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """Limits of one principal; None means no limit. Sizes are bytes. `requests` is the long-term rate per second,
    `daily_cost` is in US dollars.
    """

    sessions: int | None = None
    bytes: int | None = None
    streams: int | None = None
    requests: float | None = None
    daily_tokens: int | None = None
    daily_cost: float | None = None
