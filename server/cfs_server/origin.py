"""Who may call a server that has no tokens: programs of this machine, and no web page of another site.

A browser lets any page post plain text to a loopback address (a cross-site request), and a page whose name was made
to point there may read as well (DNS rebinding). Both show in headers that a page cannot forge: `Origin` names the
page's site, `Host` the name that was called. A browser leaves `Origin` out of what a page merely loads, an image or a
frame; there `Sec-Fetch-Site` says that another site asks.

A link from elsewhere to the dashboard still opens it: the whole window goes there, and its files say nothing of
anybody. A link to anything else does not, for it would be asked with the credentials that the browser keeps.
"""

import ipaddress
from collections.abc import Mapping

from cfs.errors import Forbidden

_OWN_SITE = frozenset({b"same-origin", b"none"})
"""`none` is the user: an address that was typed, a bookmark. `same-site` is another port of this machine."""


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, means this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_caller(
    headers: Mapping[bytes, bytes], allowed_hosts: frozenset[str] | None, *, is_page: bool = False
) -> None:
    """Refuse requests of other sites' pages, and those for a name that is not ours; raises `Forbidden`.

    `allowed_hosts` are names besides the loopback ones; None allows any name. Programs send no `Origin` and no
    `Sec-Fetch-Site`, and one without `Host` (HTTP/1.0) is no browser. `is_page` is true for a read of the dashboard,
    which a link of another site may open.
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
    if headers.get(b"sec-fetch-site", b"none").lower() not in _OWN_SITE and not (is_page and _opens_window(headers)):
        raise Forbidden("requests from pages of another site are refused; a link may open the dashboard only")


def _opens_window(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a whole window goes there, and not a frame within another site's page."""
    where = headers.get(b"sec-fetch-mode", b"").lower(), headers.get(b"sec-fetch-dest", b"").lower()
    return where == (b"navigate", b"document")


def _name(host: str) -> str:
    """Cut the port off."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
