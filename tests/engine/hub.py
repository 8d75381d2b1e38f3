"""A stand-in of the model hub, as much of its protocol as a download needs."""

from http.server import BaseHTTPRequestHandler


class Hub(BaseHTTPRequestHandler):
    """Has files of `maker/model`, and a gated repository."""

    content = b""
    requests: tuple[str, ...] = ()

    def do_HEAD(self) -> None:
        """Describe a file."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Send a file."""
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent."""

    def _answer(self, *, body: bool) -> None:
        type(self).requests += (f"{self.command} {self.path}",)
        if self.path == "/maker/model/resolve/main/good.gguf":
            headers = {"X-Repo-Commit": "a" * 40, "ETag": '"1234"', "Content-Length": str(len(self.content))}
            return self._send(200, headers, self.content if body else b"")
        if self.path.startswith("/maker/model/"):
            return self._send(404, {"X-Error-Code": "EntryNotFound"})
        if self.path.startswith("/maker/gated/"):
            return self._send(403, {"X-Error-Code": "GatedRepo"})
        return self._send(404, {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
