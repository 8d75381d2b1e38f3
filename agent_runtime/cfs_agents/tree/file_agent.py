"""The file-system agent: a model, tools, and a directory that holds all of its state (A1-A7)."""

import os
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, nullcontext, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs.contract.ids import check_id
from cfs.errors import CfsError, InvalidIdentifier, NotFound
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message
from cfs_agents.base.events import AgentEvent, TurnUsage, Warned
from cfs_agents.base.free_space import FreeSpace
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import catalogue
from cfs_agents.base.threads import to_the_end
from cfs_agents.base.tracing import task_events
from cfs_agents.context import (
    ContextFileSystem,
    EstimatingCounter,
    TokenCounter,
    WorkingContext,
)
from cfs_agents.guards.ledger import LEDGER
from cfs_agents.guards.rules import RulesGate, Scope
from cfs_agents.loop.config import AgentConfig, Outcome, SyncTurn
from cfs_agents.loop.model import HasPrice, Model
from cfs_agents.loop.server_model import ModelSettings, ServerModel
from cfs_agents.project.texts import ProjectText
from cfs_agents.tools import (
    Consent,
    Reaper,
    agent_grants,
    usual_limits,
)
from cfs_agents.tools.paths import STORAGE, WORKSPACE
from cfs_agents.tools.plan import Plan
from cfs_agents.tree.agent_log import AgentLog
from cfs_agents.tree.core import AgentCore
from cfs_agents.tree.directory import OFFLOADED, SKILLS, AgentRoot
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.operations import OperationLogger
from cfs_agents.tree.published import PUBLISHED, PublishedWorkspace
from cfs_agents.tree.recorder import AgentRecorder
from cfs_agents.tree.run_log import FILE as RUN_LOG
from cfs_agents.tree.run_log import RunLog
from cfs_agents.tree.step_costs import check_price
from cfs_agents.tree.sync import ContextSynchronizer
from cfs_agents.tree.task_budget import FILE as BUDGET
from cfs_agents.tree.task_budget import TaskBudget
from cfs_agents.tree.tool_names import SYNC_CONTEXT
from cfs_agents.tree.toolset import JOBS, Toolset, working_tools
from cfs_agents.tree.watch import RootWatch
from cfs_agents.tree.window_journal import WindowJournal

_log = get_logger(__name__)


_CONVERSATION = "conversation"
MAIN = "main"
"""Id of an agent that was given none."""

_PUBLISH_SECONDS = 2.0

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidIdentifier(f"{name!r} cannot name an agent or its file: use letters, digits and . _ - only")
    return name


class FileSystemAgent:
    """An agent whose whole state is a directory. Use it in `async with`.

    `agent_id` names it; agents with different ids may use one directory in turn, each with its own conversation.
    `context_file` is the file in the directory that holds its context window, `context_window_{agent_id}.md` unless
    given. `project_root` is the directory; an empty or missing one becomes an agent. `workspace` is a folder elsewhere
    that it works on, `workspace` in the directory unless given; the directory remembers it. `model` answers; without it
    the server at `CFS_URL` does, with the model that `AgentConfig.from_env` finds.

    Entering raises `Conflict` if another process has the directory open, `InvalidIdentifier` for an id or a name that
    cannot name a file, `NotFound` or `InvalidRequest` for a workspace that cannot be used, and `Unavailable` or
    `StorageFull` if the disk refuses. One task runs at a time. After any interruption `resume` continues the task, in
    another process too.

    With `publish` its files are also in the workspace of that name on the server of `client` while it works: they are
    read and written there over any interface. Without a client it is the server at `CFS_URL`.
    """

    def __init__(
        self,
        agent_id: str = MAIN,
        context_file: str | None = None,
        project_root: str | os.PathLike[str] = "agent_root",
        *,
        workspace: str | os.PathLike[str] | None = None,
        model: Model | None = None,
        config: AgentConfig | None = None,
        publish: str | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        self.publish = None if publish is None else check_id(publish)
        self._client = client
        self.agent_id = _plain_name(agent_id)
        self.context_file = _plain_name(f"context_window_{agent_id}.md" if context_file is None else context_file)
        self.project_root = Path(project_root)
        self._workspace = None if workspace is None else Path(workspace)
        self.config = FileSystemAgentConfig.of(config)
        self.warnings: list[str] = []
        self._model = model
        self._stack = AsyncExitStack()
        self._unfinished = False
        self._doubtful = False

    async def __aenter__(self) -> Self:
        try:
            if self._client is None and (self.publish is not None or self._model is None):
                self._client = await self._stack.enter_async_context(AsyncClient())
            model = self._model or self._server_model()
            await to_the_end(partial(self._open, model))
            await to_the_end(self._recall)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._core.close()
        await to_the_end(self._close)
        await self._stack.aclose()

    def _server_model(self) -> Model:
        assert self._client is not None  # noqa: S101 - for the type checker
        return ServerModel(self._client, ModelSettings(name=self.config.model or AgentConfig.from_env().model))

    def _publish(self) -> PublishedWorkspace | None:
        if self.publish is None or self._client is None:
            return None
        return self._root.publish(self._client, self.publish, self._own(PUBLISHED))

    @property
    def name(self) -> str:
        """What a person calls the agent: its id, or for the main one the name of its directory or given workspace."""
        if self.agent_id != MAIN:
            return self.agent_id
        return (self._root.path if self._root.has_own_workspace else self._root.workspace).name

    @property
    def context(self) -> WorkingContext:
        """The conversation, as the model is about to see it."""
        return self._agent.context

    @property
    def task(self) -> str:
        """The text of the last task; empty before the first."""
        return self._agent.task

    @property
    def unfinished(self) -> bool:
        """Whether the last task was interrupted before the model had answered."""
        return self._unfinished

    @property
    def outcome(self) -> Outcome:
        """How the last task ended, or what is known of the running one."""
        return self._agent.outcome

    def interrupt(self) -> None:
        """Stop the running task where it waits; its state is kept. Call it from the thread of the event loop."""
        self._agent.interrupt()

    async def clear(self) -> None:
        """Forget the conversation, and with it an interrupted task. The context window and all files stay."""
        await to_the_end(self._run_log.restart)
        await to_the_end(self._recall)

    async def run(self, task: str) -> Outcome:
        """Work on a task to its end."""
        return await self._through(self.run_stream(task))

    async def resume(self) -> Outcome:
        """Resume the interrupted task. Raises `NotFound` if there is none."""
        if not self.unfinished:
            raise NotFound(f"there is no interrupted task in {self._root.path}")
        return await self._through(self.run_stream())

    async def run_stream(self, task: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Work on a task, or continue the unfinished one, and yield events; `Finished` is the last one.

        Raises `InvalidSettings` for a budget in money if the model has no price.
        """
        if self.config.task_cost is not None:
            await check_price(self._llm, self.config.task_cost)
        if self._budget is not None and task is not None:
            await self._budget.begin()
        if self._doubtful:
            await to_the_end(self._recall)
        else:
            await to_the_end(self._look_again)
        self._doubtful = self._unfinished = True
        self._log.info("a task continues" if task is None else "a task begins")
        try:
            publishing = nullcontext() if self._published is None else self._published.kept_equal(_PUBLISH_SECONDS)
            async with publishing, aclosing(task_events(self.name, self._agent.run_stream(task))) as events:
                async for event in events:
                    if isinstance(event, Warned):
                        self._warned(event.text)
                    if isinstance(event, TurnUsage) and self._budget is not None:
                        await self._budget.count(event.usage)
                    yield event
        except Exception as error:
            self._log.error("the task ended by a defect", error)
            raise
        self._log_end()
        self._doubtful = self.outcome.reason == "failed"
        self._unfinished = not self.outcome.over
        with suppress(CfsError):  # what cannot be cleaned today can tomorrow
            await self._agent.context.clean()

    async def _through(self, events: AsyncGenerator[AgentEvent, None]) -> Outcome:
        async with aclosing(events):
            async for _ in events:
                pass
        return self.outcome

    def _open(self, model: Model) -> None:
        config = self.config
        counter = config.counter or EstimatingCounter()
        ledger = self._own(LEDGER)
        begun = os.path.lexists(self.project_root.expanduser() / ledger)
        early: list[str] = []  # before there is a log to write them to
        self._root = AgentRoot(
            self.project_root,
            config.language,
            self.context_file,
            workspace=self._workspace,
            warn=early.append,
            begun=begun,
        )
        try:
            self._log = AgentLog(self._root.path / "logs", self.agent_id, early.append)
            for sentence in early:
                self._warned(sentence)
            self._root.warn = self._warned
            self._run_log = RunLog(self._root.path / self._own(RUN_LOG), self._warned, begun=begun)
            log = OperationLogger(self._root.path / "logs", warn=self._warned)
        except BaseException:
            self._root.close()
            raise
        sync = ContextSynchronizer(counter, most_tokens=config.window_tokens)
        self._published = self._publish()
        self._reaper = Reaper()
        self._small = True
        project = ProjectText(
            self._root.handle(agent_grants(self._root.context_window)),
            WORKSPACE,
            skills=config.skills,
            copies=None if self._root.has_own_workspace else SKILLS,
            warn=self._warned,
        )
        self._plan = Plan()
        self._journal = WindowJournal(
            self._root, self._run_log, log, sync, lambda: project.read(small=self._small), self._plan
        )
        self._disk = FreeSpace(self._root.path)
        self._budget = self._task_budget()
        self._llm = model
        if self._budget is not None and isinstance(model, HasPrice):
            model = model.metered(self._budget)
        offloaded = ContextFileSystem(
            self._root.path / OFFLOADED[1:],
            self._own(_CONVERSATION),
            shown_as=OFFLOADED,
            trusted=self._root.path / STORAGE[1:],
            warn=self._warned,
        )
        self._watch = RootWatch(self._root, ledger, lambda sentence: self._agent.warn(sentence), self._warned)
        self._core = AgentCore(
            model,
            self._agent_config(counter),
            self._toolset(sync),
            AgentRecorder(self._journal, self._before_round, self._published),
            offloaded=offloaded,
            watch=self._watch,
            system_for=self._system_for,
        )
        self._core.open()
        self._agent = self._core.loop
        self._agent.tools.on_error = lambda call, error: self._log.error(f"the tool {call.name} failed", error)

    def _own(self, name: str) -> str:
        """Return the name of a file that this agent does not share with others of the same directory."""
        stem, dot, ending = name.partition(".")
        return name if self.agent_id == MAIN else f"{stem}_{self.agent_id}{dot}{ending}"

    def _task_budget(self) -> TaskBudget | None:
        config = self.config
        if config.task_budget is None and config.task_cost is None:
            return None
        return TaskBudget(
            self._root.path / self._own(BUDGET),
            self.name,
            tokens=config.task_budget,
            cost=config.task_cost,
            language=config.language,
            warn=self._warned,
        )

    def _toolset(self, sync: ContextSynchronizer) -> Toolset:
        config, root = self.config, self._root.path
        working, jobs = working_tools(
            self._root.handle(agent_grants(self._root.context_window)),
            root,
            self._root.folders,
            config.commands,
            ignored=self._root.ignored,
            look_alikes=config.look_alikes,
            network=config.network,
            limits=config.limits or usual_limits(),
            keep_variables=config.keep_variables,
            reaper=self._reaper,
            jobs_file=root / self._own(JOBS),
            records=self._root.command_records,
            home=self._root.shell_home(config.commands),
            language=config.language,
        )
        consent = Consent(config.ask)
        gate = RulesGate(
            config.policy,
            Scope(self._root.workspace, root),
            lambda: config.policy.defaults(config.commands, attended=config.ask is not None),
            consent=consent,
            ask=partial(consent.require, self.name),
            warn=self._warned,
        )
        plan = [self._plan.tool()] if config.plan else []
        return Toolset([*working, sync.tool(), *plan, *config.tools], jobs, gate)

    def _agent_config(self, counter: TokenCounter) -> AgentConfig:
        config = self.config
        settings = {field.name: getattr(config, field.name) for field in fields(AgentConfig)} | {
            "counter": counter,
            "sync_turn": SyncTurn(prompt=catalogue(config.language).sync_turn, tools=[SYNC_CONTEXT]),
        }
        return AgentConfig(**settings)

    def _close(self) -> None:
        self._reaper.close()
        self._log.close()
        self._run_log.close()
        self._root.close()

    async def _before_round(self) -> None:
        """Check the free space of the disk, which takes microseconds, so no thread is needed; and the budget."""
        if warning := self._disk.check():
            self._agent.warn(warning)
        if self._budget is not None:
            self._budget.require(self.context.context.tokens)

    def _recall(self) -> None:
        """Set the conversation to what is stored."""
        state = self._journal.recall()
        self._core.resume_at(state.resume_point, self._journal.system())
        self._agent.outcome = Outcome(state.end.reason, detail=state.end.detail) if state.end else Outcome()
        self._unfinished = state.unfinished
        if self._budget is not None:
            self._budget.load()
        if state.unfinished:
            self._watch.ensure()

    def _look_again(self) -> None:
        """Rebuild the system prompt: files and window may have changed since the last task."""
        self._core.replace_system(self._journal.system())

    async def _system_for(self, small: bool) -> Message:
        """Return the system prompt for a model with a small context, or for any other."""

        self._small = small

        def fitted() -> Message:
            self._root.fit_guideline(small=small)
            return self._journal.system()

        return await to_the_end(fitted)

    def _log_end(self) -> None:
        outcome = self.outcome
        text = f"the task ended as {outcome.reason}" + (f": {outcome.detail}" if outcome.detail else "")
        if outcome.error is None:
            self._log.info(text)
        else:
            self._log.error(text, outcome.error)

    def _warned(self, sentence: str) -> None:
        self._log.warning(sentence)
        self.warnings.append(sentence)
        if self.config.warn is not None:
            self.config.warn(sentence)
