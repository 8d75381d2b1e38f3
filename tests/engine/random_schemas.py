"""Random JSON schemas whose replies are short, for tests of grammars."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_NAMES = ("name", "größe", 'with "quotes"', "back\\slash", "a", "b c", "line\nbreak")
_VALUES: tuple[Any, ...] = (
    "red",
    'sa"id',
    "back\\slash",
    "new\nline",
    "ü",
    3,
    -1,
    2.5,
    True,
    None,
    [1, "x"],
    {"k": []},
)
_PATTERNS = (r"^[A-Z]{2}-\d{1,3}$", r"^(foo|b.r)?$", r"^[^a-y]{1,4}$", r'^\w+@"\\$', r"^\S{0,3}\s[\d.]+$")


def schema(seed: int) -> Schema:
    """Make a schema; the same for the same seed. Objects and arrays are three deep at most, and bounded."""
    return _any(random.Random(seed), 3)


def _any(rng: random.Random, depth: int) -> Schema:
    kinds: list[Callable[[random.Random], Schema]] = [_integer, _integer, _number, _string, _string, _enum, _simple]
    if depth:
        kinds += [lambda r: _object(r, depth), lambda r: _object(r, depth), lambda r: _array(r, depth)]
        kinds += [lambda r: _tuple(r, depth), lambda r: _union(r, depth), lambda r: _both(r, depth)]
        kinds += [lambda r: _map(r, depth)]
    return rng.choice(kinds)(rng)


def _integer(rng: random.Random) -> Schema:
    low = rng.choice([0, 1, -3, rng.randint(-(10**6), 10**6)])
    found: Schema = {"type": "integer"}
    if rng.random() < 0.8:
        found[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.8:
        found[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([2, 9, 100, rng.randint(2, 10**7)])
    return found


def _number(rng: random.Random) -> Schema:
    return {**_integer(rng), "type": "number"}


def _string(rng: random.Random) -> Schema:
    if rng.random() < 0.3:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if rng.random() < 0.3:
        return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4", "email"])}
    least = rng.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}


def _enum(rng: random.Random) -> Schema:
    values = rng.sample(_VALUES, rng.randint(1, 4))
    return {"const": values[0]} if rng.random() < 0.3 else {"enum": values}


def _simple(rng: random.Random) -> Schema:
    return {"type": rng.choice(["boolean", "null", "integer", ["boolean", "null"]])}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(0, 4))
    found: Schema = {"type": "object", "properties": {name: _any(rng, depth - 1) for name in names}}
    found["required"] = [name for name in names if rng.random() < 0.6]
    if rng.random() < 0.7:
        found["additionalProperties"] = False
    elif names and rng.random() < 0.7:
        found["additionalProperties"] = {"type": "integer"}
    return found


def _map(rng: random.Random, depth: int) -> Schema:
    return {
        "type": "object",
        "additionalProperties": _any(rng, depth - 1),
        "propertyNames": {"maxLength": 5},
        "minProperties": rng.randint(0, 1),
        "maxProperties": rng.randint(1, 3),
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _any(rng, depth - 1), "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _tuple(rng: random.Random, depth: int) -> Schema:
    first = [_any(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": first, "items": {"type": "boolean"}, "maxItems": rng.randint(0, 4)}


def _union(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _both(rng: random.Random, depth: int) -> Schema:
    """Parts of one object, one of them by a choice."""
    return {
        "allOf": [
            {
                "properties": {"one": _any(rng, depth - 1), "two": {"type": "integer", "minimum": 7}},
                "required": ["two"],
            },
            {"properties": {"two": {"maximum": 12}}},
        ],
        "anyOf": [{"required": ["one"]}, {"properties": {"three": _any(rng, depth - 1)}, "required": ["three"]}],
        "type": "object",
    }
