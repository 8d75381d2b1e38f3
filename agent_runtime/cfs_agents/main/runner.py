"""Runs an agent for the command line: reads tasks, shows progress, and stops on Ctrl-C without loss of state."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import TracebackType
from typing import Generic, Self, TypeVar

import structlog

from cfs.api import acting_as
from cfs.errors import CfsError
from cfs.transports import tracing
from cfs.transports.async_http import AsyncClient
from cfs_agents.context import CachedCounter, TokenCounter
from cfs_agents.loop.retries import PATIENCE, Outages, Retries
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel
from cfs_agents.main.questions import CommandQuestions
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.tools import McpTools
from cfs_agents.tools import CommandMode, Tool
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent

AgentT = TypeVar("AgentT", FileSystemAgent, FibreAgent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """The options of agents of either kind: the place of their state, their model, and the server.

    `questions` requests consent before each command. `patience` is the longest tolerated outage in seconds. `publish`
    names the workspace on the server that shows the files of a single agent. `workspace` is a folder elsewhere that the
    agents work on. `mcp` are MCP servers by name, whose tools
    the agents have.
    """

    root: Path
    model: ModelSettings = field(default_factory=ModelSettings)
    url: str | None = None
    token: str | None = None
    questions: CommandQuestions | None = None
    patience: float = PATIENCE
    publish: str | None = None
    workspace: Path | None = None
    mcp: Mapping[str, McpServer] = field(default_factory=dict)


class Runner(Generic[AgentT]):
    """An agent whose model is behind a server, in the main thread. Use it in `with`.

    Its methods raise `CfsError` if there is no answer, and `KeyboardInterrupt` after Ctrl-C; the state is on disk then.
    """

    def __init__(self, options: RunnerOptions, outages: Outages | None = None) -> None:
        self._options = options
        self._retries = Retries(patience=options.patience, outages=outages or Outages())
        self._agent: AgentT
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        errors = structlog.make_filtering_bound_logger(40)  # the runner shows progress
        structlog.configure(wrapper_class=errors, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        tracing.start("cfs-agent")
        try:
            self._agent = self._runner.run(self._open())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def _open(self) -> AgentT:
        client = await self._stack.enter_async_context(AsyncClient(self._options.url, self._options.token))
        model = ServerModel(client, self._options.model, retries=self._retries)
        tools = await self._mcp_tools(model)
        agent = self._make(client, model, CachedCounter(ServerCounter(client)), tools)
        return await self._stack.enter_async_context(agent)

    async def _mcp_tools(self, model: ServerModel) -> list[Tool]:
        """Start the MCP servers and return their tools, or the two that search and call them in a small context."""
        if not self._options.mcp:
            return []
        workspace = self._workspace
        await asyncio.to_thread(workspace.mkdir, parents=True, exist_ok=True)
        confined = self._commands is CommandMode.BWRAP
        servers = McpTools(self._options.mcp, workspace, confined=confined, warn=self._warn)
        await self._stack.enter_async_context(servers)
        window = None
        with suppress(CfsError):  # the server is away: the agent waits for it later
            window = await model.ask_context_window()
        return servers.tools(window)

    def _make(self, client: AsyncClient, model: ServerModel, counter: TokenCounter, tools: Sequence[Tool]) -> AgentT:
        """Make the agent, which has these tools besides its own."""
        raise NotImplementedError

    @property
    def _workspace(self) -> Path:
        """The directory with the files that the agent works on."""
        raise NotImplementedError

    @property
    def _commands(self) -> CommandMode:
        """How the agent's commands run, and programs of MCP servers with them."""
        raise NotImplementedError

    def _warn(self, sentence: str) -> None:
        """Show a warning."""
        raise NotImplementedError

    def _close(self) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()
            tracing.stop()

    @property
    def _name(self) -> str:
        """The agent's name in the server's records."""
        raise NotImplementedError

    def _run(self, work: Coroutine[None, None, None], stop: Callable[[], object] | None = None) -> None:
        """Do the work until it ends or a signal arrives. The signal calls `stop` or cancels the work."""
        self._runner.run(self._until_stopped(work, stop))

    async def _until_stopped(self, work: Coroutine[None, None, None], stop: Callable[[], object] | None) -> None:
        with acting_as(agent=self._name):
            task = asyncio.create_task(work)
        with _signals(stop or task.cancel):
            await asyncio.wait([task])
        if task.cancelled():
            raise KeyboardInterrupt
        task.result()

    async def _quiet(self) -> None:
        """Wait until no question is open on the terminal."""
        if self._options.questions is not None:
            await self._options.questions.quiet()


@contextmanager
def _signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on a termination signal."""
    loop = asyncio.get_running_loop()
    for number in (SIGINT, SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (SIGINT, SIGTERM):
            loop.remove_signal_handler(number)
