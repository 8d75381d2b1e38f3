"""Arguments of tools of MCP servers, checked against the JSON schemas that the servers send."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing.exceptions import Unresolvable

from cfs.contract.text_values import read_texts
from cfs_agents.tools.errors import ToolDefinitionError, ToolError

_MAX_MESSAGE = 200


class SchemaArguments:
    """The parameters of one tool by its JSON schema. Raises `ToolDefinitionError` for a schema that is invalid."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self._name = name
        self.schema: dict[str, Any] = {"type": "object", "properties": {}} | dict(schema)
        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            raise ToolDefinitionError(f"{name}: its schema is not valid: {error.message[:_MAX_MESSAGE]}") from None
        self._validator = Draft202012Validator(self.schema)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values; raises `ToolError` if they do not match the schema.

        A text is read as JSON where the schema allows none.
        """
        values = read_texts(values, self.schema)
        try:
            error = best_match(self._validator.iter_errors(values))
        except Unresolvable:  # the server checks what it has not described here
            return values
        if error is None:
            return values
        path = error.json_path.removeprefix("$").removeprefix(".")
        problem = f"{path}: {error.message}" if path else error.message
        raise ToolError(f"{self._name} was not run: {problem[:_MAX_MESSAGE]}. The right form: {self.example()}")

    def example(self, wrong: Sequence[str] = ()) -> str:
        """Return an example of correct arguments, as JSON: the required parameters and those in `wrong`."""
        properties = self.schema.get("properties", {})
        names = [name for name in properties if name in self.schema.get("required", ()) or name in wrong]
        return json.dumps({name: _sample(properties[name]) for name in names}, ensure_ascii=False, default=str)


_SAMPLES: Mapping[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}


def _sample(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return "value"
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    kind = schema.get("type")
    return schema.get("const", schema.get("default", _SAMPLES.get(kind if isinstance(kind, str) else "", "value")))
