"""Runs an agent with its state in files for the command line: one task, or a conversation."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from cfs.cli.base.output import note, print_error
from cfs.errors import CfsError, InvalidRequest, NotFound, Unverified
from cfs.transports.async_http import AsyncClient
from cfs_agents.base.events import AgentEvent, Finished, Warned
from cfs_agents.context import TokenCounter
from cfs_agents.loop.config import Outcome
from cfs_agents.loop.server_model import ServerModel
from cfs_agents.main.console import ConsoleStreamHandler
from cfs_agents.main.runner import Runner, RunnerOptions
from cfs_agents.tools import CommandMode, Tool
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.given_workspace import workspace_of

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

    def _make(
        self, client: AsyncClient, model: ServerModel, counter: TokenCounter, tools: Sequence[Tool]
    ) -> FileSystemAgent:
        options = self._options
        config = replace(self._config, counter=counter, warn=self._warn, tools=[*self._config.tools, *tools])
        return FileSystemAgent(
            project_root=options.root,
            workspace=options.workspace,
            model=model,
            config=config,
            publish=options.publish,
            client=client,
        )

    @property
    def _workspace(self) -> Path:
        root = self._options.root
        return workspace_of(root, self._options.workspace, root / WORKSPACE[1:])

    @property
    def _commands(self) -> CommandMode:
        return self._config.commands

    @property
    def _name(self) -> str:
        return self._agent.name

    def greet(self) -> None:
        """Show how a chat begins."""
        given = self._options.workspace
        note(f"The agent of {self._options.root if given is None else given.resolve()}. /help lists the commands.")
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
