"""JSON schemas: refused with a reason, or enforced whole. Nothing that a constraint lets through breaks its schema."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lib

from cfs.errors import SchemaRefused
from cfs_server.engine.chat.json_schema import BEST_EFFORT, MOST_OPTIONAL, MOST_PARTS, MOST_PATTERNS, prepare
from cfs_server.engine.chat.patterns import FORMATS
from cfs_server.engine.llama.tokenizer import Vocabulary
from tests.engine import random_schemas
from tests.engine.schema_support import Schemas, official_suite

Schema = Any
_HUGE_EXPONENT = re.compile(r"[eE][+-]?\d{15}")
"""In numbers that no `Decimal` can hold."""


@pytest.fixture(scope="module")
def schemas(tiny: Path) -> Iterator[Schemas]:
    """The constraints for a vocabulary of bytes."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(tiny).encode(), params)
    yield Schemas(Vocabulary(model))
    lib.llama_model_free(model)


# -- the official test suite ------------------------------------------------------------------------------------------


def cases(folder: Path) -> Iterator[tuple[str, Schema, list[dict[str, Any]]]]:
    """List the schemas of the draft that we claim, each with its instances."""
    for file in sorted((folder / "draft2020-12").glob("*.json")):
        for case in json.loads(file.read_text()):
            yield f"{file.stem}: {case['description']}", case["schema"], case["tests"]


def test_no_schema_of_the_official_suite_is_kept_weaker(
    schemas: Schemas, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of accepted ones all invalid instances are refused, and what they let through at random is valid."""
    kept: pytest.Cache | None = getattr(request.config, "cache", None)
    cache = tmp_path_factory.mktemp("suite") if kept is None else kept.mkdir("json-schema-suite")
    count: Counter[str] = Counter()
    seeds = min(10, settings().max_examples // 3)
    for name, schema, instances in cases(official_suite(cache)):
        try:
            schemas.begun(schema)
        except SchemaRefused:
            count["refused"] += 1
            continue
        count["accepted"] += 1
        for instance in instances:
            texts = [json.dumps(instance["data"], ensure_ascii=ascii_only) for ascii_only in (True, False)]
            taken = any(schemas.accepts(schema, text) for text in texts)
            assert instance["valid"] or not taken, (name, instance["description"])
            count["valid", taken] += instance["valid"]  # type: ignore[index]
        valid = jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid
        for seed in range(seeds):
            reply = schemas.random_reply(schema, seed)
            if reply is not None and not _HUGE_EXPONENT.search(reply):
                count["random"] += 1
                assert valid(json.loads(reply, parse_float=Decimal)), (name, reply)
    assert count["accepted"] >= 185
    assert count["random"] >= 140 * seeds
    assert count["valid", True] >= 260  # type: ignore[index]


def test_no_random_schema_is_kept_weaker(schemas: Schemas) -> None:
    """Keywords side by side that say something of the same thing, or contradict each other."""
    count: Counter[str] = Counter()
    seeds = 15 * settings().max_examples
    for seed in range(seeds):
        schema = random_schemas.any_schema(seed)
        try:
            schemas.begun(schema)
        except SchemaRefused:
            continue
        count["accepted"] += 1
        valid = jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid
        for number in range(3):
            reply = schemas.random_reply(schema, number, 100)
            if reply is not None and not _HUGE_EXPONENT.search(reply):
                count["random"] += 1
                assert valid(json.loads(reply, parse_float=Decimal)), (schema, reply)
    assert count["accepted"] >= seeds * 2 // 5
    assert count["random"] >= seeds * 4 // 5


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"properties": {"a": {"items": {"type": "array", "uniqueItems": True}}}},
            "'uniqueItems' at #/properties/a/it",
        ),
        ({"type": "array", "contains": {"const": 1}}, "'contains' at #"),
        ({"not": {"type": "string"}}, "'not' at #"),
        ({"anyOf": [{"type": "null"}, {"if": {}, "then": {"type": "string"}}]}, "'if' at #/anyOf/1"),
        ({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}, "'dependentRequired' at #"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"dependentSchemas": {"a": {}}}}}, "'dependentSchemas' at #/.defs/a"),
        ({"dependencies": {"a": ["b"]}}, "'dependencies'"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, "'unevaluatedProperties'"),
        ({"prefixItems": [{}], "unevaluatedItems": False}, "'unevaluatedItems'"),
        ({"$dynamicRef": "#node"}, "'\\$dynamicRef'"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' at #.*not known to exclude"),
        ({"type": "string", "format": "json-pointer"}, "'format' at #.*json-pointer"),
        ({"type": "object", "minProperties": 2}, "'minProperties'"),
        ({"properties": {"a": {}}, "propertyNames": {"maxLength": 3}}, "'propertyNames'"),
        ({"patternProperties": {"a": {"type": "string"}, "b": {"type": "null"}}}, "not disjoint"),
        ({"type": "number", "multipleOf": 0.123456789012}, "'multipleOf'"),
        ({"type": "number", "multipleOf": 0}, "'multipleOf'"),
        ({"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 3}, "no reply fits|[Uu]nsatisfiable|empty"),
        ({"type": "number", "minimum": 10**16}, "15 digits"),
        ({"type": "integer", "minimum": 2**53}, "53 bits"),
        ({"const": 2**53 + 1}, "too large"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no integer"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no integer"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "no number lies between"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, r"minItems \(3\) is greater than maxItems \(2\)"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, r"minLength \(3\) is greater than maxLength \(2\)"),
        ({"type": "string", "minLength": -1}, "'minLength'"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "incompatible types"),
        ({"allOf": [{"const": 1}, {"const": True}]}, "incompatible types"),
        ({"type": "string", "enum": [1, 2]}, "incompatible types"),
        ({"enum": [1, 2], "minimum": 3}, "none of the values|[Uu]nsatisfiable"),
        ({"properties": {"a": False}, "required": ["a"]}, "required property 'a' is unsatisfiable"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "pattern"),
        ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
        ({"type": "string", "pattern": "\\bfoo"}, "pattern"),
        ({"type": "string", "pattern": "(?i)a"}, "pattern"),
        ({"type": "string", "pattern": "["}, "pattern"),
        ({"type": "string", "pattern": "("}, "JSON schema"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "[Uu]nsatisfiable|empty"),
        ({"$ref": "https://example.com/schema"}, "leads out of the schema"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "itself"),
        ({"$id": "x", "properties": {"a": {"$ref": "x", "maxProperties": 1}}}, "circular references with sibling keys"),
        ({"properties": {"a": {"$id": "http://x/y", "$ref": "#/$defs/b"}}}, "leads nowhere"),
        ({"type": "object", "properties": ["a"]}, "not a JSON schema"),
        ({"type": "no-such-type"}, "no type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_enforced_is_refused_and_named(schemas: Schemas, schema: Schema, reason: str) -> None:
    """By keyword and place."""
    with pytest.raises(SchemaRefused, match=reason):
        schemas.begun(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"anyOf": [{"minItems": n * m} for n in range(9)]} for m in range(9)]},
        {"properties": {f"{n}": {} for n in range(MOST_OPTIONAL + 1)}},
        {"properties": {f"{n}": {} for n in range(MOST_PARTS)}, "required": [f"{n}" for n in range(MOST_PARTS)]},
        {"patternProperties": {f"^{n}$": {} for n in range(MOST_PATTERNS + 1)}},
        {"enum": list(range(20_001))},
        {"allOf": [{"enum": list(range(10_000))}, {"enum": list(range(9_000, 19_000))}]},
        {"allOf": [{"properties": {f"{n}": {}}} for n in range(MOST_PARTS)]},
        {"oneOf": [{"const": n} for n in range(MOST_PARTS)]},
        {"oneOf": [{"enum": list(range(n, 20_000, 2))} for n in range(2)]},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_would_take_long_is_refused(schemas: Schemas, schema: Schema) -> None:
    """Here or by the library, before much is compiled."""
    with pytest.raises(SchemaRefused, match=r"more than|not known|too large"):
        schemas.begun(schema)


def test_a_schema_in_a_schema_in_a_schema_is_refused_at_some_depth() -> None:
    schema: Schema = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        prepare(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "T", "description": "d", "default": 1, "type": "integer", "maximum": 3, "x-anything": {"not": 1}},
        {"type": "array", "uniqueItems": False},
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        {"type": "array", "minContains": 2},
        {"type": "string", "then": {"maxLength": 2}},
        {"type": "string", "format": "password"},
        {"properties": {"not": {"const": 1}, "$ref": {"type": "null"}}},
        {"enum": [{"uniqueItems": True}]},
        {"const": {"$ref": "#/nowhere"}},
    ],
    ids=str,
)
def test_what_constrains_nothing_is_no_reason_to_refuse(schemas: Schemas, schema: Schema) -> None:
    """Annotations, keywords with values that say nothing, names and values that look like keywords."""
    schemas.begun(schema)


def test_best_effort_leaves_out_what_cannot_be_enforced_and_says_what(schemas: Schemas) -> None:
    """Only where it is asked for, and no further than it must."""
    argument = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}, "maxItems": 3}
    call = {"type": "object", "properties": {"a": argument, "b": {"pattern": "(?=x)"}}, "required": ["a"]}
    with pytest.raises(ValueError, match="'uniqueItems'"):
        prepare({"properties": {"arguments": call}})
    lenient = {"properties": {"arguments": {"properties": {"a": argument}} | {BEST_EFFORT: True}}}
    assert prepare(lenient).left_out == ("'uniqueItems' at #/properties/arguments/properties/a cannot be enforced",)
    assert schemas.accepts(lenient, '{"arguments":{"a":[1,1]}}')
    assert not schemas.accepts(lenient, '{"arguments":{"a":["1"]}}')
    both = prepare({"properties": {"arguments": call | {BEST_EFFORT: True}}})
    assert [line.partition(" at ")[0] for line in both.left_out] == ["'pattern'", "'uniqueItems'"]
    hopeless = {"properties": {"arguments": call | {"minProperties": -1, BEST_EFFORT: True}}}
    assert "'minProperties' is -1" in prepare(hopeless).left_out[0]
    assert schemas.accepts(hopeless, '{"arguments":{"whatever":1}}')
    with pytest.raises(ValueError, match="'uniqueItems' at #/properties/b"):
        prepare({"properties": {"a": argument | {BEST_EFFORT: True}, "b": argument}})


# -- what is allowed --------------------------------------------------------------------------------------------------

BOUND = st.one_of(st.integers(-120, 120), st.integers(-(10**14), 10**14))


@given(one=BOUND, other=BOUND, data=st.data())
def test_integers_of_a_range_are_allowed_and_no_others(
    schemas: Schemas, one: int, other: int, data: st.DataObject
) -> None:
    """Ends and their neighbours, numbers between them, and numbers from anywhere."""
    low, high = sorted((one, other))
    schema = {"type": "integer", "minimum": low, "maximum": high}
    near = {end + step for end in (low, high) for step in (-11, -10, -1, 0, 1, 9, 10)}
    drawn = {data.draw(st.integers(low, high)), data.draw(BOUND)}
    for number in near | drawn:
        assert schemas.accepts(schema, str(number)) == (low <= number <= high), (low, high, number)


DECIMAL = st.decimals(-200, 200, places=3, allow_nan=False)


@given(one=DECIMAL, other=DECIMAL, open_low=st.booleans(), open_high=st.booleans(), data=st.data())
def test_numbers_of_a_range_are_allowed_and_no_others(
    schemas: Schemas, one: Decimal, other: Decimal, open_low: bool, open_high: bool, data: st.DataObject
) -> None:
    low, high = sorted((one, other))
    schema = {
        "type": "number",
        "exclusiveMinimum" if open_low else "minimum": float(low),
        "exclusiveMaximum" if open_high else "maximum": float(high),
    }
    if low == high and (open_low or open_high):
        with pytest.raises(SchemaRefused, match="no number lies between"):
            schemas.begun(schema)
        return
    for number in (low, high, low + (high - low) / 2, *(data.draw(DECIMAL) for _ in range(10))):
        exact = number.quantize(Decimal("0.001")).normalize()
        inside = low < exact < high or (exact == low and not open_low) or (exact == high and not open_high)
        texts = {f"{exact or abs(exact):f}", f"{exact:.3f}".replace("-0.000", "0.000")}
        assert any(schemas.accepts(schema, text) for text in texts) == inside, (schema, texts)


@pytest.mark.parametrize(
    ("schema", "numbers"),
    [
        ({"minimum": 1, "maximum": 3}, [1, 2, 3]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2]),
        ({"minimum": 0.5, "maximum": 2.5}, [1, 2]),
        ({"exclusiveMinimum": -2.5, "maximum": -1}, [-2, -1]),
        ({"minimum": 0, "exclusiveMinimum": 0, "maximum": 9, "exclusiveMaximum": 2}, [1]),
        ({"minimum": 4, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": True}, [5]),
        ({"minimum": -1, "exclusiveMinimum": False, "maximum": 1}, [-1, 0, 1]),
        ({"multipleOf": 7, "minimum": -8, "maximum": 20}, [-7, 0, 7, 14]),
        ({"enum": [1, 5, 9], "minimum": 2, "maximum": 8}, [5]),
        ({"allOf": [{"minimum": 3}, {"maximum": 4}]}, [3, 4]),
        ({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, [-18, -12, -6, 0, 6, 12, 18]),
    ],
    ids=str,
)
def test_all_forms_of_bounds_are_kept(schemas: Schemas, schema: Schema, numbers: list[int]) -> None:
    """Also bounds that are no integers, several at once, and those that older drafts write as true."""
    assert schemas.values({"type": "integer"} | schema, range(-20, 20)) == numbers


def test_numbers_without_bounds_end_somewhere(schemas: Schemas) -> None:
    """Integers where programs with floating point no longer read them exactly."""
    assert schemas.accepts({"type": "integer"}, "-" + "9" * 15)
    assert not schemas.accepts({"type": "integer"}, "9" * 16)
    assert schemas.accepts({"type": "integer", "maximum": 2**63}, str(2**53 - 1))
    assert not schemas.accepts({"type": "integer", "maximum": 2**63}, str(2**53))
    for text in ("00", "01", "+1", "1.0"):
        assert not schemas.accepts({"type": "integer"}, text)


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("^a.c$", ["abc", "a🙂c"], ["a\nc", "a\rc", "a\u2028c", "ac"]),
        (r"^\d\w\S$", ["1_é"], ["١aa", "1éa", "1a ", "1a\ufeff"]),
        (r"^\s$", [" ", "\t", "\u00a0", "\ufeff"], ["a", "\u0085"]),
        (r"^[^\S]$", [" "], ["a"]),
        ("a$|^b", ["xa", "bx"], ["x", "ax"]),
        ("^[[&&]-$", ["[-", "&-"], ["&"]),
        (r"^\x41\u00e9\u{1F642}\cI\/$", ["Aé🙂\t/"], ["A"]),
        ("(?<year>[0-9]{4})", ["in 2024!"], ["in 24"]),
        ("^a{2,3}?$", ["aa", "aaa"], ["a", "aaaa"]),
        ("^[^]$", ["\n", "x"], ["", "xx"]),
        ('^\\w+@"\\\\$', ['a@"\\'], ["a@"]),
        ("", ["", "x"], []),
    ],
)
def test_patterns_mean_what_they_mean_in_javascript(
    schemas: Schemas, pattern: str, taken: list[str], refused: list[str]
) -> None:
    """The library's own dialect differs in classes, sets and line ends."""
    assert schemas.values({"type": "string", "pattern": pattern}, [*taken, *refused]) == taken


def test_several_things_of_a_string_hold_together(schemas: Schemas) -> None:
    schema = {"allOf": [{"pattern": "^[a-z]*$"}, {"pattern": "b"}], "minLength": 2, "maxLength": 3, "type": "string"}
    words = ["b", "ab", "abc", "abcd", "aa", "B1"]
    assert schemas.values(schema, words) == ["ab", "abc"]
    assert schemas.values({"type": "string", "maxLength": 1}, ["", "é", "🙂", "\n", '"', "ab"]) == [
        "",
        "é",
        "🙂",
        "\n",
        '"',
    ]
    assert not schemas.accepts({"type": "string"}, '"\\ud800"'), "half of a pair is no text"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_in_a_format_is_of_it(schemas: Schemas, name: str) -> None:
    schema = {"type": "string", "format": name}
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    replies = [schemas.random_reply(schema, seed) for seed in range(60)]
    written = [json.loads(reply) for reply in replies if reply is not None]
    assert len(written) > 20
    for text in written:
        assert validator.is_valid(text), text


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"properties": {"a": {}}}, [{}, {"a": 1}], [{"b": 1}, 1]),
        ({"properties": {"a": {}, "b": {}}, "required": ["c"]}, [{"b": 1, "c": 2}], [{"b": 1}, {"c": 1, "b": 2}]),
        ({"properties": {}}, [{}], [{"a": 1}]),
        ({"type": "object", "additionalProperties": {"type": "null"}}, [{"x": None, "y": None}], [{"x": 1}]),
        ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}, {"a": 1, "b": 2, "c": 3}]),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, [{"b": 1}], [{}]),
        ({"patternProperties": {"^x": {"type": "null"}}}, [{"x1": None}, {}], [{"x1": 1}, {"y": None}]),
        ({"properties": {"xa": {"enum": []}}, "patternProperties": {"^x": {}}}, [{"xb": 1}], [{"xa": 1}]),
        ({"properties": {"xa": {}}, "patternProperties": {"^x": {"type": "null"}}}, [{"xa": None}], [{"xa": 1}]),
        (
            {"type": "object", "propertyNames": {"enum": ["r.d", "b"]}, "additionalProperties": {"type": "null"}},
            [{"r.d": None}],
            [{"rad": None}, {"b": 1}],
        ),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
        ({"prefixItems": [{"type": "null"}, {"const": 1}]}, [[None, 1]], [[], [None], [None, 1, 2]]),
        (
            {"prefixItems": [{"type": "null"}], "items": {"const": 1}, "maxItems": 2},
            [[None], [None, 1]],
            [[None, 1, 1]],
        ),
        ({"items": [{"type": "null"}], "additionalItems": False}, [[None]], [[None, None]]),
        ({"items": {"const": 1}, "minItems": 1, "maxItems": 2}, [[1], [1, 1]], [[], [1, 1, 1], [2]]),
        ({"items": False}, [[]], [[1]]),
        (
            {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
            [{"a": 1}],
            [{"b": 1}],
        ),
        (
            {"allOf": [{"patternProperties": {"^a": {"type": "null"}}}, {"additionalProperties": False}]},
            [{}],
            [{"a": 1}],
        ),
        (
            {"allOf": [{"prefixItems": [{"type": "string"}]}, {"items": {"maxLength": 3}}]},
            [["abc"], ["abc", "abc"], []],
            [["abcd"], [1], ["abc", "abcd"]],
        ),
        (
            {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]},
            [{"a": 1}, {"a": 1, "b": 2}],
            [{"b": 1}, 1],
        ),
        ({"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}, {}]),
        ({"enum": [{"a": 1}, {"b": 1}, 3], "required": ["b"], "type": "object"}, [{"b": 1}], [{"a": 1}, 3]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_objects_and_arrays(schemas: Schemas, schema: Schema, taken: list[Any], refused: list[Any]) -> None:
    """With names of its own an object has no others, in their order; all of `prefixItems` are written."""
    assert schemas.values(schema, [*taken, *refused]) == taken


def test_a_name_cannot_be_written_in_another_way(schemas: Schemas) -> None:
    """An escape in a name would get past the schema of the property."""
    schema = {"properties": {"a": {"type": "null"}}, "patternProperties": {"^b": {"type": "null"}}}
    assert schemas.accepts(schema, '{"a":null}')
    for name in ("\\u0061", "\\u0062", "\\u0063"):
        assert not schemas.accepts(schema, f'{{"{name}":1}}')


DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "age": {"type": "integer"}}, "required": ["kind"]}
CAT = {"properties": {"kind": {"enum": ["cat", "lion"]}}, "required": ["kind"], "type": "object"}


@pytest.mark.parametrize(
    ("choices", "taken"),
    [
        ([{"$ref": "#/$defs/dog"}, {"$ref": "#/$defs/cat"}], [{"kind": "dog"}, {"kind": "cat"}]),
        ([{"type": "string"}, {"type": "null"}, {"const": 3}], ["x", None, 3]),
        ([{"enum": [1, "a"]}, {"enum": [True, "b"]}], [1, "a", True, "b"]),
        ([{"anyOf": [{"$ref": "#/$defs/dog"}, {"type": "null"}]}, {"$ref": "#/$defs/cat"}], [None, {"kind": "lion"}]),
        ([{"allOf": [{"$ref": "#/$defs/dog"}]}, {"type": "array"}], [{"kind": "dog", "age": 1}, []]),
    ],
    ids=str,
)
def test_choices_that_exclude_each_other_may_be_one_of(schemas: Schemas, choices: list[Any], taken: list[Any]) -> None:
    """By type, by value, or by a property that has to be there."""
    schema = {"oneOf": choices, "$defs": {"dog": DOG, "cat": CAT}}
    assert schemas.values(schema, taken) == taken


@pytest.mark.parametrize(
    "choices",
    [
        [DOG, CAT | {"required": []}, {"type": "null"}, {"properties": {"kind": {"const": "dog"}}}],
        [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"maxLength": 3}],
        [{"const": 1}, {"const": 1.0}],
        [{"type": "object"}, {}],
        [{"$ref": "#/oneOf/1"}, {"type": ["null", "string"]}],
    ],
    ids=str,
)
def test_choices_that_may_both_fit_are_refused(schemas: Schemas, choices: list[Any]) -> None:
    with pytest.raises(SchemaRefused, match="oneOf"):
        schemas.begun({"oneOf": choices})


def test_a_schema_of_itself(schemas: Schemas) -> None:
    """Also with a note beside the reference."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", "deprecated": True}}}
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    assert schemas.accepts(schema, '{"next":{"next":{}}}')
    assert not schemas.accepts(schema, '{"next":{"next":1}}')


def test_white_space_is_one_space_behind_a_mark(schemas: Schemas) -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    for text in ('{"a":[1,2]}', '{"a": [1, 2]}'):
        assert schemas.accepts(schema, text)
    for text in (
        '{"a":  [1,2]}',
        '{"a" :[1,2]}',
        '{"a":[1 ,2]}',
        '{ "a":[1,2]}',
        '{"a":[ 1,2]}',
        '{\n"a":[1,2]}',
        ' {"a":[]}',
    ):
        assert not schemas.accepts(schema, text)
