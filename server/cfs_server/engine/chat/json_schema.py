"""Rewrites a JSON schema so that llguidance enforces all of it, or refuses the schema.

llguidance compiles a part of JSON Schema exactly and ignores other parts. The ignored parts differ between releases. So
llguidance gets only keywords that it enforces exactly. `prepare` follows references, merges `allOf`, and replaces
formats and patterns. It raises `ValueError` with the keyword and its place for each part that cannot be enforced
(`UNSUPPORTED`).

The result may allow less than the schema, never more. The keywords of a schema without `type` determine its type.
Objects with named properties have no others. Integers have at most 15 digits, and bounded numbers have no exponent.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cfs_server.engine.chat.patterns import FORMATS, STANDARD_FORMATS, anchored, escaped, translated
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
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
               "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
"""Keywords by the type that they are about: the first with one of them is the type of a schema that names none."""
_ASSERTIONS = {"type", "enum", "const", "anyOf", "oneOf", "allOf", *UNSUPPORTED}.union(*_OF_TYPE.values())
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_SHAPES = (("patternProperties", "properties", "additionalProperties"), ("prefixItems", "items", "additionalItems"))
"""Keywords that share names, or items, among them; where the first of a row is there they are merged with no others."""

MOST_PARTS = 5_000
"""Subschemas of one schema, counted again where they are written again: choices multiply under `allOf`.

Compiling these takes a second at most; so do the other limits here.
"""
MOST_VALUES = 20_000
MOST_PATTERNS = 100
MOST_COMPARED = 100_000
"""Pairs of values, or of choices of `oneOf`, that are compared."""
MOST_OPTIONAL = 500
"""Optional properties of one object: compiling takes time quadratic in them."""
_LARGEST = 2**53 - 1
"""Integers beyond it are not exact in floating point, in which llguidance keeps bounds."""
_OPEN_END = 10**15 - 1
_MOST_TRIED = 4
"""How often `MOST_PARTS` are compiled at most, with those that are left out then."""
_DEEPEST = 5
"""How far the choices of `oneOf` are searched for a difference."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A schema for llguidance, and the parts that `BEST_EFFORT` omitted."""

    schema: dict[str, Any]
    left_out: tuple[str, ...] = ()


class Contradiction(ValueError):
    """No value fits."""


class _LeadsNowhere(ValueError):
    """A reference has no target in the schema."""


def prepare(schema: Schema) -> Prepared:
    """Rewrite a schema; raises `ValueError` if it is none, if nothing fits it, or if it cannot be enforced."""
    try:
        flat = flattened(schema)
        compiler = _Compiler(flat.definitions)
        root = compiler.compile(flat.schema, "#")
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"it is not a JSON schema: {type(error).__name__} {error}") from error
    except RecursionError as error:
        raise ValueError("its references lead to themselves, or it is nested too deeply") from error
    root = {} if root is True else root
    return Prepared(root | {"$defs": compiler.definitions}, tuple(sorted(compiler.left_out)))


class _Compiler:
    """Rewrites one schema. References become definitions, one for each target and its sibling keywords."""

    def __init__(self, targets: Mapping[str, Schema]) -> None:
        self._targets = targets
        self._parts = self._all_parts = 0
        self._compared = 0
        self._lenient = False
        self._references: dict[str, str] = {}
        self.definitions: dict[str, Schema] = {}
        self.left_out: set[str] = set()

    def compile(self, schema: Schema, path: str) -> Schema:
        """Rewrite a subschema; `path` is its place, for messages."""
        self._count_parts(1)
        if schema is True or schema is False:
            if not schema:
                raise Contradiction(f"the schema is false at {path}")
            return True
        if schema.get(BEST_EFFORT) is True and not self._lenient:
            return self._best_effort(schema, path)
        for key in UNSUPPORTED.keys() & schema.keys():
            if UNSUPPORTED[key](schema[key], schema):
                self._refuse(key, path)
        rest = dict(schema)
        if "$ref" in rest:
            return self._reference(rest.pop("$ref"), rest, path)
        for key in ("anyOf", "oneOf"):
            if key in rest:
                choices = rest.pop(key)
                if key == "oneOf" and not self._exclusive([merged(rest, each) for each in choices]):
                    self._refuse("oneOf", path, "its choices are not known to exclude each other")
                return self._any_of([(rest, each) for each in choices], f"{path}/{key}")
        if "allOf" in rest:
            whole: Schema = rest
            for each in rest.pop("allOf"):
                self._count_parts(1 + len(whole.get("properties", ())) // 50)  # which are copied each time
                whole = merged(whole, each)
            return self.compile(whole, path)
        if "const" in rest or "enum" in rest:
            return self._values(rest, path)
        return self._typed(rest, path)

    def _count_parts(self, count: int) -> None:
        self._parts += count
        self._all_parts += count
        if self._parts > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS} parts")

    def _best_effort(self, schema: dict[str, Any], path: str) -> Schema:
        self._lenient, before = True, self._parts
        try:
            if self._all_parts > _MOST_TRIED * MOST_PARTS:
                raise ValueError("the parts before it are too many")
            return self.compile(schema, path)
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

    def _reference(self, reference: str, beside: dict[str, Any], path: str) -> Schema:
        """Refer to a definition of a reference's target, merged with the keywords beside the reference."""
        more = {key: value for key, value in beside.items() if key in _ASSERTIONS}
        asked = json.dumps([reference, more, self._lenient])
        if asked not in self._references:
            name = self._references[asked] = f"{len(self._references)}"
            try:
                found = self.compile(merged(self._target(reference), more), reference)
            except _LeadsNowhere as error:
                del self._references[asked]
                if not self._lenient:
                    raise
                self.left_out.add(f"the reference at {path}: {error}")
                return self.compile(beside, path)
            except ValueError:
                del self._references[asked]
                raise
            if isinstance(found, dict) and self._leads_to(found, name):
                raise ValueError(f"the reference {reference!r} leads to itself")
            self.definitions[name] = found
        return {"$ref": f"#/$defs/{self._references[asked]}"}

    def _leads_to(self, schema: dict[str, Any], name: str) -> bool:
        """Whether a schema is this definition itself, by references alone."""
        seen: set[str] = set()
        left: list[Any] = [schema]
        while left:
            each = left.pop()
            if isinstance(each, dict) and "$ref" in each:
                target = each["$ref"].removeprefix("#/$defs/")
                if target == name:
                    return True
                if target not in seen:
                    seen.add(target)
                    left.append(self.definitions.get(target))
            elif isinstance(each, dict):
                left += each.get("anyOf", ())
        return False

    def _target(self, reference: str) -> Schema:
        name = reference.removeprefix(PREFIX)
        if name == reference or name not in self._targets:
            where = "nowhere" if reference.startswith("#") else "out of the schema"
            raise _LeadsNowhere(f"the reference {reference!r} leads {where}")
        return self._targets[name]

    def _any_of(self, pairs: Sequence[tuple[Schema, Schema]], path: str) -> Schema:
        ways, refused = [], Contradiction(f"there is nothing to choose from at {path}")
        for number, (one, other) in enumerate(pairs):
            try:
                ways.append(self.compile(merged(one, other), f"{path}/{number}"))
            except Contradiction as error:
                refused = error
        if not ways:
            raise refused
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _values(self, schema: dict[str, Any], path: str) -> Schema:
        """Write the values that fit their sibling keywords, each in llguidance's only notation."""
        chosen = schema.get("enum", [schema.get("const")])
        if "const" in schema:
            chosen = [each for each in chosen if same(each, schema["const"])]
        if len(chosen) > MOST_VALUES:
            raise ValueError(f"there are more than {MOST_VALUES} values at {path}")
        rest = {key: value for key, value in schema.items() if key not in ("enum", "const")}
        ways: list[Schema] = []
        plain: list[Any] = []
        for value in chosen:
            kind = _kind(value)
            if "type" in rest and not is_of(value, _listed(rest["type"])):
                continue
            if not _exact(value):
                raise ValueError(f"a number at {path} is too large to be exact: {json.dumps(value)[:60]}")
            if not rest.keys() & {*_OF_TYPE.get("number" if kind == "integer" else kind, ())}:
                plain.append(value)
                continue
            try:
                ways.append({"allOf": [{"const": value}, self._typed(rest | {"type": kind}, path)]})
            except Contradiction:
                continue
        if plain:
            ways.append({"enum": plain})
        if not ways:
            raise Contradiction(f"none of the values at {path} is of its type")
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _typed(self, schema: dict[str, Any], path: str) -> Schema:
        kind = schema.get("type") or _implied(schema)
        if kind is None:
            return True
        if isinstance(kind, list):
            return self._any_of([(schema | {"type": each}, True) for each in kind], path)
        match kind:
            case "object":
                return self._object(schema, path)
            case "array":
                return self._array(schema, path)
            case "string":
                return self._string(schema, path)
            case "integer":
                return _integer(schema)
            case "number":
                return _number(schema)
            case "boolean" | "null":
                return {"type": kind}
        raise ValueError(f"{kind!r} at {path} is no type")

    def _object(self, schema: dict[str, Any], path: str) -> Schema:
        """Write an object: with names of its own it holds these alone, in their order."""
        known, required = schema.get("properties", {}), list(dict.fromkeys(schema.get("required", [])))
        others = schema.get("additionalProperties", True)
        least, most = _count(schema, "minProperties") or 0, _count(schema, "maxProperties")
        found: dict[str, Any] = {"type": "object", "additionalProperties": False}
        if most is not None:
            found["maxProperties"] = most
            if most < max(least, len(required)):
                raise Contradiction(f"no object has at least {max(least, len(required))} and at most {most} properties")
        names = schema.get("propertyNames", True)
        patterns = schema.get("patternProperties", {})
        if known or required:
            if names is not True and names != {}:
                self._refuse("propertyNames", path, "there are properties")
            properties = {}
            for name in [*known, *(name for name in required if name not in known)]:
                try:
                    properties[name] = self.compile(known.get(name, others), f"{path}/properties/{name}")
                except Contradiction:
                    if name in required:
                        raise
                    if patterns:  # they must not allow the name
                        properties[name] = False
            if len(properties) - len(required) > MOST_OPTIONAL:
                raise ValueError(f"the object at {path} has more than {MOST_OPTIONAL} optional properties")
            found |= {"properties": properties, "required": required}
            if least > len(required):
                found["minProperties"] = least
            if patterns:
                found["patternProperties"] = self._patterns(patterns, path)
            return found
        if not patterns and (others is False or ("properties" in schema and "additionalProperties" not in schema)):
            if least:
                raise Contradiction("an object without names must have some")
            return found
        if least > 1:  # a name may occur twice
            self._refuse("minProperties", path, "names may be repeated")
        if least:
            found["minProperties"] = 1
        if patterns and (names is not True and names != {}):
            self._refuse("propertyNames", path, "there are patternProperties")
        if patterns:
            return found | {"patternProperties": self._patterns(patterns, path)}
        try:
            value = self.compile(others, f"{path}/additionalProperties")
        except Contradiction:
            if least:
                raise
            return found
        if names is True or names == {}:
            return found | {"additionalProperties": value}
        return found | {"patternProperties": {self._names(names, f"{path}/propertyNames"): value}}

    def _patterns(self, patterns: dict[str, Schema], path: str) -> dict[str, Schema]:
        if len(patterns) > MOST_PATTERNS:
            raise ValueError(f"the object at {path} has more than {MOST_PATTERNS} 'patternProperties'")
        found = {}
        for pattern, schema in patterns.items():
            try:
                found[translated(pattern)] = self.compile(schema, f"{path}/patternProperties/{pattern}")
            except Contradiction:
                found[translated(pattern)] = False
        return found

    def _names(self, schema: Schema, path: str) -> str:
        """Write the allowed names as a pattern."""
        found = self.compile(merged(schema, {"type": "string"}), path)
        while isinstance(found, dict) and "$ref" in found:
            found = self.definitions[found["$ref"].removeprefix("#/$defs/")]
        match found:
            case {"enum": values}:
                return anchored("|".join(map(escaped, values)))
            case {"type": "string", "pattern": str(pattern)} if len(found) == 2:
                return pattern
            case {"type": "string"} if found.keys() <= {"type", "minLength", "maxLength"}:
                return anchored(rf"[\x{{0}}-\x{{10FFFF}}]{{{found.get('minLength', 0)},{found.get('maxLength', '')}}}")
        raise ValueError(f"'propertyNames' at {path} cannot be enforced: it is more than values, a pattern or lengths")

    def _array(self, schema: dict[str, Any], path: str) -> Schema:
        """Write an array; all of `prefixItems` are written, as far as `maxItems` allows."""
        first, more = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(more, list):  # as it was before 2020
            first, more = more, schema.get("additionalItems", True)
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if first and least <= len(first) and "items" not in schema:
            more = False
        items: list[Schema] = []
        for number, each in enumerate(first[:most]):
            try:
                items.append(self.compile(each, f"{path}/prefixItems/{number}"))
            except Contradiction:
                most = number
                break
        rest: Schema = False
        if more is not False and (most is None or most > len(items)):
            try:
                rest = self.compile(more, f"{path}/items")
            except Contradiction:
                rest = False
        if rest is False:
            most = len(items) if most is None else min(most, len(items))
        if most is not None and least > most:
            raise Contradiction(f"no array has at least {least} and at most {most} items")
        least = max(least, len(items))
        found = {"type": "array", "items": rest, "minItems": least} | ({"prefixItems": items} if items else {})
        return found if most is None else found | {"maxItems": most}

    def _string(self, schema: dict[str, Any], path: str) -> Schema:
        found: dict[str, Any] = {"type": "string"}
        least, most = _count(schema, "minLength"), _count(schema, "maxLength")
        if least is not None and most is not None and least > most:
            raise Contradiction(f"no string is at least {least} and at most {most} characters long")
        found |= {"minLength": least} if least else {}
        found |= {"maxLength": most} if most is not None else {}
        patterns = []
        for pattern in _listed(schema.get("pattern", [])):
            try:
                patterns.append(translated(pattern))
            except ValueError as error:
                self._refuse("pattern", path, str(error))
        for form in _listed(schema.get("format", [])):
            if form in FORMATS:
                patterns.append(FORMATS[form])
            elif form in STANDARD_FORMATS:
                self._refuse("format", path, form)
        if len(patterns) > 1:
            return found | {"allOf": [{"pattern": each} for each in patterns]}
        return found | ({"pattern": patterns[0]} if patterns else {})

    def _exclusive(self, choices: Sequence[Schema]) -> bool:
        return all(
            self._disjoint(one, other, 0) for number, one in enumerate(choices) for other in choices[number + 1 :]
        )

    def _disjoint(self, one: Schema, other: Schema, depth: int) -> bool:
        """Whether it is known that no value fits both schemas, as far as replies under one of them are concerned."""
        self._compared += 1
        if depth > _DEEPEST or self._compared > MOST_COMPARED:
            return False
        try:
            one, other = self._resolved(one), self._resolved(other)
        except Contradiction:
            return True
        for this, that in ((one, other), (other, one)):
            for key in ("anyOf", "oneOf"):
                if isinstance(this, dict) and key in this:
                    rest = {name: value for name, value in this.items() if name != key}
                    return all(self._disjoint(merged(rest, each), that, depth + 1) for each in this[key])
        if one is True or other is True:
            return False
        values = [_allowed(each) for each in (one, other)]
        if values[0] is not None and values[1] is not None:
            self._compared += len(values[0]) * len(values[1])
            return self._compared <= MOST_COMPARED and not _values(values[0], values[1])
        shared = (_written(one) & _accepted(other)) | (_written(other) & _accepted(one))
        return not shared or (shared == {"object"} and self._differ(one, other, depth))

    def _differ(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """Whether objects differ in a property that one of the two schemas requires."""
        if {"patternProperties"} & (one.keys() | other.keys()):
            return False
        pairs = [
            tuple(each.get("properties", {}).get(name, each.get("additionalProperties", True)) for each in (one, other))
            for name in {*one.get("required", ()), *other.get("required", ())}
        ]
        return any(False in (mine, theirs) or self._disjoint(mine, theirs, depth + 1) for mine, theirs in pairs)

    def _resolved(self, schema: Schema) -> Schema:
        """Follow references and merge `allOf`."""
        for _ in range(_DEEPEST * 4):
            if not isinstance(schema, dict) or not schema.keys() & {"$ref", "allOf"}:
                return schema
            rest = dict(schema)
            others = rest.pop("allOf", [])
            if "$ref" in rest:
                others = [self._target(rest.pop("$ref")), *others]
            for each in others:
                rest = merged(rest, each)
            schema = rest
        return True


def merged(one: Schema, other: Schema) -> Schema:
    """Intersect two schemas; raises `Contradiction` if nothing fits both, `ValueError` if this is not known.

    Keywords that depend on other schemas stay in `allOf`.
    """
    if one is False or other is False:
        raise Contradiction("the schema is false")
    if one is True or other is True:
        return other if one is True else one
    _check_shapes(one, other)
    both = dict(one)
    if "properties" in one or "properties" in other:
        both["properties"] = _properties(one, other)
    for key, value in other.items():
        if key not in both:
            both[key] = value
        elif key in _LATER and both[key] != value:
            both["allOf"] = [*both.get("allOf", []), {key: value}]
        elif key in _WAYS and not same(both[key], value):
            both[key] = _WAYS[key](both[key], value)
    return both


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: true is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other)


def is_of(value: Any, types: Sequence[str]) -> bool:
    """Whether a value is of one of some types."""
    kind = _kind(value)
    whole = isinstance(value, float) and value.is_integer()
    return kind in types or (kind == "integer" and "number" in types) or (whole and "integer" in types)


def _check_shapes(one: Schema, other: Schema) -> None:
    """Refuse to merge keywords that apply to the rest that sibling keywords leave."""
    for alone, *shape in _SHAPES:
        mine, theirs = ({key: each[key] for key in (alone, *shape) if key in each} for each in (one, other))
        split = alone in mine or alone in theirs or any(isinstance(each.get("items"), list) for each in (mine, theirs))
        if mine and theirs and split and not same(mine, theirs):
            raise ValueError(f"{alone!r} cannot be enforced beside another schema that says something of the same")


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
    if one is True or same(one, other):
        return other
    return one if other is True else {"allOf": [one, other]}


def _types(one: Any, other: Any) -> Any:
    mine, theirs = _listed(one), _listed(other)
    common = [each for each in mine if each in theirs or (each == "integer" and "number" in theirs)]
    common += [each for each in theirs if each == "integer" and "number" in mine and each not in common]
    if not common:
        raise Contradiction(f"nothing is both {one} and {other}")
    return common[0] if len(common) == 1 else common


def _values(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) * len(other) > MOST_COMPARED:
        raise ValueError(f"there are more than {MOST_COMPARED} pairs of values to compare")
    return [value for value in one if any(same(value, each) for each in other)]


def _one_value(one: Any, other: Any) -> Any:
    raise Contradiction(f"nothing is both {one!r} and {other!r}")


def _clash(one: Any, other: Any) -> Any:
    raise ValueError(f"two values of a keyword at once cannot be enforced: {str(one)[:60]} and {str(other)[:60]}")


def _all(one: Any, other: Any) -> list[Any]:
    return [*_listed(one), *(each for each in _listed(other) if each not in _listed(one))]


def _tightest(narrower: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def tightest(one: Any, other: Any) -> Any:
        if isinstance(one, bool) or isinstance(other, bool):  # bounds as they were before 2017
            return _clash(one, other)
        return narrower(one, other)

    return tightest


_LATER = ("$ref", "anyOf", "oneOf")
_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(UNSUPPORTED, _clash),
    "type": _types,
    "enum": _values,
    "const": _one_value,
    "multipleOf": _clash,
    **dict.fromkeys(("required", "allOf", "pattern", "format"), _all),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames"), _together),
    "uniqueItems": max,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), _tightest(max)),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), _tightest(min)),
}
"""How two values of a keyword become one."""


def _integer(schema: dict[str, Any]) -> Schema:
    low, open_low = _bound(schema, "minimum", "exclusiveMinimum", max)
    high, open_high = _bound(schema, "maximum", "exclusiveMaximum", min)
    least = -_LARGEST if low is None or low < -_LARGEST else math.floor(low) + 1 if open_low else math.ceil(low)
    most = _LARGEST if high is None or high > _LARGEST else math.ceil(high) - 1 if open_high else math.floor(high)
    if least > most:
        raise Contradiction(f"no integer of at most 53 bits lies between {low} and {high}")
    if low is None:
        least = min(most, -_OPEN_END)
    if high is None:
        most = max(least, _OPEN_END)
    return {"type": "integer", "minimum": least, "maximum": most} | _multiple(schema)


def _number(schema: dict[str, Any]) -> Schema:
    found: dict[str, Any] = {"type": "number"} | _multiple(schema)
    low, open_low = _bound(schema, "minimum", "exclusiveMinimum", max)
    high, open_high = _bound(schema, "maximum", "exclusiveMaximum", min)
    if low is not None and high is not None and (low > high or (low == high and (open_low or open_high))):
        raise Contradiction(f"no number lies between {low} and {high}")
    for bound, closed, exclusive, is_open in (
        (low, "minimum", "exclusiveMinimum", open_low),
        (high, "maximum", "exclusiveMaximum", open_high),
    ):
        if bound is None:
            continue
        if abs(bound) > _OPEN_END:
            if (bound > 0) == (closed == "minimum"):
                raise ValueError(f"{closed!r} {bound} cannot be enforced: it has more than 15 digits")
            found[closed] = _OPEN_END if bound > 0 else -_OPEN_END
        else:
            found[exclusive if is_open else closed] = int(bound) if bound == int(bound) else float(bound)
    return found


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
    known = [Decimal(str(each)) for each in (within, beyond) if each is not None]
    tightest = narrower(*known) if len(known) == 2 else known[0]
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


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _implied(schema: dict[str, Any]) -> str | None:
    return next((kind for kind, keys in _OF_TYPE.items() if schema.keys() & set(keys)), None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _allowed(schema: dict[str, Any]) -> list[Any] | None:
    """List the values that a schema names, if it does."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _accepted(schema: dict[str, Any]) -> set[str]:
    """List the types that a schema does not exclude."""
    values = _allowed(schema)
    kinds = _listed(schema.get("type", list(_TYPES))) if values is None else map(_kind, values)
    return {"number" if kind == "integer" else kind for kind in kinds}


def _written(schema: dict[str, Any]) -> set[str]:
    """List the types that a reply under a schema may have."""
    implied = _implied(schema)
    known = _allowed(schema) is not None or "type" in schema or implied is None
    return _accepted(schema if known else {"type": implied})
