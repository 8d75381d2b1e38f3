"""Where a person sits before an agent: tasks go in, what happens is shown, Ctrl-C stops the task and not the agent."""

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from cfs.cli.app import complain
from cfs.cli.screen import note
from cfs.errors import CfsError, InvalidRequest, NotFound, Unverified
from cfs.transports.async_http import AsyncClient
from cfs_agents.config import Outcome
from cfs_agents.console import Console
from cfs_agents.console.question import CommandQuestions
from cfs_agents.context import CachedCounter
from cfs_agents.events import AgentEvent, Finished
from cfs_agents.file_agent import FileAgent, FileAgentConfig
from cfs_agents.retries import PATIENCE, Retries
from cfs_agents.server_model import ModelSettings, ServerCounter, ServerModel

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
        config: FileAgentConfig,
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
        self._console = Console()
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

    async def _open(self) -> FileAgent:
        client = await self._stack.enter_async_context(AsyncClient(self._url, self._token))
        model = ServerModel(client, self._model, retries=self._retries)
        config = replace(self._config, counter=CachedCounter(ServerCounter(client)))
        return await self._stack.enter_async_context(FileAgent(self._root, model, config))

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
            complain(error.detail)
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
