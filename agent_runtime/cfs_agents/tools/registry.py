"""The registry of an agent's tools: it runs the calls of a model (A3).

An exception in a tool becomes an error result for the model. Only a cancellation leaves `Registry.call`.
"""

import asyncio
import difflib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

from cfs.wire import ToolCall
from cfs_agents.base.events import ToolResult
from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import in_thread
from cfs_agents.base.tracing import tool_call, tool_ended
from cfs_agents.shell.errors import ShellError
from cfs_agents.tools.call_gate import CallGate, PendingCall
from cfs_agents.tools.definition import FileAccess, Tool, tool
from cfs_agents.tools.errors import ToolDefinitionError, ToolError
from cfs_agents.tools.results import CutText, shortened, text_of
from cfs_filesystem import FileSystemError

_log = get_logger(__name__)

CALL_ID: ContextVar[str] = ContextVar("CALL_ID", default="")
"""Id of the model's call that is running; empty if Python code calls a tool."""

MOST_AT_ONCE = 16
"""Maximum number of calls that run in parallel."""

DEFAULT_TIMEOUT = 120.0
"""Time limit of a tool without its own, in seconds."""


class Registry:
    """Tools by their names. `timeout`, in seconds, applies to each tool without its own.

    Each call passes the `gate` before it happens. `on_error` is called with each exception that is a defect of a tool,
    not a reason for the model. `withheld` names tools that cannot be called in this step, and can in the next.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        gate: CallGate | None = None,
        on_error: Callable[[ToolCall, BaseException], None] | None = None,
        withheld: Iterable[str] = (),
    ) -> None:
        self.on_error = on_error
        self._gate = gate
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
        new_tools = [item if isinstance(item, Tool) else tool()(item) for item in tools]
        names = [*self._tools, *(new_tool.name for new_tool in new_tools)]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ToolDefinitionError(f"two tools are called {doubles[0]!r}")
        self._tools.update((new_tool.name, new_tool) for new_tool in new_tools)

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
        withheld = self._tools.keys() - {entry.name for entry in tools}
        return type(self)(tools, timeout=self._timeout, gate=self._gate, on_error=self.on_error, withheld=withheld)

    def right_form(self, name: str) -> str:
        """Return an example of a tool's arguments, or of the tool with the nearest name; else the list of tools."""
        near = self._nearest(name)
        if near is None:
            return f"The tools are: {', '.join(self._tools) or 'none'}"
        return f"The right form of {near}: {self._tools[near].arguments.example()}"

    def schemas(self, *, brief: bool = False, window: int | None = None) -> list[dict[str, Any]]:
        """Return the descriptions of all tools in the format of OpenAI's API (see `Tool.schema`).

        A `brief` list leaves out tools that are not for models with a small context; `window` is the model's context in
        tokens.
        """
        return [
            entry.schema(brief=brief, window=window)
            for entry in self
            if (entry.in_brief or not brief) and entry.min_context <= (window or 0)
        ]

    def together(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the first call and those directly after it that may run in parallel with it."""
        touched: list[FileAccess] = []
        for call in calls[:MOST_AT_ONCE]:
            touch = self._touch(call)
            if touch is None or any(touch.conflicts_with(other) for other in touched):
                break
            touched.append(touch)
        return list(calls[: max(1, len(touched))])

    def _touch(self, call: ToolCall) -> FileAccess | None:
        """Return what a call touches; None if it has to run alone or its arguments are invalid."""
        entry = self._tools.get(call.name)
        if entry is None or entry.touches is None:
            return None
        try:
            return entry.touches(call.arguments)
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
            max_characters = self._tools[call.name].most_characters
            if max_characters is not None and len(text) > max_characters:
                text, truncated = shortened(text, max_characters), True
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
        entry = self._tools[call.name]
        values = entry.arguments.check(call.arguments)
        if self._gate is not None:
            await self._gate(PendingCall(call, entry, values))
        seconds = self._timeout if entry.timeout is None else entry.timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                work = partial(entry.callable, **values)
                value = work() if entry.is_async else await in_thread(work)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the tool itself
        ended = "was ended" if entry.is_async else "cannot be stopped and may still be at work"
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
