"""The orchestrator: the life of all strands of a tree, and the ways between them (B1, B8).

One place starts a strand, in one task group: when `run` is left, no strand is left, however it is left.
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
from cfs_agents.fibre.server_sessions import Begun, Kept, Live
from cfs_agents.fibre.state import (
    LEDGER,
    AgentSpec,
    Held,
    Letter,
    Made,
    SessionContext,
    StrandRecord,
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
    AsyncShell,
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

# What a strand is given for its work: its tools, its shell, its system prompt (B2, B6, B7).


def equipment(
    strand: FibreSubAgent,
    config: FibreConfig,
    guards: Guards,
    conductor: Conductor,
    warden: Warden,
    consent: Consent | None,
) -> tuple[list[Tool], AsyncShell | None]:
    """Make a strand's tools, and the shell that one of them uses; all files go through the guards' gate.

    With `consent` it is required before each command.
    """
    files = strand.context.files
    given = FibreTools(conductor).tools(may_spawn=leads(strand, config), may_finish=not strand.is_root)
    wanted: list[Tool] = FileTools(files, guards.gate(strand.agent_id)).tools()
    shell = None
    if config.commands is not CommandMode.NONE:
        shell = AsyncShell(_shell_settings(strand, config, warden))
        workspace = strand.context.agent_workspace
        require = partial(_require, strand, consent) if consent is not None else None
        commands = CommandTools(shell, workspace.parent, files, workspace=workspace, require=require).tools()
        wanted += [guards.watched(each, strand.agent_id) for each in commands]
    given += [each for each in wanted if each.name in config.file_tools]
    more = [each if isinstance(each, Tool) else tool()(each) for each in config.tools]
    return [*given, *more], shell


def system_text(strand: FibreSubAgent, config: FibreConfig) -> str:
    """Write a strand's system prompt: what it has of its session's system context stands in it, a line each."""
    notes = {"agent_name": strand.record.agent_name}
    for key, value in strand.context.system_context.items():
        notes[key] = _text(value)
    instruction = strand.record.system_instruction
    may_spawn = leads(strand, config)
    return system_prompt(config.language, instruction, may_spawn=may_spawn, notes=notes, common=config.common)


def leads(strand: FibreSubAgent, config: FibreConfig) -> bool:
    """Whether a strand may have children."""
    return strand.record.depth < config.max_depth


async def _require(strand: FibreSubAgent, consent: Consent, request: CommandRequest) -> None:
    async with strand.time_stopped():
        await consent.require(strand.agent_id, request)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shell_settings(strand: FibreSubAgent, config: FibreConfig, warden: Warden) -> ShellSettings:
    workspace = strand.context.agent_workspace
    box = (
        Sandbox(writable=(workspace,), places={WORKSPACE: workspace}) if config.commands is CommandMode.BWRAP else None
    )
    return ShellSettings(
        directory=workspace, sandbox=box, limits=usual_limits(), keep_variables=config.keep_variables, warden=warden
    )


# What one strand asks of the tree by its tools (B2): it spawns, writes to, and waits for others, and reports.


class Family(Protocol):
    """The strands of a tree, and what can be done with them."""

    config: FibreConfig
    live: Live

    @property
    def strands(self) -> Mapping[str, FibreSubAgent]:
        """All of them, by their ids."""
        ...

    async def spawn(self, parent: FibreSubAgent, spec: AgentSpec, spawned_by: str) -> FibreSubAgent:
        """Make a child and start it; raises `ToolError` where a limit forbids it, and `CfsError`."""
        ...

    def wake(self, strand: FibreSubAgent) -> None:
        """Let a strand go to work on what is in its inbox, if it is not at work."""
        ...

    def busy(self, strand: FibreSubAgent) -> bool:
        """Whether a strand is at work, or about to be."""
        ...

    async def heard(self, strand: FibreSubAgent) -> None:
        """Its parent knows a strand's report, and needs no news of it."""
        ...

    def lock(self, strand: FibreSubAgent, path: str) -> str:
        """Reserve a file for a strand."""
        ...

    def unlock(self, strand: FibreSubAgent, path: str) -> str:
        """Give a file free."""
        ...


class StrandConductor:
    """A `Conductor` for one strand of a family."""

    def __init__(self, family: Family, strand: FibreSubAgent) -> None:
        self._family = family
        self._strand = strand

    async def spawn(self, request: SpawnRequest) -> str:
        """Start a child and return its id at once; the same call does it once only, also after a kill."""
        family, me, place = self._family, self._strand, self._place()
        for known in family.strands.values():
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
        strands, free = self._family.strands, name
        for number in itertools.count(2):
            known = strands.get(free)
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
        me, target = self._strand, self._known(agent_id)
        if target is me:
            raise ToolError("this is you: there is no need to write to yourself")
        if not content.strip():
            raise ToolError("the message is empty")
        await target.put(Letter(id=f"{me.agent_id}:{self._place()}", sender=me.agent_id, content=content))
        self._family.wake(target)
        return words(self._family.config.language).sent.format(agent_id)

    async def wait(self, agent_id: str) -> str:
        """Return the report of an agent below this one, or a note that a message has come meanwhile."""
        family, me, target = self._family, self._strand, self._known(agent_id)
        if not target.session_id.startswith(f"{me.session_id}/"):
            raise ToolError(f"{agent_id} is none of your agents: you can write to it, but not wait for it")
        while True:
            me.news.clear()
            if not family.busy(target):
                break
            if await self._called():
                return words(family.config.language).called.format(agent_id)
            await me.news.wait()
        await family.heard(target)
        if target.report is None:
            raise ToolError(f"{agent_id} has no report")
        return target.report.text(family.config.language)

    async def finish(self, finish: Finish) -> str:
        """Take the strand's own report."""
        if self._strand.is_root:
            raise ToolError("you are the first agent and report to nobody: just answer")
        self._strand.take_finish(finish)
        return "done"

    async def lock(self, path: str) -> str:
        """Reserve a file."""
        return self._family.lock(self._strand, path)

    async def unlock(self, path: str) -> str:
        """Give a file free."""
        return self._family.unlock(self._strand, path)

    async def _called(self) -> bool:
        """Whether somebody has written to this strand; that a child is done does not count."""
        if any(not letter.notice for letter in self._strand.record.inbox):
            return True
        return await self._family.live.is_waiting(self._strand.session_id)

    def _known(self, agent_id: str) -> FibreSubAgent:
        found = self._family.strands.get(agent_id)
        if found is None:
            others = [each for each in self._family.strands if each != self._strand.agent_id]
            raise ToolError(f"there is no agent {agent_id[:80]!r} (there are: {', '.join(others) or 'none'})")
        return found

    def _place(self) -> str:
        """Name the call that is being made, the same after a kill: where its message stands, and its id."""
        messages = self._strand.context.message_manager.messages
        place = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].tool_calls), 0)
        return f"{place}:{CALL_ID.get()}"


_log = structlog.get_logger(__name__)

Models = Callable[[str], Model]
"""The model that answers for an agent, by the agent's name."""


class FibreOrchestrator:
    """The strands of one tree. `recall` them, then `run` one task of the root at a time."""

    def __init__(
        self, folder: TreeFolder, models: Models, config: FibreConfig, live: Live, chunks: ChunkStream
    ) -> None:
        self.config = config
        self.live = live
        self.chunks = chunks
        self.strands: dict[str, FibreSubAgent] = {}
        self.guards: Guards
        self._folder = folder
        self._models = models
        self.warden = Warden()
        """Of the shells of all strands."""
        self._consent = Consent(config.ask) if config.commands is CommandMode.ASK and config.ask is not None else None
        self._group: asyncio.TaskGroup | None = None
        live.attend(self)

    def recall(self, fresh: StrandRecord, context: SessionContext) -> None:
        """Make the strands that are on disk; the root is `fresh` when there are none. Blocks."""
        config = self.config
        self.guards = Guards(
            self._folder.workspace,
            self._folder.path / LEDGER,
            limits=Limits(config.max_depth, config.max_alive, config.max_agents),
            lock_seconds=config.lock_seconds,
            language=config.language,
        )
        self._made(recall_root(self._folder, fresh, context))
        for made in recall_subs(self._folder, lambda agent_id: self.strands[agent_id].context):
            self._made(made)

    def _made(self, made: Made) -> FibreSubAgent:
        record, context, place = made
        strand = self.strands[record.agent_id] = FibreSubAgent(self, record, context, place)
        used = record.usage.prompt_tokens + record.usage.completion_tokens
        self.guards.budget.open(record.agent_id, record.parent_id, record.budget, used)
        return strand

    @property
    def root(self) -> FibreSubAgent:
        """The strand that all others come from."""
        return next(iter(self.strands.values()))

    # -- a task of the root ---------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether something was broken off that `run` would go on with."""
        return any(each.record.state != "done" or each.record.held is not None for each in self.strands.values())

    async def run(self, begin: Begin | None = None) -> None:
        """Do a task of the root that `begin` brings, and go on with whatever was broken off."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            helpers = [group.create_task(self._ticking()), group.create_task(self._watching())]
            try:
                if begin is not None:
                    self._start(self.root, begin)
                for strand in list(self.strands.values()):
                    if begin is None or not strand.is_root:
                        await self._go_on(strand)
                if self.root.task is not None:
                    await asyncio.wait([self.root.task])
                await self._end_below(self.root)
            finally:
                self._group = None
                for helper in helpers:
                    helper.cancel()

    def resuming(self, strand: FibreSubAgent) -> Begin:
        """Return how a strand comes to the turn that it was broken off in."""
        held = strand.record.held
        if held is None:
            return lambda: self.live.begin(strand.session_id, strand.record.task_goal, strand.lost)
        return lambda: self.live.resume(strand.session_id, held, strand.said(), strand.lost)

    async def _go_on(self, strand: FibreSubAgent) -> None:
        """Start a strand that a kill has ended in the middle, or that has something in its inbox."""
        record = strand.record
        if record.state == "done" and not record.heard and strand.report is not None:
            await self._tell_parent(strand, strand.report)
        if record.state == "new":
            self._start(strand, self._first(strand))
        elif record.state == "working":
            self._start(strand, self.resuming(strand))
        elif record.held is not None:
            self._start(strand, self.resuming(strand), closing=True)
        else:
            self.wake(strand)
        if not strand.is_root and not self._open_above(strand):
            strand.kill("cancelled", words(self.config.language).parent_over)

    def _open_above(self, strand: FibreSubAgent) -> bool:
        """Whether those above a strand are at work, or were put to rest before it was put to work again."""
        parent = self.strands[strand.record.parent_id or ""]
        return self._at_work() and (self.busy(parent) or strand.record.tasks > 1)

    def _at_work(self) -> bool:
        """Whether the root has a task that is not at its end."""
        return self._group is not None and self.root.running and not self.root.ending

    def _first(self, strand: FibreSubAgent) -> Begin:
        async def begin() -> Begun | None:
            await self.live.open(strand.session_id)
            return await self.live.begin(strand.session_id, strand.record.task_goal, strand.lost)

        return begin

    def _start(
        self,
        strand: FibreSubAgent,
        begin: Begin,
        letter: Letter | None = None,
        *,
        closing: bool = False,
        outside: bool = False,
    ) -> None:
        """Start a strand: the only place that does.

        `closing` only ends a turn whose report is written; `outside` is for a message that may be gone by now.
        """
        assert self._group is not None  # noqa: S101 - nothing starts one when no task is under way
        strand.prepare()
        life = self._closing(strand, begin) if closing else self._life(strand, begin, letter, outside=outside)
        strand.task = self._group.create_task(life, name=strand.session_id)
        strand.task.add_done_callback(lambda _: self._changed(strand))

    async def _closing(self, strand: FibreSubAgent, begin: Begin) -> None:
        try:
            await strand.finish_turn(await begin())
        except CfsError as error:
            if is_outage(error):
                raise
            _log.warning("strand.turn_not_finished", session=strand.session_id, reason=error.detail)

    async def _life(self, strand: FibreSubAgent, begin: Begin, letter: Letter | None, *, outside: bool) -> None:
        try:
            if outside:
                begun = await begin()
                if begun is None:
                    return
                await strand.run(ready(begun), letter)
            else:
                await strand.run(begin, letter)
        except CfsError as error:  # such as a full disk: what happened cannot be written down
            if is_outage(error):
                raise  # which leaves the whole tree, to be gone on with later
            _log.error("strand.lost", session=strand.session_id, reason=error.detail)
            strand.report = strand.report or Report(strand.agent_id, "failed", reasons=(error.detail,))
        if not strand.is_root:
            strand.task = None
            self.wake(strand)

    def _changed(self, strand: FibreSubAgent) -> None:
        """Wake those above a strand, who may wait for it."""
        above = strand.record.parent_id
        while above is not None:
            self.strands[above].news.set()
            above = self.strands[above].record.parent_id

    # -- time -----------------------------------------------------------------------------------------------------

    async def _watching(self) -> None:
        try:
            await self.live.watch(self.root.session_id)
        except CfsError as error:  # the strands learn at their next step what they are not told
            _log.warning("fibre.not_watching", reason=error.detail)

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_seconds)
            self.tick()

    def tick(self) -> None:
        """Look at the time: end what has had too much of it."""
        say = words(self.config.language)
        for strand in self.strands.values():
            limit = strand.record.timeout
            if strand.running and limit is not None and strand.seconds() > limit and not self._paused(strand):
                strand.kill("failed", say.too_long.format(limit))

    def _paused(self, strand: FibreSubAgent) -> bool:
        return self.live.paused(strand.session_id)

    # -- what strands ask for -------------------------------------------------------------------------------------

    async def create_sub_session(self, parent_context: SessionContext, agent_config: AgentSpec) -> FibreSubAgent:
        """Make a strand below the one whose context this is: its name is taken from now on (B1, B4)."""
        parent = next(strand for strand in self.strands.values() if strand.context is parent_context)
        if agent_config.name in self.strands:
            raise Conflict(f"there is an agent called {agent_config.name!r} already")
        context = parent_context.child(agent_config, [each for each in self.strands if each != agent_config.name])
        record = StrandRecord(
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
        below = [each for each in self.strands.values() if not each.is_root]
        alive = sum(self.busy(each) for each in below)
        self.guards.limits.check_spawn(
            depth=parent.record.depth + 1, alive=alive, total=len(below), language=self.config.language
        )
        child = await self.create_sub_session(parent.context, spec)
        child.record.spawned_by = spawned_by
        try:
            await child.keeper.save()
        except BaseException:
            del self.strands[child.agent_id]
            raise
        self._start(child, self._first(child))
        return child

    def wake(self, strand: FibreSubAgent) -> None:
        """Let a strand go to work on the first message in its inbox, if it is not at work; news can wait."""
        letter = next((letter for letter in strand.record.inbox if not letter.notice), None)
        if letter is None or strand.running or strand.record.state != "done" or not self._at_work():
            return
        text = words(self.config.language).letter.format(letter.sender, letter.content)
        self._start(strand, lambda: self.live.begin(strand.session_id, text, strand.lost), letter)

    def busy(self, strand: FibreSubAgent) -> bool:
        """Whether a strand is at work, or about to be."""
        return strand.running or strand.record.state != "done"

    async def heard(self, strand: FibreSubAgent) -> None:
        """Take the news of a strand out of its parent's inbox."""
        strand.record.heard = True
        parent = self.strands[strand.record.parent_id or ""]
        parent.record.inbox = [
            each for each in parent.record.inbox if not (each.notice and each.sender == strand.agent_id)
        ]

    def lock(self, strand: FibreSubAgent, path: str) -> str:
        """Reserve a file for a strand."""
        return self.guards.locks.acquire(strand.agent_id, path)

    def unlock(self, strand: FibreSubAgent, path: str) -> str:
        """Give a file free."""
        return self.guards.locks.release(strand.agent_id, path)

    # -- what strands tell ----------------------------------------------------------------------------------------

    def model(self, strand: FibreSubAgent) -> Model:
        """Return the model that answers for a strand."""
        return self._models(strand.record.agent_name)

    def tools(self, strand: FibreSubAgent) -> tuple[list[Tool], AsyncShell | None]:
        """Make a strand's tools, and the shell that some of them use."""
        return equipment(strand, self.config, self.guards, StrandConductor(self, strand), self.warden, self._consent)

    def system(self, strand: FibreSubAgent) -> str:
        """Write a strand's system prompt (B6)."""
        return system_text(strand, self.config)

    async def began(self, strand: FibreSubAgent, *, again: bool) -> None:
        """A strand begins with a task, or goes on with one after a kill."""
        await self.guards.began(strand.agent_id, again=again)

    async def before_round(self, strand: FibreSubAgent, agent: Agent, *, told: bool) -> None:
        """Look before a strand's model is asked; raises `TooMany` when a budget does not have so much."""
        if told:
            agent.repeated.clear()
        context = agent.context.context
        agent.context.context = self.guards.before_round(strand.agent_id, context, context.tokens)

    def after(self, strand: FibreSubAgent, event: AgentEvent) -> None:
        """Look at what a strand did: what it asked is paid for."""
        if isinstance(event, TurnUsage):
            self.guards.asked(strand.agent_id, event.usage)

    def at_work(self, strand: FibreSubAgent) -> list[str]:
        """Name the children of a strand that are at work."""
        return [each.agent_id for each in self._children(strand) if self.busy(each)]

    async def unmade(self, strand: FibreSubAgent, answer: str) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the task began."""
        held, doubted = strand.record.held, strand.record.doubted
        task = held.content if held is not None else ""
        return await self.guards.unmade(strand.agent_id, answer, task, doubted)

    async def told_changes(self, strand: FibreSubAgent) -> str:
        """Say what became of the files since a strand's task began."""
        return told_changes(await self.guards.changes(strand.agent_id), sentences(self.config.language))

    async def judge(self, strand: FibreSubAgent, ending: Ending) -> Report:
        """Hold what a strand says of its task against the facts; those of its siblings are for their own reports."""
        said, usage = ending.said, strand.record.usage
        report = Report(strand.agent_id, ending.status, said.summary, said.details, (), ending.reasons, usage)
        report = await self.guards.judge(report, reports=max(1, strand.finishes))
        own = {None, strand.agent_id, *(each.agent_id for each in self._below(strand))}
        report = replace(report, facts=tuple(change for change in report.facts if change.by in own))
        self.guards.ended(strand.agent_id)
        return report

    async def over(self, strand: FibreSubAgent, report: Report) -> None:
        """End what is below a strand whose task is over, and tell its parent."""
        await self._end_below(strand)
        await self._tell_parent(strand, report)

    async def _tell_parent(self, strand: FibreSubAgent, report: Report) -> None:
        parent_id, task = strand.record.parent_id, f"{strand.agent_id}:{strand.record.tasks}"
        if parent_id is not None:
            text = report.text(self.config.language)
            await self.strands[parent_id].put(Letter(id=task, sender=strand.agent_id, content=text, notice=True))

    async def _end_below(self, strand: FibreSubAgent) -> None:
        tasks = []
        for child in self._below(strand):
            child.kill("cancelled", words(self.config.language).parent_over)
            if child.task is not None and not child.task.done():
                tasks.append(child.task)
        if tasks:
            await asyncio.wait(tasks)

    def _below(self, strand: FibreSubAgent) -> list[FibreSubAgent]:
        return [each for each in self.strands.values() if each.session_id.startswith(f"{strand.session_id}/")]

    def _children(self, strand: FibreSubAgent) -> list[FibreSubAgent]:
        return [each for each in self.strands.values() if each.record.parent_id == strand.agent_id]

    # -- what is kept of sessions ---------------------------------------------------------------------------------

    def sessions(self) -> list[str]:
        """Name all sessions that there have been, parents first."""
        return [each.session_id for each in self.strands.values() if each.record.life is not None]

    def kept(self, session_id: str) -> Kept:
        """Return what is kept of a session, up to the message that is being answered in it."""
        strand = self._of_session(session_id)
        if strand is None:
            return Kept()
        said = strand.said_before()
        if said and said[-1].role == "user":  # its turn was over when the next one began
            said.append(Message(role="assistant", content=words(self.config.language).taken))
        return Kept(said, strand.record.settings, strand.record.life)

    def opened(self, session_id: str, life: str, settings: Mapping[str, Any]) -> None:
        """A session is there: what it is like goes to disk with the next step."""
        if (strand := self._of_session(session_id)) is not None:
            strand.record.life, strand.record.settings = life, dict(settings)

    async def retaken(self, session_id: str, held: Held) -> None:
        """A turn has been taken again, as the server had lost it."""
        if (strand := self._of_session(session_id)) is not None:
            strand.record.held = held
            await strand.keeper.save()

    # -- from outside ---------------------------------------------------------------------------------------------

    def cancel(self, agent_id: str) -> None:
        """End an agent's task, and with it those of the agents below it."""
        self.strands[agent_id].kill("cancelled", words(self.config.language).stopped)

    def waiting(self, session_id: str) -> None:
        """Somebody has written to a session: its strand is woken, or learns of it at its next step."""
        strand = self._of_session(session_id)
        if strand is None:
            return
        strand.news.set()
        if self._at_work() and not self.busy(strand):
            self._start(strand, lambda: self.live.next(session_id, strand.lost), outside=True)

    def deleted(self, session_id: str) -> None:
        """A session is gone, and so is the work of its strand."""
        if (strand := self._of_session(session_id)) is not None:
            strand.kill("cancelled", words(self.config.language).stopped)

    def _of_session(self, session_id: str) -> FibreSubAgent | None:
        return next((each for each in self.strands.values() if each.session_id == session_id), None)


def ready(begun: Begun) -> Begin:
    """Begin with a turn that is there already."""

    async def begin() -> Begun:
        return begun

    return begin
