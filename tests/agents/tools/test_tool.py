"""A function becomes a tool: what a model is told of it (A3, O4)."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from cfs.session.tools import FunctionTool, Toolbox, ToolResult
from cfs.state.replies import MessageOutcome
from cfs.wire import ToolCall
from cfs_agents.tools import Tool, ToolDefinitionError, tool


class Place(BaseModel):
    """What a tool may take as an object."""

    line: int
    title: str = "none"


@tool("Look somewhere", ephemeral=3)
def look(
    path: Annotated[str, "where to look"],
    count: Annotated[int, Field(ge=2, description="how often")] = 3,
    order: Literal["up", "down"] = "up",
    limit: Optional[int] = None,  # noqa: UP045 - this spelling must work too
    names: list[str] = [],  # noqa: B006 - pydantic copies a default
    table: dict[str, float] | None = None,
    place: Place | None = None,
    json: bool = False,
) -> str:
    """Not what the model is told."""
    return f"{path} {count} {order} {limit} {names} {table} {place} {json}"


def parameters(made: Tool) -> dict[str, Any]:
    """The schema of what a tool takes."""
    schema: dict[str, Any] = made.schema()["function"]["parameters"]
    return schema


def test_schema_has_the_form_of_openai() -> None:
    """Name, description and parameters, as JSON."""
    schema = look.schema()
    assert schema["type"] == "function"
    assert (schema["function"]["name"], schema["function"]["description"]) == ("look", "Look somewhere")
    assert json.loads(json.dumps(schema)) == schema


def test_types_defaults_and_descriptions_come_from_the_signature() -> None:
    """Also for optional values, lists, objects, models, and parameters called like something of pydantic."""
    schema = parameters(look)
    members = schema["properties"]
    assert schema["required"] == ["path"]
    assert "additionalProperties" not in schema
    assert members["path"] == {"type": "string", "description": "where to look"}
    assert members["count"] == {"type": "integer", "minimum": 2, "default": 3, "description": "how often"}
    assert members["order"] == {"type": "string", "enum": ["up", "down"], "default": "up"}
    assert members["limit"] == {"type": "integer"}, "it may as well be left out"
    assert members["names"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert members["table"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert members["json"] == {"type": "boolean", "default": False}


def test_what_may_be_left_out_may_still_be_null() -> None:
    """The schema does not say so, but models write it; what must be given and may be null says that."""

    @tool("Choose")
    def choose(first: int | None, second: int | str | None = None) -> str:
        return f"{first} {second}"

    members = parameters(choose)["properties"]
    assert members == {
        "first": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "second": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    }
    assert choose.arguments.check({"first": None, "second": None}) == {"first": None, "second": None}


def test_schema_has_no_titles_but_keeps_what_is_called_title() -> None:
    """A model pays for each word, and pydantic's titles say nothing new."""
    schema = parameters(look)
    assert set(schema["$defs"]["Place"]["properties"]) == {"line", "title"}
    assert "title" not in schema
    assert not any("title" in member for member in schema["properties"].values())


def test_tool_is_still_the_function_and_keeps_its_settings() -> None:
    """It can be called from code, unchecked, and carries its number of ephemeral outputs (O4)."""
    assert look("a", 1) == "a 1 up None [] None None False"
    assert (look.ephemeral, look.timeout, look.most_characters, look.is_async) == (3, None, None, False)


def test_description_may_be_the_docstring_and_the_name_another_one() -> None:
    """Both can be left out, and both can be given."""

    def sit() -> None:
        """Sit down."""

    made = tool(name="sit_down", timeout=2.5, most_characters=10)(sit)
    assert (made.name, made.description, made.timeout, made.most_characters) == ("sit_down", "Sit down.", 2.5, 10)


def test_tool_fits_where_the_sdk_takes_tools() -> None:
    """One kind of tool for `Session.send(tools=[...])` and for agents."""
    box = Toolbox([look, FunctionTool.of(parameters)])
    assert "look" in box.describe("hello")
    written = MessageOutcome("[CALL:look('x', count=2)]", ())
    assert box.run(box.calls(written)) == [ToolResult("[RESULT:look] x 2 up None [] None None False")]
    apart = MessageOutcome("", (), calls=(ToolCall(id="one", name="look", arguments={"path": "x", "count": 2}),))
    assert box.run(box.calls(apart)) == [ToolResult("x 2 up None [] None None False", "one")]


def nameless(function: Callable[..., Any]) -> Tool:
    """Make a tool called `odd`."""
    return tool("odd", name="odd")(function)


def untyped(a) -> None:  # type: ignore[no-untyped-def]
    """A parameter without a type."""


def many(*values: int) -> None:
    """A parameter that has no name for the caller."""


def any_names(**values: int) -> None:
    """Parameters of any name."""


def by_place(a: int, /) -> None:
    """A parameter that cannot be given by name."""


def of_no_schema(a: object, b: Callable[[], int]) -> None:
    """A type that JSON does not have."""


@pytest.mark.parametrize("function", [untyped, many, any_names, by_place, of_no_schema])
def test_function_that_cannot_be_described_is_refused(function: Callable[..., Any]) -> None:
    """At once, with the name of the tool, not when a model calls it."""
    with pytest.raises(ToolDefinitionError, match="odd"):
        nameless(function)


def test_settings_that_make_no_sense_are_refused() -> None:
    """A name that no interface takes, nothing to say, nothing to keep."""

    def bare() -> None:
        pass

    for wrong in ({"name": "a b"}, {"name": "x" * 65}, {"name": "näme"}, {"ephemeral": 0}):
        with pytest.raises(ToolDefinitionError):
            tool("text", **wrong)(bare)
    with pytest.raises(ToolDefinitionError, match="description"):
        tool()(bare)
