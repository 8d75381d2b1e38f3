"""Prepares a JSON schema for llguidance, or refuses the schema.

llguidance intersects schemas, follows references and drops choices that nothing fits. The official test suite of JSON
Schema shows what it enforces, lets pass and refuses (`scripts/bench json_schema`). `prepare` does the rest:

- It refuses what llguidance would let pass unchecked, with the keyword and its place.
- It rewrites what llguidance refuses or takes for something else, where another notation says the same: formats,
  patterns, `propertyNames`, and `oneOf` whose choices exclude each other.
- It narrows what a weak model gets lost in. The keywords of a schema without `type` determine its type. Objects with
  named properties have no others, unless another part of the schema may add some. All of `prefixItems` are written.
  Integers have at most 15 digits, and bounded numbers have no exponent.

So the result may allow less than the schema, never more.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cfs_server.engine.chat.patterns import FORMATS, STANDARD_FORMATS, anchored, escaped, translated
from cfs_server.engine.chat.schema_choices import OF_TYPE, TYPES, Choices, implied_type, listed
from cfs_server.engine.contract.schema_references import PREFIX, Schema, flattened

BEST_EFFORT = "x-best-effort"
"""True in a schema: parts of the schema that cannot be enforced are omitted and reported, not refused."""

UNSUPPORTED: dict[str, Callable[[Any, Schema], bool]] = {
    "not": lambda value, _: value is not False,
    "if": lambda _, schema: bool(schema.keys() & {"then", "else"}),
    "uniqueItems": lambda value, schema: value is True and schema.get("maxItems", 2) > 1,
    "contains": lambda *_: True,
    "dependentRequired": lambda value, _: value != {},
    "dependentSchemas": lambda value, _: value != {},
    "dependencies": lambda value, _: value != {},
    "unevaluatedItems": lambda value, _: value is not True,
    "unevaluatedProperties": lambda value, _: value is not True,
    "$dynamicRef": lambda *_: True,
    "$recursiveRef": lambda *_: True,
    "disallow": lambda *_: True,
    "divisibleBy": lambda *_: True,
    "extends": lambda *_: True,
}
"""Keywords that cannot be enforced, and whether they constrain anything with this value in this schema.

Others that are not written here are annotations, which constrain nothing.
"""
_SHAPES = {*OF_TYPE["object"], *OF_TYPE["array"]}
_ASSERTIONS = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", *UNSUPPORTED}.union(*OF_TYPE.values())

MOST_PARTS = 5_000
"""Subschemas of one schema. Compiling these takes a second at most; so do the other limits here."""
MOST_VALUES = 20_000
MOST_PATTERNS = 100
MOST_OPTIONAL = 500
"""Optional properties of one object: compiling takes time quadratic in them."""
_LARGEST = 2**53 - 1
"""Integers beyond it are not exact in floating point, in which llguidance keeps bounds."""
_OPEN_END = 10**15 - 1
_MOST_TRIED = 4
"""How often `MOST_PARTS` are prepared at most, with those that are left out then."""


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema for llguidance, and the parts that `BEST_EFFORT` omitted."""

    schema: dict[str, Any]
    left_out: tuple[str, ...] = ()


def prepare(schema: Schema) -> PreparedSchema:
    """Rewrite a schema; raises `ValueError` if it is none, or if it cannot be enforced."""
    try:
        flat = flattened(schema)
        rewriter = _Rewriter(flat.definitions)
        root = rewriter.rewrite(flat.schema, "#")
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"it is not a JSON schema: {type(error).__name__} {error}") from error
    except RecursionError as error:
        raise ValueError("its references lead to themselves, or it is nested too deeply") from error
    if root is False:
        raise ValueError("the schema is false")
    rewriter.check_references()
    root = {} if root is True else root
    return PreparedSchema(root | {"$defs": rewriter.definitions}, tuple(sorted(rewriter.left_out)))


class _Rewriter:
    """Rewrites one schema. Each target of a reference becomes a definition, once for each way in which it is read."""

    def __init__(self, targets: Mapping[str, Schema]) -> None:
        self._targets = targets
        self._choices = Choices(targets)
        self._parts = self._all_parts = 0
        self._lenient = False
        self._names: dict[tuple[str, bool, bool], str] = {}
        self.definitions: dict[str, Schema] = {}
        self.left_out: set[str] = set()

    def rewrite(self, schema: Schema, path: str, *, shared: bool = False) -> Schema:
        """Rewrite a subschema; `path` is its place, for messages. Other parts may add properties to a `shared` one."""
        self._parts += 1
        self._all_parts += 1
        if self._parts > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS} parts")
        if schema is True or schema is False:
            return schema
        if schema.get(BEST_EFFORT) is True and not self._lenient:
            return self._best_effort(schema, path)
        for key in UNSUPPORTED.keys() & schema.keys():
            if UNSUPPORTED[key](schema[key], schema):
                self._refuse(key, path)
        schema = {key: value for key, value in schema.items() if key in _ASSERTIONS and key not in UNSUPPORTED}
        applied = [key for key in ("$ref", "allOf", "anyOf", "oneOf") if key in schema]
        shared = shared or len(applied) + bool(schema.keys() & _SHAPES) > 1 or len(schema.get("allOf", ())) > 1
        parts = [self._applied(key, schema, path, shared=shared) for key in applied]
        rest = {key: value for key, value in schema.items() if key not in applied}
        if rest:
            parts.append(self._own(rest, path, shared=shared))
        if not parts:
            return True
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def check_references(self) -> None:
        """Raise `ValueError` for a definition that is nothing but itself."""
        for name, definition in self.definitions.items():
            seen: set[str] = set()
            left: list[Any] = [definition]
            while left:
                part = left.pop()
                if not isinstance(part, dict):
                    continue
                left += [*part.get("anyOf", ()), *part.get("allOf", ())]
                target = part.get("$ref", "").removeprefix(PREFIX)
                if target == name:
                    source = next(key for key, number in self._names.items() if number == name)[0]
                    raise ValueError(f"the reference {source!r} leads to itself")
                if target and target not in seen:
                    seen.add(target)
                    left.append(self.definitions[target])

    def _best_effort(self, schema: dict[str, Any], path: str) -> Schema:
        self._lenient, before = True, self._parts
        try:
            if self._all_parts > _MOST_TRIED * MOST_PARTS:
                raise ValueError("the parts before it are too many")
            return self.rewrite(schema, path)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
            self.left_out.add(f"all of {path}: {error}")
            self._parts = before  # what is left out does not count
            return {"type": "object"} if schema.get("type") == "object" else True
        finally:
            self._lenient = False

    def _refuse(self, keyword: str, path: str, reason: str = "") -> None:
        why = f"{keyword!r} at {path} cannot be enforced" + (f": {reason}" if reason else "")
        if not self._lenient:
            raise ValueError(why)
        self.left_out.add(why)

    def _applied(self, key: str, schema: Mapping[str, Any], path: str, *, shared: bool) -> Schema:
        """Rewrite a keyword that applies other schemas to the same value."""
        if key == "$ref":
            return self._reference(schema[key], path, shared=shared)
        if not isinstance(schema[key], list) or not schema[key]:
            raise ValueError(f"{key!r} at {path} is no list of schemas")
        if key == "oneOf":
            beside = {name: value for name, value in schema.items() if name != key}
            if not self._choices.exclusive(beside, schema[key]):
                self._refuse(key, path, "its choices are not known to exclude each other")
        parts = [self.rewrite(part, f"{path}/{key}/{number}", shared=shared) for number, part in enumerate(schema[key])]
        return {"allOf" if key == "allOf" else "anyOf": parts}

    def _reference(self, reference: str, path: str, *, shared: bool) -> Schema:
        target = reference.removeprefix(PREFIX)
        if target == reference or target not in self._targets:
            where = "nowhere" if reference.startswith("#") else "out of the schema"
            why = f"the reference {reference!r} leads {where}"
            if not self._lenient:
                raise ValueError(why)
            self.left_out.add(f"the reference at {path}: {why}")
            return True
        key = target, self._lenient, shared
        if key not in self._names:
            name = self._names[key] = f"{len(self._names)}"
            self.definitions[name] = True  # it may refer to itself
            try:
                self.definitions[name] = self.rewrite(self._targets[target], reference, shared=shared)
            except ValueError:
                del self._names[key]
                raise
        return {"$ref": PREFIX + self._names[key]}

    def _own(self, schema: dict[str, Any], path: str, *, shared: bool) -> Schema:
        """Rewrite the keywords of a schema that are about the value itself."""
        result: dict[str, Any] = {key: schema[key] for key in ("enum", "const") if key in schema}
        if len(values := schema.get("enum", ())) > MOST_VALUES:
            raise ValueError(f"there are more than {MOST_VALUES} values at {path}")
        for value in (*values, *([schema["const"]] if "const" in schema else ())):
            if not _exact(value):
                raise ValueError(f"a number at {path} is too large to be exact: {json.dumps(value)[:60]}")
        kinds = listed(schema.get("type", ([] if result else None) or implied_type(schema) or []))
        if unknown := [kind for kind in kinds if kind not in TYPES]:
            raise ValueError(f"{unknown[0]!r} at {path} is no type")
        if not kinds:
            kinds = list(TYPES) if schema.keys() - result.keys() else []
        if not kinds:
            return result
        ways = [result | self._typed(kind, schema, path, shared=shared or bool(result)) for kind in kinds]
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _typed(self, kind: str, schema: dict[str, Any], path: str, *, shared: bool) -> dict[str, Any]:
        match kind:
            case "object":
                return self._object(schema, path, shared=shared)
            case "array":
                return self._array(schema, path, shared=shared)
            case "string":
                return self._string(schema, path)
            case "integer":
                return _integer(schema)
            case "number":
                return _number(schema)
        return {"type": kind}

    def _object(self, schema: dict[str, Any], path: str, *, shared: bool) -> dict[str, Any]:
        """Write an object: with names of its own it holds these alone, unless other parts may add some."""
        declared, required = schema.get("properties", {}), list(dict.fromkeys(schema.get("required", [])))
        patterns, names = schema.get("patternProperties", {}), schema.get("propertyNames", True)
        others = schema.get("additionalProperties", True)
        min_count, max_count = _count(schema, "minProperties") or 0, _count(schema, "maxProperties")
        result: dict[str, Any] = {"type": "object"} | ({} if max_count is None else {"maxProperties": max_count})
        if names not in (True, {}) and (declared or required or patterns):
            self._refuse("propertyNames", path, "there are properties")
            names = True
        properties = {name: self.rewrite(part, f"{path}/properties/{name}") for name, part in declared.items()}
        if len(properties.keys() - set(required)) > MOST_OPTIONAL:
            raise ValueError(f"the object at {path} has more than {MOST_OPTIONAL} optional properties")
        if "additionalProperties" in schema:
            others = self.rewrite(others, f"{path}/additionalProperties")
        closed = not shared and bool("properties" in schema or required or patterns)
        if closed:
            properties |= {name: others for name in required if name not in properties}
            others = False
        if min_count > max(1, len(required)) and others is not False:
            self._refuse("minProperties", path, "names may be repeated")
            min_count = 1
        result |= {"minProperties": min_count} if min_count > len(required) else {}
        result |= {"properties": properties, "required": required} if properties or required else {}
        result |= {"patternProperties": self._patterns(patterns, path)} if patterns else {}
        if names not in (True, {}):
            return result | {
                "patternProperties": {self._named(names, f"{path}/propertyNames"): others},
                "additionalProperties": False,
            }
        return result if others is True else result | {"additionalProperties": others}

    def _patterns(self, patterns: dict[str, Schema], path: str) -> dict[str, Schema]:
        if len(patterns) > MOST_PATTERNS:
            raise ValueError(f"the object at {path} has more than {MOST_PATTERNS} 'patternProperties'")
        return {
            translated(pattern): self.rewrite(schema, f"{path}/patternProperties/{pattern}")
            for pattern, schema in patterns.items()
        }

    def _named(self, schema: Schema, path: str) -> str:
        """Write the allowed names as a pattern."""
        result = self.rewrite(schema, path)
        while isinstance(result, dict) and "$ref" in result:
            result = self.definitions[result["$ref"].removeprefix(PREFIX)]
        match result:
            case {"enum": values} if result.keys() <= {"enum", "type"}:
                return anchored("|".join(escaped(value) for value in values if isinstance(value, str)))
            case {"const": str(value)} if result.keys() <= {"const", "type"}:
                return anchored(escaped(value))
            case {"type": "string", "pattern": str(pattern)} if len(result) == 2:
                return pattern
            case {"type": "string"} if result.keys() <= {"type", "minLength", "maxLength"}:
                return anchored(
                    rf"[\x{{0}}-\x{{10FFFF}}]{{{result.get('minLength', 0)},{result.get('maxLength', '')}}}"
                )
        raise ValueError(f"'propertyNames' at {path} cannot be enforced: it is more than values, a pattern or lengths")

    def _array(self, schema: dict[str, Any], path: str, *, shared: bool) -> dict[str, Any]:
        """Write an array; all of `prefixItems` are written, as far as `maxItems` allows."""
        first, more = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(more, list):  # as it was before 2020
            first, more = more, schema.get("additionalItems", True)
        min_items, max_items = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if first and not shared:
            if min_items <= len(first) and "items" not in schema:
                more = False
            min_items = max(min_items, len(first) if max_items is None else min(max_items, len(first)))
        items = [self.rewrite(part, f"{path}/prefixItems/{number}") for number, part in enumerate(first)]
        result: dict[str, Any] = {"type": "array", "items": self.rewrite(more, f"{path}/items"), "minItems": min_items}
        return (
            result | ({"prefixItems": items} if items else {}) | ({} if max_items is None else {"maxItems": max_items})
        )

    def _string(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        result: dict[str, Any] = {"type": "string"}
        min_length, max_length = _count(schema, "minLength"), _count(schema, "maxLength")
        result |= {"minLength": min_length} if min_length else {}
        result |= {"maxLength": max_length} if max_length is not None else {}
        patterns = []
        for pattern in listed(schema.get("pattern", [])):
            try:
                patterns.append(translated(pattern))
            except ValueError as error:
                self._refuse("pattern", path, str(error))
        for form in listed(schema.get("format", [])):
            if form in FORMATS:
                patterns.append(FORMATS[form])
            elif form in STANDARD_FORMATS:
                self._refuse("format", path, form)
        if len(patterns) > 1:
            return result | {"allOf": [{"pattern": pattern} for pattern in patterns]}
        return result | ({"pattern": patterns[0]} if patterns else {})


def _integer(schema: dict[str, Any]) -> dict[str, Any]:
    low, open_low = _bound(schema, "minimum", "exclusiveMinimum", max)
    high, open_high = _bound(schema, "maximum", "exclusiveMaximum", min)
    minimum = -_LARGEST if low is None or low < -_LARGEST else math.floor(low) + 1 if open_low else math.ceil(low)
    maximum = _LARGEST if high is None or high > _LARGEST else math.ceil(high) - 1 if open_high else math.floor(high)
    if minimum > maximum:
        raise ValueError(f"no integer of at most 53 bits lies between {low} and {high}")
    if low is None:
        minimum = min(maximum, -_OPEN_END)
    if high is None:
        maximum = max(minimum, _OPEN_END)
    return {"type": "integer", "minimum": minimum, "maximum": maximum} | _multiple(schema)


def _number(schema: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "number"} | _multiple(schema)
    low, open_low = _bound(schema, "minimum", "exclusiveMinimum", max)
    high, open_high = _bound(schema, "maximum", "exclusiveMaximum", min)
    if low is not None and high is not None and (low > high or (low == high and (open_low or open_high))):
        raise ValueError(f"no number lies between {low} and {high}")
    for bound, closed, exclusive, is_open in (
        (low, "minimum", "exclusiveMinimum", open_low),
        (high, "maximum", "exclusiveMaximum", open_high),
    ):
        if bound is None:
            continue
        if abs(bound) > _OPEN_END:
            if (bound > 0) == (closed == "minimum"):
                raise ValueError(f"{closed!r} {bound} cannot be enforced: it has more than 15 digits")
            result[closed] = _OPEN_END if bound > 0 else -_OPEN_END
        else:
            result[exclusive if is_open else closed] = int(bound) if bound == int(bound) else float(bound)
    return result


def _multiple(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `multipleOf` if llguidance represents it exactly, as 32 bits and a power of ten."""
    value = schema.get("multipleOf")
    if value is None:
        return {}
    exact = Decimal(str(value)).normalize()
    if exact <= 0 or len(exact.as_tuple().digits) > 9:
        raise ValueError(f"'multipleOf' {value} cannot be enforced")
    return {"multipleOf": value}


def _bound(
    schema: dict[str, Any], closed: str, exclusive: str, narrower: Callable[..., Decimal]
) -> tuple[Decimal | None, bool]:
    """Return the narrower one of two bounds, and whether it is itself left out."""
    within, beyond = schema.get(closed), schema.get(exclusive)
    if isinstance(beyond, bool):  # as it was before 2017
        return (None if within is None else Decimal(str(within))), beyond
    if within is None and beyond is None:
        return None, False
    bounds = [Decimal(str(bound)) for bound in (within, beyond) if bound is not None]
    tightest = narrower(*bounds) if len(bounds) == 2 else bounds[0]
    return tightest, beyond is not None and tightest == Decimal(str(beyond))


def _count(schema: dict[str, Any], keyword: str) -> int | None:
    value = schema.get(keyword)
    if value is not None and (isinstance(value, bool) or value < 0 or value != int(value)):
        raise ValueError(f"{keyword!r} is {value!r}")
    return None if value is None else int(value)


def _exact(value: Any) -> bool:
    """Whether all numbers in a value are as they are in floating point."""
    if isinstance(value, dict | list):
        return all(map(_exact, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or int(float(value)) == value
