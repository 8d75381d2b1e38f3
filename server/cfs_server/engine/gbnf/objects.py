"""Objects of a JSON schema, as GBNF. Pure: no I/O."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cfs_server.engine.gbnf.joining import Contradiction, Schema, joined
from cfs_server.engine.gbnf.patterns import literal, repeated

Named = Callable[[Schema], str]
Rule = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class _Member:
    rule: str
    required: bool


def object_rule(schema: dict[str, Any], named: Named, rule: Rule) -> tuple[str, tuple[str, ...]]:
    """Write an object, and name the keywords that are not kept.

    With names of its own it holds these alone, in their order. Without any it holds what names it likes, which might
    come twice; so `minProperties` above 1 is not kept. `named` writes a schema as a rule, `rule` gives a rule a name.
    """
    known = schema.get("properties", {})
    required = schema.get("required", [])
    if known or required:
        return _fixed(schema, known, required, named, rule)
    if "patternProperties" not in schema and (
        schema.get("additionalProperties") is False or ("properties" in schema and "additionalProperties" not in schema)
    ):
        if schema.get("minProperties", 0) > 0:
            raise Contradiction("an object without names must have some")
        return '"{" ws "}"', ()
    return _free(schema, named)


def _fixed(
    schema: dict[str, Any], known: dict[str, Schema], required: Sequence[str], named: Named, rule: Rule
) -> tuple[str, tuple[str, ...]]:
    others = schema.get("additionalProperties", True)
    members = []
    for name in [*known, *(name for name in dict.fromkeys(required) if name not in known)]:
        try:
            value = named(known.get(name, others))
        except Contradiction:
            if name in required:
                raise
        else:
            key = literal(json.dumps(name, ensure_ascii=False))
            members.append(_Member(rule(f"{key} colon {value}"), name in required))
    least, most = sum(each.required for each in members), len(members)
    unkept: list[str] = [key for key in ("patternProperties", "propertyNames") if key in schema]
    unkept += ["minProperties"] if schema.get("minProperties", 0) > least else []
    unkept += ["maxProperties"] if schema.get("maxProperties", most) < most else []
    body = _members(members, rule)
    return (f'"{{" ws {body} ws "}}"' if body else '"{" ws "}"'), tuple(unkept)


def _members(members: Sequence[_Member], rule: Rule) -> str:
    """Write members in their order, with commas between those that are there."""
    behind = ""  # what may follow when something is written already
    first = ""  # the same when nothing is
    for member in reversed(members):
        start = f"{member.rule} {behind}".strip()
        if member.required:
            first, behind = start, f"comma {start}"
        else:
            first = f"({start} | {first})" if first else f"({start})?"
            behind = f"(comma {member.rule})? {behind}".strip()
        first, behind = _short(first, rule), _short(behind, rule)
    return first


def _short(text: str, rule: Rule) -> str:
    """Give what is repeated in longer rules a name, so that many optional members do not make a grammar huge."""
    return rule(text) if " " in text else text


def _free(schema: dict[str, Any], named: Named) -> tuple[str, tuple[str, ...]]:
    names = schema.get("propertyNames", True)
    patterns = schema.get("patternProperties", {})
    if patterns:
        pairs = [(joined({"type": "string", "pattern": each}, names), value) for each, value in patterns.items()]
    else:
        pairs = [(joined({"type": "string"}, names), schema.get("additionalProperties", True))]
    pair = " | ".join(f"{named(name)} colon {named(value)}" for name, value in pairs)
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    if most is not None and least > most:
        raise Contradiction(f"no object has at least {least} and at most {most} members")
    unkept = [*(["minProperties"] if least > 1 else []), *(["patternProperties"] if len(patterns) > 1 else [])]
    if most == 0:
        return '"{" ws "}"', ()
    tail = repeated(f"comma ({pair})", max(0, least - 1), None if most is None else most - 1)
    body = f"({pair}) {tail} ws"
    return (f'"{{" ws {body} "}}"' if least else f'"{{" ws ({body})? "}}"'), tuple(unkept)
