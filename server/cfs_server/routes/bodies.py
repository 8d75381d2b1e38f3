"""Reading bodies strictly: what the contract does not allow is refused, nothing is guessed or converted."""

import math
import re
from collections.abc import Awaitable, Callable
from email.message import Message as Header
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from cfs.errors import InvalidRequest, TooLarge, UnsupportedMedia
from cfs_server.errors import invalid
from cfs_server.routes.context import Caller, Me
from cfs_server.sessions.carrier import AT_ONCE_BYTES, aside
from cfs_server.sessions.limits import Limits

Model = TypeVar("Model", bound=BaseModel)
_T = TypeVar("_T")

_LEAST_VALUES = 100_000
_VALUES_A_MESSAGE = 8
_QUOTE = ord('"')
_TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[{,]', re.DOTALL)
_LONGEST_MARK = len("Infinity")
_MAYBE_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}")


def is_json(request: Request) -> bool:
    """Whether the body calls itself JSON."""
    media = _media(request)[0]
    return media == "application/json" or media.endswith("+json")


def json_body(model: type[Model]) -> Callable[[Request, Caller], Awaitable[Model]]:
    """Make the dependency that reads a JSON body; an empty one stands for `{}`."""

    async def read(request: Request, me: Me) -> Model:
        body = await request.body()
        if body and not is_json(request):
            raise UnsupportedMedia("this body must be JSON: send it with Content-Type: application/json")
        return await apart(request, partial(parse, model, body or b"{}", most_values(me.sessions.limits)))

    return read


async def apart(request: Request, work: Callable[[], _T]) -> _T:
    """Do what a request's body asks for: at once, or in a thread where the body is long."""
    return await aside(len(await request.body()), request.scope["cfs.principal"].name, work)


def most_values(limits: Limits) -> int:
    """Say how many values a long body in JSON may hold: enough for as many messages as a session may have."""
    return max(_LEAST_VALUES, _VALUES_A_MESSAGE * limits.messages)


def parse(model: type[Model], body: bytes, most: int) -> Model:
    """Read JSON as a wire model, without converting between types, and refuse numbers that JSON does not have.

    A parser reads a body in one piece, during which no other thread runs: so a long one may not hold many values.
    """
    if len(body) > AT_ONCE_BYTES:
        _check_values(body, most)
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
    """Refuse a body that says it is something else than text in UTF-8.

    Any other type passes: curl calls what it is given by `-d` a form, and it is taken as the bytes that it is.
    """
    media, charset = _media(request)
    if media.startswith("multipart/"):
        raise UnsupportedMedia("a multipart form is not read here: send the text itself, or JSON")
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia(f"a text must be in UTF-8; this one is said to be in {charset[:40]!r}")


async def read_text(request: Request) -> str:
    """Read a body that is plain text in UTF-8, and nothing else."""
    if is_json(request):
        raise UnsupportedMedia("this body must be text: send it with Content-Type: text/plain")
    require_text(request)
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a text must be UTF-8: {error.reason} at byte {error.start}") from None


def _media(request: Request) -> tuple[str, str]:
    header = Header()
    header["content-type"] = request.headers.get("content-type") or "text/plain"
    return header.get_content_type(), str(header.get_param("charset") or "").lower()


def _may_not_be_finite(body: bytes) -> bool:
    """Look for what may be no finite number, a piece at a time: no other thread runs while a pattern is looked for."""
    return any(
        _MAYBE_NOT_FINITE.search(body, start, start + AT_ONCE_BYTES + _LONGEST_MARK)
        for start in range(0, len(body), AT_ONCE_BYTES)
    )


def _check_values(body: bytes, most: int) -> None:
    """Raise `TooLarge` for too many values; what looks like one within a text is none."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= most:
        return
    values = (found for found in _TEXT_OR_VALUE.finditer(body) if body[found.start()] != _QUOTE)
    if next(islice(values, most, None), None) is not None:
        raise TooLarge(f"a body in JSON has {most} values at most; this one has more")


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(item)
