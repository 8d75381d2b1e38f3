"""FibreAgent: runs a tree of agents through the interface of one agent, `run` and `run_stream` (B1)."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs.api import acting_as
from cfs.contract.ids import check_id
from cfs.errors import CfsError, Conflict, NotFound, SessionDeleted, SessionRenamed
from cfs.transports.async_http import AsyncClient
from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.guards import Guards
from cfs_agents.guards.report import Report
from cfs_agents.loop.model import Model
from cfs_agents.loop.retries import Retries
from cfs_agents.tools import command_mode
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre_tools import build_toolset
from cfs_agents.tree.folder import TreeFolder
from cfs_agents.tree.no_sessions import NoSessions
from cfs_agents.tree.orchestrator import FibreOrchestrator, Models, ready
from cfs_agents.tree.output import ChunkQueue, MessageChunk
from cfs_agents.tree.published import PUBLISHED, PublishedWorkspace
from cfs_agents.tree.record import InboxMessage, SubAgentRecord
from cfs_agents.tree.server_sessions import ServerSessions
from cfs_agents.tree.session_backend import ClaimedTurn, SessionBackend
from cfs_agents.tree.session_context import (
    AgentSpec,
    MessageManager,
    SessionMemoryManager,
    SubSessionContext,
    system_context_of_root,
)
from cfs_agents.tree.step_costs import check_price
from cfs_agents.tree.sub_agent import FibreSubAgent
from cfs_agents.tree.task import Claim

_log = get_logger(__name__)

_PERMISSION = "read, write and delete below /workspace"
_NEXT_SECONDS = 20.0


class FibreAgent:
    """An agent that may start sub-agents. Its state is below `workspace_root/session`. Use it in `async with`.

    `workspace` is a folder elsewhere that all of its agents work on (default: that of the last time, or a folder of its
    state).

    With a `client` you can watch all of its agents, write to them and cancel them in their sessions on that server: the
    root in `session`, its children in `session/NAME`. `model` is the model of all agents, or a function that returns
    the model for an agent's name. Entering raises `Conflict` if another program has the tree open, `Unavailable` or
    `StorageFull`. It does one task at a time. If the process ends, `resume` in another process continues the task. An
    outage of the server is waited out as `retries` gives it; pass the same to the model. An outage that is too long
    ends the run with its error, and the task can be resumed.
    """

    def __init__(
        self,
        workspace_root: str | os.PathLike[str],
        model: Model | Callable[[str], Model],
        config: FibreConfig | None = None,
        *,
        session: str = "main",
        workspace: str | os.PathLike[str] | None = None,
        client: AsyncClient | None = None,
        retries: Retries | None = None,
    ) -> None:
        self.config = config or FibreConfig()
        self.session = check_id(session)
        if "/" in session:
            raise Conflict(f"{session} is a sub-session: the root of a tree has a session of its own")
        self._path = workspace_root
        self._workspace = None if workspace is None else Path(workspace)
        self._models: Models = model if callable(model) else lambda _: model
        self._backend: SessionBackend = NoSessions()
        self._client = client
        if client is not None:
            self._backend = ServerSessions(client, self.config.lease_seconds, retries or Retries())
        command_mode(self.config.commands, self.config.ask, elsewhere=client is not None)
        self._chunks = ChunkQueue()
        self._busy = False
        self.warnings: list[str] = []
        """What was wrong with the files of the tree and has been put right, a sentence each."""

    async def __aenter__(self) -> Self:
        await to_the_end(self._open)
        try:
            await self._orchestrator.finish_merges()
        except BaseException:
            await to_the_end(self._close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(self._close)

    def _open(self) -> None:
        self._folder = TreeFolder(self._path, self.session, self._warn, workspace=self._workspace)
        try:
            self._orchestrator = FibreOrchestrator(
                self._folder, self._models, self.config, self._backend, self._chunks, build_toolset, self._publish
            )
            self._orchestrator.load(self._fresh(), self._context())
        except BaseException:
            self._folder.close()
            raise

    def _warn(self, sentence: str) -> None:
        _log.warning("fibre.files_damaged", reason=sentence)
        self.warnings.append(sentence)
        if self.config.warn is not None:
            self.config.warn(sentence)

    def _close(self) -> None:
        self._orchestrator.reaper.close()
        self._orchestrator.branches.close()
        self._folder.close()

    def _publish(self, guards: Guards) -> PublishedWorkspace | None:
        publish = self._folder.has_own_workspace if self.config.publish is None else self.config.publish
        if self._client is None or not publish:
            return None
        return self._folder.publish(self._client, self.session, PUBLISHED, partial(guards.ledger.writing, None))

    def _fresh(self) -> SubAgentRecord:
        config = self.config
        return SubAgentRecord(
            session_id=self.session,
            agent_id=self.session,
            agent_name=self.session,
            state="done",
            system_instruction=config.instruction,
            max_turns=config.root_max_turns,
            timeout=config.root_timeout,
            created_at=time.time(),
        )

    def _context(self) -> SubSessionContext:
        messages = MessageManager()
        return SubSessionContext(
            session_id=self.session,
            agent_config=AgentSpec(self.session, system_instruction=self.config.instruction),
            message_manager=messages,
            session_memory_manager=SessionMemoryManager(messages),
            user_id=self.config.user_id,
            workspace_root=self._folder.workspace_root,
            memory_root=self._folder.path / "memory",
            workflow_manager=self.config.workflow,
            agent_workspace=self._folder.workspace,
            files=self._folder.workspace_handle(),
            system_context=system_context_of_root(self.config.user_id, WORKSPACE, _PERMISSION),
        )

    @property
    def unfinished(self) -> bool:
        """Whether a task of the root, or of an agent below it, was interrupted."""
        return self._orchestrator.unfinished

    @property
    def report(self) -> Report | None:
        """The report of the root's last task; None before that."""
        return self._orchestrator.root.report

    @property
    def agents(self) -> dict[str, FibreSubAgent]:
        """All agents by their ids, the root first."""
        return self._orchestrator.sub_agents

    async def run(self, task: str) -> Report:
        """Do a task, and return its report."""
        return await self._through(self.run_stream(task))

    async def resume(self) -> Report:
        """Resume interrupted work. Raises `NotFound` if there is none."""
        self.require_unfinished()
        return await self._through(self.run_stream())

    def require_unfinished(self) -> None:
        """Raise `NotFound` if there is no interrupted work."""
        if not self.unfinished:
            raise NotFound(f"there is no interrupted work in {self._folder.path}")

    async def _through(self, chunks: AsyncGenerator[MessageChunk, None]) -> Report:
        async with aclosing(chunks):
            async for _ in chunks:
                pass
        assert self.report is not None  # noqa: S101 - a task that is over has one
        return self.report

    async def run_stream(self, task: str | None = None) -> AsyncGenerator[MessageChunk, None]:
        """Work on a task, or resume interrupted work without one, and yield the chunks of all agents.

        To leave it early use `contextlib.aclosing`. It interrupts the task, and `resume` continues it.
        """
        root, backend = self._orchestrator.root, self._backend

        async def claim() -> ClaimedTurn | None:
            return await backend.begin(self.session, task or "", root.turn_lost)

        await self.attach()
        async with aclosing(self._stream(claim if task is not None else None)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def attach(self) -> None:
        """Create the session on the server unless it exists, and become its driver. Raises the server's errors.

        Raises `SessionDeleted` or `SessionRenamed` if that has happened to the session of this tree, and
        `InvalidSettings` for a budget in money if the model has no price.
        """
        if self.config.tree_cost is not None:
            await check_price(self._models(self.session), self.config.tree_cost)
        with acting_as(self.session), self._explained():
            await self._backend.open(self.session)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add to the error what to do if the session of the root was deleted or renamed."""
        anew = f"to begin a new tree in {self.session!r}, move {self._folder.path} away"
        try:
            yield
        except SessionDeleted as error:
            raise SessionDeleted(f"{error.detail}, so its agents are not started again; {anew}") from error
        except SessionRenamed as error:
            detail = f"{error.detail}, so its agents are not started; rename it back to continue, or {anew}"
            raise SessionRenamed(detail, **error.extra) from error

    async def serve(self) -> AsyncGenerator[MessageChunk, None]:
        """Answer the messages of the session on the server, one after the other, until closed (B9).

        Interrupted work is resumed first. Raises the server's errors.
        """
        root, backend = self._orchestrator.root, self._backend
        await self.attach()
        if self.unfinished or self._orchestrator.lost:
            async with aclosing(self._stream(None)) as chunks:
                async for chunk in chunks:
                    yield chunk
        while True:
            asked_at = time.monotonic()
            with acting_as(self.session), self._explained():
                turn = await backend.next(self.session, root.turn_lost, _NEXT_SECONDS)
            if turn is None:
                if (
                    time.monotonic() - asked_at < _NEXT_SECONDS / 2
                ):  # the server ended the wait: it has rewound or merged files
                    await self._orchestrator.fetch_files()
                continue
            async with aclosing(self._stream(ready(turn))) as chunks:
                async for chunk in chunks:
                    yield chunk

    def cancel(self, agent_id: str | None = None) -> None:
        """Cancel the task of an agent and of those below it; without an id, of the whole tree.

        Raises `NotFound` for an unknown agent. Call it from the thread of the event loop.
        """
        if agent_id is not None and agent_id not in self.agents:
            raise NotFound(f"there is no agent {agent_id!r}")
        self._orchestrator.cancel(agent_id or self.session)

    async def send(self, agent_id: str, content: str, *, sender: str = "user") -> None:
        """Write to an agent, which reads the message at its next step, or starts again. Raises `NotFound`."""
        if agent_id not in self.agents:
            raise NotFound(f"there is no agent {agent_id!r}")
        sub_agent = self.agents[agent_id]
        await sub_agent.inbox.deliver(InboxMessage(id=f"{sender}:{time.time_ns()}", sender=sender, content=content))
        self._orchestrator.wake(sub_agent)

    async def _stream(self, claim: Claim | None) -> AsyncGenerator[MessageChunk, None]:
        """Run the tree in a task, which ends with this generator, and yield its chunks."""
        if self._busy:
            raise Conflict("this agent is at work on another task")
        self._busy = True
        work = asyncio.create_task(self._orchestrator.run(claim))
        work.add_done_callback(lambda _: self._chunks.close())
        try:
            async with aclosing(self._chunks.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
            await _only_error(work)
        finally:
            work.cancel()
            await asyncio.wait([work])
            self._chunks.clear()
            self._busy = False


async def _only_error(work: "asyncio.Task[None]") -> None:
    """Wait for a task, and raise its error without the group that its subtasks make.

    `except*` would put it into another group with Python 3.11.2.
    """
    try:
        await work
    except ExceptionGroup as group:
        ours, others = group.split(CfsError)
        if ours is None or others is not None:
            raise
        raise ours.exceptions[0] from None
