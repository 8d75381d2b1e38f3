"""A process with an S3 for tests: moto's server, made to behave as S3 does in two ways that it does not by itself.

It prints its port. Each request is handled alone once its body has arrived, so comparing and storing is one step, and a
body that ends early is refused. `POST /-/refuse?method=PUT&code=SlowDown&status=503&times=2&late=0` refuses the next
requests of a method, with `late=1` after they were carried out, as if the answer was lost. `GET /-/requests` returns
how many of each method there were.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Respond = Callable[..., Any]


@dataclass
class Refusals:
    """The next requests of a method that are refused."""

    method: str = ""
    code: str = ""
    status: int = 0
    times: int = 0
    late: int = 0

    def take(self, method: str) -> bool:
        """Return whether a request is refused, and count it."""
        if method != self.method or self.times <= 0:
            return False
        self.times -= 1
        return True


class Bucket:
    """The application."""

    def __init__(self) -> None:
        self._moto = create_backend_app("s3")
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._refusals = Refusals()

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        """Handle one request."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(size)
        with self._lock:
            if path == "/-/requests":
                return answer(respond, 200, json.dumps(self._requests).encode())
            if path == "/-/refuse":
                asked = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
                numbers = (int(asked[name]) for name in ("status", "times", "late"))
                self._refusals = Refusals(asked["method"], asked["code"], *numbers)
                return answer(respond, 200, b"")
            self._requests[method] += 1
            refused = self._refusals.take(method)
            if refused and self._refusals.late:
                list(self._moto(environ | {"wsgi.input": BytesIO(body)}, lambda *_: len))
            if refused:
                return answer(respond, self._refusals.status, problem(self._refusals.code))
            if len(body) < size:
                return answer(respond, 400, problem("IncompleteBody"))
            return list(self._moto(environ | {"wsgi.input": BytesIO(body)}, respond))


def problem(code: str) -> bytes:
    """Return an error as S3 writes it."""
    return f"<Error><Code>{code}</Code><Message>refused by the test</Message></Error>".encode()


def answer(respond: Respond, status: int, body: bytes) -> Iterable[bytes]:
    """Answer without moto."""
    respond(f"{status} -", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    disable_nagle_algorithm = True

    def log(self, *_: object) -> None:
        """Do nothing."""


def main() -> None:
    server = make_server("127.0.0.1", int(sys.argv[1]), Bucket(), threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main()
