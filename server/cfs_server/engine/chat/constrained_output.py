"""Turns `tool_choice` and `response_format` into the schema that constrains a reply. Pure: no I/O."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cfs.errors import SchemaRefused
from cfs_server.engine.chat.json_schema import BEST_EFFORT
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.engine.contract.schema_references import FlatSchema, arguments_of, flattened


def constrained(options: ReplyOptions) -> ReplyOptions:
    """Return the options with their `tool_choice` expressed by tools and a schema alone."""
    tools = () if options.tool_choice == "none" else options.tools
    schema = reply_schema(tools, required=options.tool_choice == "required", schema=options.json_schema)
    if tools == options.tools and schema is options.json_schema:
        return options
    return replace(options, tools=tools, json_schema=schema)


def reply_schema(
    tools: Sequence[dict[str, Any]], *, required: bool, schema: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the JSON schema that a reply must fit; None for free text.

    `required`: one call of one of the tools. With a `schema` schema and tools the reply is either JSON of that schema
    or one call. Raises `SchemaRefused` if that schema is too large.
    """
    if not tools or not (required or schema):
        return schema
    kinds = [_call_of(tool, f"{number}.") for number, tool in enumerate(tools)]
    if not required and schema is not None:
        try:
            kinds.append(flattened(schema, f"{len(kinds)}."))
        except ValueError as error:
            raise SchemaRefused(f"replies cannot be kept to the JSON schema: {error}") from error
    definitions = {name: definition for kind in kinds for name, definition in kind.definitions.items()}
    choices = [kind.schema for kind in kinds]
    whole: dict[str, Any] = FlatSchema(choices[0] if len(choices) == 1 else {"anyOf": choices}, definitions).whole
    return whole


def _call_of(tool: dict[str, Any], mark: str) -> FlatSchema:
    function = tool.get("function", tool)
    arguments = arguments_of(function, mark)
    call = {
        "type": "object",
        "properties": {"name": {"const": function.get("name")}, "arguments": arguments.schema | {BEST_EFFORT: True}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    return FlatSchema(call, arguments.definitions)
