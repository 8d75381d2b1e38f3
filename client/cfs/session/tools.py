"""Tools: describes Python functions to a model, and runs them for its calls (C8)."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, Protocol, Self

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from cfs.contract.errors import InvalidParameters
from cfs.contract.text_values import read_texts
from cfs.contract.tool_calls import ToolRequest, find_calls
from cfs.contract.wire import FunctionSpec, ToolSpec
from cfs.state.replies import MessageOutcome

MAX_ROUNDS = 8
"""Maximum consecutive rounds of tool calls before the model must answer."""

_HOW = (
    "To call one, write [CALL:<tool>(<arguments>)] with plain values as arguments, such as 1, 'text' or key=[1, 2]."
    " The next message brings the result as [RESULT:<tool>]. Answer without a call when you know enough."
)


class Tool(Protocol):
    """A function that a model may call: anything with these three.

    It may also have `parameters`, a JSON schema of its arguments; else that is made of the function's annotations.
    """

    @property
    def name(self) -> str:
        """Name by which the model calls the tool."""
        ...

    @property
    def description(self) -> str:
        """Description for the model."""
        ...

    @property
    def callable(self) -> Callable[..., Any]:
        """The function to run; coroutine functions are supported by `AsyncSession` only."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool created from its parts, or from a function with a docstring (`FunctionTool.of`)."""

    name: str
    description: str
    callable: Callable[..., Any]
    parameters: dict[str, Any] | None = None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """Create a tool from a function, with its name and docstring."""
        return cls(function.__name__, inspect.getdoc(function) or "", function)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result for the model: of one call, by its `call_id`, or of all calls in a text."""

    content: str
    call_id: str | None = None


class Toolbox:
    """The tools of one message. Raises `InvalidParameters` when two have one name."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise InvalidParameters(f"two tools are called {tool.name!r}")
            self._tools[tool.name] = tool

    def __len__(self) -> int:
        return len(self._tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Describe the tools as a request has them."""
        return tuple(ToolSpec(function=_spec(tool)) for tool in self._tools.values())

    def describe(self, message: str) -> str:
        """Put a description of the tools and of the call syntax before a message."""
        if not self._tools:
            return message
        lines = [f"- {tool.name}{_signature(tool)}: {tool.description}" for tool in self._tools.values()]
        return "\n".join(["You can call these tools:", *lines, _HOW, "", message])

    def calls(self, outcome: MessageOutcome) -> list[ToolRequest]:
        """Return the calls of a reply: those separate from its text, or else those in the text."""
        if not self._tools:
            return []
        apart = [ToolRequest(call.name, keywords=call.arguments, id=call.id) for call in outcome.calls]
        return apart or find_calls(outcome.reply)

    def run(self, requests: Sequence[ToolRequest]) -> list[ToolResult]:
        """Run calls one after the other and return the results for the model."""
        return _results([(request, self._run(request)) for request in requests])

    async def async_run(self, requests: Sequence[ToolRequest]) -> list[ToolResult]:
        """Run calls one after the other, functions in a thread, and return the results for the model."""
        return _results([(request, await self._async_run(request)) for request in requests])

    def _run(self, request: ToolRequest) -> str:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        function = self._tools[request.name].callable
        try:
            values, keywords = _bound(function, self._read(request))
            value = function(*values, **keywords)
            if inspect.iscoroutine(value):
                value.close()
                return _failed(request, "it is a coroutine function, which only an AsyncSession can run")
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the model to read
            return _failed(request, f"{type(error).__name__}: {error}")
        return _result(request, value)

    async def _async_run(self, request: ToolRequest) -> str:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        import asyncio  # deferred: programs without coroutines do not need it

        function = self._tools[request.name].callable
        try:
            values, keywords = _bound(function, self._read(request))
            if inspect.iscoroutinefunction(function):
                value = await function(*values, **keywords)
            else:
                value = await asyncio.to_thread(function, *values, **keywords)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the model to read
            return _failed(request, f"{type(error).__name__}: {error}")
        return _result(request, value)

    def _read(self, request: ToolRequest) -> ToolRequest:
        """Read texts as JSON where the tool's schema wants another kind."""
        schema = _parameters_of(self._tools[request.name])
        return replace(request, keywords=read_texts(request.keywords, schema))

    def _refusal(self, request: ToolRequest) -> str | None:
        if request.name not in self._tools:
            return _failed(request, f"there is no such tool; there are: {', '.join(self._tools)}")
        return None if request.refusal is None else _failed(request, request.refusal)


def _spec(tool: Tool) -> FunctionSpec:
    return FunctionSpec(name=tool.name, description=tool.description, parameters=_parameters_of(tool))


def _parameters_of(tool: Tool) -> dict[str, Any]:
    return getattr(tool, "parameters", None) or _schema(tool.callable)


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Write the JSON schema of a function's arguments; a parameter of unknown type may be anything."""
    parameters = _parameters(function)
    if parameters is None:
        return {"type": "object"}
    named = [
        parameter for parameter in parameters if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    types = {
        parameter.name: Any if parameter.annotation is Parameter.empty else parameter.annotation for parameter in named
    }
    required = [parameter.name for parameter in named if parameter.default is Parameter.empty]
    try:
        schema = TypeAdapter(TypedDict("Arguments", types)).json_schema()  # type: ignore[operator]
    except PydanticUserError:  # a type without a JSON schema
        schema = {"properties": {name: {} for name in types}}
    others = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    return {**_untitled(schema), "type": "object", "required": required, "additionalProperties": others}


def _parameters(function: Callable[..., Any]) -> list[Parameter] | None:
    """Read what a function takes; without annotations where these are no code, None if that is not known."""
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (TypeError, ValueError):
        return None
    except Exception:  # noqa: BLE001 - an annotation may raise anything
        parameters = inspect.signature(function).parameters.values()
        return [parameter.replace(annotation=Parameter.empty) for parameter in parameters]


def _untitled(schema: Any) -> Any:
    """Leave out the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_untitled(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _untitled(member) for name, member in value.items()}
        if key in ("properties", "$defs")
        else _untitled(value)
        for key, value in schema.items()
        if key != "title"
    }


def _bound(function: Callable[..., Any], request: ToolRequest) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Sort the arguments of a call, which all have names if it came apart from the text, as the function takes them."""
    if request.id is None:
        return request.arguments, request.keywords
    left = dict(request.keywords)
    positional = [
        parameter.name for parameter in _parameters(function) or () if parameter.kind is Parameter.POSITIONAL_ONLY
    ]
    return [left.pop(name) for name in positional if name in left], left


def _results(results: Sequence[tuple[ToolRequest, str]]) -> list[ToolResult]:
    if all(request.id is None for request, _ in results):
        return [ToolResult("\n".join(text for _, text in results))]
    return [ToolResult(text, request.id) for request, text in results]


def _signature(tool: Tool) -> str:
    try:
        return str(inspect.signature(tool.callable))
    except (TypeError, ValueError):  # some functions in C have no known signature
        return "(...)"


def _result(request: ToolRequest, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if request.id is not None else f"[RESULT:{request.name}] {text}"


def _failed(request: ToolRequest, reason: str) -> str:
    return f"Error: {reason}" if request.id is not None else f"[ERROR:{request.name}] {reason}"
