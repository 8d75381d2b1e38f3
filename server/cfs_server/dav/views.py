"""Names of texts that a client was given or has sent: the ETags of sessions on WebDAV (W2). Pure: no I/O.

`<nonce>-<n>` is the transcript at version n, as everywhere. A PUT that adds a message is answered by
`<nonce>-<n>r<length>-<hash>`, "the bytes that you sent": the client takes it for the name of its own copy, which is not
the transcript, for the reply will follow. When it sends its copy with another line, this name says where the copy ended
and the line begins; and as the name itself holds length and hash, nothing has to be kept, nothing can run out, and
two clients who sent different bytes while one version lasted never share a name. A forged one gives nothing that a
plain message would not.
"""

import hashlib
import re
from dataclasses import dataclass

from cfs_server.routes.conditions import strong_tags

_VIEW = re.compile(r'"(?P<nonce>[0-9a-f]+)-(?P<version>[0-9]{1,15})(?:r(?P<size>[0-9]{1,15})-(?P<hash>[0-9a-f]{32}))?"')
_MOST = 16
"""Names that are looked at in one header: each may cost a hash of the body."""


@dataclass(frozen=True, slots=True)
class Version:
    """The transcript at a version."""

    number: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that a client sent, while the transcript was at a version."""

    number: int
    size: int
    hash: str

    def begins(self, body: bytes) -> bool:
        """Tell whether a body begins with these bytes."""
        return len(body) >= self.size and digest(memoryview(body)[: self.size]) == self.hash


View = Version | Sent


def digest(data: bytes | memoryview) -> str:
    """Make the hash that stands in a name."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def name_of_sent(nonce: str, version: int, size: int, hash_: str) -> str:
    """Name the bytes that a client sent, without quotes."""
    return f"{nonce}-{version}r{size}-{hash_}"


def named(header: str | None) -> list[str]:
    """Read the ETags of an `If-Match`, quoted; no more than so many."""
    return strong_tags(header or "")[:_MOST]


def read(tag: str, nonce: str, version: int) -> View | None:
    """Read a quoted ETag as a view of the session that has this nonce and version now; None if it is none."""
    found = _VIEW.fullmatch(tag)
    if found is None or found["nonce"] != nonce or int(found["version"]) > version:
        return None
    number = int(found["version"])
    return Version(number) if found["hash"] is None else Sent(number, int(found["size"]), found["hash"])
