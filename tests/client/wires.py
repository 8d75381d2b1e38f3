"""Connections that go wrong when a test says so: a relay in front of a server, and servers that are none."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit


class Relay:
    """Passes connections on to a server, until they are cut."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self.swallowed = 0
        self._drops = 0
        self._swallows = 0
        self._swallowed_method = b""
        self.answers: list[str] = []
        """Method and path of each request, once for each part of its answer that has passed."""
        self._held = ""
        self._released = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def drop(self, connections: int) -> None:
        """Close the next connections as soon as they are made."""
        self._drops = connections

    def swallow(self, answers: int, method: str = "") -> None:
        """Lose the next answers, or those to requests of one method.

        The server has done what was asked, and the connection ends without a byte of its answer.
        """
        self._swallows, self._swallowed_method = answers, method.encode()

    @contextmanager
    def holding(self, request: str) -> Iterator[None]:
        """Hold the answers to requests that begin so until the end of the block, streams that run included."""
        self._released.clear()
        self._held = request
        try:
            yield
        finally:
            self._held = ""
            self._released.set()

    def cut(self) -> None:
        """Close all connections that there are."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Close everything; nobody listens any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10)
        for end in self._open:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._drops:
                self._drops -= 1
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            asked = [b""]
            for look, ends in (
                (partial(_note, asked), (client, server)),
                (partial(self._passes, asked), (server, client)),
            ):
                thread = threading.Thread(target=_pump, args=(*ends, look), name="relay")
                self._threads.append(thread)
                thread.start()

    def _passes(self, asked: list[bytes], data: bytes) -> bool:  # noqa: ARG002 - any part of an answer
        """Return whether a part of the answer to what was asked last is passed on."""
        request = asked[0].decode("latin-1")
        if self._held and request.startswith(self._held):
            self._released.wait()
        self.answers.append(request)
        if not self._swallows or not asked[0].startswith(self._swallowed_method):
            return True
        self._swallows -= 1
        self.swallowed += 1
        return False


def _note(asked: list[bytes], data: bytes) -> bool:
    """Note method and path of a request, and let it pass."""
    if b" HTTP/1.1\r\n" in data[:1000]:
        asked[0] = data.partition(b" HTTP/1.1\r\n")[0]
    return True


def _pump(source: socket.socket, target: socket.socket, passes: Callable[[bytes], bool]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if not passes(data):
                break
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(url: str) -> Iterator[Relay]:
    """Stand in front of a server."""
    here = Relay(url)
    try:
        yield here
    finally:
        here.stop()


class Impostor:
    """Answers every request by the same bytes, or not at all; keeps what was asked."""

    def __init__(self, answer: bytes | None) -> None:
        self.asked: list[bytes] = []
        self._answer = answer
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, name="impostor")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self.asked.append(client.recv(1 << 16))
                if self._answer is None:
                    self._ended.wait(10)
                else:
                    client.sendall(self._answer)

    def stop(self) -> None:
        """Listen no more."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextmanager
def impostor(answer: bytes | None = None) -> Iterator[Impostor]:
    """Serve one answer, or silence."""
    here = Impostor(answer)
    try:
        yield here
    finally:
        here.stop()


def http_answer(status: str, body: bytes, media: str = "application/json") -> bytes:
    """Write an answer that closes its connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
