"""Writes a JSON schema as a grammar: each reply that the grammar lets end fits the schema. Pure: no library, no I/O.

The library's own converter leaves out bounds of numbers, all but the first of several keywords, and the escapes of
strings. Here a keyword is kept, or told of, or the schema is refused. Where a grammar would have to remember what was
written it allows less than the schema: no names beside those of `properties`, which might be written twice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfs_server.engine.gbnf import objects, values
from cfs_server.engine.gbnf.joining import Contradiction, Schema, joined
from cfs_server.engine.gbnf.patterns import CHARACTER, literal, repeated

_BASE = {
    "ws": '" "?',
    "comma": '"," ws',
    "colon": 'ws ":" ws',
    "char": CHARACTER,
    "text": '"\\"" char* "\\""',
    "any": 'map | list | text | number | "true" | "false" | "null"',
    "number": values.NUMBER,
    "map": '"{" ws (text colon any (comma text colon any)* ws)? "}"',
    "list": '"[" ws (any (comma any)* ws)? "]"',
}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
               "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}  # fmt: skip
"""Keywords that say of a schema without `type` which one is meant: it allows others too, but nobody wants those."""
_UNKEPT = {
    "object": ("dependentRequired", "dependentSchemas", "dependencies"),
    "array": ("uniqueItems", "contains", "minContains", "maxContains"),
    "number": ("multipleOf",),
    "integer": ("multipleOf",),
}
_UNKEPT_ANYWHERE = ("not", "if", "$dynamicRef", "$recursiveRef")
_SAYING = {"type", "enum", "const", "anyOf", "oneOf", "allOf", *_UNKEPT_ANYWHERE}.union(
    *_OF_TYPE.values(), *_UNKEPT.values()
)
"""Keywords that allow or forbid something."""
MOST = 20_000
"""Parts of a schema, those counted again that are written again: choices multiply where several hold at once."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in the library's notation, and the keywords of the schema that it does not keep."""

    text: str
    unkept: tuple[str, ...] = ()


def grammar(schema: dict[str, Any]) -> Grammar:
    """Write a schema as a grammar; raises `ValueError` for what is no schema, fits nothing, or cannot be written."""
    writer = _Writer(schema)
    try:
        root = writer.write(schema)
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"it is not a JSON schema: {type(error).__name__} {error}") from error
    except RecursionError as error:
        raise ValueError("its references lead to themselves") from error
    rules = {"root": root} | _BASE | writer.rules
    return Grammar("\n".join(f"{name} ::= {rule}" for name, rule in rules.items()), tuple(sorted(writer.unkept)))


class _Writer:
    """Collects the rules of one grammar."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._written = 0
        self._names: dict[str, str] = {}
        self._references: dict[str, str] = {}
        self.rules: dict[str, str] = {}
        self.unkept: set[str] = set()

    def write(self, schema: Schema) -> str:
        """Write what fits a schema, as a rule's right side or the name of one."""
        self._written += 1
        if self._written > MOST:
            raise ValueError(f"it has more than {MOST} parts")
        if schema is True or schema == {}:
            return "any"
        if schema is False:
            raise Contradiction("the schema is false")
        rest = dict(schema)
        if "$ref" in rest:
            return self._reference(rest.pop("$ref"), rest)
        for key in ("anyOf", "oneOf"):
            if key in rest:
                return self._any_of([(rest, each) for each in rest.pop(key)])
        if "allOf" in rest:
            whole: Schema = rest
            for each in rest.pop("allOf"):
                whole = joined(whole, each)
            return self.write(whole)
        self.unkept.update(key for key in _UNKEPT_ANYWHERE if key in rest)
        if "const" in rest or "enum" in rest:
            return self._values(rest)
        return self._typed(rest)

    def rule(self, text: str) -> str:
        """Give a rule a name; the same rule has one name."""
        if text not in self._names:
            self._names[text] = f"r{len(self.rules)}"
            self.rules[self._names[text]] = text
        return self._names[text]

    def named(self, schema: Schema) -> str:
        """Write what fits a schema as a rule, and return its name."""
        return self.rule(self.write(schema))

    def _reference(self, reference: str, beside: dict[str, Any]) -> str:
        """Write what a reference leads to as a rule that may speak of itself; what stands beside it holds too."""
        more = {key: value for key, value in beside.items() if key in _SAYING}
        asked = json.dumps([reference, more])
        if asked not in self._references:
            name = self._references[asked] = f"ref{len(self._references)}"
            try:
                self.rules[name] = self.write(joined(self._target(reference), more))
            except Contradiction:
                del self._references[asked]
                raise
        return self._references[asked]

    def _target(self, reference: str) -> Schema:
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(f"the reference {reference!r} leads out of it")
        found = self._root
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"the reference {reference!r} leads nowhere") from error
        return found

    def _any_of(self, pairs: Sequence[tuple[Schema, Schema]]) -> str:
        ways, refused = [], Contradiction("there is nothing to choose from")
        for one, other in pairs:
            try:
                ways.append(self.named(joined(one, other)))
            except Contradiction as error:
                refused = error
        if not ways:
            raise refused
        return " | ".join(dict.fromkeys(ways))

    def _values(self, schema: dict[str, Any]) -> str:
        chosen = schema.get("enum", [schema.get("const")])
        if "const" in schema:
            chosen = [each for each in chosen if json.dumps(each) == json.dumps(schema["const"])]
        types = schema.get("type", _TYPES)
        fitting = [each for each in chosen if values.is_of(each, [types] if isinstance(types, str) else types)]
        bounds = {key for keys in _OF_TYPE.values() for key in keys} | {
            key for keys in _UNKEPT.values() for key in keys
        }
        self.unkept.update(bounds & schema.keys())
        if not fitting:
            raise Contradiction("none of the values is of the type")
        return " | ".join(literal(json.dumps(each, ensure_ascii=False)) for each in fitting)

    def _typed(self, schema: dict[str, Any]) -> str:
        kind = schema.get("type") or next((t for t, keys in _OF_TYPE.items() if schema.keys() & set(keys)), None)
        if kind is None:
            return "any"
        if isinstance(kind, list):
            return self._any_of([(schema | {"type": each}, True) for each in kind])
        self.unkept.update(key for key in _UNKEPT.get(kind, ()) if schema.get(key) not in (None, False))
        match kind:
            case "object":
                text, unkept = objects.object_rule(schema, self.named, self.rule)
            case "array":
                text, unkept = self._array(schema), ()
            case "string":
                text, unkept = values.string_rule(schema)
            case "integer" | "number":
                text, unkept = values.number_rule(schema, whole=kind == "integer"), ()
            case "boolean":
                return '"true" | "false"'
            case "null":
                return '"null"'
            case _:
                raise ValueError(f"{kind!r} is no type")
        self.unkept.update(unkept)
        return text

    def _array(self, schema: dict[str, Any]) -> str:
        """Write an array; all of `prefixItems` are written, as far as `maxItems` allows."""
        first, more = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(more, list):  # as it was before 2020
            first, more = more, schema.get("additionalItems", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if first and least <= len(first) and "items" not in schema:
            more = False
        if more is False:
            most = len(first) if most is None else min(most, len(first))
        if most is not None and least > most:
            raise Contradiction(f"no array has at least {least} and at most {most} items")
        first = first[:most]
        items = [self.named(each) for each in first]
        if most is None or most > len(first):
            item = self.named(more)
            room = None if most is None else most - len(first)
            if items:
                rest = repeated(f"comma {item}", max(0, least - len(first)), room)
                return f'"[" ws {" comma ".join(items)} {rest} ws "]"'
            tail = repeated(f"comma {item}", max(0, least - 1), None if room is None else room - 1)
            return f'"[" ws {item} {tail} ws "]"' if least else f'"[" ws ({item} {tail} ws)? "]"'
        return f'"[" ws {" comma ".join(items)} ws "]"' if items else '"[" ws "]"'
