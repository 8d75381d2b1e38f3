"""Turns `tool_choice` and `response_format` into the schema that constrains a reply. Pure: no I/O."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cfs_server.engine.chat.json_schema import BEST_EFFORT
from cfs_server.engine.interface import GenerationRequest

_DEFINITIONS = ("$defs", "definitions")


def constrained(request: GenerationRequest) -> GenerationRequest:
    """Return the request with its `tool_choice` expressed by tools and a schema alone."""
    tools = () if request.tool_choice == "none" else request.tools
    schema = reply_schema(tools, required=request.tool_choice == "required", wanted=request.json_schema)
    if tools == request.tools and schema is request.json_schema:
        return request
    return replace(request, tools=tools, json_schema=schema)


def reply_schema(
    tools: Sequence[dict[str, Any]], *, required: bool, wanted: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the JSON schema that a reply must fit; None for free text.

    `required`: one call of one of the tools. With a `wanted` schema and tools the reply is either JSON of that schema
    or one call.
    """
    if not tools or not (required or wanted):
        return wanted
    kinds = [_call_of(tool) for tool in tools]
    if not required and wanted is not None:
        kinds.append(wanted)
    definitions: dict[str, Any] = {}
    choices = [_hoisted(kind, f"{number}.", definitions) for number, kind in enumerate(kinds)]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return schema | ({"$defs": definitions} if definitions else {})


def _call_of(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    arguments = parameters if "properties" in parameters or "$ref" in parameters else {"type": "object"}
    if "$ref" not in arguments:
        arguments = {"type": "object"} | arguments
    return {
        "type": "object",
        "properties": {"name": {"const": function.get("name")}, "arguments": arguments | {BEST_EFFORT: True}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _hoisted(schema: Any, mark: str, definitions: dict[str, Any]) -> Any:
    """Move definitions from anywhere in a schema to the top, each under a name of its own, and its references along."""
    if isinstance(schema, list):
        return [_hoisted(item, mark, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = [key for key in _DEFINITIONS if isinstance(schema.get(key), dict)]
    for key in moved:
        for name, definition in schema[key].items():
            definitions[mark + name] = _hoisted(definition, mark, definitions)
    found = {}
    for key, value in schema.items():
        if key == "$ref":
            found[key] = _moved(value, mark)
        elif key == "properties" and isinstance(value, dict):  # its keys are the caller's
            found[key] = {name: _hoisted(each, mark, definitions) for name, each in value.items()}
        elif key not in moved:
            found[key] = _hoisted(value, mark, definitions)
    return found


def _moved(reference: Any, mark: str) -> Any:
    if isinstance(reference, str):
        for key in _DEFINITIONS:
            if reference.startswith(f"#/{key}/"):
                return f"#/$defs/{mark}{reference.removeprefix(f'#/{key}/')}"
    return reference
