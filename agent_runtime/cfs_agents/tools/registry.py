"""Tools: functions that a model may call, their JSON schemas and checks, and the registry that runs them (A3).

An exception in a tool becomes an error result for the model. Only a cancellation leaves `Registry.call`.
"""

import asyncio
import difflib
import inspect
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from cfs.contract.text_values import read_texts
from cfs.wire import ToolCall
from cfs_agents.base.events import ToolResult
from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import in_thread
from cfs_agents.base.tracing import tool_call, tool_ended
from cfs_agents.shell.errors import ShellError
from cfs_filesystem import FileSystemError

#
# ToolError               a tool cannot do what the model asked for; the model reads the reason
# ToolDefinitionError     a function cannot be a tool, or a name is already used; the programmer reads it
# ShellError              a shell cannot run commands
# ├── ShellUnavailable    the shell cannot start
# └── ShellClosed         the shell is closed


class ToolError(Exception):
    """Raise it in a tool that cannot do its work. The model reads `reason`: write a sentence that it can act on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ToolDefinitionError(TypeError):
    """A function cannot be described as a tool, or a tool's name is already used or unknown."""


class CutText(str):
    """A text that a tool returns without a part of it; the text says so, and how to go on."""

    __slots__ = ()


class ToolOutput(dict[str, Any]):
    """Values that a tool returns to a Python caller; a model reads `text` instead, which may be a `CutText`."""

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text


_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|[ -/]*[0-~])"  # ECMA-48, 5.4 and 8.3
    r"|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]",
    re.DOTALL,
)
"""Escape sequences and control characters."""


def text_of(value: Any) -> str:
    """Return a tool's return value as text for the model.

    Escape sequences and control characters are left out, except for tabs and ends of lines and pages.
    A `ToolOutput` has its own text, and None becomes "done". Other values become JSON.
    """
    if isinstance(value, ToolOutput):
        return text_of(value.text)
    if isinstance(value, str):
        return _CONTROL.sub("", value).encode("utf-8", "replace").decode()  # UTF-8 cannot encode a lone surrogate
    if value is None:
        return "done"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value):,} bytes of binary data, which is not shown]"
    try:
        return to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError):  # it contains itself, or invalid text
        return text_of(str(value))


def shortened(text: str, most: int) -> str:
    """Cut the middle out of a text longer than `most` characters, and insert a note with the number left out."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out ...]\n{text[len(text) - tail :]}"


#
# Pydantic makes the schema from a function's signature and checks the values. The code here turns its errors into one
# sentence for the model: the parameter, the expected kind, and an example of correct arguments.

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


class Arguments:
    """The parameters of one tool. Raises `ToolDefinitionError` for a signature that cannot be described."""

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
        place = _place(detail["loc"])
        known = list(self.schema["properties"])
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            near = difflib.get_close_matches(place, known, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            return f"there is no parameter {place!r}{hint} (there are: {', '.join(known) or 'none'})"
        kind = self._kind(detail["loc"])
        if detail["type"] == "missing":
            return f"{place!r} is missing{f' ({kind})' if kind else ''}"
        if kind and _OF_THE_WRONG_KIND.search(detail["type"]):
            return f"{place!r} must be {kind}, not {_shown(detail['input'])}"
        return f"{place!r} is not right: {_shown(detail['input'])}, {detail['msg'][0].lower()}{detail['msg'][1:]}"

    def _kind(self, location: tuple[int | str, ...]) -> str:
        """Return the kind of one parameter; empty for a value inside a parameter, where pydantic's message is used."""
        if len(location) != 1:
            return ""
        return _kind_of(self._resolved(self.schema["properties"].get(str(location[0]), {})))

    def example(self, wrong: Sequence[str] = ()) -> str:
        """Return an example of correct arguments, as JSON: the required parameters and those in `wrong`."""
        wanted = [
            name for name in self.schema["properties"] if name in self.schema.get("required", []) or name in wrong
        ]
        values = {name: self._sample(self.schema["properties"][name]) for name in wanted}
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
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return max(_SAMPLES[kind], least)
        return _SAMPLES.get(str(kind), "value")

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        return {**self.schema["$defs"][name], **schema, "$ref": ""} if name else schema


_OF_METHODS: WeakKeyDictionary[Any, dict[str, Arguments]] = WeakKeyDictionary()


def arguments_of(name: str, function: Callable[..., Any]) -> Arguments:
    """Return the parameters of a tool; those of a method are computed once and shared by all its objects."""
    if not inspect.ismethod(function):
        return Arguments(name, function)
    known = _OF_METHODS.setdefault(function.__func__, {})
    if name not in known:
        known[name] = Arguments(name, function)
    return known[name]


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
            Field(default, alias=parameter.name, description=_told(hints[parameter.name])),
        )
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False, coerce_numbers_to_str=True)
    try:
        return create_model(f"{name}_arguments", __config__=config, **fields), names
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ToolDefinitionError(f"{name}: the type of a parameter cannot be described: {error.message}") from error


def _told(hint: Any) -> str | None:
    """Return the description in `Annotated[type, "description"]` or `Annotated[type, Field(description=...)]`."""
    if get_origin(hint) is Annotated:
        for told in get_args(hint)[1:]:
            text = told.description if isinstance(told, FieldInfo) else told
            if isinstance(text, str):
                return text
    return None


def _bare(schema: Any) -> Any:
    """Return the schema without parts that the model does not need, because each word costs tokens.

    Removed are the titles that pydantic generates, the null alternative of optional parameters, and
    `additionalProperties: true`.
    """
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
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


@dataclass(frozen=True, slots=True)
class Touch:
    """The files that a call reads or writes: a logical path and everything below it."""

    path: str
    writes: bool

    def hinders(self, other: "Touch") -> bool:
        """Whether two calls must run in order: one writes what the other one reads or writes."""
        return (self.writes or other.writes) and (_is_below(self.path, other.path) or _is_below(other.path, self.path))


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above if above.endswith("/") else f"{above}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. `@tool` makes one; it can still be called like the function.

    - `ephemeral` is how many of its newest results stay in a context (O4); None keeps all.
    - `timeout` is in seconds (default: the registry's).
    - `most_characters` is the maximum length of a result. The middle of a longer one is left out. None is no limit.
    - `paging` names parameters that continue a cut result. A brief schema leaves them out; calls may have them anyway.
    - `touches` returns the files that a call with these arguments reads or writes. Calls of one reply that do not
      conflict run in parallel. If it is None or returns None, a call runs alone.

    It is also a `cfs.Tool`, for `Session.send(tools=[...])`.
    """

    name: str
    description: str
    callable: Callable[..., Any]
    ephemeral: int | None = None
    timeout: float | None = None
    most_characters: int | None = None
    paging: Collection[str] = ()
    touches: Callable[[Mapping[str, Any]], Touch | None] | None = None
    arguments: Arguments = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the settings and read the signature."""
        if not self.name.replace("-", "_").isidentifier() or len(self.name) > 64 or not self.name.isascii():
            raise ToolDefinitionError(f"{self.name!r} cannot name a tool: use ASCII letters, digits and '_'")
        if self.ephemeral is not None and self.ephemeral < 1:
            raise ToolDefinitionError(f"{self.name}: ephemeral is how many results stay, at least 1")
        object.__setattr__(self, "arguments", arguments_of(self.name, self.callable))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without checking the arguments."""
        return self.callable(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function, which can be cancelled. Other functions run in a thread, which cannot."""
        return inspect.iscoroutinefunction(self.callable)

    def schema(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the tool's description in the format of OpenAI's API; a `brief` one leaves out `paging`."""
        parameters = self.arguments.schema
        if brief and self.paging:
            properties = {name: value for name, value in parameters["properties"].items() if name not in self.paging}
            parameters = parameters | {"properties": properties}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def tool(
    description: str | None = None,
    *,
    name: str | None = None,
    ephemeral: int | None = None,
    timeout: float | None = None,
    most_characters: int | None = None,
    paging: Collection[str] = (),
    touches: Callable[[Mapping[str, Any]], Touch | None] | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a sync or async function: `@tool("what it does", ephemeral=3)`.

    The default name is the function's, the default description its docstring. Pydantic checks the types of the
    signature. Describe a parameter by `Annotated[type, "text"]` or a pydantic `Field`. The other arguments are those
    of `Tool`. Raises `ToolDefinitionError` for a function that cannot be described.
    """

    def made(function: Callable[..., Any]) -> Tool:
        called = name or str(getattr(function, "__name__", ""))
        told = description or inspect.getdoc(function)
        if not told:
            raise ToolDefinitionError(f"{called}: a tool needs a description")
        return Tool(
            name=called,
            description=told,
            callable=function,
            ephemeral=ephemeral,
            timeout=timeout,
            most_characters=most_characters,
            paging=paging,
            touches=touches,
        )

    return made


_log = get_logger(__name__)

CALL_ID: ContextVar[str] = ContextVar("CALL_ID", default="")
"""Id of the model's call that is running; empty if Python code calls a tool."""

MOST_AT_ONCE = 16
"""Maximum number of calls that run in parallel."""

DEFAULT_TIMEOUT = 120.0
"""Time limit of a tool without its own, in seconds."""


class Registry:
    """Tools by their names. `timeout`, in seconds, applies to each tool without its own.

    `on_error` is called with each exception that is a defect of a tool, not a reason for the model. `withheld` names
    tools that cannot be called in this step, and can in the next.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        on_error: Callable[[ToolCall, BaseException], None] | None = None,
        withheld: Iterable[str] = (),
    ) -> None:
        self.on_error = on_error
        self._tools: dict[str, Tool] = {}
        self._withheld = frozenset(withheld)
        self._timeout = timeout
        self.add(*tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    @property
    def names(self) -> list[str]:
        """Names of the tools, in the order in which they were added."""
        return list(self._tools)

    def add(self, *tools: Tool | Callable[..., Any]) -> None:
        """Add tools, or functions with docstrings; raises `ToolDefinitionError` for a name that is already used."""
        made = [each if isinstance(each, Tool) else tool()(each) for each in tools]
        names = [*self._tools, *(each.name for each in made)]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ToolDefinitionError(f"two tools are called {doubles[0]!r}")
        self._tools.update((each.name, each) for each in made)

    def get(self, name: str) -> Tool:
        """Return the tool of this name; raises `ToolDefinitionError` if there is none."""
        if name not in self._tools:
            raise ToolDefinitionError(self._unknown(name))
        return self._tools[name]

    def narrow(self, names: Iterable[str]) -> Self:
        """Return a registry of some of these tools for one step; raises `ToolDefinitionError` for an unknown name.

        A call of another one of these tools fails with a reason that says when the tool can be called again.
        """
        tools = [self.get(name) for name in names]
        withheld = self._tools.keys() - {each.name for each in tools}
        return type(self)(tools, timeout=self._timeout, on_error=self.on_error, withheld=withheld)

    def right_form(self, name: str) -> str:
        """Return an example of a tool's arguments, or of the tool with the nearest name; else the list of tools."""
        near = self._nearest(name)
        if near is None:
            return f"The tools are: {', '.join(self._tools) or 'none'}"
        return f"The right form of {near}: {self._tools[near].arguments.example()}"

    def schemas(self, *, brief: bool = False) -> list[dict[str, Any]]:
        """Return the descriptions of all tools in the format of OpenAI's API (see `Tool.schema`)."""
        return [each.schema(brief=brief) for each in self]

    def together(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the first call and those directly after it that may run in parallel with it."""
        touched: list[Touch] = []
        for call in calls[:MOST_AT_ONCE]:
            touch = self._touch(call)
            if touch is None or any(touch.hinders(other) for other in touched):
                break
            touched.append(touch)
        return list(calls[: max(1, len(touched))])

    def _touch(self, call: ToolCall) -> Touch | None:
        """Return what a call touches; None if it has to run alone or its arguments are invalid."""
        wanted = self._tools.get(call.name)
        if wanted is None or wanted.touches is None:
            return None
        try:
            return wanted.touches(call.arguments)
        except Exception:  # noqa: BLE001 - the call itself reports the error
            return None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call and return its result. A failure is a result with its reason; only a cancellation is raised."""
        with tool_call(call) as span:
            result = await self._call(call)
            tool_ended(span, call, result.text, result.seconds, ok=result.ok)
        return result

    async def _call(self, call: ToolCall) -> ToolResult:
        start = time.perf_counter()
        truncated = False
        running = CALL_ID.set(call.id)
        try:
            value, ok = await self._run(call), True
            text, truncated = text_of(value), isinstance(getattr(value, "text", value), CutText)
            most = self._tools[call.name].most_characters
            if most is not None and len(text) > most:
                text, truncated = shortened(text, most), True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the model reads every error of a tool
            text, ok = f"Error: {self._reason(call, error)}", False
        finally:
            CALL_ID.reset(running)
        seconds = time.perf_counter() - start
        _log.debug("tool.called", tool=call.name, call=call.id, ok=ok, seconds=round(seconds, 6), characters=len(text))
        return ToolResult(call.id, call.name, text, ok, seconds, truncated)

    async def _run(self, call: ToolCall) -> Any:
        if call.name in self._withheld:
            only = ", ".join(self._tools)
            raise ToolError(f"in this step you can call {only} only; call {call.name} again in the step after it")
        if call.name not in self._tools:
            form = f". {self.right_form(call.name)}" if self._nearest(call.name) else ""
            raise ToolError(self._unknown(call.name) + form)
        wanted = self._tools[call.name]
        values = wanted.arguments.check(call.arguments)
        seconds = self._timeout if wanted.timeout is None else wanted.timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                work = partial(wanted.callable, **values)
                value = work() if wanted.is_async else await in_thread(work)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the tool itself
        ended = "was ended" if wanted.is_async else "cannot be stopped and may still be at work"
        raise ToolError(f"{call.name} took longer than {seconds:g} s; it {ended}")

    def _unknown(self, name: str) -> str:
        near = self._nearest(name)
        hint = f", did you mean {near!r}?" if near else ""
        return f"there is no tool {name[:80]!r}{hint} (there are: {', '.join(self._tools) or 'none'})"

    def _nearest(self, name: str) -> str | None:
        return name if name in self._tools else next(iter(difflib.get_close_matches(name, self._tools, n=1)), None)

    def _reason(self, call: ToolCall, error: BaseException) -> str:
        """Return the error as one sentence; logs the traceback of a defect."""
        if isinstance(error, ToolError):
            return text_of(error.reason)
        if isinstance(error, FileSystemError | ShellError):
            return text_of(str(error))
        _log.warning("tool.failed", tool=call.name, call=call.id, exc_info=error)
        if self.on_error is not None:
            self.on_error(call, error)
        if isinstance(error, OSError) and error.strerror:
            return text_of(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
        return text_of(f"{type(error).__name__}: {error}".removesuffix(": "))
