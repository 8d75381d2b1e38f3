"""The tools of OpenAI's responses: what a model is offered for them, and how its calls are written. Pure: no I/O (H4).

A model has functions only. A function in a namespace gets the name of both, a custom tool becomes a function with one
text. Tools that OpenAI itself runs are left out, and the response says so.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, StringConstraints, Tag

from cfs.completions.messages import Open
from cfs.wire import FunctionName, FunctionSpec, NamedTool, ToolSpec
from cfs_server.completions.requests import read_tools, refusal
from cfs_server.engine.contract.reply_options import ToolChoice

_Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class FunctionTool(Open):
    """A tool that the model may call; `parameters` is a JSON schema of an object."""

    type: Literal["function"]
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(Open):
    """A tool that takes a text. A grammar in `format` is shown to the model, and not enforced."""

    type: Literal["custom"]
    name: _Name
    description: str | None = None
    format: dict[str, Any] | None = None


class HostedTool(Open):
    """A tool that OpenAI runs, such as `web_search`. There is none here: it is left out."""

    type: str


_OWN = frozenset({"function", "custom"})


def _kind(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in _OWN or kind == "namespace" else "hosted"


def _typed(value: Any) -> Any:
    """Refuse tools without a type, more clearly than the message of a union would."""
    if not isinstance(value, list):
        return value
    for tool in value:
        kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
        if isinstance(tool, dict) and isinstance(kind, str):
            continue
        raise ValueError(f"the tool {kind!r} is not here: describe a function of your own")
    return tuple(value)


_OwnTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind),
]


class Namespace(Open):
    """A group of tools, whose names are those of the group and of the tool."""

    type: Literal["namespace"]
    name: _Name
    description: str | None = None
    tools: Annotated[tuple[_OwnTool, ...], BeforeValidator(_typed)]


Tool = FunctionTool | CustomTool | Namespace | HostedTool
Tools = Annotated[
    tuple[
        Annotated[
            Annotated[FunctionTool, Tag("function")]
            | Annotated[CustomTool, Tag("custom")]
            | Annotated[Namespace, Tag("namespace")]
            | Annotated[HostedTool, Tag("hosted")],
            Discriminator(_kind),
        ],
        ...,
    ],
    BeforeValidator(_typed),
]


class ToolName(Open):
    """A tool, by its name."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class AllowedTool(Open):
    """A tool that may be called. One without a name is run by OpenAI."""

    type: str
    name: str | None = None
    namespace: str | None = None


class AllowedTools(Open):
    """The tools that may be called in this response, and whether one of them must be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: tuple[AllowedTool, ...]


def _choice_form(value: Any) -> Any:
    if isinstance(value, str):
        return "word"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "name" if isinstance(kind, str) and kind in _OWN else kind


Choice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("word")]
    | Annotated[ToolName, Tag("name")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_form),
]


_NAME_CHARACTERS = 64
"""The longest name of a function that all services take (OpenAI's limit)."""
_DIGEST_CHARACTERS = 8


def function_name(name: str, namespace: str | None = None) -> str:
    """Return the name of the function that stands for a tool. A long one ends with a digest."""
    if not namespace:
        return name
    joined = f"{namespace.rstrip('_')}__{name}"
    if len(joined) <= _NAME_CHARACTERS:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{joined[: _NAME_CHARACTERS - _DIGEST_CHARACTERS - 1]}_{digest}"


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """What the client calls the tool of a function. A `custom` tool takes a text."""

    name: str
    namespace: str | None = None
    custom: bool = False


class RequestTools:
    """The tools of a request: the functions that the model is offered, and the client's names for them."""

    def __init__(self, tools: Iterable[Tool] | None) -> None:
        self.specs: list[ToolSpec] = []
        self.hosted: list[str] = []
        """The types of tools that are left out, each once."""
        self._origins: dict[str, ToolOrigin] = {}
        for tool, namespace in _flattened(tools or ()):
            if isinstance(tool, HostedTool):
                if tool.type not in self.hosted:
                    self.hosted.append(tool.type)
                continue
            name = function_name(tool.name, namespace)
            self.specs.append(ToolSpec(function=_function(name, tool)))
            self._origins[name] = ToolOrigin(tool.name, namespace, isinstance(tool, CustomTool))

    def origin(self, name: str) -> ToolOrigin:
        """Return what the client calls the tool of a function."""
        return self._origins.get(name) or ToolOrigin(name)

    def offered(self, choice: Any) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
        """Return the tools that may be called, and whether a call is required. Raises `InvalidParameters`."""
        if isinstance(choice, ToolName):
            name = function_name(choice.name, choice.namespace)
            return read_tools(self.specs, NamedTool(function=FunctionName(name=name)))
        if not isinstance(choice, AllowedTools):
            return read_tools(self.specs, choice)
        allowed = {function_name(tool.name, tool.namespace) for tool in choice.tools if tool.name is not None}
        if missing := allowed - {spec.function.name for spec in self.specs}:
            raise refusal("tool_choice", f"there is no tool {min(missing)!r} among the tools")
        return read_tools([spec for spec in self.specs if spec.function.name in allowed], choice.mode)


def _flattened(tools: Iterable[Tool]) -> Iterator[tuple[FunctionTool | CustomTool | HostedTool, str | None]]:
    for tool in tools:
        if isinstance(tool, Namespace):
            yield from ((inner, tool.name) for inner in tool.tools)
        else:
            yield tool, None


_INPUT = "input"
_ONE_TEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}


def _function(name: str, tool: FunctionTool | CustomTool) -> FunctionSpec:
    if isinstance(tool, FunctionTool):
        return FunctionSpec(name=name, description=tool.description, parameters=tool.parameters)
    description = "\n\n".join(filter(None, (tool.description, _grammar(tool.format))))
    return FunctionSpec(name=name, description=description or None, parameters=dict(_ONE_TEXT))


def _grammar(form: Mapping[str, Any] | None) -> str:
    """Return what the prompt says of the grammar of a text."""
    match form:
        case {"type": "grammar", "definition": str(definition), **more}:
            return f"`{_INPUT}` follows this grammar ({more.get('syntax', 'lark')}):\n{definition}"
    return ""


def custom_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of the function that stands for a custom tool, for its text."""
    return {_INPUT: text}


def custom_input(arguments: str) -> str:
    """Return the text for a custom tool. Arguments of another form are the text themselves."""
    try:
        match json.loads(arguments, strict=False):
            case {"input": str(text)}:
                return text
    except (ValueError, RecursionError):
        pass
    return arguments


def left_out(what: str, kinds: Sequence[str]) -> str:
    """Return the warning about tools or items that are left out."""
    return f"{what} that OpenAI's service runs are not here, and were left out: {', '.join(kinds)}"
