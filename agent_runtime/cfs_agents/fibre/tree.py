"""What a strand needs of the tree that it is in, and how it says that its task has ended."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cfs_agents.agent import Agent
from cfs_agents.events import AgentEvent
from cfs_agents.fibre.chunks import ChunkStream
from cfs_agents.fibre.config import FibreConfig
from cfs_agents.fibre.live import Live
from cfs_agents.fibre.reports import Report, ReportStatus
from cfs_agents.fibre.toolset import Finish
from cfs_agents.llm import Model
from cfs_agents.tools import AsyncShell, Tool

if TYPE_CHECKING:
    from cfs_agents.fibre.strand import FibreSubAgent


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ended as the strand sees it: what it says of it, and why it is not a success."""

    status: ReportStatus
    said: Finish
    reasons: tuple[str, ...] = ()


class Tree(Protocol):
    """What a strand needs of the tree that it is in."""

    config: FibreConfig
    live: Live
    chunks: ChunkStream

    def model(self, strand: "FibreSubAgent") -> Model:
        """Return the model that answers for a strand."""
        ...

    def tools(self, strand: "FibreSubAgent") -> tuple[list[Tool], AsyncShell | None]:
        """Make a strand's tools, and the shell that some of them use."""
        ...

    def system(self, strand: "FibreSubAgent") -> str:
        """Write a strand's system prompt."""
        ...

    async def began(self, strand: "FibreSubAgent", *, again: bool) -> None:
        """A strand begins with a task, or goes on with one after a kill."""
        ...

    async def before_round(self, strand: "FibreSubAgent", agent: Agent, *, told: bool) -> None:
        """Look before a strand's model is asked; a `CfsError` ends the strand's task.

        `told` says that it reads something new from somebody.
        """
        ...

    def after(self, strand: "FibreSubAgent", event: AgentEvent) -> None:
        """Look at what a strand did; it may be ended for it."""
        ...

    def at_work(self, strand: "FibreSubAgent") -> list[str]:
        """Name the children of a strand that are at work."""
        ...

    async def unmade(self, strand: "FibreSubAgent", answer: str) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the task began."""
        ...

    async def told_changes(self, strand: "FibreSubAgent") -> str:
        """Say what became of the files since a strand's task began."""
        ...

    async def judge(self, strand: "FibreSubAgent", ending: Ending) -> Report:
        """Hold what a strand says of its task against the facts."""
        ...

    async def over(self, strand: "FibreSubAgent", report: Report) -> None:
        """A strand's task is over: end what depends on it, and tell who waits for it."""
        ...
