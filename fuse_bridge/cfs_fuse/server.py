"""Calls the server for the bridge; signals of the calling program interrupt each call (F3)."""

import errno
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from cfs import api, wire
from cfs.state.stream import StreamEvent
from cfs.transports.http import Client

# Interruptible waits in handlers of kernel requests (F3)
#
# A handler has to poll for signals to the caller; otherwise not even SIGKILL ends a blocked read. So no wait is longer
# than `POLL` seconds at a time.

T = TypeVar("T")

POLL = 0.1
CALLS = 64
"""Maximum concurrent requests to the server."""


class Kernel(Protocol):
    """The kernel request that a handler is serving."""

    def interrupted(self) -> bool:
        """Whether the caller got a signal."""
        ...

    def unmounting(self) -> bool:
        """Whether the mount is being taken down."""
        ...


class Waiter:
    """Waits on behalf of callers; at most `places` of them wait for sessions at a time."""

    def __init__(self, kernel: Kernel, places: int) -> None:
        self._kernel = kernel
        self._places = threading.BoundedSemaphore(places)
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="call")

    def until(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        """Wait without a limit until a predicate is true; requires the condition's lock.

        Raises `OSError`: EINTR when the caller got a signal, EAGAIN when too many wait, EIO when the mount ends.
        """
        if ready():
            return
        with self._place():
            while not ready():
                condition.wait(POLL)
                self._look()

    def at_most(self, condition: threading.Condition, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait for a limited time; requires the condition's lock. Returns the result; raises like `until`."""
        end = time.monotonic() + seconds
        with self._place():
            while not ready():
                if (left := end - time.monotonic()) <= 0:
                    return False
                condition.wait(min(left, POLL))
                self._look()
        return True

    def briefly(self, condition: threading.Condition, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait like `at_most` for something imminent, without raising and without occupying a place."""
        end = time.monotonic() + seconds
        while not ready():
            left = end - time.monotonic()
            if left <= 0 or self._kernel.interrupted() or self._kernel.unmounting():
                return False
            condition.wait(min(left, POLL))
        return True

    def call(self, work: Callable[[], T]) -> T:
        """Run a function in another thread and wait for its result; raises its error, or like `until`."""
        future = self._calls.submit(work)
        while True:
            try:
                return future.result(POLL)
            except TimeoutError:
                if future.done():
                    raise  # its own
            try:
                self._look()
            except OSError:
                future.cancel()
                raise

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise OSError(errno.EAGAIN, "too many readers wait in this mount")
        try:
            yield
        finally:
            self._places.release()

    def _look(self) -> None:
        if self._kernel.interrupted():
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        if self._kernel.unmounting():
            raise OSError(errno.EIO, "the mount is being taken down")


PAGE = 1_000


@dataclass(frozen=True, slots=True)
class TranscriptText:
    """A transcript as bytes, with its version, and whether its session was idle."""

    data: bytes
    etag: str
    idle: bool


class SessionServer:
    """The server behind the mount; all methods raise `CfsError`, or `OSError` as `Waiter` does."""

    def __init__(self, client: Client, waiter: Waiter) -> None:
        self.client = client
        self._waiter = waiter

    def call(self, call: api.Call[T]) -> T:
        """Send a call and wait for its answer."""
        return self._waiter.call(lambda: self.client.call(call))

    def append(self, session: str, life: str, message: bytes, delay: float = 0.0) -> wire.Accepted:
        """Append a message to an existing session; never creates one. Its turn begins after `delay` seconds.

        An empty message changes nothing and only checks that the session is writable. Raises `Gone` if the session was
        deleted, even if another one has its name now.
        """
        call = api.append(session, message, delay)
        headers = {**call.request.headers, "If-Match": "*"} | ({api.LIFE: life} if life else {})
        return self.call(replace(call, request=replace(call.request, headers=headers)))

    def text(self, session: str) -> TranscriptText:
        """Read the current transcript."""
        return self.call(
            api.Call(
                api.transcript(session).request,
                lambda answer: TranscriptText(
                    answer.body, answer.headers.get("etag", ""), answer.headers.get("x-cfs-state", "idle") == "idle"
                ),
            )
        )

    def history(self, session: str) -> Generator[StreamEvent, None, None]:
        """Yield the events of a session that the server still has, then new ones as they happen."""
        yield from self.client.events(api.events(session, after="0"), attempts=0)


def listing(client: Client) -> Iterator[wire.SessionInfo]:
    """Yield every session that the caller may see, including sub-sessions."""
    after = ""
    while True:
        page = client.call(api.list_sessions(after=after, limit=PAGE))
        for info in page.sessions:
            yield info
            if info.sub_sessions:
                yield from _below(client.call(api.sub_sessions(info.id)))
        if page.next is None:
            return
        after = page.next


def _below(tree: wire.SessionTree) -> Iterator[wire.SessionInfo]:
    for child in tree.children:
        yield child
        yield from _below(child)
