"""Decides whether a server is reached through a proxy, as the environment says. No I/O.

A client has one server, so this is decided once. httpx decides for each request, and fails for entries of `NO_PROXY`
that other programs take, such as `[::1]` (github.com/encode/httpx/issues/3221), or for a proxy that it needs a
package for, also if the server is reached without it.
"""

import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from cfs.contract.errors import InvalidRequest

_PORTS = {"http": 80, "https": 443}


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy to a server; None if it is reached directly."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if is_here(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    port = parts.port or _PORTS.get(parts.scheme, 0)
    if not proxy or any(_names(entry.strip(), host, port) for entry in proxies.get("no", "").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_here(host: str) -> bool:
    """Return whether a host is this machine, which is reached without a proxy."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(entry: str, host: str, port: int) -> bool:
    """Return whether an entry of `NO_PROXY` names a host: a domain, an address or a network, also with a port."""
    if entry == "*":
        return True
    entry = entry.rpartition("://")[2].lower()
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and (entry.startswith("[") or ":" not in name):
        return int(number) == port and _names(name, host, port)
    domain = entry.removeprefix("*").lstrip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Convert errors of a client's construction to `InvalidRequest`: a proxy or certificates that cannot be used."""
    try:
        yield
    except ImportError:
        raise InvalidRequest(
            f"the proxy {_masked(proxy_of(url))} needs another package: pip install 'httpx[socks]', or name the server"
            " in NO_PROXY"
        ) from None
    except (ValueError, httpx.InvalidURL) as error:
        reason = str(error).partition(" URL(")[0].rstrip(":")
        raise InvalidRequest(
            f"the proxy {_masked(proxy_of(url))} to {url} cannot be used ({reason}): correct HTTP_PROXY, HTTPS_PROXY or"
            " ALL_PROXY"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the certificates for {url} cannot be read ({error.strerror or error}): correct SSL_CERT_FILE or"
            " SSL_CERT_DIR"
        ) from None


def _masked(proxy: str | None) -> str:
    """Return a proxy without its user and password. It may be no valid URL."""
    scheme, separator, rest = (proxy or "").partition("://")
    return scheme + separator + rest.rpartition("@")[2]
