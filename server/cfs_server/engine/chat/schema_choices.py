"""Decides whether the choices of `oneOf` exclude each other, so that llguidance may take them as `anyOf`.

A discriminated union is one: each choice requires a property that has another value in the other choices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cfs_server.engine.contract.schema_references import PREFIX, Schema

OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
               "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
"""Keywords by the type that they are about: the first with one of them is the type of a schema that names none."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_COMPARED = 100_000
"""Pairs of values, or of choices, that are compared."""
_MAX_DEPTH = 5


class Choices:
    """Compares the subschemas of one flat schema."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._compared = 0

    def exclusive(self, beside: Mapping[str, Any], choices: Sequence[Schema]) -> bool:
        """Return whether no value fits two of the choices, each together with the keywords `beside` them."""
        both = [{"allOf": [dict(beside), choice]} for choice in choices]
        return all(self._disjoint(one, other, 0) for index, one in enumerate(both) for other in both[index + 1 :])

    def _disjoint(self, one: Schema, other: Schema, depth: int) -> bool:
        """Return whether it is known that no value fits both, as far as replies under one of them are concerned."""
        self._compared += 1
        if depth > _MAX_DEPTH or self._compared > MAX_COMPARED:
            return False
        if one is False or other is False:
            return True
        one, other = self._joined(one), self._joined(other)
        for this, that in ((one, other), (other, one)):
            for key in ("anyOf", "oneOf"):
                if key in this:
                    rest = {name: value for name, value in this.items() if name != key}
                    return all(self._disjoint({"allOf": [rest, part]}, that, depth + 1) for part in this[key])
        values, other_values = _values_of(one), _values_of(other)
        if values is not None and other_values is not None:
            self._compared += len(values) * len(other_values)
            return self._compared <= MAX_COMPARED and not any(same(a, b) for a in values for b in other_values)
        shared = (_written(one) & _accepted(other)) | (_written(other) & _accepted(one))
        return not shared or (shared == {"object"} and self._differ(one, other, depth))

    def _differ(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """Return whether objects differ in a property that one of the two schemas requires."""
        if "patternProperties" in one or "patternProperties" in other:
            return False
        return any(
            self._disjoint(_property(one, name), _property(other, name), depth + 1)
            for name in {*one.get("required", ()), *other.get("required", ())}
        )

    def _joined(self, schema: Schema) -> dict[str, Any]:
        """Join what is known of a schema and of what `$ref` and `allOf` add to it. The result may allow more."""
        joined: dict[str, Any] = {}
        left, steps = [schema], 0
        while left and steps < MAX_COMPARED // 100:
            steps += 1
            part = left.pop(0)
            if not isinstance(part, dict):
                continue
            if "$ref" in part:
                left.append(self._definitions.get(str(part["$ref"]).removeprefix(PREFIX), True))
            left += part.get("allOf", ())
            for key, value in part.items():
                if key == "properties":
                    names = joined.setdefault(key, {})
                    names.update({name: {"allOf": [names.get(name, True), inner]} for name, inner in value.items()})
                elif key == "required":
                    joined[key] = [*joined.get(key, ()), *value]
                elif key not in ("$ref", "allOf"):
                    joined.setdefault(key, value)
        return joined


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: true is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other)


def implied_type(schema: Mapping[str, Any]) -> str | None:
    """Return the type that the keywords of a schema are about."""
    return next((kind for kind, keys in OF_TYPE.items() if schema.keys() & set(keys)), None)


def listed(value: Any) -> list[Any]:
    """Return a value that may be a list as a list."""
    return value if isinstance(value, list) else [value]


def _property(schema: Mapping[str, Any], name: str) -> Schema:
    return schema.get("properties", {}).get(name, schema.get("additionalProperties", True))


def _values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema names, if it does."""
    values: list[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
    return values


def _accepted(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema does not exclude."""
    values = _values_of(schema)
    kinds = listed(schema.get("type", list(TYPES))) if values is None else map(_type_of, values)
    return {"number" if kind == "integer" else kind for kind in kinds}


def _written(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a reply under a schema may have."""
    implied = implied_type(schema)
    named = _values_of(schema) is not None or "type" in schema or implied is None
    return _accepted(schema if named else {"type": implied})


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")
