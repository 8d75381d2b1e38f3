"""References within a schema lead to the same parts wherever the schema is put, and whatever is cut from it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from llama_cpp import llama_cpp as lib

from cfs_server.engine.chat.constrained_output import reply_schema
from cfs_server.engine.chat.reply_parser import ReplyReader
from cfs_server.engine.contract.schema_references import MOST_NODES, arguments_of, flattened, portable
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.grammar import Grammars
from tests.engine.support import Answer, ask, running

Schema = dict[str, Any]

PLACE: Schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TRIP: Schema = {"type": "object", "required": ["from", "to"], "additionalProperties": False}
LIST: Schema = {
    "type": "object",
    "properties": {"value": {"type": "integer", "maximum": 99}, "next": {"$ref": "#"}},
    "required": ["value"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, tuple[Schema, list[Any]]] = {
    "sibling, as zod": (
        TRIP | {"properties": {"from": PLACE, "to": {"$ref": "#/properties/from"}}},
        [{"from": {"city": "Bern"}, "to": {"city": "Oslo"}}, {"from": {"city": "Bern"}, "to": {}}, {"from": {}}],
    ),
    "part of a sibling": (
        TRIP | {"properties": {"from": {"type": "array", "items": PLACE}, "to": {"$ref": "#/properties/from/items"}}},
        [{"from": [{"city": "Bern"}], "to": {"city": "Oslo"}}, {"from": [], "to": []}],
    ),
    "a text": (
        TRIP | {"properties": {"from": {"type": "string"}, "to": {"$ref": "#/properties/from", "description": "x"}}},
        [{"from": "a", "to": "b"}, {"from": "a", "to": 1}],
    ),
    "definitions": (
        TRIP
        | {"properties": {"from": {"$ref": "#/definitions/a%20b"}, "to": {"$ref": "#/$defs/x~1y"}}}
        | {"definitions": {"a b": PLACE}, "$defs": {"x/y": {"$ref": "#/definitions/a%20b"}}},
        [{"from": {"city": "Bern"}, "to": {"city": "Oslo"}}, {"from": {"city": "Bern"}, "to": 1}],
    ),
    "the whole": (LIST, [{"value": 1, "next": {"value": 2}}, {"value": 1, "next": {}}, {"value": 1, "next": 3}]),
    "a name at the root": (
        {"$ref": "#/definitions/Trip", "definitions": {"Trip": LIST | {"properties": {"value": {"type": "null"}}}}},
        [{"value": None}, {"value": 1}, {}],
    ),
    "anchor": (
        TRIP | {"properties": {"from": PLACE | {"$anchor": "place"}, "to": {"$ref": "#place"}}},
        [{"from": {"city": "Bern"}, "to": {"city": "Oslo"}}, {"from": {"city": "Bern"}, "to": {}}],
    ),
    "id": (
        TRIP
        | {"$id": "https://example.com/trip.json"}
        | {"properties": {"from": {"$ref": "place.json"}, "to": {"$ref": "#/$defs/p"}}}
        | {"$defs": {"p": {"$id": "place.json", "$ref": "#/$defs/p", "$defs": {"p": PLACE}}}},
        [{"from": {"city": "Bern"}, "to": {"city": "Oslo"}}, {"from": {"city": "Bern"}, "to": {}}],
    ),
    "names that are keywords": (
        {"type": "object", "properties": {"$ref": {"const": {"$ref": "#/x"}}, "$defs": {"$ref": "#/properties/$ref"}}}
        | {"required": ["$defs"], "additionalProperties": False},
        [{"$defs": {"$ref": "#/x"}}, {"$defs": 1}],
    ),
}  # fmt: skip
each = pytest.mark.parametrize(("schema", "values"), SCHEMAS.values(), ids=SCHEMAS)


def tool(name: str, parameters: Schema) -> Schema:
    """Describe a tool."""
    return {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": parameters}}


PLAIN = tool("plain", {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]})


@each
def test_a_schema_means_the_same_with_its_references_moved(schema: Schema, values: list[Any]) -> None:
    """Alone, as one property of many, and with definitions in the place of references."""
    expected = [jsonschema_rs.is_valid(schema, value) for value in values]
    assert {*expected} == {True, False}
    flat = flattened(schema, "mark.")
    moved = {"properties": {"deep": {"items": flat.schema}}, "$defs": flat.definitions}
    assert [jsonschema_rs.is_valid(moved, {"deep": [value]}) for value in values] == expected
    assert all(name.startswith("mark.") for name in flat.definitions)
    for other in (flat.whole, flat.inlined().whole, portable(schema), arguments_of({"parameters": schema}).whole):
        assert [jsonschema_rs.is_valid(other, value) for value in values] == expected
    assert "$ref" in json.dumps(portable(schema)) or schema is not LIST


def test_a_schema_that_every_server_reads_is_sent_as_it_is() -> None:
    schema = TRIP | {"properties": {"from": {"$ref": "#/$defs/p"}}, "$defs": {"p": PLACE}}
    assert portable(schema) is schema


def test_what_grows_without_end_is_refused_or_stays() -> None:
    """Each definition holds the one before it twice."""
    doubling: Schema = {"d0": {"type": "null"}}
    for number in range(1, 40):
        twice = {"$ref": f"#/properties/x/d{number - 1}"}
        doubling[f"d{number}"] = {"properties": {"a": twice, "b": twice}}
    schema: Schema = {"properties": {"x": doubling, "y": {"$ref": "#/properties/x/d39"}}}
    assert len(json.dumps(portable(schema))) < 3 * len(json.dumps(schema))
    nested: Schema = {}
    for _ in range(100):
        nested = {"items": nested, "anyOf": [{}] * 20}
    steps = ["/items" * depth for depth in range(100)]
    with pytest.raises(ValueError, match=f"more than {MOST_NODES} parts"):
        flattened(nested | {"allOf": [{"$ref": f"#{step}"} for step in steps]})


def calls_of(answer: Answer) -> list[tuple[str, Any]]:
    """Return the names and the arguments of a reply's calls."""
    calls = [call for delta in answer.deltas for call in delta.calls]
    return [(str(call.name), json.loads(call.arguments)) for call in calls]


async def test_calls_fit_schemas_that_refer_to_themselves(demo: Path) -> None:
    """Forced ones, those of one tool, and those that the model makes by itself; a plain tool beside it is kept, too."""
    count = 0
    async with running(demo) as engine:
        for schema, _ in SCHEMAS.values():
            tools = (tool("travel", schema), PLAIN)
            answers = await asyncio.gather(
                *(
                    ask(engine, "Travel from Bern to Oslo!", tools=some, tool_choice=choice, temperature=1.0, seed=seed,
                        max_tokens=200)
                    for choice, some in (("required", tools), ("required", tools[:1]), ("auto", tools))
                    for seed in range(2)
                )
            )  # fmt: skip
            for answer in answers:
                for name, arguments in calls_of(answer):
                    jsonschema_rs.validate(schema if name == "travel" else PLAIN["function"]["parameters"], arguments)
                    count += 1
    assert count >= 5 * len(SCHEMAS)


@pytest.fixture(scope="module")
def vocabulary(demo: Path) -> Vocabulary:
    """That of the embedded model."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    return Vocabulary(lib.llama_model_load_from_file(str(demo).encode(), params))


def takes(vocabulary: Vocabulary, grammar: Any, text: str) -> bool:
    """Whether a grammar lets a reply through."""
    for token in vocabulary.tokenize(text, special=True):
        if not grammar.allows(token):
            return False
        grammar.accept(token)
    return True


def test_a_tool_whose_grammar_is_refused_leaves_the_others_constrained(vocabulary: Vocabulary) -> None:
    """One that is too large for the library among calls that the model may make, one that nothing fits among others."""
    lines: list[str] = []
    grammars = Grammars(vocabulary, lines.append)
    large = tool("large", {"type": "object", "properties": {"a": {"enum": [f"w{n}" for n in range(30_000)]}}})
    call = '<tool_call>{{"name": "{}", "arguments": {}'
    for text, taken in ((call.format("plain", '{"n": 7}'), True), (call.format("plain", '{"n": 8}'), False),
                        (call.format("large", '{"a": 8}'), True)):  # fmt: skip
        assert takes(vocabulary, grammars.of_calls([large, PLAIN]), text) is taken
    assert any(line.startswith("the arguments of large may be any object") for line in lines)
    never = tool("never", {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a$", "minLength": 2}}})
    never["function"]["parameters"]["required"] = ["a"]
    forced = grammars.of_schema(reply_schema([never], required=True, schema=None))
    assert takes(vocabulary, forced, '{"name":"never","arguments":{"b":1}}')


def test_a_value_in_bare_text_is_read_by_the_type_that_a_reference_leads_to() -> None:
    """Text that looks like a number stays text."""
    schema, _ = SCHEMAS["a text"]
    reader = ReplyReader([tool("travel", schema)])
    text = "<tool_call><function=travel><parameter=from>1</parameter><parameter=to>2</parameter></function></tool_call>"
    deltas = [reader.feed(text, 1), reader.finish()]
    (found,) = (call for delta in deltas if delta for call in delta.calls)
    assert json.loads(found.arguments) == {"from": "1", "to": "2"}
