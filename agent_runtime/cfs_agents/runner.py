"""Where a person sits before an agent: tasks go in, what happens is shown, Ctrl-C stops the task and not the agent."""

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import TracebackType
from typing import Self, get_args

import structlog

from cfs.cli.app import print_error
from cfs.cli.screen import note, show, visible
from cfs.errors import CfsError, InvalidRequest, NotFound, Unreachable, Unverified
from cfs.transports.async_http import AsyncClient
from cfs_agents.config import Outcome
from cfs_agents.console import CommandQuestions, ConsoleStreamHandler, listed
from cfs_agents.context import CachedCounter
from cfs_agents.events import AgentEvent, Finished
from cfs_agents.fibre.agent import FibreAgent
from cfs_agents.fibre.config import FibreConfig
from cfs_agents.fibre.report import ChangeKind, MessageChunk
from cfs_agents.file_agent import FileSystemAgent, FileSystemAgentConfig
from cfs_agents.model import PATIENCE, ModelSettings, Outages, Retries, ServerCounter, ServerModel, is_outage

# Where a person sits before a tree of agents: what each does is a line, and Ctrl-C leaves all of it to be resumed.

_LONGEST = 100


class TreeSeat:
    """A tree whose model and sessions are behind a server, in the main thread. Use it in `with`.

    Its methods raise `CfsError`, and `KeyboardInterrupt` after Ctrl-C; the state of the tree is on disk then.
    """

    def __init__(
        self,
        root: Path,
        session: str,
        config: FibreConfig,
        *,
        model: ModelSettings | None = None,
        url: str | None = None,
        token: str | None = None,
        questions: CommandQuestions | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._root = root
        self._session = session
        self._config = config
        self._model = model
        self._url = url
        self._token = token
        self._questions = questions
        self._retries = Retries(patience=patience, outages=Outages(_waits, _goes_on))
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))  # the lines tell what happens
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

    async def _open(self) -> FibreAgent:
        client = await self._stack.enter_async_context(AsyncClient(self._url, self._token))
        config = replace(self._config, counter=CachedCounter(ServerCounter(client)))
        model = ServerModel(client, self._model, retries=self._retries)
        agent = FibreAgent(self._root, model, config, session=self._session, client=client, retries=self._retries)
        return await self._stack.enter_async_context(agent)

    def _close(self) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    def serve(self) -> None:
        """Answer the session until Ctrl-C. An outage is waited out: for ever by an agent that has nothing to do."""
        self._runner.run(self._until_stopped(self._serve()))

    def resume(self) -> None:
        """Go on with what was broken off. Raises `NotFound` if nothing was, and `CfsError` without an answer."""
        self._runner.run(self._until_stopped(self._resume()))

    async def _serve(self) -> None:
        await self._agent.attach()  # first: what is written before would be answered by the server's model
        note(f"[an agent answers in {self._session}; Ctrl-C ends it]")
        async with aclosing(self._agent.serve()) as chunks:
            async for chunk in chunks:
                await self._show(chunk)

    async def _resume(self) -> None:
        self._agent.require_unfinished()
        async with aclosing(self._agent.run_stream()) as chunks:
            async for chunk in chunks:
                await self._show(chunk)
        report = self._agent.report
        if report is not None and not report.ok:
            kind = Unverified if report.status == "unverified" else CfsError
            raise kind("; ".join(report.reasons) or f"it ended as {report.status}")

    async def _show(self, chunk: MessageChunk) -> None:
        if self._questions is not None:
            await self._questions.quiet()
        _tell(chunk)
        if chunk.kind == "ended" and chunk.session_id == self._session and self._agent.report is not None:
            for what in get_args(ChangeKind):
                if paths := [each.path for each in self._agent.report.facts if each.kind == what]:
                    show(f"{chunk.session_id}: [{what}: {visible(listed(paths))}]\n")

    async def _until_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Do the work until a signal comes; then it is left where it is."""
        task = asyncio.create_task(work)
        with _signals(task):
            await asyncio.wait([task])
        if task.cancelled():
            raise KeyboardInterrupt
        error = task.exception()
        if isinstance(error, CfsError) and is_outage(error) and self._agent.unfinished:
            raise Unreachable(f"{error.detail}; what was done is kept: `cfs agent resume` goes on with it") from error
        task.result()


@contextmanager
def _signals(task: "asyncio.Task[None]") -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (SIGINT, SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (SIGINT, SIGTERM):
            loop.remove_signal_handler(number)


def _waits(error: CfsError) -> None:
    note(f"[waiting for the server: {error.detail}]")


def _goes_on() -> None:
    note("[the server answers again]")


def _tell(chunk: MessageChunk) -> None:
    """Show who does what, in a line."""
    match chunk.kind:
        case "call" if chunk.call is not None:
            said = f"> {chunk.call.name} {chunk.call.arguments}"
        case "result":
            said = f"< {chunk.name}: {chunk.content}"
        case "message":
            said = f"* {chunk.content}"
        case "ended":
            said = f"= {chunk.content}"
        case _:
            return
    line = visible(" ".join(said.split()))
    show(f"{chunk.session_id}: {line if len(line) <= _LONGEST else line[:_LONGEST] + '...'}\n")


HELP = '''/resume   go on with the task that was broken off
/help     this list
/quit     end; so does Ctrl-D
Ctrl-C    stop the running task; what was done is kept
"""       begins and ends a task of several lines
//TEXT    a task that begins with a slash
'''
_COMMAND = re.compile(r"/[a-z]*")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Seat:
    """An agent whose model is behind a server, with a console, in the main thread. Use it in `with`.

    Its methods raise what a task failed with, and `KeyboardInterrupt` after one that was interrupted.
    """

    def __init__(
        self,
        root: Path,
        config: FileSystemAgentConfig,
        *,
        model: ModelSettings | None = None,
        url: str | None = None,
        token: str | None = None,
        questions: CommandQuestions | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._root = root
        self._config = config
        self._model = model
        self._url = url
        self._token = token
        self._questions = questions
        self._retries = Retries(patience=patience)
        self._console = ConsoleStreamHandler()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))  # the console tells what happens
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

    async def _open(self) -> FileSystemAgent:
        client = await self._stack.enter_async_context(AsyncClient(self._url, self._token))
        model = ServerModel(client, self._model, retries=self._retries)
        config = replace(self._config, counter=CachedCounter(ServerCounter(client)))
        return await self._stack.enter_async_context(
            FileSystemAgent(project_root=self._root, model=model, config=config)
        )

    def _close(self) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    # -- tasks ----------------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Say where a chat stands."""
        note(f"The agent of {self._root}. /help lists the commands.")
        if self._agent.unfinished:
            note("[a task was broken off; /resume goes on with it]")

    def work(self, task: str) -> None:
        """Let the agent do a task."""
        if self._agent.unfinished:
            note("[a task was broken off before; this one follows it in the same conversation]")
        self._runner.run(self._show(self._agent.run_stream(task)))
        self._judge(self._agent.outcome)

    def resume(self) -> None:
        """Let it go on with the task that was broken off; raises `NotFound` when there is none."""
        if not self._agent.unfinished:
            raise NotFound(f"no task was broken off in {self._root}: say what to do")
        self._runner.run(self._show(self._agent.run_stream()))
        self._judge(self._agent.outcome)

    def take(self, entry: str, *, interactive: bool) -> bool:
        """Carry out a line of a chat; False when it was the last. Interactive, it goes on when something goes wrong."""
        try:
            return self._obeyed(entry.strip())
        except CfsError as error:
            if not interactive:
                raise
            print_error(error.detail)
        except KeyboardInterrupt:
            if not interactive:
                raise
            note("[interrupted; /resume goes on with it]")
        return True

    def _obeyed(self, entry: str) -> bool:
        """Carry out a command, or a task; raises what is wrong with it."""
        match entry:
            case "":
                pass
            case "/quit":
                return False
            case "/help":
                note(HELP.rstrip())
            case "/resume":
                self.resume()
            case _ if _COMMAND.fullmatch(entry):
                raise InvalidRequest(f"there is no command {entry}: /help lists them; //TEXT is a task that begins so")
            case _:
                self.work(entry[1:] if entry.startswith("//") else entry)
        return True

    async def _show(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        with self._interrupting():
            async with aclosing(events):
                async for event in events:
                    if self._questions is not None:
                        await self._questions.quiet()
                    if not isinstance(event, Finished) or event.reason in ("answered", "unverified"):
                        self._console.show(event)
        self._console.reset()

    @contextmanager
    def _interrupting(self) -> Iterator[None]:
        """Let the signals stop the task."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._agent.interrupt)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _judge(self, outcome: Outcome) -> None:
        if outcome.reason == "interrupted":
            raise KeyboardInterrupt
        if outcome.error is not None:
            raise outcome.error
        if outcome.reason == "unverified":
            raise Unverified(outcome.detail)
        if outcome.reason != "answered":
            raise CfsError(f"{outcome.detail}; what was done is kept: resume to go on")
        if outcome.failed_call:
            raise CfsError(f"the last call before the answer failed: {outcome.failed_call}")
