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


# -- of everything, whether it can be enforced or not -----------------------------------------------------------------

_SMALL: tuple[Schema, ...] = (
    {},
    {"type": "integer"},
    {"type": "number"},
    {"type": "string"},
    {"type": "null"},
    {"type": ["integer", "null"], "maximum": 3},
    {"minimum": -2},
    {"type": "number", "exclusiveMinimum": -1.25, "maximum": 2.5},
    {"type": "integer", "multipleOf": 3, "minimum": 1, "maximum": 9},
    {"type": "number", "multipleOf": 0.25},
    {"maxLength": 2},
    {"type": "string", "minLength": 1, "pattern": "^[ab]*$"},
    {"pattern": "^a|b$", "maxLength": 3},
    {"type": "string", "format": "date"},
    {"const": {"a": 1}},
    {"enum": [1, 2.5, "a", None, True, [1], {"a": 1}, 0, []]},
    {"enum": [1, 2, 3, 4], "minimum": 3},
    {"enum": [{"a": 1}, {"b": 2}, {"a": "x"}], "required": ["a"]},
)
_KEYS = ("a", "b", "ab", 'x"y', "é")


def any_schema(seed: int) -> Schema:
    """Make a schema of keywords side by side, at random; many fit nothing or cannot be enforced."""
    rng = random.Random(seed)
    return _mixed(rng, 3) | {"$defs": {"small": rng.choice(_SMALL), "large": _mixed(rng, 2)}}


def _mixed(rng: random.Random, depth: int) -> Schema:
    if not depth or rng.random() < 0.25:
        return dict(rng.choice(_SMALL))

    def inner() -> Any:
        return _mixed(rng, depth - 1) if rng.random() < 0.95 else rng.random() < 0.5

    keywords: dict[str, Callable[[], Any]] = {
        "type": lambda: rng.choice(["object", "array", "object", "array", ["object", "null"]]),
        "properties": lambda: {name: inner() for name in rng.sample(_KEYS, rng.randint(0, 3))},
        "required": lambda: rng.sample(_KEYS, rng.randint(0, 2)),
        "additionalProperties": inner,
        "patternProperties": lambda: {rng.choice(["^a", "b$"]): inner()},
        "propertyNames": lambda: rng.choice([{"maxLength": 2}, {"enum": ["a", "b"]}, {"pattern": "^a"}]),
        "minProperties": lambda: rng.randint(0, 2),
        "maxProperties": lambda: rng.randint(0, 3),
        "items": inner,
        "prefixItems": lambda: [inner() for _ in range(rng.randint(1, 3))],
        "minItems": lambda: rng.randint(0, 2),
        "maxItems": lambda: rng.randint(0, 3),
        "uniqueItems": lambda: True,
        "anyOf": lambda: [inner() for _ in range(rng.randint(1, 3))],
        "oneOf": lambda: [inner() for _ in range(rng.randint(1, 3))],
        "allOf": lambda: [inner() for _ in range(rng.randint(1, 3))],
        "$ref": lambda: rng.choice(["#/$defs/small", "#/$defs/large"]),
    }
    return {name: keywords[name]() for name in rng.sample(list(keywords), rng.randint(1, 4))}
