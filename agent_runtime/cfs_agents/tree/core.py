"""The core of every agent with a state on disk: its loop, its tools, and where it goes on (A1, B1).

A file agent, which works alone, and each agent of a tree has one. They differ in their prompts, in the tools that lead
other agents, and in the files that hold their journals.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from cfs.errors import CfsError
from cfs.wire import Message
from cfs_agents.base.threads import to_the_end
from cfs_agents.context import ContextFileSystem, ContextItem, Conversation
from cfs_agents.loop.agent import Agent
from cfs_agents.loop.config import AgentConfig, FilesWatch
from cfs_agents.loop.model import Model
from cfs_agents.loop.recorder import Recorder
from cfs_agents.tree.recorder import ResumePoint
from cfs_agents.tree.toolset import Toolset


class AgentCore:
    """The loop of one agent with its tools, its shell and its store of off-loaded results. `close` ends all of it.

    A store that cannot be opened, because the disk is full, is not used: then nothing is off-loaded.
    """

    def __init__(
        self,
        model: Model,
        config: AgentConfig,
        toolset: Toolset,
        recorder: Recorder,
        *,
        offloaded: ContextFileSystem | None = None,
        watch: FilesWatch | None = None,
        system_for: Callable[[bool], Awaitable[Message]] | None = None,
    ) -> None:
        self.loop = Agent(
            model,
            replace(config, tools=toolset.tools, system=None),
            files=offloaded,
            recorder=recorder,
            gate=toolset.gate,
            watch=watch,
            system_for=system_for,
            jobs=toolset.jobs,
        )
        self.jobs = toolset.jobs
        self._offloaded = offloaded

    def open(self) -> None:
        """Open the store of off-loaded results. Blocks."""
        if self._offloaded is not None:
            with suppress(CfsError):
                self._offloaded.open()

    def resume_at(self, point: ResumePoint, system: Message) -> None:
        """Set the conversation to what is stored, after this system prompt."""
        context = Conversation((ContextItem.of(system), *point.context.items))
        self.loop.resume_at(context, begun=point.begun, broken=point.broken, failed_call=point.failed_call)

    def replace_system(self, system: Message) -> None:
        """Replace the system prompt, if it has changed."""
        first, *rest = self.loop.context.context.items
        if system != first.message:
            self.loop.context.context = Conversation((replace(first, message=system, tokens=None), *rest))

    async def close(self) -> None:
        """End the processes of its shell, and close the store. It may be closed more than once."""
        jobs, self.jobs = self.jobs, None
        if jobs is not None:
            await jobs.close()
        offloaded, self._offloaded = self._offloaded, None
        if offloaded is not None:
            await to_the_end(offloaded.close)
