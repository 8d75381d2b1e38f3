"""Nested arguments that a model sends as text are read where the schema allows no text."""

from typing import Any

import pytest

from cfs.contract.text_values import read_texts

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "object": {"type": "object", "properties": {"inner": {"type": "array"}, "name": {"type": "string"}}},
        "array": {"type": "array", "items": {"type": "object"}},
        "number": {"type": "number"},
        "integer": {"type": "integer"},
        "boolean": {"type": "boolean"},
        "text": {"type": "string"},
        "either": {"anyOf": [{"type": "object"}, {"type": "string"}]},
        "optional": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "several": {"type": ["object", "null"]},
        "choice": {"enum": [1, 2]},
        "word": {"enum": ["[]"]},
        "any": {},
        "referred": {"$ref": "#/properties/object"},
        "endless": {"$ref": "#/properties/endless"},
        "missing": {"$ref": "#/$defs/nothing"},
    },
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}


@pytest.mark.parametrize(
    ("name", "sent", "read"),
    [
        ("object", '{"inner": "[1]", "name": "[1]"}', {"inner": [1], "name": "[1]"}),
        ("object", {"inner": "[1]"}, {"inner": [1]}),
        ("array", '[{"a": 1}]', [{"a": 1}]),
        ("array", ['{"a": 1}', {"b": 2}], [{"a": 1}, {"b": 2}]),
        ("number", "1.5", 1.5),
        ("number", "1", 1),
        ("integer", "7", 7),
        ("boolean", "true", True),
        ("optional", '{"x": "3"}', {"x": 3}),
        ("several", "{}", {}),
        ("choice", "2", 2),
        ("referred", '{"inner": []}', {"inner": []}),
    ],
)
def test_a_text_is_read_where_the_schema_wants_another_kind(name: str, sent: object, read: object) -> None:
    assert read_texts({name: sent}, SCHEMA) == {name: read}


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("text", '{"a": 1}'),
        ("either", '{"a": 1}'),
        ("any", "[1]"),
        ("word", "[]"),
        ("endless", "{}"),
        ("missing", "{}"),
        ("unknown", "{}"),
        ("object", "[1]"),
        ("object", "{'a': 1}"),
        ("object", "null"),
        ("object", ""),
        ("array", "{}"),
        ("integer", "1.5"),
        ("integer", "true"),
        ("boolean", "yes"),
    ],
)
def test_any_other_text_stays_as_it_is(name: str, sent: str) -> None:
    """The check of the arguments says what is wrong with it."""
    assert read_texts({name: sent}, SCHEMA) == {name: sent}
