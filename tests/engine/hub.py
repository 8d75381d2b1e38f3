"""A stand-in of the model hub: as much of its protocol as a download needs, with connections that break."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

FILES = ("/maker/model", "good.gguf"), ("/Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")
"""The repositories that have a file: its content is the same in all of them."""


class Hub(ThreadingHTTPServer):
    """Has a file in some repositories, and a gated repository.

    `cuts` are the numbers of bytes after which the next connections break. With `stalls`, a response stops after half
    of what it was to send, sets `half`, and goes on when `goes_on` is set.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.tag = hashlib.sha256(content).hexdigest()
        self.cuts: list[int] = []
        self.ranges = True
        self.stalls = False
        self.half, self.goes_on = threading.Event(), threading.Event()
        self.sent: list[tuple[int, int]] = []

    @classmethod
    @contextmanager
    def serving(cls, content: bytes) -> Iterator[Self]:
        """Serve until the block ends."""
        with cls(content) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield server
            server.goes_on.set()
            server.shutdown()
            thread.join()

    @property
    def address(self) -> str:
        """The value of HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent."""

    def _answer(self, *, body: bool) -> None:
        for repo, file in FILES:
            if self.path in (f"{repo}/resolve/main/{file}", f"{repo}/resolve/{'a' * 40}/{file}"):
                self._file(body=body)
            elif self.path.startswith(f"/api/models{repo}/tree/"):
                self._listing(file)
            elif self.path.startswith(f"{repo}/"):
                self._send(404, {"X-Error-Code": "EntryNotFound"})
            else:
                continue
            return
        if self.path.startswith("/maker/gated/"):
            self._send(403, {"X-Error-Code": "GatedRepo"})
        else:
            self._send(404, {"X-Error-Code": "RepoNotFound"})

    def _file(self, *, body: bool) -> None:
        content = self.server.content
        first = 0
        if self.server.ranges and (wanted := self.headers.get("Range")):
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
        headers = {
            "X-Repo-Commit": "a" * 40,
            "ETag": f'"{self.server.tag}"',
            "Content-Length": str(len(content) - first),
        }
        if not body:
            self._send(200, headers)
            return
        self._send(206 if first else 200, headers)
        last = len(content)
        if self.server.cuts:
            last = first + self.server.cuts.pop(0)
            self.close_connection = True
        elif self.server.stalls:
            middle = (first + last) // 2
            self.wfile.write(content[first:middle])
            self.server.half.set()
            self.server.goes_on.wait()
            first = middle
        self.wfile.write(content[first:last])
        self.server.sent.append((first, last))

    def _listing(self, file: str) -> None:
        row = {"type": "file", "path": file, "size": len(self.server.content), "oid": "b" * 40}
        body = json.dumps([row]).encode()
        self._send(200, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
