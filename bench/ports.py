"""Ports for servers that come back to them, or whose number must be known before they start."""

import secrets
import socket

_FIRST, _LAST = 20_000, 32_000
"""Below those that systems give to connections, and to servers that ask for port 0."""

_given: set[int] = set()


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on; never the same twice.

    A port that the system had given would be free for the system to give again: to a connection of another process,
    even to one that just tries whether the server is back.
    """
    while True:
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
