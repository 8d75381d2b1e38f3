"""Who may call a server that has no tokens: programs of this machine, and no web page of another site.

A browser lets any page post plain text to a loopback address (a cross-site request), and a page whose name was made
to point there may read as well (DNS rebinding). Both show in headers that a page cannot forge: `Origin` names the
page's site, `Host` the name that was called.
"""

import ipaddress
from collections.abc import Mapping

from cfs.errors import Forbidden


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, means this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_caller(headers: Mapping[bytes, bytes], allowed_hosts: frozenset[str] | None) -> None:
    """Refuse requests of other sites' pages, and those for a name that is not ours; raises `Forbidden`.

    `allowed_hosts` are names besides the loopback ones; None allows any name. Programs send no `Origin`, and one
    without `Host` (HTTP/1.0) is no browser.
    """
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = _name(host)
    if allowed_hosts is not None and host and not (is_loopback(name) or name in allowed_hosts):
        raise Forbidden(
            f"this server is not called {name[:80]!r}: call it localhost, or allow the name by --allowed-hosts"
        )
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
        raise Forbidden("requests from pages of another site are refused")


def _name(host: str) -> str:
    """Cut the port off."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
