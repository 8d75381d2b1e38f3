"""Connections that go wrong when a test says so: a relay in front of a server, and servers that are none."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def drop(self, connections: int) -> None:
        """Close the next connections as soon as they are made."""
        self._drops = connections

    def swallow(self, answers: int) -> None:
        """Lose the next answers: the server has done what was asked, and the connection ends without a byte of it."""
        self._swallows = answers

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
            for target, ends in ((_pump, (client, server)), (self._pump_answers, (server, client))):
                thread = threading.Thread(target=target, args=ends, name="relay")
                self._threads.append(thread)
                thread.start()

    def _pump_answers(self, server: socket.socket, client: socket.socket) -> None:
        _pump(server, client, self._is_lost)

    def _is_lost(self) -> bool:
        if not self._swallows:
            return False
        self._swallows -= 1
        self.swallowed += 1
        return True


def _pump(source: socket.socket, target: socket.socket, is_lost: Callable[[], bool] = lambda: False) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if is_lost():
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
