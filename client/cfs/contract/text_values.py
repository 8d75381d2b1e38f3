"""Values that a model has sent as text: `"[1, 2]"` where the tool wants an array.

Models do so with nested arguments (github.com/anomalyco/opencode/issues/45211). Such a text is read as JSON where the
schema wants another kind and does not allow a text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_KINDS: dict[type, str] = {dict: "object", list: "array", bool: "boolean", int: "integer", float: "number"}
_MAX_REFERENCES = 20


def read_texts(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the values that the schema of all arguments wants. What does not fit stays as it is."""
    result = _read(dict(values), schema, schema)
    return result if isinstance(result, dict) else dict(values)


def _read(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    choices = _choices(schema, root)
    if isinstance(value, str):
        value = _parsed(value, {kind for choice in choices for kind in _kinds_of(choice)})
    if isinstance(value, dict):
        members = _first(choices, "properties", {})
        return {
            name: _read(member, members[name], root) if name in members else member for name, member in value.items()
        }
    if isinstance(value, list):
        items = _first(choices, "items", True)
        return [_read(member, items, root) for member in value]
    return value


def _parsed(text: str, kinds: set[str]) -> Any:
    """Return what a text says as JSON if only that is of one of the kinds."""
    if not kinds or "string" in kinds:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    kind = _KINDS.get(type(value), "null")
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    return value if fits and kind != "null" else text


def _choices(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas one of which a value must match, without references."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return []
    parts = [part for word in ("anyOf", "oneOf", "allOf") for part in schema.get(word, ())]
    return [schema, *(_resolved(part, root) for part in parts)] if parts else [schema]


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        target: Any = root
        for name in reference.removeprefix("#").split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        schema = target
    return None


def _kinds_of(schema: Any) -> Sequence[str]:
    """Return the kinds that a schema names; "string" if it names none, because it may allow one."""
    if not isinstance(schema, Mapping):
        return ("string",)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return [_KINDS.get(type(value), "string") for value in values]
    kind = schema.get("type")
    if kind is None:
        return () if any(word in schema for word in ("anyOf", "oneOf", "allOf")) else ("string",)
    return (kind,) if isinstance(kind, str) else kind


def _first(choices: Sequence[Any], word: str, default: Any) -> Any:
    return next((choice[word] for choice in choices if isinstance(choice, Mapping) and word in choice), default)
