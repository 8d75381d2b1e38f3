"""Runs agents for the command line: reads tasks, shows progress, and stops on Ctrl-C without loss of state."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import TracebackType
from typing import Generic, Self, TypeVar, get_args

import structlog

from cfs.api import acting_as
from cfs.cli.base.background import Announcement
from cfs.cli.base.output import note, print_error, show, visible
from cfs.errors import CfsError, InvalidRequest, NotFound, Unreachable, Unverified
from cfs.transports import tracing
from cfs.transports.async_http import AsyncClient
from cfs_agents.base.events import AgentEvent, Finished, Warned
from cfs_agents.context import CachedCounter, TokenCounter
from cfs_agents.guards.report import ChangeKind, MessageChunk
from cfs_agents.loop.config import Outcome
from cfs_agents.loop.model import PATIENCE, ModelSettings, Outages, Retries, ServerCounter, ServerModel, is_outage
from cfs_agents.main.console import CommandQuestions, ConsoleStreamHandler, listed
from cfs_agents.tools import CommandMode
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent, FileSystemAgentConfig
from cfs_agents.tree.state import FibreConfig

AgentT = TypeVar("AgentT", FileSystemAgent, FibreAgent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """The options of agents of either kind: the place of their state, their model, and the server.

    `questions` requests consent before each command. `patience` is the longest tolerated outage in seconds. `publish`
    names the workspace on the server that shows the files of a single agent.
    """

    root: Path
    model: ModelSettings = field(default_factory=ModelSettings)
    url: str | None = None
    token: str | None = None
    questions: CommandQuestions | None = None
    patience: float = PATIENCE
    publish: str | None = None


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
        agent = self._make(client, model, CachedCounter(ServerCounter(client)))
        return await self._stack.enter_async_context(agent)

    def _make(self, client: AsyncClient, model: ServerModel, counter: TokenCounter) -> AgentT:
        """Make the agent."""
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


# -- a tree of agents -------------------------------------------------------------------------------------------------

_LONGEST = 100
"""Characters of the line that shows one step of an agent."""


class TreeRunner(Runner[FibreAgent]):
    """Runs a tree of agents, whose steps are lines; Ctrl-C leaves all work to be resumed."""

    def __init__(self, session: str, config: FibreConfig, options: RunnerOptions) -> None:
        super().__init__(options, Outages(_server_away, _server_back))
        self._session = session
        self._config = config
        self._announcement = Announcement()

    def _make(self, client: AsyncClient, model: ServerModel, counter: TokenCounter) -> FibreAgent:
        config = replace(self._config, counter=counter, warn=_warn)
        return FibreAgent(
            self._options.root, model, config, session=self._session, client=client, retries=self._retries
        )

    @property
    def _name(self) -> str:
        return self._session

    def serve(self) -> None:
        """Answer the session until Ctrl-C. An agent that has nothing to do waits out any outage."""
        self._run(self._serve())

    def resume(self) -> None:
        """Resume interrupted work. Raises `NotFound` if there is none."""
        self._run(self._resume())

    async def _serve(self) -> None:
        await self._agent.attach()  # first: the server's model would answer earlier messages
        if self._announcement.in_background:
            text = f"An agent answers in {self._session}. `cfs logs {self._session}` shows what it does."
            self._announcement.make("agent", self._session, self._options.url or "", text)
        else:
            note(f"[an agent answers in {self._session}; Ctrl-C ends it]")
        self._tell_where()
        await self._show(self._agent.serve())

    def _tell_where(self) -> None:
        """Say where commands are asked about if there is no terminal."""
        if self._config.commands is CommandMode.ASK and self._config.ask is None:
            note(f"[no terminal: answer its questions by `cfs answer {self._session}`, or in the browser]")

    async def _resume(self) -> None:
        self._agent.require_unfinished()
        self._tell_where()
        await self._show(self._agent.run_stream())
        report = self._agent.report
        if report is not None and not report.ok:
            kind = Unverified if report.status == "unverified" else CfsError
            raise kind("; ".join(report.reasons) or f"it ended as {report.status}")

    async def _show(self, chunks: AsyncGenerator[MessageChunk, None]) -> None:
        """Show each chunk, and at the end of the root's task all changes of files."""
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    await self._quiet()
                    _show_chunk(chunk)
                    if chunk.kind == "ended" and chunk.session_id == self._session:
                        self._show_changes()
        except CfsError as error:
            if is_outage(error) and self._agent.unfinished:
                hint = "what was done is kept: `cfs agent resume` continues it"
                raise Unreachable(f"{error.detail}; {hint}") from error
            raise

    def _show_changes(self) -> None:
        if (report := self._agent.report) is not None:
            for kind in get_args(ChangeKind):
                if paths := [each.path for each in report.facts if each.kind == kind]:
                    show(f"{self._session}: [{kind}: {visible(listed(paths))}]\n")


def _warn(sentence: str) -> None:
    note(f"[warning: {visible(sentence)}]")


def _server_away(error: CfsError) -> None:
    note(f"[waiting for the server: {error.detail}]")


def _server_back() -> None:
    note("[the server answers again]")


def _show_chunk(chunk: MessageChunk) -> None:
    """Show an agent's action in one line."""
    match chunk.kind:
        case "call" if chunk.call is not None:
            text = f"> {chunk.call.name} {json.dumps(chunk.call.arguments, ensure_ascii=False)}"
        case "result":
            text = f"< {chunk.name}: {chunk.content}"
        case "message":
            text = f"* {chunk.content}"
        case "ended":
            text = f"= {chunk.content}"
        case _:
            return
    line = visible(" ".join(text.split()))
    show(f"{chunk.session_id}: {line if len(line) <= _LONGEST else line[:_LONGEST] + '...'}\n")


# -- an agent with its state in files ---------------------------------------------------------------------------------

HELP = '''/resume   resume the task that was interrupted
/clear    forget the conversation; files and the context window stay
/help     this list
/quit     end; so does Ctrl-D
Ctrl-C    stop the running task; what was done is kept
"""       begins and ends a task of several lines
//TEXT    a task that begins with a slash
'''
_COMMAND = re.compile(r"/[a-z]*")


class AgentSession(Runner[FileSystemAgent]):
    """Runs a file agent, with a console."""

    def __init__(self, config: FileSystemAgentConfig, options: RunnerOptions) -> None:
        super().__init__(options)
        self._config = config
        self._console = ConsoleStreamHandler()

    def _make(self, client: AsyncClient, model: ServerModel, counter: TokenCounter) -> FileSystemAgent:
        config, options = replace(self._config, counter=counter, warn=self._warn), self._options
        return FileSystemAgent(
            project_root=options.root, model=model, config=config, publish=options.publish, client=client
        )

    @property
    def _name(self) -> str:
        return self._agent.name

    def greet(self) -> None:
        """Show how a chat begins."""
        note(f"The agent of {self._options.root}. /help lists the commands.")
        if self._agent.unfinished:
            note("[a task was interrupted; /resume continues it]")

    def work(self, task: str) -> None:
        """Run a task with the agent, or continue it if it is the one that was interrupted."""
        if not self._agent.unfinished:
            self._do(self._agent.run_stream(task))
        elif task == self._agent.task:
            note("[this task was interrupted before; it continues]")
            self.resume()
        else:
            note("[a task was interrupted before; this one follows it in the same conversation]")
            self._do(self._agent.run_stream(task))

    def resume(self) -> None:
        """Resume the task that was interrupted; raises `NotFound` if there is none."""
        if not self._agent.unfinished:
            raise NotFound(f"no task was interrupted in {self._options.root}: give a task")
        self._do(self._agent.run_stream())

    def take(self, entry: str, *, interactive: bool) -> bool:
        """Carry out a line of a chat; False if it was the last. Interactive, a chat continues after an error."""
        try:
            return self._carry_out(entry.strip())
        except CfsError as error:
            if not interactive:
                raise
            print_error(error.detail)
        except KeyboardInterrupt:
            if not interactive:
                raise
            note("[interrupted; /resume continues it]")
        return True

    def _carry_out(self, entry: str) -> bool:
        """Run a command or a task; raises its errors."""
        match entry:
            case "":
                pass
            case "/quit":
                return False
            case "/help":
                note(HELP.rstrip())
            case "/resume":
                self.resume()
            case "/clear":
                self._run(self._agent.clear())
                self._console.reset()
                note("[the conversation is cleared]")
            case _ if _COMMAND.fullmatch(entry):
                raise InvalidRequest(f"there is no command {entry}: /help lists them; //TEXT is a task that begins so")
            case _:
                self.work(entry[1:] if entry.startswith("//") else entry)
        return True

    def _warn(self, sentence: str) -> None:
        self._console.show(Warned(sentence))

    def _do(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        self._run(self._show(events), stop=self._agent.interrupt)
        _require_answer(self._agent.outcome)

    async def _show(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        async with aclosing(events):
            async for event in events:
                await self._quiet()
                if isinstance(event, Warned):
                    continue  # shown when it was warned
                if not isinstance(event, Finished) or event.reason in ("answered", "unverified"):
                    self._console.show(event)
        self._console.reset()


def _require_answer(outcome: Outcome) -> None:
    """Raise why a task did not end with an answer that can be relied on."""
    if outcome.reason == "interrupted":
        raise KeyboardInterrupt
    if outcome.error is not None:
        raise outcome.error
    if outcome.reason == "unverified":
        raise Unverified(outcome.detail)
    if outcome.reason != "answered":
        raise CfsError(f"{outcome.detail}; what was done is kept: resume to continue")
    if outcome.failed_call:
        raise CfsError(f"the last call before the answer failed: {outcome.failed_call}")
