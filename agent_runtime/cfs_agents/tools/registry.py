"""The tools of one agent: described to a model, and called for it. Whatever goes wrong becomes a result (A3)."""

import asyncio
import contextvars
import difflib
import inspect
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from cfs.wire import Message, ToolCall
from cfs_filesystem import FileSystemError

# A function that blocks, awaited: in a thread of its own, which nothing waits for once nobody wants its result.

_T = TypeVar("_T")


async def in_thread(function: Callable[[], _T]) -> _T:
    """Run a function in a new thread and return what it returns.

    Why not `asyncio.to_thread`: a loop waits for the threads of its executor when it ends, and a function that hangs
    would keep the whole program from ending. This thread is a daemon, and a cancelled wait just leaves it alone.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: _T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: _T | None = None
        failed: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as error:  # which no future can carry
            failed = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - whoever awaits it gets it
            failed = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return await done


# What can go wrong with tools.
#
# ToolError              a tool says why it cannot do what it was asked; the model reads it ToolDefinitionError    a
# function cannot be a tool, or two tools have one name; the programmer reads it ShellError             a shell cannot
# do its work ├── ShellUnavailable   it cannot be started here └── ShellClosed        it has been closed


class ToolError(Exception):
    """A reason, in a sentence, for a model that can act on it: raise it in a tool to say why it did nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ToolDefinitionError(TypeError):
    """A function that cannot be described as a tool, or a name that is taken or unknown."""


class ShellError(Exception):
    """Anything that keeps a shell from its work."""


class ShellUnavailable(ShellError):
    """No shell can be started here: bash or bubblewrap is missing, or does not start."""


class ShellClosed(ShellError):
    """The shell was closed and runs nothing any more."""


# What a tool's call came to: text for the model, and whether it went well.


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call: `text` is all that the model learns, `seconds` is how long it took.

    When `ok` is false, `text` is the reason. `truncated` says that the tool's own bound on its results cut the text.
    """

    call_id: str
    name: str
    text: str
    ok: bool
    seconds: float
    truncated: bool = False

    def message(self) -> Message:
        """Make the message that brings the result to the model."""
        return Message(role="tool", content=self.text, tool_call_id=self.call_id, name=self.name)


class ToolOutput(dict[str, Any]):
    """Values that a tool returns to a Python caller; a model reads `text` instead."""

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text


def text_of(value: Any) -> str:
    """Return the text that a model reads of a tool's return value.

    A text stays as it is, a `ToolOutput` has its own text, None becomes "done", and everything else JSON.
    """
    if isinstance(value, ToolOutput):
        return text_of(value.text)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a lone surrogate could not be sent to anybody
    if value is None:
        return "done"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value):,} bytes of binary data, which is not shown]"
    try:
        return to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError):  # it holds itself, or a text that is none
        return text_of(str(value))


def shortened(text: str, most: int) -> str:
    """Cut a text in its middle to about `most` characters, and say how many are missing."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out ...]\n{text[len(text) - tail :]}"


# What a tool takes, read from a function's signature: a schema for the model, and checked values for the function.
#
# Pydantic does the work. What is added is how a mistake is told: in one sentence that names the parameter, what was
# expected, and the right form.

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
"""How those of pydantic's names of errors end for which the kind says all."""

_SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}


class Arguments:
    """The parameters of one tool. Raises `ToolDefinitionError` for a function that takes something else."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._model, self._names = _model_of(name, function)
        try:
            schema = self._model.model_json_schema()
        except PydanticUserError as error:
            raise ToolDefinitionError(f"{name}: its parameters have no JSON schema: {error.message}") from error
        schema.pop("additionalProperties", None)  # what a tool does not know is refused all the same
        self.schema = {"properties": {}} | _bare(schema)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values as the function wants them; raise `ToolError` where they are not what the schema says."""
        try:
            checked = self._model.model_validate(values, by_alias=True, by_name=False)
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
        """Say what one parameter may be; nothing for a place inside of one, which the message of pydantic explains."""
        if len(location) != 1:
            return ""
        return _kind_of(self._resolved(self.schema["properties"].get(str(location[0]), {})))

    def example(self, wrong: Sequence[str] = ()) -> str:
        """Write arguments in the right form: those that must be given, and others that were `wrong`."""
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
    """Read the parameters of a tool; those of a method once for all objects, as each agent has an object of its own."""
    if not inspect.ismethod(function):
        return Arguments(name, function)
    known = _OF_METHODS.setdefault(function.__func__, {})
    if name not in known:
        known[name] = Arguments(name, function)
    return known[name]


def _model_of(name: str, function: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """Make a model with a field for each parameter; returned with the parameter's name of each field.

    The names of the fields are our own, as a parameter may be called what a model keeps for itself (`json`, `copy`).
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
    """Take the description out of `Annotated[type, "description"]` or `Annotated[type, Field(description=...)]`."""
    if get_origin(hint) is Annotated:
        for told in get_args(hint)[1:]:
            text = told.description if isinstance(told, FieldInfo) else told
            if isinstance(text, str):
                return text
    return None


def _bare(schema: Any) -> Any:
    """Leave out what a model need not read, as it pays for each word of a schema.

    That is the titles that pydantic makes of names, that a parameter which may be left out may also be null, and that
    an object may hold anything.
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
        if isinstance(schema.get(names), dict):  # here a key is a name, also when it is "title"
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
    """Write where in the arguments something is: `items[0].name`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".") or "the arguments"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


# Tools: functions that a model may call, with what it is told of them (A3, O4).


@dataclass(frozen=True, slots=True)
class Touch:
    """What a call has to do with files: it reads or writes what is at a logical path, and below it."""

    path: str
    writes: bool

    def hinders(self, other: "Touch") -> bool:
        """Whether two calls must keep their order: one writes where the other one reads or writes."""
        return (self.writes or other.writes) and (_is_below(self.path, other.path) or _is_below(other.path, self.path))


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above if above.endswith("/") else f"{above}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. `@tool` makes one; it can still be called as the function that it was.

    With `ephemeral` only the newest so many of its results stay in a context (O4). `timeout` is in seconds (without:
    the registry's). A result longer than `most_characters` is cut in its middle; without, nothing is ever cut.
    `touches` says of arguments what a call with them touches, so that calls of one reply can run side by side; without
    it, or where it returns None, a call runs alone.
    It is also a `cfs.tools.Tool`, for `Session.send(tools=[...])`.
    """

    name: str
    description: str
    callable: Callable[..., Any]
    ephemeral: int | None = None
    timeout: float | None = None
    most_characters: int | None = None
    touches: Callable[[Mapping[str, Any]], Touch | None] | None = None
    arguments: Arguments = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the signature."""
        if not self.name.replace("-", "_").isidentifier() or len(self.name) > 64 or not self.name.isascii():
            raise ToolDefinitionError(f"{self.name!r} cannot name a tool: use ASCII letters, digits and '_'")
        if self.ephemeral is not None and self.ephemeral < 1:
            raise ToolDefinitionError(f"{self.name}: ephemeral is how many results stay, at least 1")
        object.__setattr__(self, "arguments", arguments_of(self.name, self.callable))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, unchecked."""
        return self.callable(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether it is awaited, and can be cancelled; other functions run in a thread, which cannot."""
        return inspect.iscoroutinefunction(self.callable)

    def schema(self) -> dict[str, Any]:
        """Describe the tool as OpenAI's interface wants it."""
        function = {"name": self.name, "description": self.description, "parameters": self.arguments.schema}
        return {"type": "function", "function": function}


def tool(
    description: str | None = None,
    *,
    name: str | None = None,
    ephemeral: int | None = None,
    timeout: float | None = None,
    most_characters: int | None = None,
    touches: Callable[[Mapping[str, Any]], Touch | None] | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async: `@tool("what it does", ephemeral=3)`.

    Its name is the function's, its description the docstring unless given. Types are those of the signature, checked
    by pydantic; a parameter is described by `Annotated[type, "text"]` or by a pydantic `Field`.
    Raises `ToolDefinitionError` for a function that cannot be described.
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
            touches=touches,
        )

    return made


_log = structlog.get_logger(__name__)

CALL_ID: ContextVar[str] = ContextVar("CALL_ID", default="")
"""Id of the model's call that is running; empty where Python code calls a tool."""

MOST_AT_ONCE = 16

DEFAULT_TIMEOUT = 120.0
"""Seconds that a tool may take which says nothing else."""


class Registry:
    """Tools by their names. `timeout` is in seconds and holds for each tool that has none of its own.

    `on_error` is called with each exception of a tool that is a defect, not a reason for the model.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        on_error: Callable[[ToolCall, BaseException], None] | None = None,
    ) -> None:
        self.on_error = on_error
        self._tools: dict[str, Tool] = {}
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
        """What the tools are called, in the order in which they were added."""
        return list(self._tools)

    def add(self, *tools: Tool | Callable[..., Any]) -> None:
        """Add tools, or functions that have a docstring; raises `ToolDefinitionError` for a name that is taken."""
        made = [each if isinstance(each, Tool) else tool()(each) for each in tools]
        names = [*self._tools, *(each.name for each in made)]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ToolDefinitionError(f"two tools are called {doubles[0]!r}")
        self._tools.update((each.name, each) for each in made)

    def get(self, name: str) -> Tool:
        """Return a tool; raises `ToolDefinitionError` when there is none of that name."""
        if name not in self._tools:
            raise ToolDefinitionError(self._unknown(name))
        return self._tools[name]

    def narrow(self, names: Iterable[str]) -> Self:
        """Make a registry of some of these tools; raises `ToolDefinitionError` for a name that is not here."""
        return type(self)([self.get(name) for name in names], timeout=self._timeout, on_error=self.on_error)

    def right_form(self, name: str) -> str:
        """Show the arguments of a tool, or of the one whose name is most like it; else say which tools there are."""
        near = self._nearest(name)
        if near is None:
            return f"The tools are: {', '.join(self._tools) or 'none'}"
        return f"The right form of {near}: {self._tools[near].arguments.example()}"

    def schemas(self) -> list[dict[str, Any]]:
        """Describe all tools as OpenAI's interface wants them."""
        return [each.schema() for each in self]

    def together(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the first call, and those right after it that may run at the same time."""
        touched: list[Touch] = []
        for call in calls[:MOST_AT_ONCE]:
            touch = self._touch(call)
            if touch is None or any(touch.hinders(other) for other in touched):
                break
            touched.append(touch)
        return list(calls[: max(1, len(touched))])

    def _touch(self, call: ToolCall) -> Touch | None:
        """Return what a call touches; None where it has to run alone, or has no right arguments."""
        wanted = self._tools.get(call.name)
        if wanted is None or wanted.touches is None:
            return None
        try:
            return wanted.touches(call.arguments)
        except Exception:  # noqa: BLE001 - the call itself will say what is wrong
            return None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call. Only a cancellation gets out of it: every failure is a result, with its reason."""
        start = time.perf_counter()
        truncated = False
        running = CALL_ID.set(call.id)
        try:
            text, ok = await self._run(call), True
            most = self._tools[call.name].most_characters
            if most is not None and len(text) > most:
                text, truncated = shortened(text, most), True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is for the model to read
            text, ok = f"Error: {self._reason(call, error)}", False
        finally:
            CALL_ID.reset(running)
        seconds = time.perf_counter() - start
        _log.debug("tool.called", tool=call.name, call=call.id, ok=ok, seconds=round(seconds, 6), characters=len(text))
        return ToolResult(call.id, call.name, text, ok, seconds, truncated)

    async def _run(self, call: ToolCall) -> str:
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
                return text_of(await value if inspect.isawaitable(value) else value)
        except TimeoutError:
            if not limit.expired():
                raise  # the tool's own
        ended = "was ended" if wanted.is_async else "cannot be stopped and may still be at work"
        raise ToolError(f"{call.name} took longer than {seconds:g} s; it {ended}")

    def _unknown(self, name: str) -> str:
        near = self._nearest(name)
        hint = f", did you mean {near!r}?" if near else ""
        return f"there is no tool {name[:80]!r}{hint} (there are: {', '.join(self._tools) or 'none'})"

    def _nearest(self, name: str) -> str | None:
        return name if name in self._tools else next(iter(difflib.get_close_matches(name, self._tools, n=1)), None)

    def _reason(self, call: ToolCall, error: BaseException) -> str:
        """Return in a sentence what went wrong; the traceback of a defect goes to the log."""
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
