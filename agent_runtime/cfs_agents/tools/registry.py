"""The tools of one agent: described to a model, and called for it. Whatever goes wrong becomes a result (A3)."""

import asyncio
import difflib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

import structlog

from cfs.wire import ToolCall
from cfs_agents.tools.errors import ShellError, ToolDefinitionError, ToolError
from cfs_agents.tools.results import ToolResult, shortened, text_of
from cfs_agents.tools.threads import in_thread
from cfs_agents.tools.tool import Tool, Touch, tool
from cfs_filesystem import FileSystemError

_log = structlog.get_logger(__name__)

CALL_ID: ContextVar[str] = ContextVar("CALL_ID", default="")
"""Id of the call that is being run."""

MOST_AT_ONCE = 16

DEFAULT_TIMEOUT = 120.0
"""Seconds that a tool may take which says nothing else."""


class Registry:
    """Tools by their names. `timeout` is in seconds and holds for each tool that has none of its own."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = (), *, timeout: float = DEFAULT_TIMEOUT) -> None:
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
        return type(self)([self.get(name) for name in names], timeout=self._timeout)

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
        CALL_ID.set(call.id)
        try:
            text, ok = await self._run(call), True
            most = self._tools[call.name].most_characters
            if most is not None and len(text) > most:
                text, truncated = shortened(text, most), True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is for the model to read
            text, ok = f"Error: {self._reason(call, error)}", False
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
        """Say in a sentence what went wrong; of what nobody foresaw, the traceback goes to the log."""
        if isinstance(error, ToolError):
            return text_of(error.reason)
        if isinstance(error, FileSystemError | ShellError):
            return text_of(str(error))
        _log.warning("tool.failed", tool=call.name, call=call.id, exc_info=error)
        if isinstance(error, OSError) and error.strerror:
            return text_of(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
        return text_of(f"{type(error).__name__}: {error}".removesuffix(": "))
