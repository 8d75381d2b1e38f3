"""One task of a sub-agent, from the message that begins it to the report, which is checked afterwards (B1, B2).

In between the sub-agent sends requests to its model and runs its tools. Before each request it adds the messages that
have arrived. The state on disk determines the next step, so a task continues after its last step when it was killed.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TypeAlias

from cfs.contract.money import money
from cfs.errors import TooMany
from cfs.wire import BudgetUse, Message
from cfs_agents.base import tracing
from cfs_agents.base.events import CallFinished, CallStarted, TurnUsage
from cfs_agents.base.messages import catalogue, format_changes
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.digest import WAIT
from cfs_agents.guards.report import Finish, Report
from cfs_agents.loop.agent import Agent
from cfs_agents.loop.config import AgentConfig
from cfs_agents.loop.model import HasContextWindow, HasPrice
from cfs_agents.project.texts import ProjectText
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.jobs import JOB
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.config import tree_budget_of
from cfs_agents.tree.core import AgentCore
from cfs_agents.tree.fibre_rules import PromptForm, form_for
from cfs_agents.tree.node import TreeNode
from cfs_agents.tree.prompts import fibre_prompt
from cfs_agents.tree.record import InboxMessage, LeaseRecord
from cfs_agents.tree.recorder import AgentRecorder
from cfs_agents.tree.session_backend import ClaimedTurn
from cfs_agents.tree.step_costs import StepCosts
from cfs_agents.tree.tool_names import FINISH, SPAWN
from cfs_agents.tree.toolset import Toolset

TINY_CONTEXT = 4_096
"""Tokens of a context window below which a task begins with an empty conversation."""

Claim: TypeAlias = Callable[[], Awaitable[ClaimedTurn | None]]
"""Claims the turn that a sub-agent is to answer; returns None if the turn is over."""


class SubAgentTask:
    """One task of the agent of a node. `work` does it, or continues it; `toolset` makes the agent's tools."""

    def __init__(self, node: TreeNode, toolset: Callable[[], Toolset]) -> None:
        self.finish_calls = 0
        """How often the agent has called `sys_finish_task`."""
        self._node = node
        self._toolset = toolset
        self._say = catalogue(node.tree.config.language)
        self._core: AgentCore | None = None
        self._finish: Finish | None = None
        self._last_calls: set[str] = set()
        self._window: int | None = None
        """The context window of its model, in tokens, if the model says it."""
        self._form: PromptForm = "full"
        self._project = ""

    def take_finish(self, finish: Finish) -> None:
        """Take the agent's own report, which ends the task when the call has its result. The first one counts."""
        self.finish_calls += 1
        if self._finish is not None:
            return
        self._finish = finish
        self._node.record.finish = asdict(finish)

    def question_of_jobs(self) -> str | None:
        """Return the question whether the task may end while its background jobs run, once."""
        return self._core.jobs.question() if self._core is not None and self._core.jobs is not None else None

    async def work(self, claim: Claim, message: InboxMessage | None) -> Report:
        """Work to the end of the task, and return its report, not checked yet; `claim` gets the turn."""
        node = self._node
        core = await self._make_core()
        turn = await claim()
        if turn is None:
            return Report.by_system(node.agent_id, "cancelled", self._say.stopped)
        if node.journal.adopted:
            self._recall(core)
        claimed = turn.lease.record
        trace = None if claimed is None else claimed.traceparent
        with tracing.task(node.record.agent_name, node.session_id, trace) as span:
            report = await self._answer(core.loop, turn, message)
            report = replace(report, reasons=(*report.reasons, *await core.loop.end_jobs()))
            await self._report_jobs()
            if report.status != "success":
                tracing.fail(span, report.status)
        return report

    async def close(self) -> None:
        """End the commands of the task, and close its store of off-loaded results."""
        if self._core is not None:
            await self._core.close()

    async def _answer(self, agent: Agent, turn: ClaimedTurn, message: InboxMessage | None) -> Report:
        agent_id, record = self._node.agent_id, self._node.record
        await self._begin_turn(agent, turn, message)
        if record.finish is not None:  # it had reported when it was killed
            self._finish = Finish(**record.finish)
        task: str | None = None
        while True:
            if self._finish is None:
                await self._run_loop(agent, task)
            if self._finish is not None:
                return Report.by_agent(agent_id, self._finish)
            if agent.outcome.reason == "rounds":
                return Report.by_system(agent_id, "failed", self._say.no_answer.format(record.max_turns))
            if agent.outcome.reason != "answered":
                if agent.outcome.error is not None:
                    raise agent.outcome.error
                return Report.by_system(agent_id, "failed", agent.outcome.detail)
            if (task := await self._next_message(agent.outcome.text)) is None:
                return await self._answered(agent.outcome.text)

    async def _answered(self, text: str) -> Report:
        """Return the report of a task that ended with an answer, and without a report by the agent."""
        agent_id = self._node.agent_id
        if not self._node.is_root:
            return Report(agent_id, "unverified", text, reasons=(self._say.no_report,))
        if unmade := await self._unmade(text):
            return Report(agent_id, "unverified", text, reasons=(self._say.unchanged.format(", ".join(unmade)),))
        return Report(agent_id, "success", text)

    async def _make_core(self) -> AgentCore:
        """Make the loop, its tools and its conversation as it was stored."""
        node, config, record = self._node, self._node.tree.config, self._node.record
        limits = AgentConfig(
            max_rounds=record.max_turns,
            may_repeat=(WAIT, FINISH),
            offload_enabled=config.offload_enabled,
            offload_token_threshold=config.offload_token_threshold,
            context_tokens=config.context_tokens,
            counter=config.counter,
            language=config.language,
        )
        model = node.tree.models(record.agent_name)
        if config.tree_cost is not None and isinstance(model, HasPrice):
            model = model.metered(StepCosts(node.guards.money, record, node.journal.save))
        recorder = AgentRecorder(node.journal, self._before_round, node.tree.published)
        offloaded = node.context.offloaded(node.folder.warn) if config.offload_enabled else None
        toolset = await to_the_end(self._toolset)
        self._core = core = AgentCore(model, limits, toolset, recorder, offloaded=offloaded)
        core.loop.ends_jobs = False  # a message may continue the task after an answer
        await to_the_end(core.open)
        self._window = await model.context_window() if isinstance(model, HasContextWindow) else None
        self._form = config.prompt or form_for(self._window)
        project = ProjectText(node.context.files, WORKSPACE, skills=config.skills, warn=node.folder.warn)
        self._project = await to_the_end(lambda: project.read(small=self._form == "short"))
        self._recall(core)
        return core

    def _recall(self, core: AgentCore) -> None:
        """Set the conversation to what is stored."""
        node = self._node
        node.journal.adopted = False
        messages = node.context.message_manager.messages
        node.inbox.remove_texts({message.content for message in messages[node.record.messages :]})  # of before a kill
        core.resume_at(node.journal.resume_point(), Message(role="system", content=self._system_text()))
        node.journal.current = lambda: core.loop.context.context

    def _system_text(self) -> str:
        """Return the system prompt (B6), in the form that fits the model. The task is not in it."""
        node, config = self._node, self._node.tree.config
        notes = {"agent_name": node.record.agent_name}
        for key, value in node.context.system_context.items():
            if key != "parent_task":
                notes[key] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        instruction = node.record.system_instruction
        common = "\n\n".join(text for text in (config.common, self._project) if text)
        return fibre_prompt(
            config.language, instruction, may_spawn=node.may_spawn, notes=notes, common=common, form=self._form
        )

    async def _begin_turn(self, agent: Agent, turn: ClaimedTurn, message: InboxMessage | None) -> None:
        """Begin with a claimed turn: a new task, or the one that was interrupted."""
        node, record, guards = self._node, self._node.record, self._node.guards
        node.output.begin(turn)
        node.output.chunk("started", content=record.role_description)
        record.lease = turn.lease.record or LeaseRecord(turn="", claim="", content=turn.content)
        if record.state != "working" or (node.is_root and not turn.resumed):
            record.state, record.report, node.report = "working", None, None
            record.tasks += 1
            record.rounds, record.seconds_used, record.nudges, record.finish = 0, 0.0, [], None
            record.doubted, record.plan = None, []
            if record.branch is not None:
                record.branch = record.branch.model_copy(update={"conflicts": ()})
            record.spent_before, record.usage_before = guards.budget.used(node.agent_id), record.usage
            record.cost_before = guards.money.spent
            node.clock.reset()
            if message in record.inbox:
                record.inbox.remove(message)
        if node.is_root:
            limit = tree_budget_of(node.tree.config, self._window)
            guards.budget.renew(node.agent_id, limit, record.spent_before)
            guards.money.before = record.cost_before
        node.turn_claimed()
        node.begin_work(self._budget() if node.is_root else None)
        await self._report_jobs()
        await guards.began(node.agent_id, again=not turn.resumed)
        if turn.resumed:
            await node.journal.save()
        else:
            await self._add_task(agent, turn.content)

    async def _add_task(self, agent: Agent, content: str) -> None:
        """Add the message that begins the task, unless it is there: a kill may precede the status."""
        last = agent.context.context.items[-1].message
        if last.role == "user" and last.content == content:
            await self._node.journal.save()
            return
        if self._window is not None and self._window < TINY_CONTEXT:  # small models repeat earlier tasks
            agent.context.context = agent.context.context.emptied()
        count = len(agent.context.context)
        agent.context.close_calls(self._say.stopped)
        agent.context.context = agent.context.context.released()
        agent.context.add(Message(role="user", content=content), task=True)
        for item in agent.context.context.items[count:]:
            await self._node.journal.add(item.message)

    async def _run_loop(self, agent: Agent, task: str | None) -> None:
        """Run the loop until the model has answered or reported."""
        node, record = self._node, self._node.record
        agent.config = replace(agent.config, max_rounds=max(0, record.max_turns - record.rounds))
        async with aclosing(agent.run_stream(task)) as events:
            async for event in events:
                if isinstance(event, CallStarted):
                    self._last_calls.add(event.call.name)
                node.output.event(event)
                if isinstance(event, TurnUsage):
                    node.guards.asked(node.agent_id, event.usage)
                    self._report_budget()
                if isinstance(event, CallFinished) and event.call.name in (COMMAND, JOB):
                    await self._report_jobs()
                if isinstance(event, CallFinished) and event.call.name == FINISH and self._finish is not None:
                    self.finish_calls += sum(call.name == FINISH for call in agent.context.context.open_calls)
                    return

    async def _report_jobs(self) -> None:
        """Say in the session which jobs the agent has."""
        if self._core is not None and self._core.jobs is not None:
            self._node.report_work(jobs=await self._core.jobs.listed())

    def _report_budget(self) -> None:
        """Say in the session of the root what the tree has spent."""
        self._node.root.report_work(budget=self._budget())

    def _budget(self) -> BudgetUse | None:
        """Return what the tree has spent of its budget; None without a budget."""
        root, guards = self._node.root, self._node.guards
        tokens = guards.budget.used(root.agent_id) - root.record.spent_before
        if guards.money.limit is not None:
            return BudgetUse(limit=money(guards.money.limit), tokens=tokens, cost=guards.money.used)
        limit = guards.budget.limit(root.agent_id)
        return None if limit is None else BudgetUse(limit=str(limit), tokens=tokens)

    async def _next_message(self, answer: str) -> str | None:
        """Return the message that continues the task after an answer: a new one, or a reminder; else None."""
        node, record, say = self._node, self._node.record, self._say
        if (message := await node.inbox.next_turn()) is not None:
            return message
        if (message := next(node.inbox.take(notifications=True), None)) is not None:
            return message
        names = [child.agent_id for child in node.children if child.busy]
        if names and "at_work" not in record.nudges:
            record.nudges.append("at_work")
            return say.at_work.format(", ".join(names))
        if not node.is_root and "finish" not in record.nudges:
            record.nudges.append("finish")
            return say.finish
        if node.is_root and record.doubted is None and (unmade := await self._unmade(answer)):
            record.doubted = answer
            return say.unmade.format(", ".join(unmade), await self._changes())
        return None

    async def _before_round(self) -> None:
        """Add new messages of its session and of other agents. Then run the guards.

        An agent that has just started a child, or waited for one, is not notified that a child is done: it will wait.
        """
        assert self._core is not None  # noqa: S101 - for the type checker
        node, agent = self._node, self._core.loop
        received = False
        async with node.waiting(counts=False):
            await node.tree.backend.unpaused(node.session_id)
        if (content := await node.inbox.next_turn()) is not None:
            await self._add(agent, content)
            received = True
        notify = not self._last_calls & {SPAWN, WAIT}
        self._last_calls = set()
        for content in node.inbox.take(notifications=notify):
            await self._add(agent, content)
            received = True
        if received:
            agent.repeated.clear()
        context = agent.context.context
        try:
            agent.context.context = node.guards.before_round(node.agent_id, context, context.tokens)
        except TooMany as error:
            if not node.is_root:
                raise
            raise TooMany(f"{error.detail}. {self._say.more_budget}") from None

    async def _add(self, agent: Agent, content: str) -> None:
        item = agent.context.add(Message(role="user", content=content))
        await self._node.journal.add(item.message)

    async def _unmade(self, answer: str) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the task began."""
        record = self._node.record
        task = record.lease.content if record.lease is not None else ""
        return await self._node.guards.unmade(record.agent_id, answer, task, record.doubted)

    async def _changes(self) -> str:
        """Describe the changes of files since the task began."""
        return format_changes(await self._node.guards.changes(self._node.agent_id), self._say)
