"""Clients that announce a body and send it slowly, or never."""

import select
import socket
from collections.abc import Iterable
from typing import Self
from urllib.parse import urlsplit

ANNOUNCED = 8 << 20
"""The longest body that a request may have by default."""
STRANGERS = (None, "Bearer cfs_" + "x" * 43, "Basic eDp4", "Bearer", "Digest x")
WITH_BODIES = (
    ("POST", "/v1/sessions"),
    ("POST", "/v1/sessions/a/messages"),
    ("POST", "/v1/sessions/a/rename"),
    ("POST", "/v1/sessions/a/fork"),
    ("PATCH", "/v1/sessions/a/settings"),
    ("PUT", "/v1/sessions/a/transcript"),
    ("POST", "/v1/shares"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/conversations"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/api/chat"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/render"),
    ("PUT", "/v1/files/sessions/a"),
    ("PUT", "/v1/files/workspaces/a/b"),
    ("PUT", "/dav/sessions/a"),
    ("PUT", "/dav/workspaces/a/b"),
    ("PROPFIND", "/dav/sessions/"),
    ("LOCK", "/dav/sessions/a"),
    ("GET", "/v1/sessions"),
    ("DELETE", "/v1/shares/a"),
    ("POST", "/cluster/names"),
)
"""Requests whose body somebody may want to read."""


class SlowUpload:
    """A request with a head that is complete and a body that is not. Its key would have the body read early."""

    BEGINNING = b'{"id":"'

    def __init__(
        self,
        url: str,
        method: str,
        path: str,
        credentials: str | None,
        address: str = "",
        *,
        announced: int = ANNOUNCED,
    ) -> None:
        """Connect, maybe from another address of this machine, and send the head and some bytes."""
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port), 60, (address, 0) if address else None)
        fields = [
            f"{method} {path} HTTP/1.1",
            f"Host: {where.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {announced}",
            "Idempotency-Key: slow",
            *([] if credentials is None else [f"Authorization: {credentials}"]),
        ]
        self._socket.sendall("".join(f"{field}\r\n" for field in [*fields, ""]).encode() + self.BEGINNING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, size: int) -> None:
        """Send a part of the body."""
        self._socket.sendall(b"x" * size)

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._socket.fileno()

    def status(self) -> int:
        """Return the status of the answer; the test's time-out is the limit."""
        head = b""
        while b"\r\n" not in head:
            more = self._socket.recv(4096)
            assert more, "the connection was closed without an answer"
            head += more
        return int(head.split()[1])


def first_answered(uploads: Iterable[SlowUpload]) -> SlowUpload:
    """Wait until one of them is answered, and return it."""
    found: list[SlowUpload] = select.select(list(uploads), [], [])[0]
    return found[0]
