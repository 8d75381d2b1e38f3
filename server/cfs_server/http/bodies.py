"""Reads request bodies strictly: input outside the contract is refused. Nothing is guessed or converted."""

import math
import re
from collections.abc import Awaitable, Callable
from email.message import Message as MimeHeader
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from cfs.errors import (
    InvalidRequest,
    TooLarge,
    UnsupportedMedia,
)
from cfs_server.domain.loop_bridge import AT_ONCE_BYTES, aside
from cfs_server.domain.quotas import StoreLimits
from cfs_server.http.caller import Caller, Me
from cfs_server.http.errors import invalid

Model = TypeVar("Model", bound=BaseModel)
_T = TypeVar("_T")

_LEAST_VALUES = 100_000
_VALUES_A_MESSAGE = 8
_QUOTE = ord('"')
_TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[{,]', re.DOTALL)
_LONGEST_MARK = len("Infinity")
_MAYBE_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}")


def is_json(request: Request) -> bool:
    """Return whether the content type of the body is JSON."""
    media = _media(request)[0]
    return media == "application/json" or media.endswith("+json")


def json_body(model: type[Model], *, any_media: bool = False) -> Callable[[Request, Caller], Awaitable[Model]]:
    """Return a dependency that reads a JSON body. An empty body means `{}`.

    `any_media`: the content type does not matter, as in protocols whose clients send JSON without naming it.
    """

    async def read(request: Request, me: Me) -> Model:
        body = await request.body()
        if body and not any_media and not is_json(request):
            raise UnsupportedMedia("this body must be JSON: send it with Content-Type: application/json")
        return await apart(request, partial(parse, model, body or b"{}", most_values(me.sessions.limits)))

    return read


async def apart(request: Request, work: Callable[[], _T]) -> _T:
    """Run work on a request's body: on the loop, or in a thread if the body is long."""
    return await aside(len(await request.body()), request.scope["cfs.principal"].name, work)


def most_values(limits: StoreLimits) -> int:
    """Return how many values a long JSON body may contain: enough for the maximum number of messages."""
    return max(_LEAST_VALUES, _VALUES_A_MESSAGE * limits.messages)


def parse(model: type[Model], body: bytes, max_bytes: int) -> Model:
    """Parse JSON as a wire model, without type conversion. Refuse numbers that JSON does not have.

    The parser blocks all other threads while it reads a body. The number of values in a long body is therefore limited.
    """
    if len(body) > AT_ONCE_BYTES:
        _check_values(body, max_bytes)
    try:
        if _may_not_be_finite(body):
            _check_finite(from_json(body, allow_inf_nan=False))
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        if problems[0]["type"] == "json_invalid":
            raise InvalidRequest(f"the body is no JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}") from None
        raise invalid([dict(problem) for problem in problems]) from None
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None


def require_text(request: Request) -> None:
    """Refuse a multipart form and a body whose declared charset is not UTF-8.

    Other types are accepted and read as bytes: `curl -d` declares its data as a form.
    """
    media, charset = _media(request)
    if media.startswith("multipart/"):
        raise UnsupportedMedia("a multipart form is not read here: send the text itself, or JSON")
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia(f"a text must be in UTF-8; this one is said to be in {charset[:40]!r}")


async def read_text(request: Request) -> str:
    """Read a body of plain UTF-8 text."""
    if is_json(request):
        raise UnsupportedMedia("this body must be text: send it with Content-Type: text/plain")
    require_text(request)
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a text must be UTF-8: {error.reason} at byte {error.start}") from None


def _media(request: Request) -> tuple[str, str]:
    header = MimeHeader()
    header["content-type"] = request.headers.get("content-type") or "text/plain"
    return header.get_content_type(), str(header.get_param("charset") or "").lower()


def _may_not_be_finite(body: bytes) -> bool:
    """Search for possible non-finite numbers, one piece at a time: a regular expression blocks other threads."""
    return any(
        _MAYBE_NOT_FINITE.search(body, start, start + AT_ONCE_BYTES + _LONGEST_MARK)
        for start in range(0, len(body), AT_ONCE_BYTES)
    )


def _check_values(body: bytes, max_values: int) -> None:
    """Raise `TooLarge` if there are too many values. Values inside strings do not count."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= max_values:
        return
    values = (match for match in _TEXT_OR_VALUE.finditer(body) if body[match.start()] != _QUOTE)
    if next(islice(values, max_values, None), None) is not None:
        raise TooLarge(f"a body in JSON has {max_values} values at most; this one has more")


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(item)
