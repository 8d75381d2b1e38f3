"""From what a tree raises to what a WebDAV client is told."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from wsgidav.dav_error import ERROR_DESCRIPTIONS, DAVError

from cfs_webdav.tree import Tree


class Refusal(DAVError):  # type: ignore[misc]
    """An error of a tree: it is told by its sentence alone. `error` is what was raised."""

    def __init__(self, status: int, error: Exception, detail: str, headers: list[tuple[str, str]] | None) -> None:
        super().__init__(status, detail, add_headers=headers)
        self.error = error

    def get_response_page(self) -> tuple[str, bytes]:
        """Return media type and body."""
        return "text/plain; charset=utf-8", str(self.context_info).encode()


@contextmanager
def told(tree: Tree) -> Iterator[None]:
    """Let what a tree raises out as a `Refusal` of the same status."""
    try:
        yield
    except DAVError:
        raise
    except Exception as raised:
        error = tree.refusal(raised)
        status, detail = getattr(error, "status", None), getattr(error, "detail", None)
        if not isinstance(status, int) or not isinstance(detail, str):
            raise
        wait = getattr(error, "retry_after", None)
        headers = None if wait is None else [("Retry-After", str(math.ceil(wait)))]
        raise Refusal(status, error, detail, headers) from raised


def reason_of(status: int) -> str:
    """Name a status, as its line and `D:status` show it."""
    return f"{status} {HTTPStatus(status).phrase}"


for _status in HTTPStatus:  # the library knows the names of only a few
    ERROR_DESCRIPTIONS.setdefault(_status.value, reason_of(_status.value))
