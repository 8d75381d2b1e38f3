"""What one strand asks of the tree by its tools (B2): it spawns, writes to, and waits for others, and reports."""

import itertools
from collections.abc import Mapping
from typing import Protocol

from cfs.errors import CfsError, InvalidIdentifier
from cfs.ids import check_id
from cfs_agents.fibre.config import FibreConfig
from cfs_agents.fibre.live import Live
from cfs_agents.fibre.session_context import AgentSpec
from cfs_agents.fibre.state import Letter
from cfs_agents.fibre.strand import FibreSubAgent
from cfs_agents.fibre.toolset import Finish, SpawnRequest
from cfs_agents.fibre.words import words
from cfs_agents.tools import CALL_ID, ToolError


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
