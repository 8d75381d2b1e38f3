"""Checks what a request says of its body, for all interfaces alike (H5, H7).

Bodies are whole and as they are: never a part of one, never compressed. A client that sends anything else, such as the
rest of an interrupted upload, would replace a file by a fragment without knowing.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from cfs.errors import InvalidRequest, Unsupported, UnsupportedMedia

Fields = Iterable[tuple[bytes, bytes]]

_ALGORITHMS: dict[str, Callable[[], Any]] = {
    "sha-256": hashlib.sha256,
    "sha-512": hashlib.sha512,
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "sha": partial(hashlib.sha1, usedforsecurity=False),
}
"""The digests that are compared. Others are ignored, as HTTP allows."""
_DIGESTS = {
    b"content-md5": re.compile(r"()([A-Za-z0-9+/=]+)"),  # RFC 1864
    b"digest": re.compile(r"\s*([A-Za-z0-9-]+)=([^,\s]+)\s*"),  # RFC 3230
    b"content-digest": re.compile(r"\s*([a-z0-9-]+)=:([^:]*):\s*"),  # RFC 9530
    b"repr-digest": re.compile(r"\s*([a-z0-9-]+)=:([^:]*):\s*"),  # the same where a body is whole and not encoded
}


def check_content(fields: Fields) -> "Digests":
    """Raise unless a body is whole and not encoded. Return the digests that the body must have.

    Raises `InvalidRequest` for a part of a body (RFC 9110, 14.5), `UnsupportedMedia` for an encoded one (RFC 9110,
    15.5.16), and `Unsupported` for a transfer coding that is not known here (RFC 9112, 6.1).
    """
    digests: list[tuple[str, bytes]] = []
    for name, raw in fields:
        value = raw.decode("latin-1").strip()
        match name:
            case b"content-range":
                raise InvalidRequest(
                    "a body cannot be a part of something (Content-Range): send the whole. Nothing was changed"
                )
            case b"content-encoding" if set(_tokens(value)) - {"identity"}:
                raise UnsupportedMedia(f"a body encoded as {value[:40]!r} is not read here: send it as it is")
            case b"transfer-encoding" if set(_tokens(value)) - {"chunked", "identity"}:
                raise Unsupported(f"the transfer coding {value[:40]!r} is not known here: send it chunked, or a length")
            case _ if name in _DIGESTS:
                digests += _digests_in(name, value)
    return Digests(digests)


class Digests:
    """The digests that a client has sent, compared with its body as that arrives."""

    def __init__(self, digests: Iterable[tuple[str, bytes]]) -> None:
        self._wanted = list(digests)
        self._hashes = {algorithm: _ALGORITHMS[algorithm]() for algorithm, _ in self._wanted}

    def update(self, data: bytes) -> None:
        """Take the next piece of the body."""
        for digest in self._hashes.values():
            digest.update(data)

    def check(self) -> None:
        """Raise `InvalidRequest` if the body, now complete, has another digest."""
        for algorithm, expected in self._wanted:
            if self._hashes[algorithm].digest() != expected:
                raise InvalidRequest(
                    f"the body does not have the {algorithm} digest that was sent with it: send it again"
                )


def _tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",") if token.strip()]


def _digests_in(name: bytes, value: str) -> Iterable[tuple[str, bytes]]:
    for part in value.split(","):
        match = _DIGESTS[name].fullmatch(part)
        if match is None:
            continue  # another form, such as one with parameters
        algorithm = (match[1] or "md5").lower()
        if algorithm in _ALGORITHMS:
            try:
                yield algorithm, base64.b64decode(match[2], validate=True)
            except binascii.Error:
                raise InvalidRequest(f"the {name.decode()} is not in base64") from None
