"""A sub-agent: one agent of a tree, with its own conversation, session and task (B1).

A task begins with a message and ends with a report. In between the sub-agent sends requests to its model and runs its
tools. Before each request it adds the messages that have arrived. The state on disk determines the next step, so a sub-
agent continues after its last step when it was killed. The root of a tree is also a sub-agent.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

from cfs.errors import CfsError, SessionDeleted, SessionRenamed, TooMany
from cfs.wire import Message
from cfs_agents.base import tracing
from cfs_agents.base.events import CallFinished, CallStarted, TurnUsage
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import catalogue, format_changes
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.digest import WAIT
from cfs_agents.guards.guards import Guards
from cfs_agents.guards.report import Finish, Report, ReportStatus
from cfs_agents.loop.agent import Agent
from cfs_agents.loop.config import AgentConfig
from cfs_agents.loop.model import HasContextWindow, Model
from cfs_agents.loop.retries import is_outage
from cfs_agents.tools import CALL_ID
from cfs_agents.tree.chunks import ChunkStream
from cfs_agents.tree.clock import WorkClock
from cfs_agents.tree.config import FibreConfig, tree_budget_of
from cfs_agents.tree.core import AgentCore
from cfs_agents.tree.ending import Ending
from cfs_agents.tree.fibre_rules import PromptForm, form_for
from cfs_agents.tree.output import TurnOutput
from cfs_agents.tree.prompts import fibre_prompt
from cfs_agents.tree.published import PublishedWorkspace
from cfs_agents.tree.record import InboxMessage, LeaseRecord, SubAgentRecord, report_of, state_of
from cfs_agents.tree.recorder import AgentRecorder
from cfs_agents.tree.session_backend import ClaimedTurn, SessionBackend
from cfs_agents.tree.session_context import SubSessionContext
from cfs_agents.tree.session_folder import SessionFolder
from cfs_agents.tree.session_journal import SessionJournal
from cfs_agents.tree.states import TRANSITIONS, SubAgentState, state_at_rest
from cfs_agents.tree.tool_names import FINISH, SPAWN
from cfs_agents.tree.toolset import Toolset

_log = get_logger(__name__)


TINY_CONTEXT = 4_096
"""Tokens of a context window below which a task begins with an empty conversation."""

Claim: TypeAlias = Callable[[], Awaitable[ClaimedTurn | None]]
"""Claims the turn that a sub-agent is to answer; returns None if the turn is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeResources:
    """The resources that all sub-agents of a tree share. `models` returns the model for an agent's name.

    `toolset` makes the tools of a sub-agent. `published` is the workspace on the
    server, if there is one.
    """

    config: FibreConfig
    backend: SessionBackend
    chunks: ChunkStream
    guards: Guards
    models: Callable[[str], Model]
    toolset: "Callable[[FibreSubAgent], Toolset]"
    published: PublishedWorkspace | None


class FibreSubAgent:
    """One agent of a tree. `run` does one task, or continues the one that was interrupted."""

    def __init__(
        self,
        tree: TreeResources,
        record: SubAgentRecord,
        context: SubSessionContext,
        folder: SessionFolder,
        parent: "FibreSubAgent | None" = None,
    ) -> None:
        self.tree = tree
        self.record = record
        self.context = context
        self._folder = folder
        self.parent = parent
        self.children: list[FibreSubAgent] = []
        if parent is not None:
            parent.children.append(self)
        self.output = TurnOutput(tree.chunks, record.session_id, record.agent_name)
        self.journal = SessionJournal(
            record, context, folder, stored=self.output.message, language=tree.config.language
        )
        self.finish_calls = 0
        """How often it has called `sys_finish_task` in this task."""
        self.wakeup = asyncio.Event()
        """Set when something has come that it may wait for."""
        self.task: asyncio.Task[None] | None = None
        self.report = report_of(record)
        self.clock = WorkClock(lambda: tree.backend.away)
        self._state = state_at_rest(record)
        self._waits = 0
        self._last_calls: set[str] = set()
        self._core: AgentCore | None = None
        self._finish: Finish | None = None
        self._ending: Ending | None = None
        self._window: int | None = None
        """The context window of its model, in tokens, if the model says it."""
        self._form: PromptForm = "full"

    @property
    def agent_id(self) -> str:
        """Its name, unique in the tree."""
        return self.record.agent_id

    @property
    def session_id(self) -> str:
        """The id of its session, which names all agents above it."""
        return self.record.session_id

    @property
    def is_root(self) -> bool:
        """Whether it is the first agent of the tree."""
        return self.parent is None

    @property
    def state(self) -> SubAgentState:
        """The current state."""
        return self._state

    @property
    def running(self) -> bool:
        """Whether its task runs in this process."""
        return self.task is not None and not self.task.done()

    @property
    def busy(self) -> bool:
        """Whether it has a task that is not done."""
        return self.running or self._state is not SubAgentState.DONE

    @property
    def may_spawn(self) -> bool:
        """Whether it may have children."""
        return self.record.depth < self.tree.config.max_depth

    def _family(self) -> set[str]:
        return {self.agent_id, *(child.agent_id for child in self.below())}

    def below(self) -> "Iterator[FibreSubAgent]":
        """Yield all agents below it, each before its own children."""
        for child in self.children:
            yield child
            yield from child.below()

    def _system_text(self) -> str:
        """Return its system prompt (B6), in the form that fits the model. Its task is not in it."""
        config = self.tree.config
        notes = {"agent_name": self.record.agent_name}
        for key, value in self.context.system_context.items():
            if key != "parent_task":
                notes[key] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        instruction = self.record.system_instruction
        return fibre_prompt(
            config.language, instruction, may_spawn=self.may_spawn, notes=notes, common=config.common, form=self._form
        )

    def _change(self, state: SubAgentState) -> None:
        """Change the state; only this method does. Raises `RuntimeError` if the table does not allow the change."""
        if state is self._state:
            return
        if state not in TRANSITIONS[self._state]:
            raise RuntimeError(f"{self.session_id} cannot go from {self._state} to {state}")
        self._state = state

    @asynccontextmanager
    async def waiting(self, *, counts: bool = True) -> AsyncIterator[None]:
        """Wait in this block; the time counts for the agent only if `counts`."""
        self._waits += 1
        if self._state is SubAgentState.WORKING:
            self._change(SubAgentState.WAITING)
        try:
            if counts:
                yield
            else:
                with self.clock.suspended():
                    yield
        finally:
            self._waits -= 1
            if not self._waits and self._state is SubAgentState.WAITING:
                self._change(SubAgentState.WORKING)

    @property
    def present_call(self) -> str:
        """The id of the present call, the same after a kill: its message's index in the session, and its id."""
        messages = self.context.message_manager.messages
        place = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].tool_calls), 0)
        return f"{place}:{CALL_ID.get()}"

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Store that the present call waits for a person in this block, so that nothing of it has happened."""
        self.record.asking = CALL_ID.get()
        await self.journal.save()
        try:
            yield
        except asyncio.CancelledError:
            raise  # it still has not happened
        except BaseException:
            self.record.asking = ""
            raise
        self.record.asking = ""
        await self.journal.save()

    def prepare(self) -> None:
        """Get ready for a task that is about to be started."""
        self._change(SubAgentState.STARTING)
        self._ending, self._finish, self.finish_calls = None, None, 0

    def kill(self, status: ReportStatus, reason: str) -> None:
        """End its task where it waits; from the thread of its event loop. A reporting task ends on its own."""
        over = self._state in (SubAgentState.REPORTING, SubAgentState.DONE)
        if self.task is None or not self.running or over or self._ending is not None:
            return
        self._ending = Ending.without_report(status, reason)
        if self.clock.started:  # else it looks before it begins: a task that is cancelled before that never runs
            self.task.cancel()

    def turn_lost(self, reason: str) -> None:
        """End its task, as its turn on the server was cancelled or taken over."""
        self.kill("cancelled", reason)

    def take_finish(self, finish: Finish) -> None:
        """Take its own report of the task, which ends when the call has its result."""
        self.finish_calls += 1
        if self._finish is not None:
            return
        self._finish = finish
        self.record.finish = asdict(finish)

    async def deliver(self, message: InboxMessage) -> None:
        """Put a message into its inbox, on disk too."""
        if self.record.deliver(message):
            await self.journal.save()
            self.wakeup.set()

    def report_delivered(self) -> None:
        """Take the notification of its report out of its parent's inbox, as the parent has the report."""
        self.record.report_delivered = True
        if self.parent is not None:
            inbox = self.parent.record.inbox
            inbox[:] = [each for each in inbox if not (each.is_notification and each.sender == self.agent_id)]

    async def end_below(self) -> None:
        """Cancel all agents below it, and wait for their ends."""
        tasks = []
        for each in self.below():
            each.kill("cancelled", catalogue(self.tree.config.language).parent_over)
            if each.task is not None and not each.task.done():
                tasks.append(each.task)
        if tasks:
            await asyncio.wait(tasks)

    async def notify_parent(self, report: Report) -> None:
        """Put its report into the inbox of its parent."""
        if self.parent is not None:
            text = report.text(self.tree.config.language)
            task = f"{self.agent_id}:{self.record.tasks}"
            await self.parent.deliver(InboxMessage(id=task, sender=self.agent_id, content=text, is_notification=True))

    async def run(self, claim: Claim, message: InboxMessage | None = None) -> None:
        """Do a task to its report, or continue it; `claim` gets its turn.

        A `message` begins the task; it leaves the inbox when the turn is claimed.
        """
        self.clock.start(self.record.seconds_used)
        try:
            ending = await self._ended(claim, message)
            self._change(SubAgentState.REPORTING)
            await self._report(ending)
            self._change(SubAgentState.DONE)
        finally:
            self.record.seconds_used = self.clock.stop()
            await self.output.close()
            await self._close_tools()
            self.wakeup.set()

    def rest(self) -> None:
        """Return to rest, as its task has ended, was interrupted, or had no turn to claim."""
        self._change(state_at_rest(self.record))

    async def _ended(self, claim: Claim, message: InboxMessage | None) -> Ending:
        """Work to the end of the task, however it ends."""
        if self._ending is not None:
            return self._ending
        try:
            return await self._work(claim, message)
        except asyncio.CancelledError:
            if self._ending is None or self.task is None:  # the whole tree stops, to be resumed later
                raise
            self.task.uncancel()
            return self._ending
        except (SessionDeleted, SessionRenamed) as error:
            return Ending.without_report("cancelled", error.detail)
        except CfsError as error:
            if is_outage(error):
                raise  # the task has not failed, only patience has run out: to be resumed later
            return Ending.without_report("failed", error.detail)
        except Exception as error:  # noqa: BLE001 - a sub-agent that fails is reported, and the others continue
            _log.exception("sub_agent.failed", session=self.session_id)
            return Ending.without_report("failed", f"{type(error).__name__}: {error}")

    async def _work(self, claim: Claim, message: InboxMessage | None) -> Ending:
        say = catalogue(self.tree.config.language)
        core = await self._make_core()
        turn = await claim()
        if turn is None:
            return Ending.without_report("cancelled", say.stopped)
        if self.journal.adopted:
            self._recall(core)
        claimed = turn.lease.record
        trace = None if claimed is None else claimed.traceparent
        with tracing.task(self.record.agent_name, self.session_id, trace) as span:
            ending = await self._answer(core.loop, turn, message)
            if ending.status != "success":
                tracing.fail(span, ending.status)
        return ending

    async def _answer(self, agent: Agent, turn: ClaimedTurn, message: InboxMessage | None) -> Ending:
        say = catalogue(self.tree.config.language)
        await self._begin_turn(agent, turn, message)
        if self.record.finish is not None:  # it had reported when it was killed
            self._finish = Finish(**self.record.finish)
        task: str | None = None
        while True:
            if self._finish is None:
                await self._run_loop(agent, task)
            if self._finish is not None:
                return Ending.reported(self._finish)
            if agent.outcome.reason == "rounds":
                return Ending.without_report("failed", say.no_answer.format(self.record.max_turns))
            if agent.outcome.reason != "answered":
                if agent.outcome.error is not None:
                    raise agent.outcome.error
                return Ending.without_report("failed", agent.outcome.detail)
            if (task := await self._next_message(agent.outcome.text)) is None:
                return await self._answered(agent.outcome.text)

    async def _answered(self, text: str) -> Ending:
        """Judge a task that ended with an answer, and without a report."""
        finish = Finish(status="success", summary=text)
        if not self.is_root:
            return Ending("unverified", finish, (catalogue(self.tree.config.language).no_report,))
        if unmade := await self._unmade(text):
            reason = catalogue(self.tree.config.language).unchanged.format(", ".join(unmade))
            return Ending("unverified", finish, (reason,))
        return Ending("success", finish)

    async def _make_core(self) -> AgentCore:
        """Make the loop, its tools and its conversation as it was stored."""
        config, record = self.tree.config, self.record
        limits = AgentConfig(
            max_rounds=record.max_turns,
            may_repeat=(WAIT, FINISH),
            offload_enabled=config.offload_enabled,
            offload_token_threshold=config.offload_token_threshold,
            context_tokens=config.context_tokens,
            counter=config.counter,
            language=config.language,
        )
        model = self.tree.models(record.agent_name)
        recorder = AgentRecorder(self.journal, self._before_round, self.tree.published)
        offloaded = self.context.offloaded(self._folder.warn) if config.offload_enabled else None
        self._core = core = AgentCore(model, limits, self.tree.toolset(self), recorder, offloaded=offloaded)
        await to_the_end(core.open)
        self._window = await model.context_window() if isinstance(model, HasContextWindow) else None
        self._form = config.prompt or form_for(self._window)
        self._recall(core)
        return core

    def _recall(self, core: AgentCore) -> None:
        """Set the conversation to what is stored."""
        record, self.journal.adopted = self.record, False
        newest = {message.content for message in self.context.message_manager.messages[record.messages :]}
        record.inbox = [each for each in record.inbox if self._text_of(each) not in newest]  # taken in, then killed
        core.resume_at(self.journal.resume_point(), Message(role="system", content=self._system_text()))
        self.journal.current = lambda: core.loop.context.context

    async def _begin_turn(self, agent: Agent, turn: ClaimedTurn, message: InboxMessage | None) -> None:
        """Begin with a claimed turn: a new task, or the one that was interrupted."""
        record = self.record
        self.output.begin(turn)
        self.output.chunk("started", content=record.role_description)
        record.lease = turn.lease.record or LeaseRecord(turn="", claim="", content=turn.content)
        if record.state != "working" or (self.is_root and not turn.resumed):
            record.state, record.report, self.report = "working", None, None
            record.tasks += 1
            record.rounds, record.seconds_used, record.nudges, record.finish = 0, 0.0, [], None
            record.doubted = None
            record.spent_before = self.tree.guards.budget.used(self.agent_id)
            self.clock.reset()
            if message in record.inbox:
                record.inbox.remove(message)
        if self.is_root:
            limit = tree_budget_of(self.tree.config, self._window)
            self.tree.guards.budget.renew(self.agent_id, limit, record.spent_before)
        self._change(SubAgentState.WORKING)
        await self.tree.guards.began(self.agent_id, again=not turn.resumed)
        if turn.resumed:
            await self.journal.save()
        else:
            await self._add_task(agent, turn.content)

    async def _add_task(self, agent: Agent, content: str) -> None:
        """Add the message that begins the task, unless it is there: a kill may precede the status."""
        last = agent.context.context.items[-1].message
        if last.role == "user" and last.content == content:
            await self.journal.save()
            return
        if self._window is not None and self._window < TINY_CONTEXT:  # small models repeat earlier tasks
            agent.context.context = agent.context.context.emptied()
        count = len(agent.context.context)
        agent.context.close_calls(catalogue(self.tree.config.language).stopped)
        agent.context.context = agent.context.context.released()
        agent.context.add(Message(role="user", content=content), task=True)
        for item in agent.context.context.items[count:]:
            await self.journal.add(item.message)

    async def _run_loop(self, agent: Agent, task: str | None) -> None:
        """Run the loop until the model has answered or reported."""
        agent.config = replace(agent.config, max_rounds=max(0, self.record.max_turns - self.record.rounds))
        async with aclosing(agent.run_stream(task)) as events:
            async for event in events:
                if isinstance(event, CallStarted):
                    self._last_calls.add(event.call.name)
                self.output.event(event)
                if isinstance(event, TurnUsage):
                    self.tree.guards.asked(self.agent_id, event.usage)
                if isinstance(event, CallFinished) and event.call.name == FINISH and self._finish is not None:
                    self.finish_calls += sum(call.name == FINISH for call in agent.context.context.open_calls)
                    return

    async def _next_message(self, answer: str) -> str | None:
        """Return the message that continues the task after an answer: a new one, or a reminder; else None."""
        record, config = self.record, self.tree.config
        if await self.tree.backend.is_waiting(self.session_id) and (message := await self._next_turn()) is not None:
            return message
        if record.inbox:
            return self._text_of(record.inbox.pop(0))
        names = [each.agent_id for each in self.children if each.busy]
        if names and "at_work" not in record.nudges:
            record.nudges.append("at_work")
            return catalogue(config.language).at_work.format(", ".join(names))
        say = catalogue(config.language)
        if not self.is_root and "finish" not in record.nudges:
            record.nudges.append("finish")
            return say.finish
        if self.is_root and record.doubted is None and (unmade := await self._unmade(answer)):
            record.doubted = answer
            return say.unmade.format(", ".join(unmade), await self._changes())
        return None

    async def has_message(self) -> bool:
        """Whether a message has arrived; the notification that a child is done does not count."""
        if any(not message.is_notification for message in self.record.inbox):
            return True
        return await self.tree.backend.is_waiting(self.session_id)

    async def _before_round(self) -> None:
        """Add new messages of its session and of other agents. Then run the guards.

        An agent that has just started a child, or waited for one, is not notified that a child is done: it will wait.
        """
        assert self._core is not None  # noqa: S101 - for the type checker
        agent = self._core.loop
        received = False
        async with self.waiting(counts=False):
            await self.tree.backend.unpaused(self.session_id)
        if await self.tree.backend.is_waiting(self.session_id) and (message := await self._next_turn()) is not None:
            await self._add(agent, message)
            received = True
        notify = not self._last_calls & {SPAWN, WAIT}
        self._last_calls = set()
        for each in [each for each in self.record.inbox if notify or not each.is_notification]:
            self.record.inbox.remove(each)
            await self._add(agent, self._text_of(each))
            received = True
        if received:
            agent.repeated.clear()
        context = agent.context.context
        try:
            agent.context.context = self.tree.guards.before_round(self.agent_id, context, context.tokens)
        except TooMany as error:
            if not self.is_root:
                raise
            raise TooMany(f"{error.detail}. {catalogue(self.tree.config.language).more_budget}") from None

    async def _next_turn(self) -> str | None:
        """End the present turn, as a newer message waits, and claim that one; None if it no longer exists."""
        await self.output.end_turn(catalogue(self.tree.config.language).superseded)
        turn = await self.tree.backend.next(self.session_id, self.turn_lost)
        if turn is not None:
            self.output.begin(turn)
        self.record.lease = self.output.lease
        return None if turn is None else turn.content

    async def _add(self, agent: Agent, content: str) -> None:
        item = agent.context.add(Message(role="user", content=content))
        await self.journal.add(item.message)

    def _text_of(self, message: InboxMessage) -> str:
        say = catalogue(self.tree.config.language)
        if message.is_notification:
            return say.child_done.format(message.content)
        return say.inbox_message.format(message.sender, message.content)

    async def _report(self, ending: Ending) -> None:
        """Store the report, end the turn with it, cancel the agents below, and notify the parent."""
        record, language = self.record, self.tree.config.language
        await self._close_tools()
        if self.tree.published is not None:
            await self.tree.published.send()
        report = self.report = await ending.checked(
            self.agent_id, record.usage, self.tree.guards, family=self._family, reports=self.finish_calls
        )
        record.state, record.report, record.report_delivered = "done", state_of(report), self.is_root
        record.begun, record.asking, record.finish = [], "", None
        record.seconds_used = self.clock.stop()
        await self.journal.save()
        if self.output.lease is None and not report.ok:
            # Its turn was never claimed: the message must not wait for ever.
            with suppress(CfsError):
                await self.tree.backend.cancel(self.session_id)
        await self.output.finish(report, language)
        record.lease = None
        await self.journal.save()
        self.output.chunk("ended", content=report.summary if self.is_root and report.ok else report.text(language))
        await self.end_below()
        await self.notify_parent(report)

    async def lose(self, reason: str) -> None:
        """End its task as failed, because its state cannot be stored. The others of the tree go on."""
        record = self.record
        if self.report is None or record.state != "done":
            self.report = Report(self.agent_id, "failed", reasons=(reason,))
        record.state, record.report, record.report_delivered = "done", state_of(self.report), self.is_root
        record.lease = None
        self.tree.guards.ended(self.agent_id)
        with suppress(CfsError):
            await self.tree.backend.cancel(self.session_id)
        self.output.chunk("ended", content=self.report.text(self.tree.config.language))
        await self.end_below()
        with suppress(CfsError):
            await self.notify_parent(self.report)

    async def finish_turn(self, turn: ClaimedTurn | None) -> None:
        """End a turn whose report was stored by a process that was killed then."""
        if turn is not None and self.report is not None:
            self.output.begin(turn)
            await self.output.finish(self.report, self.tree.config.language)
        self.record.lease = None
        await self.journal.save()

    async def _unmade(self, answer: str) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the task began."""
        lease = self.record.lease
        task = lease.content if lease is not None else ""
        return await self.tree.guards.unmade(self.agent_id, answer, task, self.record.doubted)

    async def _changes(self) -> str:
        """Describe the changes of files since the task began."""
        return format_changes(await self.tree.guards.changes(self.agent_id), catalogue(self.tree.config.language))

    async def _close_tools(self) -> None:
        """End its commands, and close its store of off-loaded results."""
        if self._core is not None:
            await self._core.close()
