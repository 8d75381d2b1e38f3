"""The tools of a sub-agent: those that lead other agents (B2), beside those of every agent.

The system prompt explains each parameter once, so the schemas are short.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from cfs.contract.ids import check_id
from cfs.errors import CfsError, InvalidIdentifier
from cfs_agents.base.messages import catalogue
from cfs_agents.guards.report import Finish, FinishStatus
from cfs_agents.guards.rules import RulesGate, Scope
from cfs_agents.tools import (
    Answer,
    CommandRequest,
    Consent,
    FileAccess,
    Permission,
    Tool,
    ToolError,
    tool,
)
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.jobs import JOB
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tools.plan import PLAN_CONTEXT, Plan
from cfs_agents.tree.config import DEFAULT_FILE_TOOLS, MORE_FILE_TOOLS
from cfs_agents.tree.no_sessions import NoSessions
from cfs_agents.tree.orchestrator import FibreOrchestrator
from cfs_agents.tree.record import InboxMessage
from cfs_agents.tree.session_context import AgentSpec
from cfs_agents.tree.sub_agent import FibreSubAgent
from cfs_agents.tree.toolset import JOBS, Toolset, working_tools

LONGEST_WAIT = 24 * 3600.0
"""Seconds after which a wait for a report ends."""

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="unique: letters, digits, _ and -")]
_Agent = Annotated[str, "agent_id as sys_spawn_agent returned it"]
_Path = Annotated[str, "path of the file"]


def build_toolset(orchestrator: FibreOrchestrator, sub_agent: FibreSubAgent) -> Toolset:
    """Make the tools of a sub-agent. All reads and writes pass the guards."""
    config, guards, context = orchestrator.config, sub_agent.guards, sub_agent.context
    leading = FibreTools(orchestrator, sub_agent).tools(may_spawn=sub_agent.may_spawn, may_finish=not sub_agent.is_root)
    working, jobs = working_tools(
        context.files,
        context.agent_workspace.parent,
        {WORKSPACE: context.agent_workspace},
        config.commands,
        file_gate=guards.gate(sub_agent.agent_id),
        ignored=guards.ignored,
        look_alikes=config.look_alikes,
        watched=lambda command: guards.watched(command, sub_agent.agent_id),
        home=orchestrator.shell_home,
        keep_variables=config.keep_variables,
        reaper=orchestrator.reaper,
        jobs_file=sub_agent.folder.path / JOBS,
        language=config.language,
    )
    workspace, consent = context.agent_workspace, orchestrator.consent
    in_sessions = config.attended and not isinstance(sub_agent.tree.backend, NoSessions)
    gate = RulesGate(
        config.policy,
        Scope(workspace),
        lambda: config.policy.defaults(config.commands, attended=in_sessions or config.ask is not None),
        consent=consent,
        ask=partial(_require, sub_agent, consent),
        warn=sub_agent.folder.warn,
        report=lambda decision: sub_agent.tree.backend.decided(sub_agent.session_id, decision),
    )
    offered = dict.fromkeys(config.file_tools or DEFAULT_FILE_TOOLS, 0)
    if config.file_tools is None:
        offered |= dict.fromkeys(MORE_FILE_TOOLS, PLAN_CONTEXT)
    if COMMAND in offered:
        offered[JOB] = 0
    working = [replace(tool, min_context=offered[tool.name]) for tool in working if tool.name in offered]
    plan = [Plan(changed=sub_agent.plan_changed).tool()] if config.plan else []
    return Toolset([*leading, *working, *plan, *config.tools], jobs, gate)


async def _require(sub_agent: FibreSubAgent, consent: Consent, request: CommandRequest) -> Permission:
    """Ask a person, at the terminal and in the agent's session.

    A command that is allowed waits for the end of a pause. What is asked and not answered has not happened, so a killed
    agent asks again.
    """
    if consent.holds(request):
        return Permission(Answer.ALWAYS)
    backend, session = sub_agent.tree.backend, sub_agent.session_id
    async with sub_agent.waiting(counts=False), sub_agent.asking():
        question = backend.question(session, request, sub_agent.present_call)
        permission = await consent.require(sub_agent.agent_id, request, question)
        await backend.unpaused(session)
    return permission


def _reads_all(_: Mapping[str, Any]) -> FileAccess:
    """A child may read everything that was written before its start."""
    return FileAccess("/", writes=False)


class FibreTools:
    """The `sys_` tools of one sub-agent. A `ToolError` is for its model to read."""

    def __init__(self, orchestrator: FibreOrchestrator, sub_agent: FibreSubAgent) -> None:
        self._orchestrator = orchestrator
        self._sub_agent = sub_agent
        self._say = catalogue(orchestrator.config.language)

    def tools(self, *, may_spawn: bool = True, may_finish: bool = True) -> list[Tool]:
        """Return the tools. An agent of the last level cannot spawn and wait; the root answers instead of reporting."""
        leads = [
            tool(
                "Create a child agent; returns its agent_id at once.",
                touches=_reads_all,
                contexts={"isolated": PLAN_CONTEXT},
            )(self.sys_spawn_agent),
            tool("Wait for the report of an agent.", timeout=LONGEST_WAIT)(self.sys_wait_agent),
        ]
        both = [
            tool("Correct an agent, or give it more.")(self.sys_send_message),
            tool("Reserve a file for yourself.")(self.sys_lock_file),
            tool("Release a file.")(self.sys_unlock_file),
        ]
        ends = [tool("Report to your parent, and end.")(self.sys_finish_task)]
        return [*(leads if may_spawn else []), *both, *(ends if may_finish else [])]

    async def sys_spawn_agent(
        self,
        agent_name: _Name,
        role_description: Annotated[str, "one line, for your own tracking"],
        system_instruction: Annotated[str, "its system prompt: persona, limits, abilities"],
        task_goal: Annotated[str, "its first message"],
        max_turns: Annotated[int | None, Field(ge=1, description="replies at most")] = None,
        timeout: Annotated[float | None, Field(gt=0, description="seconds at most")] = None,
        budget: Annotated[int | None, Field(ge=1, description="tokens at most")] = None,
        isolated: Annotated[bool, "a copy of the files, merged when it reports"] = False,
    ) -> str:
        """Start a child and return its id at once. The same call starts one child only, also after a kill."""
        usual, parent, call = self._orchestrator.config, self._sub_agent, self._sub_agent.present_call
        for child in parent.children:
            if child.record.spawned_by == call:
                return child.agent_id
        name = self._free(agent_name)
        spec = AgentSpec(
            name,
            role_description,
            system_instruction,
            task_goal,
            max_turns or usual.max_turns,
            timeout or usual.timeout,
            budget or usual.budget,
            agent_name,
            isolated,
        )
        try:
            check_id(f"{parent.session_id}/{name}")
            return (await self._orchestrator.spawn(parent, spec, call)).agent_id
        except InvalidIdentifier as error:
            raise ToolError(error.detail) from None
        except CfsError as error:
            raise ToolError(f"no agent was started: {error.detail}") from None

    def _free(self, name: str) -> str:
        """Return a name, with a number if agents that are done have had it; raises `ToolError` if one is busy."""
        free = name
        for number in itertools.count(2):
            existing = self._orchestrator.sub_agents.get(free)
            if existing is None:
                return free
            if existing.busy:
                raise ToolError(f"there is an agent called {free!r} already: take another name")
            free = f"{name}-{number}"
        raise AssertionError

    async def sys_wait_agent(self, agent_id: _Agent) -> str:
        """Return the report of an agent below this one, or a note that a message has arrived meanwhile."""
        me, target = self._sub_agent, self._agent_named(agent_id)
        if target not in me.below():
            raise ToolError(f"{agent_id} is none of your agents: you can write to it, but not wait for it")
        async with me.waiting():
            while True:
                me.inbox.wakeup.clear()
                if not target.busy:
                    break
                if await me.inbox.has_message():
                    return self._say.wait_ends.format(agent_id)
                await me.inbox.wakeup.wait()
        target.report_delivered()
        if target.report is None:
            raise ToolError(f"{agent_id} has no report")
        return target.report.text(self._orchestrator.config.language)

    async def sys_send_message(self, agent_id: _Agent, content: str) -> str:
        """Put a message into an agent's inbox; one that has reported is started again."""
        me, target = self._sub_agent, self._agent_named(agent_id)
        if target is me:
            raise ToolError("this is you: there is no need to write to yourself")
        if not content.strip():
            raise ToolError("the message is empty")
        await target.inbox.deliver(
            InboxMessage(id=f"{me.agent_id}:{me.present_call}", sender=me.agent_id, content=content)
        )
        self._orchestrator.wake(target)
        return self._say.sent.format(agent_id)

    async def sys_lock_file(self, path: _Path) -> str:
        """Reserve a file."""
        return self._sub_agent.guards.locks.acquire(self._sub_agent.agent_id, path)

    async def sys_unlock_file(self, path: _Path) -> str:
        """Release a file."""
        return self._sub_agent.guards.locks.release(self._sub_agent.agent_id, path)

    async def sys_finish_task(
        self,
        status: FinishStatus,
        summary: Annotated[str, "what was done"],
        details: Annotated[dict[str, Any] | None, '{"created_files": [paths], "logs": text}'] = None,
    ) -> str:
        """Report and end."""
        if self._sub_agent.is_root:
            raise ToolError("you are the first agent and report to nobody: just answer")
        if (question := self._sub_agent.question_of_jobs()) is not None:
            raise ToolError(question)
        self._sub_agent.take_finish(Finish(status=status, summary=summary, details=details or {}))
        return "done"

    def _agent_named(self, agent_id: str) -> FibreSubAgent:
        """Return the newest agent that this one has started by this name in the present task, or else that of this id.

        A model may stay with the name that it asked for, although the agent has got another, because an agent of an
        earlier task has that name. The old report would be the answer to the new task.
        """
        agents, order = self._orchestrator.sub_agents, self._orchestrator.root.record.tasks
        for child in reversed(self._sub_agent.children):
            if child.record.order == order and agent_id in (child.agent_id, child.record.requested_name):
                return child
        if agent_id not in agents:
            others = [name for name in agents if name != self._sub_agent.agent_id]
            raise ToolError(f"there is no agent {agent_id[:80]!r} (there are: {', '.join(others) or 'none'})")
        return agents[agent_id]
