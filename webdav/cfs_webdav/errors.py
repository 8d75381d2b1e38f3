"""From what a tree raises to what a WebDAV client is told."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from wsgidav.dav_error import ERROR_DESCRIPTIONS, DAVError


@contextmanager
def told() -> Iterator[None]:
    """Let what a tree raises out as a `DAVError` of the same status, with the sentence and the error itself."""
    try:
        yield
    except DAVError:
        raise
    except Exception as error:
        status, detail = getattr(error, "status", None), getattr(error, "detail", None)
        if not isinstance(status, int) or not isinstance(detail, str):
            raise
        wait = getattr(error, "retry_after", None)
        headers = None if wait is None else [("Retry-After", str(math.ceil(wait)))]
        raise DAVError(status, detail, src_exception=error, add_headers=headers) from error


def reason_of(status: int) -> str:
    """Name a status, as its line and `D:status` show it."""
    return f"{status} {HTTPStatus(status).phrase}"


for _status in HTTPStatus:  # the library knows the names of only a few
    ERROR_DESCRIPTIONS.setdefault(_status.value, reason_of(_status.value))
