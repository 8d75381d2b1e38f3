"""Runs operations that take several requests, with and without coroutines.

An operation is a generator: it yields calls of `cfs.api`, and gets their results or errors. So each one is written
once.
"""

import asyncio
import threading
from collections.abc import Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from cfs import api, wire
from cfs.errors import CfsError, NotFound, NotGranted
from cfs.transports.async_http import AsyncClient
from cfs.transports.http import Client

T = TypeVar("T")
Steps = Generator[api.Call[Any], Any, T]

_PAGE = 10_000


class ServerConnections:
    """The connections to one server. They are opened when they are needed; threads share them, event loops do not."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self._url = url
        self._token = token
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation and return its result."""
        with self._lock:
            client = self._client = self._client or Client(self._url, self._token)
        try:
            call = next(steps)
            while True:
                try:
                    result = client.call(call)
                except CfsError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    async def arun(self, steps: Steps[T]) -> T:
        """Carry out an operation and return its result."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if (client := self._clients.get(loop)) is None:
                client = self._clients[loop] = AsyncClient(self._url, self._token)
        try:
            call = next(steps)
            while True:
                try:
                    result = await client.call(call)
                except CfsError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def close(self) -> None:
        """Close the connections of calls without coroutines; the next call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those of calls without coroutines."""
        self.close()
        with self._lock:
            client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def files_below(prefix: str) -> Steps[list[wire.FileInfo]]:
    """List the files below a directory, which ends with `/`, in the order of their paths."""
    files: list[wire.FileInfo] = []
    after = ""
    while True:
        page: wire.FilePage = yield api.files(prefix, after, _PAGE)
        files += page.files
        if page.next is None:
            return files
        after = page.next


def paths_below(prefix: str) -> Steps[list[str]]:
    """List the paths of the files below a directory."""
    return [file.path for file in (yield from files_below(prefix))]


def content_of(path: str) -> Steps[api.FilePart | None]:
    """Read a file; None if there is none. Raises `NotGranted`: a wrong token must not look like an empty thread."""
    try:
        part: api.FilePart = yield api.read_file(path)
    except NotGranted:
        raise
    except NotFound:
        return None
    return part


def deleted(path: str) -> Steps[None]:
    """Delete a file if it is there."""
    try:
        yield api.delete_file(path)
    except NotGranted:
        raise
    except NotFound:
        return
