"""The arguments of a tool: their JSON schema, made from a signature, and the check of what a model sends (A3).

Pydantic makes the schema from a function's signature and checks the values. The code here turns its errors into one
sentence for the model: the parameter, the expected kind, and an example of correct arguments.
"""

import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cfs.contract.text_values import read_texts
from cfs_agents.tools.errors import ToolDefinitionError, ToolError

_LONGEST_SHOWN = 60
_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_OF_THE_WRONG_KIND = re.compile(r"(_type|_parsing|_error|_from_float|^enum)$")
"""Ends of the names of pydantic's errors for which the expected kind is explanation enough."""

_SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}


class ToolArguments(Protocol):
    """The parameters of one tool: their JSON schema, and the check of what a model sends."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of all parameters together, an object."""
        ...

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to call the tool with; raises `ToolError` if they do not match the schema."""
        ...

    def example(self, wrong: Sequence[str] = ()) -> str:
        """Return an example of correct arguments, as JSON: the required parameters and those in `wrong`."""
        ...


class ToolSignature:
    """The parameters of one tool by its signature. Raises `ToolDefinitionError` if it cannot be described."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._model, self._names = _model_of(name, function)
        try:
            schema = self._model.model_json_schema()
        except PydanticUserError as error:
            raise ToolDefinitionError(f"{name}: its parameters have no JSON schema: {error.message}") from error
        schema.pop("additionalProperties", None)  # unknown parameters are refused all the same
        self.schema = {"properties": {}} | _bare(schema)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with the types of the signature; raises `ToolError` if they do not match the schema.

        A text is read as JSON where the schema allows none.
        """
        try:
            checked = self._model.model_validate(read_texts(values, self.schema), by_alias=True, by_name=False)
        except ValidationError as error:
            raise ToolError(self._explain(error)) from None
        return {name: getattr(checked, field) for field, name in self._names.items()}

    def _explain(self, error: ValidationError) -> str:
        details = error.errors(include_url=False)
        problems = list(dict.fromkeys(self._problem(detail) for detail in details))
        wrong = [str(detail["loc"][0]) for detail in details if detail["loc"]]
        return f"{self._name} was not run: {'; '.join(problems)}. The right form: {self.example(wrong)}"

    def _problem(self, detail: ErrorDetails) -> str:
        parameter = _place(detail["loc"])
        parameters = list(self.schema["properties"])
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            near = difflib.get_close_matches(parameter, parameters, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            return f"there is no parameter {parameter!r}{hint} (there are: {', '.join(parameters) or 'none'})"
        kind = self._kind(detail["loc"])
        if detail["type"] == "missing":
            return f"{parameter!r} is missing{f' ({kind})' if kind else ''}"
        if kind and _OF_THE_WRONG_KIND.search(detail["type"]):
            return f"{parameter!r} must be {kind}, not {_shown(detail['input'])}"
        return f"{parameter!r} is not right: {_shown(detail['input'])}, {detail['msg'][0].lower()}{detail['msg'][1:]}"

    def _kind(self, location: tuple[int | str, ...]) -> str:
        """Return the kind of one parameter; empty for a value inside a parameter, where pydantic's message is used."""
        if len(location) != 1:
            return ""
        return _kind_of(self._resolved(self.schema["properties"].get(str(location[0]), {})))

    def example(self, wrong: Sequence[str] = ()) -> str:
        """Return an example of correct arguments, as JSON: the required parameters and those in `wrong`."""
        required = [
            name for name in self.schema["properties"] if name in self.schema.get("required", []) or name in wrong
        ]
        values = {name: self._sample(self.schema["properties"][name]) for name in required}
        return json.dumps(values, ensure_ascii=False, default=str)

    def _sample(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        schema = self._resolved(schema)
        for key in ("examples", "enum"):
            if schema.get(key):
                return schema[key][0]
        if "const" in schema:
            return schema["const"]
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self._sample(choices[0], depth)
        kind = schema.get("type")
        if depth < 4 and kind == "array":
            return [self._sample(schema.get("items", {}), depth + 1)]
        if depth < 4 and kind == "object":
            members = schema.get("properties", {})
            return {name: self._sample(members[name], depth + 1) for name in schema.get("required", members)}
        if kind in ("integer", "number"):
            minimum = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return max(_SAMPLES[kind], minimum)
        return _SAMPLES.get(str(kind), "value")

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        return {**self.schema["$defs"][name], **schema, "$ref": ""} if name else schema


_OF_METHODS: WeakKeyDictionary[Any, dict[str, ToolSignature]] = WeakKeyDictionary()


def arguments_of(name: str, function: Callable[..., Any]) -> ToolSignature:
    """Return the parameters of a tool; those of a method are computed once and shared by all its objects."""
    if not inspect.ismethod(function):
        return ToolSignature(name, function)
    cached = _OF_METHODS.setdefault(function.__func__, {})
    if name not in cached:
        cached[name] = ToolSignature(name, function)
    return cached[name]


def _model_of(name: str, function: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """Return a pydantic model with a field for each parameter, and the parameter's name of each field.

    The fields have generated names, because a parameter may have a name that pydantic reserves (`json`, `copy`).
    """
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(f"{name}: the type of a parameter cannot be found: {error}") from error
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(f"{name}: a tool takes parameters by name, not {parameter}")
        if parameter.name not in hints:
            raise ToolDefinitionError(f"{name}: the parameter {parameter.name!r} has no type")
        field = f"parameter_{number}"
        default = ... if parameter.default is parameter.empty else parameter.default
        names[field] = parameter.name
        fields[field] = (
            hints[parameter.name],
            Field(default, alias=parameter.name, description=_description(hints[parameter.name])),
        )
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False, coerce_numbers_to_str=True)
    try:
        return create_model(f"{name}_arguments", __config__=config, **fields), names
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ToolDefinitionError(f"{name}: the type of a parameter cannot be described: {error.message}") from error


def _description(hint: Any) -> str | None:
    """Return the description in `Annotated[type, "description"]` or `Annotated[type, Field(description=...)]`."""
    if get_origin(hint) is Annotated:
        for metadata in get_args(hint)[1:]:
            text = metadata.description if isinstance(metadata, FieldInfo) else metadata
            if isinstance(text, str):
                return text
    return None


def _bare(schema: Any) -> Any:
    """Return the schema without parts that the model does not need, because each word costs tokens.

    Removed are the titles that pydantic generates, the null alternative of optional parameters, and
    `additionalProperties: true`.
    """
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("default", ...) is None and len(kinds := _without_null(schema.get("anyOf", ()))) > 0:
        kind = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        schema = kind | {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    bare = {
        key: _bare(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and (key, value) != ("additionalProperties", True)
    }
    for names in ("properties", "$defs"):
        if isinstance(schema.get(names), dict):  # keys are names here, even "title"
            bare[names] = {name: _bare(value) for name, value in schema[names].items()}
    return bare


def _without_null(kinds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [kind for kind in kinds if kind.get("type") != "null"]


def _kind_of(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(filter(None, map(_kind_of, schema["anyOf"]))))
    return _KINDS.get(str(schema.get("type")), "")


def _place(location: tuple[int | str, ...]) -> str:
    """Return a location in the arguments as text: `items[0].name`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".") or "the arguments"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
