"""Rewrites a JSON schema so that it can be cut, or put into another one. Pure: no library, no I/O.

References lead from the root of a schema, such as `#/properties/from`, which zod writes for a schema that it meets
twice (ggml-org/llama.cpp#16790), from a part with an `$id`, or to an `$anchor`. In another
place they would lead elsewhere. So all that references lead to becomes a definition, and each reference its name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

Schema = Any
"""A JSON schema: a dictionary, or true (anything) or false (nothing)."""

PREFIX = "#/$defs/"
"""How the references of a flat schema begin."""
MOST_NODES = 50_000
"""Subschemas of one flat schema: those that references lead to are there again."""
MOST_INLINED = 2_000
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = frozenset({*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords with a subschema for each name."""
_NESTED = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords with a subschema, or a list of them. All others have plain values, in which `$ref` is no reference."""
_PLACES = frozenset({"$id", "$anchor", "$schema", *_DEFINITIONS})
"""Keywords that say where references lead, which a flat schema does not need."""
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
_COMBINED = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_OLD = re.compile(r"draft-0[34]")


@dataclass(frozen=True, slots=True)
class FlatSchema:
    """A schema whose references lead to its definitions. A reference that leads nowhere stays as it was."""

    schema: Schema
    definitions: dict[str, Schema]

    @property
    def whole(self) -> Schema:
        """The schema with its definitions."""
        return self.schema | {"$defs": self.definitions} if self.definitions else self.schema

    def inlined(self) -> "FlatSchema":
        """Return the schema with definitions in the place of references, except where these would have no end."""
        recursive = {name for name in self.definitions if self._leads_to(name)}
        inliner = _Inliner(self.definitions, recursive)
        try:
            return FlatSchema(inliner.inlined(self.schema), {name: inliner.body(name) for name in sorted(recursive)})
        except ValueError:
            return self

    def _leads_to(self, name: str) -> bool:
        """Whether a definition contains itself."""
        seen: set[str] = set()
        left = [self.definitions[name]]
        while left:
            for target in _references_in(left.pop()):
                if target == name:
                    return True
                if target in self.definitions and target not in seen:
                    seen.add(target)
                    left.append(self.definitions[target])
        return False


def flattened(schema: Schema, mark: str = "") -> FlatSchema:
    """Rewrite a schema; `mark` begins the names of its definitions. Raises `ValueError` for one that is too large."""
    flattener = _Flattener(schema, mark)
    try:
        return FlatSchema(flattener.rewritten(schema, ""), flattener.definitions)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Follow the references that are a whole subschema of a flat schema, apart from notes beside them."""
    seen: set[str] = set()
    while isinstance(schema, Mapping) and isinstance(name := schema.get("$ref"), str) and name not in seen:
        seen.add(name)
        target = definitions.get(name.removeprefix(PREFIX))
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if not isinstance(target, Mapping) or (beside.keys() & target.keys()) - _NOTES:
            break
        schema = {**target, **beside}
    return schema


def arguments_of(function: Mapping[str, Any], mark: str = "") -> FlatSchema:
    """Return the schema of a tool's arguments, an object. Other arguments are allowed only if it allows them."""
    parameters = function.get("parameters")
    try:
        flat = flattened(parameters if isinstance(parameters, Mapping) else {}, mark)
    except ValueError:
        flat = FlatSchema({}, {})
    schema = dict(resolved(flat.schema, flat.definitions))
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        schema = {}
    schema["type"] = "object"
    if isinstance(schema.get("properties"), Mapping) and not schema.keys() & _COMBINED:
        schema.setdefault("additionalProperties", False)
    return FlatSchema(schema, flat.definitions)


def portable(schema: Schema) -> Schema:
    """Return a schema for another server: references that do not lead to definitions at the root are replaced."""
    if not isinstance(schema, dict) or all(map(_is_plain, _raw_references(schema))):
        return schema
    try:
        return flattened(schema).inlined().whole
    except ValueError:
        return schema


class _Flattener:
    """Rewrites one schema."""

    def __init__(self, root: Schema, mark: str) -> None:
        self.definitions: dict[str, Schema] = {}
        self._mark = mark
        self._names: dict[Any, str] = {}
        self._count = 0
        self._id_key = "id" if isinstance(root, Mapping) and _OLD.search(str(root.get("$schema", ""))) else "$id"
        self._root = root
        identifier = root.get(self._id_key) if isinstance(root, Mapping) else None
        self._root_uri = identifier.removesuffix("#") if isinstance(identifier, str) else ""
        self._resources: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], tuple[Schema, str]] = {}
        self._index()

    def rewritten(self, schema: Schema, base: str) -> Schema:
        """Rewrite a subschema whose references start from the part with the URI `base`."""
        self._count += 1
        if self._count > MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES} parts, those of its references included")
        if not isinstance(schema, Mapping):
            return schema
        base = self._base_of(schema, base)
        result: dict[str, Schema] = {}
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                result[key] = self._reference(value, base)
            elif key not in _PLACES and key != self._id_key:
                result[key] = _mapped(key, value, lambda part: self.rewritten(part, base))
        return result

    def _reference(self, reference: str, base: str) -> str:
        """Return the reference of a definition, which is made if there is none yet."""
        target = self._target(reference, base)
        if target is None:
            return reference
        schema, base = target
        key = (id(schema), base) if isinstance(schema, Mapping) else schema
        if key not in self._names:
            name = self._names[key] = self._new_name(reference)
            self.definitions[name] = True  # it may refer to itself
            self.definitions[name] = self.rewritten(schema, base)
        return PREFIX + self._names[key]

    def _new_name(self, reference: str) -> str:
        steps = [step for step in unquote(reference.partition("#")[2]).split("/") if step]
        if len(steps) > 1 and steps[0] in _DEFINITIONS:
            del steps[0]
        name = self._mark + (re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join(steps)) or "root")
        number = 2
        unique = name
        while unique in self.definitions:
            unique, number = f"{name}_{number}", number + 1
        return unique

    def _target(self, reference: str, base: str) -> tuple[Schema, str] | None:
        """Return what a reference leads to, and the URI from which the references there start."""
        try:
            uri, fragment = urldefrag(reference)
            uri = urljoin(base or self._root_uri, uri) if uri else base
        except ValueError:
            return None
        uri = "" if uri == self._root_uri else uri
        if uri not in self._resources:
            return None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((uri, fragment))
        schema = self._resources[uri]
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(name)] if isinstance(schema, list) else schema[name]
            except (KeyError, IndexError, ValueError, TypeError):
                return None
            uri = self._base_of(schema, uri) if isinstance(schema, Mapping) else uri
        return (schema, uri) if isinstance(schema, Mapping | bool) else None

    def _base_of(self, schema: Mapping[str, Any], base: str) -> str:
        """Return the URI from which the references in a schema start; that of the root is empty."""
        identifier = schema.get(self._id_key)
        if not isinstance(identifier, str) or identifier.startswith("#") or schema is self._root:
            return base
        try:
            return urljoin(base or self._root_uri, identifier).removesuffix("#")
        except ValueError:
            return base

    def _index(self) -> None:
        """Note the parts with an `$id` or an `$anchor`."""
        left = [(self._root, "")]
        while left:
            schema, base = left.pop()
            if not isinstance(schema, Mapping):
                continue
            inner = self._base_of(schema, base)
            if inner != base:
                self._resources.setdefault(inner, schema)
            identifier = schema.get(self._id_key)
            old_anchor = identifier[1:] if isinstance(identifier, str) and identifier.startswith("#") else None
            for name in (schema.get("$anchor"), schema.get("$dynamicAnchor"), old_anchor):
                if isinstance(name, str):
                    self._anchors.setdefault((inner, name), (schema, inner))
            left += [(part, inner) for part in _parts_of(schema)]


class _Inliner:
    """Puts definitions in the place of references."""

    def __init__(self, definitions: Mapping[str, Schema], recursive: set[str]) -> None:
        self._definitions = definitions
        self._recursive = recursive
        self._count = 0

    def body(self, name: str) -> Schema:
        """Return a definition that stays."""
        return self.inlined(self._definitions[name])

    def inlined(self, schema: Schema) -> Schema:
        """Rewrite a subschema; raises `ValueError` if it becomes too large."""
        self._count += 1
        if self._count > MOST_INLINED:
            raise ValueError(f"it has more than {MOST_INLINED} parts")
        if not isinstance(schema, Mapping):
            return schema
        result = {key: _mapped(key, value, self.inlined) for key, value in schema.items()}
        name = str(result.get("$ref", "")).removeprefix(PREFIX)
        if name not in self._definitions or name in self._recursive:
            return result
        del result["$ref"]
        target = self.inlined(self._definitions[name])
        if not result:
            return target
        if not isinstance(target, Mapping) or (result.keys() & target.keys()) - _NOTES:
            return {**result, "allOf": [*result.get("allOf", ()), target]}
        return {**target, **result}


def _mapped(key: str, value: Any, rewrite: Any) -> Any:
    """Rewrite the subschemas in the value of a keyword."""
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: rewrite(part) if isinstance(part, Mapping | bool) else part for name, part in value.items()}
    if key in _NESTED:
        return [rewrite(part) for part in value] if isinstance(value, list) else rewrite(value)
    return value


def _parts_of(schema: Mapping[str, Any]) -> list[Schema]:
    """List the subschemas of a schema."""
    parts: list[Schema] = []
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            parts += value.values()
        elif key in _NESTED:
            parts += value if isinstance(value, list) else [value]
    return parts


def _raw_references(schema: Schema) -> list[str]:
    """List the references of a schema, and the names by which it says where they lead."""
    references: list[str] = []
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            references += [part[key] for key in ("$ref", "$id", "$anchor") if isinstance(part.get(key), str)]
            left += _parts_of(part)
    return references


def _references_in(schema: Schema) -> list[str]:
    return [reference.removeprefix(PREFIX) for reference in _raw_references(schema)]


def _is_plain(reference: str) -> bool:
    """Whether every server that knows references knows this one."""
    return any(reference.startswith(f"#/{key}/") and reference.count("/") == 2 for key in _DEFINITIONS)
