"""Functions that a model may call, described to it and run for it (C8)."""

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from cfs.errors import InvalidParameters
from cfs.tool_calls import ToolRequest, find_calls

MAX_ROUNDS = 8
"""How often in a row a model may call tools before it must answer."""

_HOW = (
    "To call one, write [CALL:<tool>(<arguments>)] with plain values as arguments, such as 1, 'text' or key=[1, 2]."
    " The next message brings the result as [RESULT:<tool>]. Answer without a call when you know enough."
)


class Tool(Protocol):
    """A function that a model may call: anything with these three."""

    @property
    def name(self) -> str:
        """What the model calls it by."""
        ...

    @property
    def description(self) -> str:
        """What the model is told about it."""
        ...

    @property
    def callable(self) -> Callable[..., Any]:
        """What is run; a coroutine function only in an `AsyncSession`."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool made of its three parts, or of a function with a docstring (`FunctionTool.of`)."""

    name: str
    description: str
    callable: Callable[..., Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """Make a tool of a function: its name, and what its docstring says."""
        return cls(function.__name__, inspect.getdoc(function) or "", function)


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

    def describe(self, message: str) -> str:
        """Put before a message what tools there are and how they are called."""
        if not self._tools:
            return message
        lines = [f"- {tool.name}{_signature(tool)}: {tool.description}" for tool in self._tools.values()]
        return "\n".join(
            [
                "You can call these tools:",
                *lines,
                _HOW,
                "",
                message,
            ]
        )

    def calls(self, reply: str) -> list[ToolRequest]:
        """Read the calls that a reply makes."""
        return find_calls(reply) if self._tools else []

    def run(self, requests: Sequence[ToolRequest]) -> str:
        """Run calls one after the other; return what the model is told of them."""
        return "\n".join(self._run(request) for request in requests)

    async def async_run(self, requests: Sequence[ToolRequest]) -> str:
        """Run calls one after the other, functions in a thread; return what the model is told of them."""
        return "\n".join([await self._async_run(request) for request in requests])

    def _run(self, request: ToolRequest) -> str:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        try:
            value = self._tools[request.name].callable(*request.arguments, **request.keywords)
            if inspect.iscoroutine(value):
                value.close()
                return _failed(request, "it is a coroutine function, which only an AsyncSession can run")
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the model to read
            return _failed(request, f"{type(error).__name__}: {error}")
        return _result(request, value)

    async def _async_run(self, request: ToolRequest) -> str:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        import asyncio  # late: a program without coroutines need not load it

        function = self._tools[request.name].callable
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(*request.arguments, **request.keywords)
            else:
                value = await asyncio.to_thread(function, *request.arguments, **request.keywords)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the model to read
            return _failed(request, f"{type(error).__name__}: {error}")
        return _result(request, value)

    def _refusal(self, request: ToolRequest) -> str | None:
        if request.name not in self._tools:
            return _failed(request, f"there is no such tool; there are: {', '.join(self._tools)}")
        return None if request.refusal is None else _failed(request, request.refusal)


def _signature(tool: Tool) -> str:
    try:
        return str(inspect.signature(tool.callable))
    except (TypeError, ValueError):  # of some functions in C nobody knows it
        return "(...)"


def _result(request: ToolRequest, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"[RESULT:{request.name}] {text}"


def _failed(request: ToolRequest, reason: str) -> str:
    return f"[ERROR:{request.name}] {reason}"
