"""Runtimes: they give an agent what a user says, and return how the task ended (A7, A8).

An agent is its state; a runtime opens it, runs it and keeps nothing. `AsyncAgentRuntime` belongs to an event loop,
`AgentRuntime` blocks.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from cfs.errors import InvalidParameters
from cfs_agents.base.events import AgentEvent
from cfs_agents.loop.config import AgentConfig, Outcome
from cfs_agents.main.console import ConsoleStreamHandler
from cfs_agents.tree.file_agent import FileSystemAgent


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


AgentOrRoot: TypeAlias = RunnableAgent | str | os.PathLike[str]


def _agent_of(
    agent: AgentOrRoot | None, config: AgentConfig | None, project_root: str | os.PathLike[str] | None
) -> RunnableAgent:
    """Return the agent, or the file-system agent of a directory, with these settings."""
    if isinstance(agent, str | os.PathLike):
        agent, project_root = None, agent
    if agent is None:
        return FileSystemAgent(project_root="agent_root" if project_root is None else project_root, config=config)
    if config is not None or project_root is not None:
        raise InvalidParameters("an agent has its own settings and directory: give either an agent, or these")
    return agent


class AsyncAgentRuntime:
    """Runs an agent in an event loop. In place of an agent it takes the directory of a file-system agent, and settings.

    In `async with` the agent stays open between tasks; otherwise each call opens and closes it. Opening raises what the
    agent raises. `console_handler` shows the tasks of `invoke_with_console`; the default writes to standard output.
    """

    def __init__(
        self,
        agent: AgentOrRoot | None = None,
        config: AgentConfig | None = None,
        *,
        project_root: str | os.PathLike[str] | None = None,
        console_handler: ConsoleStreamHandler | None = None,
    ) -> None:
        self.agent = _agent_of(agent, config, project_root)
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

    async def invoke_with_console(
        self,
        user_input: str | None = None,
        *,
        role: str = "user",
        content: str | None = None,
        console_handler: ConsoleStreamHandler | None = None,
    ) -> Outcome:
        """Do the same, and show on the console what the agent does.

        `content` is another name of `user_input`. Raises `InvalidParameters` for a `role` other than `user`.
        """
        if role != "user":
            raise InvalidParameters(f"the role {role!r} gives no tasks: it must be 'user'")
        user_input = content if user_input is None else user_input
        console = console_handler or self._console_handler or ConsoleStreamHandler()
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

    def __init__(
        self,
        agent: AgentOrRoot | None = None,
        config: AgentConfig | None = None,
        *,
        project_root: str | os.PathLike[str] | None = None,
        console: bool = False,
    ) -> None:
        self._runtime = AsyncAgentRuntime(agent, config, project_root=project_root)
        self.agent = self._runtime.agent
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
