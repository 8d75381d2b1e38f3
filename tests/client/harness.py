"""Ways to sessions whose replies a test writes: what the conformance tests of the SDK are run against (C1)."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from cfs import api
from cfs.testing import AnsweringDirectory
from cfs.transports.http import Client
from cfs_server.engine.contract.interface import GenerationRequest
from tests.server.support import ServerHarness, running_server, until


class Said(Protocol):
    """A message, whoever keeps it."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


Script = Callable[[Sequence[Any]], Iterable[str]]


def words(messages: Sequence[Said]) -> Iterable[str]:
    """Answer with the words of the last message, one at a time."""
    return [("" if n == 0 else " ") + word for n, word in enumerate(messages[-1].content.split())]


def whole(messages: Sequence[Said]) -> Iterable[str]:
    """Answer with the last message, in one piece."""
    return [messages[-1].content]


class ClientHarness(Protocol):
    """A place where sessions are answered by a script."""

    script: Script

    @property
    def where(self) -> dict[str, Any]:
        """Arguments of a session that is reached here."""
        ...

    def hold(self) -> None:
        """Say nothing more."""
        ...

    def step(self, pieces: int = 1) -> None:
        """Let some pieces pass."""
        ...

    def release(self) -> None:
        """Say everything."""
        ...

    def write(self, session: str, message: str) -> None:
        """Write a message without waiting for its reply, and wait until it has been taken in."""
        ...


class DirectoryHarness:
    """A plain directory, answered by a thread."""

    def __init__(self, directory: AnsweringDirectory) -> None:
        self.directory = directory
        self.hold, self.step, self.release = directory.hold, directory.step, directory.release

    @property
    def script(self) -> Script:
        """What answers."""
        return self.directory.script

    @script.setter
    def script(self, script: Script) -> None:
        self.directory.script = script

    @property
    def where(self) -> dict[str, Any]:
        """The directory as a mount."""
        return {"mount": self.directory.path}

    def write(self, session: str, message: str) -> None:
        """Append to the file."""
        with (self.directory.path / session).open("a") as file:
            file.write(f"User: {message}\n")


@contextmanager
def directory_harness(path: Path) -> Iterator[DirectoryHarness]:
    """Answer in a directory."""
    with AnsweringDirectory(path, words) as directory:
        yield DirectoryHarness(directory)


class HttpHarness:
    """A real server in a thread of its own, so that sessions of both kinds may block as they like."""

    def __init__(self) -> None:
        self.script: Script = words
        self.url = ""
        self._server: ServerHarness | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")

    @property
    def where(self) -> dict[str, Any]:
        """The URL of the server."""
        return {"url": self.url}

    @property
    def server(self) -> ServerHarness:
        """The server's inside."""
        assert self._server is not None
        return self._server

    def hold(self) -> None:
        """Say nothing more."""
        self.do(self.server.engine.hold)

    def step(self, pieces: int = 1) -> None:
        """Let some pieces pass."""
        self.do(lambda: self.server.engine.step(pieces))

    def release(self) -> None:
        """Say everything."""
        self.do(self.server.engine.release)

    def write(self, session: str, message: str) -> None:
        """Post it."""
        with Client(self.url) as client:
            client.call(api.append(session, message.encode()))

    def renew(self) -> None:
        """Forget all sessions and the script of the test before."""
        self.script = words
        self.do(self.server.engine.release)
        self.do(self._delete_all)
        self.do(self.server.engine.requests.clear)

    def do(self, work: Callable[[], object]) -> None:
        """Do something in the server's loop, and wait for its end."""
        assert self._loop is not None

        async def doing() -> None:
            work()

        asyncio.run_coroutine_threadsafe(doing(), self._loop).result(10)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Let the server's loop run until something is true of it; the test's time-out is the limit."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(until(condition), self._loop).result()

    def _delete_all(self) -> None:
        for session in list(self.server.store):
            if "/" not in session.id:
                self.server.store.delete(session.id)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with running_server(self._answer, may_block=True) as self._server:
            self.url = self._server.url
            self._started.set()
            await self._end.wait()

    def _answer(self, request: GenerationRequest) -> Iterable[str]:
        return self.script(request.messages)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(60), "the server has not started"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)


def release_soon(harness: ClientHarness) -> None:
    """Let the script go on when the caller is waiting already."""
    threading.Timer(0.05, harness.release).start()


def descriptors() -> int:
    """Count what this process has open."""
    return psutil.Process().num_fds()


def descriptors_end(down_to: int) -> None:
    """Wait until no more is open than that: what answers in this process opens and closes files, too."""
    while descriptors() > down_to:
        time.sleep(0.001)
