"""Runtimes: they give an agent what a user says, and return how the task ended (A7, A8).

An agent is its state; a runtime opens it, runs it and keeps nothing. `AsyncAgentRuntime` belongs to an event loop,
`AgentRuntime` blocks.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from cfs_agents.config import Outcome
from cfs_agents.console import ConsoleStreamHandler
from cfs_agents.events import AgentEvent


class RunnableAgent(Protocol):
    """An agent that a runtime can run: `Agent`, `FileSystemAgent`. One that has to be opened is a context manager."""

    @property
    def outcome(self) -> Outcome:
        """How the last task ended."""
        ...

    def interrupt(self) -> None:
        """Stop the running task where it waits."""
        ...

    def run_stream(self, task: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Work on a task, or without one on what is unfinished, and yield events."""
        ...


class AsyncAgentRuntime:
    """Runs an agent in an event loop.

    In `async with` the agent stays open between tasks; otherwise each call opens and closes it. Opening raises what the
    agent raises. `console_handler` shows the tasks of `invoke_with_console`; the default writes to standard output.
    """

    def __init__(self, agent: RunnableAgent, *, console_handler: ConsoleStreamHandler | None = None) -> None:
        self.agent = agent
        self._console_handler = console_handler
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        self._stack = await _opened(self.agent)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def invoke(self, user_input: str | None = None) -> Outcome:
        """Run a task to its end, or continue the unfinished one; return the outcome, a failed one too."""
        async with aclosing(self.stream(user_input)) as events:
            async for _ in events:
                pass
        return self.agent.outcome

    async def invoke_with_console(self, user_input: str | None = None) -> Outcome:
        """Do the same, and show on the console what the agent does."""
        console = self._console_handler or ConsoleStreamHandler()
        async with aclosing(self.stream(user_input)) as events:
            async for event in events:
                console.show(event)
        console.reset()
        return self.agent.outcome

    async def stream(self, user_input: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Run a task and yield its events; `Finished` is the last one."""
        async with self._open(), aclosing(self.agent.run_stream(user_input)) as events:
            async for event in events:
                yield event

    def interrupt(self) -> None:
        """Stop the running task where it waits; its state is kept. Call it from the thread of the event loop."""
        self.agent.interrupt()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        if self._stack is not None:
            yield
            return
        async with self:
            yield


async def _opened(agent: RunnableAgent) -> AsyncExitStack:
    stack = AsyncExitStack()
    if hasattr(agent, "__aenter__"):
        manager: Any = agent
        await stack.enter_async_context(manager)
    return stack


class AgentRuntime:
    """Runs an agent and blocks until its task has ended; not for use inside a running event loop.

    In `with` the agent stays open between tasks; otherwise each call opens and closes it. With `console` what the agent
    does is shown on standard output.
    """

    def __init__(self, agent: RunnableAgent, *, console: bool = False) -> None:
        self.agent = agent
        self._runtime = AsyncAgentRuntime(agent)
        self._console = console
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._runtime.__aenter__())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._runner is not None:
                self._runner.run(self._runtime.__aexit__(kind, error, trace))
        finally:
            self._close()

    def run(self, user_input: str | None = None) -> Outcome:
        """Run a task to its end, or continue the unfinished one; return the outcome, a failed one too.

        Ctrl-C stops the task, keeps its state and raises `KeyboardInterrupt`.
        """
        if self._runner is None:
            with self:
                return self.run(user_input)
        invoke = self._runtime.invoke_with_console if self._console else self._runtime.invoke
        return self._runner.run(invoke(user_input))

    def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
