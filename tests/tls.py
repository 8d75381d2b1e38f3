"""One TLS context for all HTTP clients of a test process that trust the same certificates."""

import os
from functools import cache
from ssl import SSLContext
from typing import Any

import httpx
import pytest


@cache
def _context(_files: tuple[str | None, ...], *, trust_env: bool) -> SSLContext:
    return httpx.create_ssl_context(trust_env=trust_env)


def _shared_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> SSLContext:
    if verify is True and cert is None:
        return _context((os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")), trust_env=trust_env)
    return httpx.create_ssl_context(verify, cert, trust_env)


def share_certificates(patch: pytest.MonkeyPatch) -> None:
    """Let httpx read the list of trusted certificates once.

    Each client reads it anew, which costs 30 ms of computing; thousands of tests make one or more, nearly all for http.
    """
    patch.setattr("httpx._transports.default.create_ssl_context", _shared_context)
