"""The file agent: a model, tools, and a directory that holds all of its state (A1-A7)."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from cfs.errors import CfsError, NotFound
from cfs_agents.agent import Agent
from cfs_agents.config import MAX_ROUNDS, AgentConfig, Outcome, SyncTurn
from cfs_agents.context import Context, ContextFileSystem, ContextItem, EstimatingCounter, TokenCounter
from cfs_agents.events import AgentEvent, Warned
from cfs_agents.file_agent.journal import NAME as JOURNAL
from cfs_agents.file_agent.journal import Journal
from cfs_agents.file_agent.keeping import FileKeeper, RootWatch, to_the_end
from cfs_agents.file_agent.operations import OperationLog
from cfs_agents.file_agent.root import OFFLOADED, AgentRoot
from cfs_agents.file_agent.sync import NAME as SYNC
from cfs_agents.file_agent.sync import WINDOW_TOKENS, SyncTool
from cfs_agents.llm import Model
from cfs_agents.sentences import Language, sentences
from cfs_agents.tools import (
    Ask,
    AsyncShell,
    CommandMode,
    CommandTools,
    Consent,
    FileTools,
    Limits,
    Tool,
    Warden,
    agent_grants,
    agent_shell,
    command_mode,
    failure_of,
    usual_limits,
)
from cfs_agents.tools.paths import STORAGE
from cfs_filesystem import FsHandle

_CONVERSATION = "conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAgentConfig:
    """How a file agent works; `tools` are further ones.

    Without `commands` it can run none. `CommandMode.ASK` awaits `ask` before each one. Of our environment they get
    what is harmless and `keep_variables`.

    `window_tokens` is the most that a context window may have. `context_tokens` is how long a conversation may become
    before it is compacted; without it only the model's own limit counts. `limits` bound what commands use; None leaves
    it at what is usual.
    """

    language: Language = "en"
    max_rounds: int = MAX_ROUNDS
    window_tokens: int = WINDOW_TOKENS
    context_tokens: int | None = None
    offload_enabled: bool = True
    offload_token_threshold: int = 2000
    ephemeral_keep_recent: int | None = None
    commands: CommandMode = CommandMode.NONE
    ask: Ask | None = None
    network: bool = False
    keep_variables: frozenset[str] = frozenset()
    limits: Limits | None = None
    counter: TokenCounter | None = None
    tools: Iterable[Tool | Callable[..., Any]] = ()
    warn: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Check it."""
        object.__setattr__(self, "commands", command_mode(self.commands, self.ask))


class FileAgent:
    """An agent that lives in a directory, which one process at a time may have open: use it in `async with`.

    Entering raises `Conflict` if another one has it open, `Unavailable` or `StorageFull` if the disk does not let us.
    One task at a time. Whatever happens to the process, `resume` in another one goes on.
    """

    def __init__(self, root: str | os.PathLike[str], model: Model, config: FileAgentConfig | None = None) -> None:
        self.config = config or FileAgentConfig()
        self.warnings: list[str] = []
        self._path = root
        self._model = model
        self._unfinished = False
        self._doubtful = False

    async def __aenter__(self) -> Self:
        await to_the_end(self._open)
        await to_the_end(self._recall)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shell is not None:
            await self._shell.close()
        await to_the_end(self._close)

    # -- tasks ----------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether the last task was broken off, by whatever, before the model had answered."""
        return self._unfinished

    @property
    def outcome(self) -> Outcome:
        """How the last task ended, or what is known of the running one."""
        return self._agent.outcome

    def interrupt(self) -> None:
        """Stop the running task where it waits; its state is kept. From the thread of the event loop."""
        self._agent.interrupt()

    async def run(self, task: str) -> Outcome:
        """Work on a task to its end."""
        return await self._through(self.run_stream(task))

    async def resume(self) -> Outcome:
        """Go on with the task that was broken off. Raises `NotFound` if there is none."""
        if not self.unfinished:
            raise NotFound(f"there is no task to go on with in {self._root.path}")
        return await self._through(self.run_stream())

    async def run_stream(self, task: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Work on a task, or without one on what is unfinished, and tell what happens; `Finished` comes last."""
        if self._doubtful:
            await to_the_end(self._recall)
        else:
            await to_the_end(self._look_again)
        self._doubtful = self._unfinished = True
        async with aclosing(self._agent.run_stream(task)) as events:
            async for event in events:
                if isinstance(event, Warned):
                    self._warned(event.text)
                yield event
        self._doubtful = self.outcome.reason == "failed"
        self._unfinished = not self.outcome.over
        with suppress(CfsError):  # what cannot be cleaned today can tomorrow
            await self._agent.context.clean()

    async def _through(self, events: AsyncGenerator[AgentEvent, None]) -> Outcome:
        async with aclosing(events):
            async for _ in events:
                pass
        return self.outcome

    # -- state ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self.config
        counter = config.counter or EstimatingCounter()
        self._root = AgentRoot(self._path, config.language)
        try:
            self._journal = Journal(self._root.path / JOURNAL)
            log = OperationLog(self._root.path / "logs")
        except BaseException:
            self._root.close()
            raise
        sync = SyncTool(counter, most_tokens=config.window_tokens)
        self._keeper = FileKeeper(self._root, self._journal, log, sync, lambda sentence: self._agent.warn(sentence))
        self._warden = Warden()
        self._shell = self._make_shell()
        storage = self._root.path / STORAGE[1:]
        self._files = ContextFileSystem(
            self._root.path / OFFLOADED[1:], _CONVERSATION, shown_as=OFFLOADED, trusted=storage
        )
        self._watch = RootWatch(self._root)
        self._agent = Agent(
            self._model,
            self._agent_config(sync, counter),
            files=self._files,
            keeper=self._keeper,
            watch=self._watch,
        )

    def _make_shell(self) -> AsyncShell | None:
        config = self.config
        if config.commands is CommandMode.NONE:
            return None
        limits = config.limits or usual_limits()
        box = config.commands is CommandMode.BWRAP
        settings = agent_shell(
            self._root.path,
            sandbox=box,
            network=config.network,
            limits=limits,
            keep_variables=config.keep_variables,
            warden=self._warden,
        )
        return AsyncShell(settings)

    def _commands(self, handle: FsHandle) -> list[Tool]:
        config = self.config
        if self._shell is None:
            return []
        require = None
        if config.commands is CommandMode.ASK and config.ask is not None:
            require = partial(Consent(config.ask).require, self._root.path.name)
        return CommandTools(self._shell, self._root.path, handle, require=require).tools()

    def _agent_config(self, sync: SyncTool, counter: TokenCounter) -> AgentConfig:
        config = self.config
        handle = self._root.handle(agent_grants())
        return AgentConfig(
            tools=[*FileTools(handle).tools(), *self._commands(handle), sync.tool(), *config.tools],
            max_rounds=config.max_rounds,
            offload_enabled=config.offload_enabled,
            offload_token_threshold=config.offload_token_threshold,
            ephemeral_keep_recent=config.ephemeral_keep_recent,
            context_tokens=config.context_tokens,
            counter=counter,
            sync_turn=SyncTurn(prompt=sentences(config.language).sync_turn, tools=[SYNC]),
            language=config.language,
        )

    def _close(self) -> None:
        self._warden.close()
        self._files.close()
        self._journal.close()
        self._root.close()

    def _recall(self) -> None:
        """Make the conversation what the files say that it is."""
        story = self._keeper.recall()
        context = Context((ContextItem.of(self._keeper.system()), *story.context.items))
        last = story.last_call
        failed = failure_of(last.operation, last.params, last.outcome, ok=last.success) if last else ""
        self._agent.resume_at(context, begun=story.begun, broken=story.broken, failed_call=failed)
        self._agent.outcome = Outcome(story.end.reason, detail=story.end.detail) if story.end else Outcome()
        self._unfinished = story.unfinished
        if story.unfinished:
            self._watch.ensure()

    def _look_again(self) -> None:
        """Build the system prompt anew: files and window may have been changed since the last task."""
        first, *rest = self._agent.context.context.items
        now = self._keeper.system()
        if now != first.message:
            self._agent.context.context = Context((replace(first, message=now, tokens=None), *rest))

    def _warned(self, sentence: str) -> None:
        self.warnings.append(sentence)
        if self.config.warn is not None:
            self.config.warn(sentence)
