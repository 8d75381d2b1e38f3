"""The tools by which a model leads other agents (B2): their schemas, and what they ask of a `Conductor`.

What each parameter means stands in the system prompt, once; the schemas say it in a few words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from cfs_agents.tools import Tool, Touch, tool

SPAWN = "sys_spawn_agent"
SEND = "sys_send_message"
WAIT = "sys_wait_agent"
FINISH = "sys_finish_task"
LOCK = "sys_lock_file"
UNLOCK = "sys_unlock_file"

DEFAULT_FILE_TOOLS = ("read_file", "write_file", "list_directory", "execute_command")
"""The other tools that an agent has unless told otherwise: prompt and tools have to fit into a small context."""

LONGEST_WAIT = 24 * 3600.0

Status = Literal["success", "failed"]

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="unique: letters, digits, _ and -")]
_Agent = Annotated[str, "agent_id as sys_spawn_agent returned it"]
_Path = Annotated[str, "path of the file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """What an agent asks for: a child's name, role, system prompt and first message; its limits, or the usual ones.

    `max_turns` are replies, `timeout` is in seconds, `budget` in tokens.
    """

    agent_name: str
    role_description: str
    system_instruction: str
    task_goal: str
    max_turns: int | None = None
    timeout: float | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What an agent says of its task when it ends: claims, which are held against the facts (B7)."""

    status: Status
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Conductor(Protocol):
    """Does for one agent what its tools ask for. A `ToolError` is for the model to read."""

    async def spawn(self, request: SpawnRequest) -> str:
        """Start a child and return its id at once."""
        ...

    async def send(self, agent_id: str, content: str) -> str:
        """Give an agent a message, at its next step; return what became of it."""
        ...

    async def wait(self, agent_id: str) -> str:
        """Return the text of a child's report when it has ended."""
        ...

    async def finish(self, finish: Finish) -> str:
        """Take the report of the agent itself, which ends with this call."""
        ...

    async def lock(self, path: str) -> str:
        """Reserve a file for the agent; return what became of it."""
        ...

    async def unlock(self, path: str) -> str:
        """Give a file free; return what became of it."""
        ...


def _reads_all(_: Mapping[str, Any]) -> Touch:
    """A child may read what was written before it was started."""
    return Touch("/", writes=False)


class FibreTools:
    """The `sys_` tools of one agent, over what does it."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def tools(self, *, may_spawn: bool = True, may_finish: bool = True) -> list[Tool]:
        """Return them; a leaf of the tree cannot spawn and wait, and the root does not report but answers."""
        leads = [
            tool("Create a child agent; returns its agent_id at once.", touches=_reads_all)(self.sys_spawn_agent),
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
    ) -> str:
        """Start a child; its id is the result."""
        return await self._conductor.spawn(
            SpawnRequest(
                agent_name=agent_name,
                role_description=role_description,
                system_instruction=system_instruction,
                task_goal=task_goal,
                max_turns=max_turns,
                timeout=timeout,
                budget=budget,
            )
        )

    async def sys_wait_agent(self, agent_id: _Agent) -> str:
        """Wait until a child has ended; its report is the result."""
        return await self._conductor.wait(agent_id)

    async def sys_send_message(self, agent_id: _Agent, content: str) -> str:
        """Give an agent a message."""
        return await self._conductor.send(agent_id, content)

    async def sys_lock_file(self, path: _Path) -> str:
        """Reserve a file."""
        return await self._conductor.lock(path)

    async def sys_unlock_file(self, path: _Path) -> str:
        """Give a file free."""
        return await self._conductor.unlock(path)

    async def sys_finish_task(
        self,
        status: Status,
        summary: Annotated[str, "what was done"],
        details: Annotated[dict[str, Any] | None, '{"created_files": [paths], "logs": text}'] = None,
    ) -> str:
        """Report and end."""
        return await self._conductor.finish(Finish(status=status, summary=summary, details=details or {}))
