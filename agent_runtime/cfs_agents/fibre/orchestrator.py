"""The orchestrator: the life of all sub-agents of a tree, and the ways between them (B1, B8).

One place starts a sub-agent, in one task group: when `run` is left, no sub-agent is left, however it is left.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog

from cfs.errors import CfsError, Conflict, InvalidIdentifier
from cfs.ids import check_id
from cfs.wire import Message
from cfs_agents.agent import Agent
from cfs_agents.events import AgentEvent, TurnUsage
from cfs_agents.fibre.config import FibreConfig
from cfs_agents.fibre.guards.guards import Guards
from cfs_agents.fibre.guards.limits import Limits
from cfs_agents.fibre.prompts import system_prompt
from cfs_agents.fibre.report import ChunkStream, Report
from cfs_agents.fibre.server_sessions import ClaimedTurn, SavedSession, SessionBackend
from cfs_agents.fibre.state import (
    LEDGER,
    AgentSpec,
    InboxMessage,
    LeaseRecord,
    Made,
    SessionContext,
    SubAgentRecord,
    TreeFolder,
    recall_root,
    recall_subs,
)
from cfs_agents.fibre.sub_agent import Begin, Ending, FibreSubAgent
from cfs_agents.fibre.tools import Conductor, FibreTools, Finish, SpawnRequest
from cfs_agents.messages import sentences, told_changes, words
from cfs_agents.model import Model, is_outage
from cfs_agents.tools import (
    CALL_ID,
    AsyncPersistentShell,
    CommandMode,
    CommandRequest,
    CommandTools,
    Consent,
    FileTools,
    Sandbox,
    ShellSettings,
    Tool,
    ToolError,
    Warden,
    tool,
    usual_limits,
)
from cfs_agents.tools.files import WORKSPACE

# What a sub-agent is given for its work: its tools, its shell, its system prompt (B2, B6, B7).


def build_toolset(
    sub_agent: FibreSubAgent,
    config: FibreConfig,
    guards: Guards,
    conductor: Conductor,
    warden: Warden,
    consent: Consent | None,
) -> tuple[list[Tool], AsyncPersistentShell | None]:
    """Make a sub-agent's tools, and the shell that one of them uses; all files go through the guards' gate.

    With `consent` it is required before each command.
    """
    files = sub_agent.context.files
    given = FibreTools(conductor).tools(may_spawn=leads(sub_agent, config), may_finish=not sub_agent.is_root)
    wanted: list[Tool] = FileTools(files, guards.gate(sub_agent.agent_id)).tools()
    shell = None
    if config.commands is not CommandMode.NONE:
        shell = AsyncPersistentShell(_shell_settings(sub_agent, config, warden))
        workspace = sub_agent.context.agent_workspace
        require = partial(_require, sub_agent, consent) if consent is not None else None
        commands = CommandTools(shell, workspace.parent, files, workspace=workspace, require=require).tools()
        wanted += [guards.watched(each, sub_agent.agent_id) for each in commands]
    given += [each for each in wanted if each.name in config.file_tools]
    more = [each if isinstance(each, Tool) else tool()(each) for each in config.tools]
    return [*given, *more], shell


def system_text(sub_agent: FibreSubAgent, config: FibreConfig) -> str:
    """Write a sub-agent's system prompt: what it has of its session's system context stands in it, a line each."""
    notes = {"agent_name": sub_agent.record.agent_name}
    for key, value in sub_agent.context.system_context.items():
        notes[key] = _text(value)
    instruction = sub_agent.record.system_instruction
    may_spawn = leads(sub_agent, config)
    return system_prompt(config.language, instruction, may_spawn=may_spawn, notes=notes, common=config.common)


def leads(sub_agent: FibreSubAgent, config: FibreConfig) -> bool:
    """Whether a sub-agent may have children."""
    return sub_agent.record.depth < config.max_depth


async def _require(sub_agent: FibreSubAgent, consent: Consent, request: CommandRequest) -> None:
    async with sub_agent.time_stopped():
        await consent.require(sub_agent.agent_id, request)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shell_settings(sub_agent: FibreSubAgent, config: FibreConfig, warden: Warden) -> ShellSettings:
    workspace = sub_agent.context.agent_workspace
    box = (
        Sandbox(writable=(workspace,), places={WORKSPACE: workspace}) if config.commands is CommandMode.BWRAP else None
    )
    return ShellSettings(
        directory=workspace, sandbox=box, limits=usual_limits(), keep_variables=config.keep_variables, warden=warden
    )


# What one sub-agent asks of the tree by its tools (B2): it spawns, writes to, and waits for others, and reports.


class Family(Protocol):
    """The sub-agents of a tree, and what can be done with them."""

    config: FibreConfig
    backend: SessionBackend

    @property
    def sub_agents(self) -> Mapping[str, FibreSubAgent]:
        """All of them, by their ids."""
        ...

    async def spawn(self, parent: FibreSubAgent, spec: AgentSpec, spawned_by: str) -> FibreSubAgent:
        """Make a child and start it; raises `ToolError` where a limit forbids it, and `CfsError`."""
        ...

    def wake(self, sub_agent: FibreSubAgent) -> None:
        """Let a sub-agent go to work on what is in its inbox, if it is not at work."""
        ...

    def busy(self, sub_agent: FibreSubAgent) -> bool:
        """Whether a sub-agent is at work, or about to be."""
        ...

    async def report_delivered(self, sub_agent: FibreSubAgent) -> None:
        """Its parent knows a sub-agent's report, and needs no news of it."""
        ...

    def lock(self, sub_agent: FibreSubAgent, path: str) -> str:
        """Reserve a file for a sub-agent."""
        ...

    def unlock(self, sub_agent: FibreSubAgent, path: str) -> str:
        """Give a file free."""
        ...


class SubAgentTools:
    """A `Conductor` for one sub-agent of a family."""

    def __init__(self, family: Family, sub_agent: FibreSubAgent) -> None:
        self._family = family
        self._sub_agent = sub_agent

    async def spawn(self, request: SpawnRequest) -> str:
        """Start a child and return its id at once; the same call does it once only, also after a kill."""
        family, me, place = self._family, self._sub_agent, self._place()
        for known in family.sub_agents.values():
            if (known.record.parent_id, known.record.spawned_by) == (me.agent_id, place):
                return known.agent_id
        name = self._free(request.agent_name)
        try:
            check_id(f"{me.session_id}/{name}")
            child = await family.spawn(me, self._spec(request, name), place)
        except InvalidIdentifier as error:
            raise ToolError(error.detail) from None
        except CfsError as error:
            raise ToolError(f"no agent was started: {error.detail}") from None
        return child.agent_id

    def _free(self, name: str) -> str:
        """Return a name, with a number where agents that are done had it; raises `ToolError` where one is at work."""
        sub_agents, free = self._family.sub_agents, name
        for number in itertools.count(2):
            known = sub_agents.get(free)
            if known is None:
                return free
            if self._family.busy(known):
                raise ToolError(f"there is an agent called {free!r} already: take another name")
            free = f"{name}-{number}"
        raise AssertionError

    def _spec(self, request: SpawnRequest, name: str) -> AgentSpec:
        usual = self._family.config
        return AgentSpec(
            name,
            request.role_description,
            request.system_instruction,
            request.task_goal,
            request.max_turns or usual.max_turns,
            request.timeout or usual.timeout,
            request.budget or usual.budget,
        )

    async def send(self, agent_id: str, content: str) -> str:
        """Put a message into an agent's inbox; one that has reported goes to work again."""
        me, target = self._sub_agent, self._known(agent_id)
        if target is me:
            raise ToolError("this is you: there is no need to write to yourself")
        if not content.strip():
            raise ToolError("the message is empty")
        await target.deliver(InboxMessage(id=f"{me.agent_id}:{self._place()}", sender=me.agent_id, content=content))
        self._family.wake(target)
        return words(self._family.config.language).sent.format(agent_id)

    async def wait(self, agent_id: str) -> str:
        """Return the report of an agent below this one, or a note that a message has come meanwhile."""
        family, me, target = self._family, self._sub_agent, self._known(agent_id)
        if not target.session_id.startswith(f"{me.session_id}/"):
            raise ToolError(f"{agent_id} is none of your agents: you can write to it, but not wait for it")
        while True:
            me.news.clear()
            if not family.busy(target):
                break
            if await self._called():
                return words(family.config.language).called.format(agent_id)
            await me.news.wait()
        await family.report_delivered(target)
        if target.report is None:
            raise ToolError(f"{agent_id} has no report")
        return target.report.text(family.config.language)

    async def finish(self, finish: Finish) -> str:
        """Take the sub-agent's own report."""
        if self._sub_agent.is_root:
            raise ToolError("you are the first agent and report to nobody: just answer")
        self._sub_agent.take_finish(finish)
        return "done"

    async def lock(self, path: str) -> str:
        """Reserve a file."""
        return self._family.lock(self._sub_agent, path)

    async def unlock(self, path: str) -> str:
        """Give a file free."""
        return self._family.unlock(self._sub_agent, path)

    async def _called(self) -> bool:
        """Whether somebody has written to this sub-agent; that a child is done does not count."""
        if any(not message.is_notification for message in self._sub_agent.record.inbox):
            return True
        return await self._family.backend.is_waiting(self._sub_agent.session_id)

    def _known(self, agent_id: str) -> FibreSubAgent:
        found = self._family.sub_agents.get(agent_id)
        if found is None:
            others = [each for each in self._family.sub_agents if each != self._sub_agent.agent_id]
            raise ToolError(f"there is no agent {agent_id[:80]!r} (there are: {', '.join(others) or 'none'})")
        return found

    def _place(self) -> str:
        """Name the call that is being made, the same after a kill: where its message stands, and its id."""
        messages = self._sub_agent.context.message_manager.messages
        place = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].tool_calls), 0)
        return f"{place}:{CALL_ID.get()}"


_log = structlog.get_logger(__name__)

Models = Callable[[str], Model]
"""The model that answers for an agent, by the agent's name."""


class FibreOrchestrator:
    """The sub-agents of one tree. `recall` them, then `run` one task of the root at a time."""

    def __init__(
        self, folder: TreeFolder, models: Models, config: FibreConfig, backend: SessionBackend, chunks: ChunkStream
    ) -> None:
        self.config = config
        self.backend = backend
        self.chunks = chunks
        self.sub_agents: dict[str, FibreSubAgent] = {}
        self.guards: Guards
        self._folder = folder
        self._models = models
        self.warden = Warden()
        """Of the shells of all sub-agents."""
        self._consent = Consent(config.ask) if config.commands is CommandMode.ASK and config.ask is not None else None
        self._group: asyncio.TaskGroup | None = None
        backend.attend(self)

    def recall(self, fresh: SubAgentRecord, context: SessionContext) -> None:
        """Make the sub-agents that are on disk; the root is `fresh` when there are none. Blocks."""
        config = self.config
        self.guards = Guards(
            self._folder.workspace,
            self._folder.path / LEDGER,
            limits=Limits(config.max_depth, config.max_alive, config.max_agents),
            lock_seconds=config.lock_seconds,
            language=config.language,
        )
        self._made(recall_root(self._folder, fresh, context))
        for made in recall_subs(self._folder, lambda agent_id: self.sub_agents[agent_id].context):
            self._made(made)

    def _made(self, made: Made) -> FibreSubAgent:
        record, context, place = made
        sub_agent = self.sub_agents[record.agent_id] = FibreSubAgent(self, record, context, place)
        used = record.usage.prompt_tokens + record.usage.completion_tokens
        self.guards.budget.open(record.agent_id, record.parent_id, record.budget, used)
        return sub_agent

    @property
    def root(self) -> FibreSubAgent:
        """The sub-agent that all others come from."""
        return next(iter(self.sub_agents.values()))

    # -- a task of the root ---------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether something was broken off that `run` would go on with."""
        return any(each.record.state != "done" or each.record.lease is not None for each in self.sub_agents.values())

    async def run(self, begin: Begin | None = None) -> None:
        """Do a task of the root that `begin` brings, and go on with whatever was broken off."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            helpers = [group.create_task(self._ticking()), group.create_task(self._watching())]
            try:
                if begin is not None:
                    self._start(self.root, begin)
                for sub_agent in list(self.sub_agents.values()):
                    if begin is None or not sub_agent.is_root:
                        await self._go_on(sub_agent)
                if self.root.task is not None:
                    await asyncio.wait([self.root.task])
                await self._end_below(self.root)
            finally:
                self._group = None
                for helper in helpers:
                    helper.cancel()

    def resuming(self, sub_agent: FibreSubAgent) -> Begin:
        """Return how a sub-agent comes to the turn that it was broken off in."""
        lease = sub_agent.record.lease
        if lease is None:
            return lambda: self.backend.begin(sub_agent.session_id, sub_agent.record.task_goal, sub_agent.lost)
        return lambda: self.backend.resume(sub_agent.session_id, lease, sub_agent.said(), sub_agent.lost)

    async def _go_on(self, sub_agent: FibreSubAgent) -> None:
        """Start a sub-agent that a kill has ended in the middle, or that has something in its inbox."""
        record = sub_agent.record
        if record.state == "done" and not record.report_delivered and sub_agent.report is not None:
            await self._tell_parent(sub_agent, sub_agent.report)
        if record.state == "new":
            self._start(sub_agent, self._first(sub_agent))
        elif record.state == "working":
            self._start(sub_agent, self.resuming(sub_agent))
        elif record.lease is not None:
            self._start(sub_agent, self.resuming(sub_agent), closing=True)
        else:
            self.wake(sub_agent)
        if not sub_agent.is_root and not self._open_above(sub_agent):
            sub_agent.kill("cancelled", words(self.config.language).parent_over)

    def _open_above(self, sub_agent: FibreSubAgent) -> bool:
        """Whether those above a sub-agent are at work, or were put to rest before it was put to work again."""
        parent = self.sub_agents[sub_agent.record.parent_id or ""]
        return self._at_work() and (self.busy(parent) or sub_agent.record.tasks > 1)

    def _at_work(self) -> bool:
        """Whether the root has a task that is not at its end."""
        return self._group is not None and self.root.running and not self.root.ending

    def _first(self, sub_agent: FibreSubAgent) -> Begin:
        async def begin() -> ClaimedTurn | None:
            await self.backend.open(sub_agent.session_id)
            return await self.backend.begin(sub_agent.session_id, sub_agent.record.task_goal, sub_agent.lost)

        return begin

    def _start(
        self,
        sub_agent: FibreSubAgent,
        begin: Begin,
        message: InboxMessage | None = None,
        *,
        closing: bool = False,
        outside: bool = False,
    ) -> None:
        """Start a sub-agent: the only place that does.

        `closing` only ends a turn whose report is written; `outside` is for a message that may be gone by now.
        """
        assert self._group is not None  # noqa: S101 - nothing starts one when no task is under way
        sub_agent.prepare()
        life = self._closing(sub_agent, begin) if closing else self._life(sub_agent, begin, message, outside=outside)
        sub_agent.task = self._group.create_task(life, name=sub_agent.session_id)
        sub_agent.task.add_done_callback(lambda _: self._changed(sub_agent))

    async def _closing(self, sub_agent: FibreSubAgent, begin: Begin) -> None:
        try:
            await sub_agent.finish_turn(await begin())
        except CfsError as error:
            if is_outage(error):
                raise
            _log.warning("sub_agent.turn_not_finished", session=sub_agent.session_id, reason=error.detail)

    async def _life(
        self, sub_agent: FibreSubAgent, begin: Begin, message: InboxMessage | None, *, outside: bool
    ) -> None:
        try:
            if outside:
                turn = await begin()
                if turn is None:
                    return
                await sub_agent.run(ready(turn), message)
            else:
                await sub_agent.run(begin, message)
        except CfsError as error:  # such as a full disk: what happened cannot be written down
            if is_outage(error):
                raise  # which leaves the whole tree, to be gone on with later
            _log.error("sub_agent.lost", session=sub_agent.session_id, reason=error.detail)
            sub_agent.report = sub_agent.report or Report(sub_agent.agent_id, "failed", reasons=(error.detail,))
        if not sub_agent.is_root:
            sub_agent.task = None
            self.wake(sub_agent)

    def _changed(self, sub_agent: FibreSubAgent) -> None:
        """Wake those above a sub-agent, who may wait for it."""
        above = sub_agent.record.parent_id
        while above is not None:
            self.sub_agents[above].news.set()
            above = self.sub_agents[above].record.parent_id

    # -- time -----------------------------------------------------------------------------------------------------

    async def _watching(self) -> None:
        try:
            await self.backend.watch(self.root.session_id)
        except CfsError as error:  # the sub-agents learn at their next step what they are not told
            _log.warning("fibre.not_watching", reason=error.detail)

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_seconds)
            self.tick()

    def tick(self) -> None:
        """Look at the time: end what has had too much of it."""
        say = words(self.config.language)
        for sub_agent in self.sub_agents.values():
            limit = sub_agent.record.timeout
            if sub_agent.running and limit is not None and sub_agent.seconds() > limit and not self._paused(sub_agent):
                sub_agent.kill("failed", say.too_long.format(limit))

    def _paused(self, sub_agent: FibreSubAgent) -> bool:
        return self.backend.paused(sub_agent.session_id)

    # -- what sub-agents ask for -------------------------------------------------------------------------------------

    async def create_sub_session(self, parent_context: SessionContext, agent_config: AgentSpec) -> FibreSubAgent:
        """Make a sub-agent below the one whose context this is: its name is taken from now on (B1, B4)."""
        parent = next(sub_agent for sub_agent in self.sub_agents.values() if sub_agent.context is parent_context)
        if agent_config.name in self.sub_agents:
            raise Conflict(f"there is an agent called {agent_config.name!r} already")
        context = parent_context.child(agent_config, [each for each in self.sub_agents if each != agent_config.name])
        record = SubAgentRecord(
            session_id=context.session_id,
            agent_id=agent_config.name,
            agent_name=agent_config.name,
            parent_id=parent.agent_id,
            parent_session_id=parent.session_id,
            depth=parent.record.depth + 1,
            role_description=agent_config.role_description,
            system_instruction=agent_config.system_instruction,
            task_goal=agent_config.task_goal,
            max_turns=agent_config.max_turns,
            timeout=agent_config.timeout,
            budget=agent_config.budget,
            created_at=time.time(),
        )
        place = self._folder.sub(agent_config.name)
        return self._made((record, context, place))

    async def spawn(self, parent: FibreSubAgent, spec: AgentSpec, spawned_by: str) -> FibreSubAgent:
        """Make a child and start it."""
        if not self._at_work():
            raise ToolError("the work is at its end: no agent is started any more")
        below = [each for each in self.sub_agents.values() if not each.is_root]
        alive = sum(self.busy(each) for each in below)
        self.guards.limits.check_spawn(
            depth=parent.record.depth + 1, alive=alive, total=len(below), language=self.config.language
        )
        child = await self.create_sub_session(parent.context, spec)
        child.record.spawned_by = spawned_by
        try:
            await child.keeper.save()
        except BaseException:
            del self.sub_agents[child.agent_id]
            raise
        self._start(child, self._first(child))
        return child

    def wake(self, sub_agent: FibreSubAgent) -> None:
        """Let a sub-agent go to work on the first message in its inbox, if it is not at work; news can wait."""
        message = next((message for message in sub_agent.record.inbox if not message.is_notification), None)
        if message is None or sub_agent.running or sub_agent.record.state != "done" or not self._at_work():
            return
        text = words(self.config.language).letter.format(message.sender, message.content)
        self._start(sub_agent, lambda: self.backend.begin(sub_agent.session_id, text, sub_agent.lost), message)

    def busy(self, sub_agent: FibreSubAgent) -> bool:
        """Whether a sub-agent is at work, or about to be."""
        return sub_agent.running or sub_agent.record.state != "done"

    async def report_delivered(self, sub_agent: FibreSubAgent) -> None:
        """Take the news of a sub-agent out of its parent's inbox."""
        sub_agent.record.report_delivered = True
        parent = self.sub_agents[sub_agent.record.parent_id or ""]
        parent.record.inbox = [
            each for each in parent.record.inbox if not (each.is_notification and each.sender == sub_agent.agent_id)
        ]

    def lock(self, sub_agent: FibreSubAgent, path: str) -> str:
        """Reserve a file for a sub-agent."""
        return self.guards.locks.acquire(sub_agent.agent_id, path)

    def unlock(self, sub_agent: FibreSubAgent, path: str) -> str:
        """Give a file free."""
        return self.guards.locks.release(sub_agent.agent_id, path)

    # -- what sub-agents tell ----------------------------------------------------------------------------------------

    def model(self, sub_agent: FibreSubAgent) -> Model:
        """Return the model that answers for a sub-agent."""
        return self._models(sub_agent.record.agent_name)

    def tools(self, sub_agent: FibreSubAgent) -> tuple[list[Tool], AsyncPersistentShell | None]:
        """Make a sub-agent's tools, and the shell that some of them use."""
        return build_toolset(
            sub_agent, self.config, self.guards, SubAgentTools(self, sub_agent), self.warden, self._consent
        )

    def system(self, sub_agent: FibreSubAgent) -> str:
        """Write a sub-agent's system prompt (B6)."""
        return system_text(sub_agent, self.config)

    async def began(self, sub_agent: FibreSubAgent, *, again: bool) -> None:
        """A sub-agent begins with a task, or goes on with one after a kill."""
        await self.guards.began(sub_agent.agent_id, again=again)

    async def before_round(self, sub_agent: FibreSubAgent, agent: Agent, *, told: bool) -> None:
        """Look before a sub-agent's model is asked; raises `TooMany` when a budget does not have so much."""
        if told:
            agent.repeated.clear()
        context = agent.context.context
        agent.context.context = self.guards.before_round(sub_agent.agent_id, context, context.tokens)

    def after(self, sub_agent: FibreSubAgent, event: AgentEvent) -> None:
        """Look at what a sub-agent did: what it asked is paid for."""
        if isinstance(event, TurnUsage):
            self.guards.asked(sub_agent.agent_id, event.usage)

    def at_work(self, sub_agent: FibreSubAgent) -> list[str]:
        """Name the children of a sub-agent that are at work."""
        return [each.agent_id for each in self._children(sub_agent) if self.busy(each)]

    async def unmade(self, sub_agent: FibreSubAgent, answer: str) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the task began."""
        lease, doubted = sub_agent.record.lease, sub_agent.record.doubted
        task = lease.content if lease is not None else ""
        return await self.guards.unmade(sub_agent.agent_id, answer, task, doubted)

    async def told_changes(self, sub_agent: FibreSubAgent) -> str:
        """Say what became of the files since a sub-agent's task began."""
        return told_changes(await self.guards.changes(sub_agent.agent_id), sentences(self.config.language))

    async def judge(self, sub_agent: FibreSubAgent, ending: Ending) -> Report:
        """Hold what a sub-agent says of its task against the facts; those of its siblings are for their own reports."""
        said, usage = ending.said, sub_agent.record.usage
        report = Report(sub_agent.agent_id, ending.status, said.summary, said.details, (), ending.reasons, usage)
        report = await self.guards.judge(report, reports=max(1, sub_agent.finish_calls))
        own = {None, sub_agent.agent_id, *(each.agent_id for each in self._below(sub_agent))}
        report = replace(report, facts=tuple(change for change in report.facts if change.by in own))
        self.guards.ended(sub_agent.agent_id)
        return report

    async def over(self, sub_agent: FibreSubAgent, report: Report) -> None:
        """End what is below a sub-agent whose task is over, and tell its parent."""
        await self._end_below(sub_agent)
        await self._tell_parent(sub_agent, report)

    async def _tell_parent(self, sub_agent: FibreSubAgent, report: Report) -> None:
        parent_id, task = sub_agent.record.parent_id, f"{sub_agent.agent_id}:{sub_agent.record.tasks}"
        if parent_id is not None:
            text = report.text(self.config.language)
            await self.sub_agents[parent_id].deliver(
                InboxMessage(id=task, sender=sub_agent.agent_id, content=text, is_notification=True)
            )

    async def _end_below(self, sub_agent: FibreSubAgent) -> None:
        tasks = []
        for child in self._below(sub_agent):
            child.kill("cancelled", words(self.config.language).parent_over)
            if child.task is not None and not child.task.done():
                tasks.append(child.task)
        if tasks:
            await asyncio.wait(tasks)

    def _below(self, sub_agent: FibreSubAgent) -> list[FibreSubAgent]:
        return [each for each in self.sub_agents.values() if each.session_id.startswith(f"{sub_agent.session_id}/")]

    def _children(self, sub_agent: FibreSubAgent) -> list[FibreSubAgent]:
        return [each for each in self.sub_agents.values() if each.record.parent_id == sub_agent.agent_id]

    # -- what is kept of sessions ---------------------------------------------------------------------------------

    def sessions(self) -> list[str]:
        """Name all sessions that there have been, parents first."""
        return [each.session_id for each in self.sub_agents.values() if each.record.life is not None]

    def kept(self, session_id: str) -> SavedSession:
        """Return what is kept of a session, up to the message that is being answered in it."""
        sub_agent = self._of_session(session_id)
        if sub_agent is None:
            return SavedSession()
        said = sub_agent.said_before()
        if said and said[-1].role == "user":  # its turn was over when the next one began
            said.append(Message(role="assistant", content=words(self.config.language).taken))
        return SavedSession(said, sub_agent.record.settings, sub_agent.record.life)

    def opened(self, session_id: str, life: str, settings: Mapping[str, Any]) -> None:
        """A session is there: what it is like goes to disk with the next step."""
        if (sub_agent := self._of_session(session_id)) is not None:
            sub_agent.record.life, sub_agent.record.settings = life, dict(settings)

    async def retaken(self, session_id: str, lease: LeaseRecord) -> None:
        """A turn has been taken again, as the server had lost it."""
        if (sub_agent := self._of_session(session_id)) is not None:
            sub_agent.record.lease = lease
            await sub_agent.keeper.save()

    # -- from outside ---------------------------------------------------------------------------------------------

    def cancel(self, agent_id: str) -> None:
        """End an agent's task, and with it those of the agents below it."""
        self.sub_agents[agent_id].kill("cancelled", words(self.config.language).stopped)

    def waiting(self, session_id: str) -> None:
        """Somebody has written to a session: its sub-agent is woken, or learns of it at its next step."""
        sub_agent = self._of_session(session_id)
        if sub_agent is None:
            return
        sub_agent.news.set()
        if self._at_work() and not self.busy(sub_agent):
            self._start(sub_agent, lambda: self.backend.next(session_id, sub_agent.lost), outside=True)

    def deleted(self, session_id: str) -> None:
        """A session is gone, and so is the work of its sub-agent."""
        if (sub_agent := self._of_session(session_id)) is not None:
            sub_agent.kill("cancelled", words(self.config.language).stopped)

    def _of_session(self, session_id: str) -> FibreSubAgent | None:
        return next((each for each in self.sub_agents.values() if each.session_id == session_id), None)


def ready(turn: ClaimedTurn) -> Begin:
    """Begin with a turn that is there already."""

    async def begin() -> ClaimedTurn:
        return turn

    return begin
