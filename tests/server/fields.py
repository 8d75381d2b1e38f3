"""Requests whose header fields go over the wire as they are written."""

import socket
from urllib.parse import urlsplit

ONE_VALUE = (
    *(b"authorization", b"host", b"origin", b"x-api-key", b"content-type", b"range", b"if-range", b"last-event-id"),
    *(b"destination", b"depth", b"overwrite", b"if", b"lock-token", b"idempotency-key", b"sec-fetch-site"),
    *(b"x-cfs-session", b"x-cfs-slot", b"x-cfs-life", b"x-cfs-agent", b"x-cfs-tool-call"),
)
"""Fields with one value."""
HOSTILE = (
    b"\xff\xfe",
    "ä".encode(),
    "²".encode("latin-1"),
    b"",
    b"%ff%00",
    b"9" * 400,
    b"Basic \xff",
    b"http://\xff/dav/sessions/a",
    b"01;\xc3\xa4;1;" + b"0" * 64,
)
"""Values that are no such field's, with bytes that are not ASCII, and digits that only look so."""
TARGETS = (
    ("GET", "/v1/sessions", b""),
    ("GET", "/v1/sessions/fields/events", b""),
    ("POST", "/v1/sessions", b"{}"),
    ("POST", "/v1/sessions/fields/messages", b"x"),
    ("POST", "/v1/responses", b'{"input":"x","store":false}'),
    ("PUT", "/v1/files/workspaces/w/f", b"x"),
    ("COPY", "/dav/sessions/fields", b""),
    ("GET", "/healthz", b""),
)
"""Requests of all kinds: about all sessions, one, none, by their bodies, and by WebDAV."""


def ask(url: str, method: str, path: str, *fields: bytes, body: bytes = b"", host: bool = True) -> int:
    """Send one request with these fields, and return the status of the answer."""
    where = urlsplit(url)
    head = [f"{method} {path} HTTP/1.1".encode(), *([b"Host: localhost"] if host else []), *fields]
    if body:
        head.append(b"Content-Length: %d" % len(body))
    with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
        connection.sendall(b"\r\n".join([*head, b"", b""]) + body)
        answer = b""
        while b"\r\n" not in answer:
            more = connection.recv(4096)
            assert more, ("the connection was closed without an answer", method, path, fields)
            answer += more
    return int(answer.split()[1])
