"""Strings and numbers of a JSON schema, as GBNF. Pure: no I/O."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from cfs_server.engine.gbnf import digits
from cfs_server.engine.gbnf.joining import Contradiction
from cfs_server.engine.gbnf.patterns import pattern, repeated

NUMBER = '"-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?'
"""The rule `number`: no more than a program's floating point holds."""

_LEAP = r"[12][0-9](0[48]|[2468][048]|[13579][26])|2[048]00|1[26]00"
_DATE = (
    r"([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-(0[1-9]|1[0-9]|2[0-8]))|({_LEAP})-02-29)"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    "ipv4": rf"^{_BYTE}(\.{_BYTE}){{3}}$",
    "email": rf"^[A-Za-z0-9_]{{1,16}}([.+-][A-Za-z0-9_]{{1,16}}){{0,2}}@({_LABEL}\.){{1,3}}[A-Za-z]{{2,12}}$",
}
"""Forms of strings; years are those from 1000 to 2999."""

_IS_OF: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}


def is_of(value: Any, types: Sequence[str]) -> bool:
    """Whether a value is of one of some types of JSON Schema."""
    return any(_IS_OF[each](value) for each in types)


def string_rule(schema: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Write a string, and name the keywords that are not kept: of pattern, format and length the first one is."""
    lengths = tuple(key for key in ("minLength", "maxLength") if key in schema)
    wanted, form = schema.get("pattern"), schema.get("format")
    if wanted is not None or form in _FORMATS:
        rule = pattern(_FORMATS[str(form)] if wanted is None else wanted)
        unkept = (*lengths, *(["format"] if wanted is not None and form else []))
        return f'"\\"" ({rule}) "\\""', unkept
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        raise Contradiction(f"no string is at least {least} and at most {most} characters long")
    inner = repeated("char", least, most) if lengths else "char*"
    return f'"\\"" {inner} "\\""', ("format",) if form else ()


def number_rule(schema: dict[str, Any], *, whole: bool) -> str:
    """Write a number, or integer, between its bounds."""
    low, open_low = _bound(schema, "minimum", "exclusiveMinimum", max)
    high, open_high = _bound(schema, "maximum", "exclusiveMaximum", min)
    try:
        if whole:
            least = None if low is None else math.floor(low) + 1 if open_low else math.ceil(low)
            most = None if high is None else math.ceil(high) - 1 if open_high else math.floor(high)
            return digits.integers(least, most)
        if low is None and high is None:
            return "number"
        return digits.decimals(low, high, open_low=open_low, open_high=open_high)
    except ValueError as error:
        raise Contradiction(str(error)) from error


def _bound(
    schema: dict[str, Any], closed: str, exclusive: str, narrower: Callable[..., Decimal]
) -> tuple[Decimal | None, bool]:
    """Return the narrower one of two bounds, and whether it is itself left out."""
    within, beyond = schema.get(closed), schema.get(exclusive)
    if isinstance(beyond, bool):  # as it was before 2017
        return (None if within is None else Decimal(str(within))), beyond
    if within is None and beyond is None:
        return None, False
    known = [Decimal(str(each)) for each in (within, beyond) if each is not None]
    tightest = narrower(*known) if len(known) == 2 else known[0]
    return tightest, beyond is not None and tightest == Decimal(str(beyond))
