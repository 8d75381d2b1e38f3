"""Two JSON schemas that both hold, as one. Pure: no I/O."""

from collections.abc import Callable
from typing import Any

Schema = Any
"""A JSON schema: a dictionary, or true (anything) or false (nothing)."""

_LATER = ("$ref", "anyOf", "oneOf")
_CLASHING = frozenset({"pattern", "format", "prefixItems", "patternProperties"})
"""Keywords that are kept, two of which cannot be written as one."""


class Contradiction(ValueError):
    """No JSON fits."""


def joined(one: Schema, other: Schema) -> Schema:
    """Make the schema of what fits both; raises `Contradiction` where nothing can, `ValueError` where it is not known.

    What needs a look at other schemas stays side by side in `allOf`.
    """
    if one is False or other is False:
        raise Contradiction("the schema is false")
    if one is True or other is True:
        return other if one is True else one
    both = dict(one)
    if "properties" in one or "properties" in other:
        both["properties"] = _properties(one, other)
    for key, value in other.items():
        if key not in both:
            both[key] = value
        elif key in _LATER and both[key] != value:
            both["allOf"] = [*both.get("allOf", []), {key: value}]
        elif key in _WAYS and both[key] != value:
            both[key] = _WAYS[key](both[key], value)
        elif key in _CLASHING and both[key] != value:
            raise ValueError(f"two different values of {key!r} at once")
    return both


def _properties(one: Schema, other: Schema) -> dict[str, Schema]:
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    return {
        name: _together(
            mine.get(name, one.get("additionalProperties", True)),
            theirs.get(name, other.get("additionalProperties", True)),
        )
        for name in [*mine, *(name for name in theirs if name not in mine)]
    }


def _together(one: Schema, other: Schema) -> Schema:
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def _types(one: Any, other: Any) -> Any:
    mine, theirs = ([each] if isinstance(each, str) else list(each) for each in (one, other))
    common = [each for each in mine if each in theirs or (each == "integer" and "number" in theirs)]
    common += [each for each in theirs if each == "integer" and "number" in mine and each not in common]
    if not common:
        raise Contradiction(f"nothing is both {one} and {other}")
    return common[0] if len(common) == 1 else common


def _values(one: list[Any], other: list[Any]) -> list[Any]:
    return [value for value in one if any(value == each and type(value) is type(each) for each in other)]


def _one_value(one: Any, other: Any) -> Any:
    raise Contradiction(f"nothing is both {one!r} and {other!r}")


def _all(one: list[Any], other: list[Any]) -> list[Any]:
    return [*one, *(each for each in other if each not in one)]


_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "const": _one_value,
    "required": _all,
    "allOf": _all,
    "items": _together,
    "additionalProperties": _together,
    "propertyNames": _together,
    "uniqueItems": max,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}
