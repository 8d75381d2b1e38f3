"""A server that a test kills and starts again, on the same port and with the same sessions."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import api
from cfs.transports.http import Client
from ports import free_port
from tests.client.wires import Relay, relay
from tests.server.support import Process, serving


class Restarting:
    """`cfs serve` on one port and one store, behind a relay that can lose its answers."""

    def __init__(self, folder: Path, stack: ExitStack, *flags: str) -> None:
        self._port = free_port()
        self._folder = folder
        self._stack = stack
        self._flags = flags
        self.process = self._start()
        self.wire: Relay = stack.enter_context(relay(self.process.url))
        self.direct = stack.enter_context(Client(self.process.url))

    def _start(self) -> Process:
        flags = ("--engine", "scripted", "--data-dir", str(self._folder), "--port", str(self._port), *self._flags)
        return self._stack.enter_context(serving(*flags))

    def kill(self) -> None:
        """Kill the server at once."""
        self.process.process.kill()
        self.process.process.wait()

    def start(self) -> None:
        """Start the next server."""
        self.process = self._start()

    def lose(self, call: api.Call[Any], key: str) -> None:
        """Let the server carry out a call whose answer never arrives."""
        request = call.request.keyed(key)
        self.wire.swallow(1)
        with (
            pytest.raises(httpx.TransportError),
            httpx.Client(base_url=self.wire.url, trust_env=False, timeout=60) as bare,
        ):
            bare.request(request.method, request.path, headers=dict(request.headers), content=request.body)

    def repeat(self, call: api.Call[Any], key: str) -> httpx.Response:
        """Send a call again."""
        request = call.request.keyed(key)
        with httpx.Client(base_url=self.process.url, trust_env=False, timeout=30) as bare:
            return bare.request(request.method, request.path, headers=dict(request.headers), content=request.body)


def send_once(url: str, call: api.Call[Any]) -> None:
    """Send a call to a server that may not live to answer it. Our own client would repeat it for seconds."""
    request = call.request
    with suppress(httpx.TransportError), httpx.Client(base_url=url, trust_env=False, timeout=60) as bare:
        bare.request(request.method, request.path, headers=dict(request.headers), content=request.body)
