"""WebDAV by hand: requests as clients write them, and their answers taken apart."""

from dataclasses import dataclass, field
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import httpx

METHODS = (
    *("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK"),
)
LOCK = (
    b'<D:lockinfo xmlns:D="DAV:"><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>'
    b"<D:owner>somebody</D:owner></D:lockinfo>"
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a multi-status answer says of one name."""

    statuses: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)


def taken_apart(answer: httpx.Response) -> dict[str, Found]:
    """Read a multi-status answer: for each href the status and the text of each property, by names as `{DAV:}x`."""
    assert answer.status_code == 207, (answer.status_code, answer.text)
    found = {}
    for response in ET.fromstring(answer.content).iter("{DAV:}response"):  # noqa: S314 - our own server's
        one = found[response.findtext("{DAV:}href", "")] = Found()
        if (status := response.findtext("{DAV:}status")) is not None:
            one.statuses[""] = int(status.split()[1])
        for part in response.iter("{DAV:}propstat"):
            code = int(part.findtext("{DAV:}status", "").split()[1])
            for value in part.findall("{DAV:}prop/*"):
                one.statuses[value.tag] = code
                one.values[value.tag] = "".join(value.itertext()) or " ".join(child.tag for child in value)
    return found


def propfind(*names: str) -> bytes:
    """Ask for these properties."""
    parts = (name[1:].partition("}") for name in names)
    wanted = "".join(f"<P:{local} xmlns:P='{escape(space)}'/>" for space, _, local in parts)
    return f"<D:propfind xmlns:D='DAV:'><D:prop>{wanted}</D:prop></D:propfind>".encode()


@dataclass(frozen=True, slots=True)
class Dav:
    """A caller of a server's `/dav`."""

    client: httpx.AsyncClient
    root: str = "/dav"

    async def __call__(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """Send one request; a header `Lock_Token` is written as `lock_token`."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, self.root + path, content=content or None, headers=fields)

    async def find(self, path: str, *names: str, depth: str = "1") -> dict[str, Found]:
        """Ask for properties of a name and what is in it; for all unless some are named."""
        body = propfind(*names) if names else b""
        return taken_apart(await self("PROPFIND", path, body, depth=depth))

    async def names(self, path: str) -> list[str]:
        """List what is in a collection, as hrefs below it."""
        found = list(await self.find(path, "{DAV:}resourcetype"))
        return sorted(href.removeprefix(self.root + path) for href in found)[1:]

    async def lock(self, path: str, *, timeout: str = "Second-300", depth: str = "0") -> httpx.Response:
        """Ask for an exclusive lock."""
        return await self("LOCK", path, LOCK, timeout=timeout, depth=depth)

    async def set(self, path: str, name: str, value: str | None) -> dict[str, Found]:
        """Set a property, or remove it."""
        namespace, _, local = name[1:].partition("}")
        verb = "remove" if value is None else "set"
        one = f"<P:{local} xmlns:P='{namespace}'>{value or ''}</P:{local}>"
        body = f"<D:propertyupdate xmlns:D='DAV:'><D:{verb}><D:prop>{one}</D:prop></D:{verb}></D:propertyupdate>"
        return taken_apart(await self("PROPPATCH", path, body.encode()))
