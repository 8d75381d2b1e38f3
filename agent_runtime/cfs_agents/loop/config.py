"""Settings of an agent, and the outcome of a task (O6)."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from dotenv import dotenv_values, find_dotenv

from cfs.errors import CfsError, InvalidSettings
from cfs.wire import Usage
from cfs_agents.base.events import EndReason, FileChanges
from cfs_agents.base.messages import Language
from cfs_agents.context import (
    OFFLOAD_THRESHOLD,
    ContextFileSystem,
    EphemeralPolicy,
    OffloadPolicy,
    SelectiveCompactionPolicy,
    Summarise,
    TokenCounter,
    WorkingContext,
)
from cfs_agents.tools import Registry, Tool

MAX_ROUNDS = 100

SYNC_EVERY = 10

MODEL_VARIABLES = ("CFS_MODEL", "ANTHROPIC_MODEL", "OPENAI_MODEL")
"""Environment variables that name a model; the first that is set counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTurn:
    """A turn for a sync, after `every` steps without one and when no step is left (A4).

    The model gets `prompt`, and only the tools named in `tools`.
    """

    prompt: str
    tools: Sequence[str]
    every: int = SYNC_EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of an agent. `tools` are tools, or functions with a docstring; `system` is the system prompt.

    - `max_rounds`: maximum steps of a task. A task that repeats its steps ends earlier, except for the tools in
      `may_repeat`.
    - `offload_token_threshold`: results with more tokens go to disk, below `offload_root_path` (default
      `~/.agent/context`).
    - `ephemeral_keep_recent`: how many results each ephemeral tool keeps, instead of the tool's own number.
    - `context_tokens`: a longer conversation is compacted. Without it only the model's own limit counts.
    - `language`: language of the messages that the loop itself sends to the model.
    - `model`: name of the model, where the program that makes the model has a choice.
    - `thinking_budget`: maximum tokens of thinking in a reply, estimated. A reply that thinks longer is stopped, and
      the model is asked to think less. Without it thinking is not limited.
    """

    tools: Iterable[Tool | Callable[..., Any]] = ()
    system: str | None = None
    max_rounds: int = MAX_ROUNDS
    offload_enabled: bool = True
    offload_token_threshold: int = OFFLOAD_THRESHOLD
    offload_root_path: str | os.PathLike[str] | None = None
    ephemeral_keep_recent: int | None = None
    context_tokens: int | None = None
    counter: TokenCounter | None = None
    sync_turn: SyncTurn | None = None
    may_repeat: Collection[str] = ()
    language: Language = "en"
    model: str = ""
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        if self.thinking_budget is not None and self.thinking_budget < 1:
            raise InvalidSettings(f"thinking_budget is {self.thinking_budget}; it must be 1 or more")

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Return a configuration from environment variables; `settings` take precedence over them.

        What is not set in the environment is read from the file `.env` of this directory, or of the next one above it.
        `model` is the first of `CFS_MODEL`, `ANTHROPIC_MODEL` and `OPENAI_MODEL` that is set, `thinking_budget` is
        `CFS_THINKING_BUDGET` (0 for no limit). Raises `InvalidSettings` for a budget that is not a number.
        """
        variables = {**dotenv_values(find_dotenv(usecwd=True)), **os.environ} if environment is None else environment
        budget = (variables.get("CFS_THINKING_BUDGET") or "").strip() or "0"
        if not budget.isascii() or not budget.isdigit():
            raise InvalidSettings(f"CFS_THINKING_BUDGET is {budget!r}; it must be a number of tokens")
        model = next(filter(None, (variables.get(name) or "" for name in MODEL_VARIABLES)), "")
        return cls(**{"model": model, "thinking_budget": int(budget) or None} | settings)


@dataclass(slots=True)
class Outcome:
    """How a task ended: `reason`, the answer in `text`, without an answer the reason in `detail`, and its usage.

    `rounds` counts the steps. `files` are the files that have changed since the task began, if the agent's files are
    watched. `failed_call` is the error of the last call before the answer. `error` is the error of a failed task.
    `jobs` are notes on background jobs that were stopped with the task, and on processes that commands have left.
    """

    reason: EndReason = "failed"
    text: str = ""
    detail: str = ""
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    error: CfsError | None = None
    files: FileChanges = field(default_factory=FileChanges)
    failed_call: str = ""
    jobs: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether the model has answered, truthfully or not: there is nothing to resume."""
        return self.reason in ("answered", "unverified")

    @property
    def ok(self) -> bool:
        """Whether the model has answered, its claims about files are true, and its last call did not fail."""
        return self.reason == "answered" and not self.failed_call

    def __str__(self) -> str:
        """Return the answer, or the reason why there is none."""
        return self.text or self.detail


class FilesWatch(Protocol):
    """Watches the files of an agent, so that its claims can be checked against them."""

    async def begin(self) -> None:
        """A task begins."""
        ...

    async def changes(self) -> FileChanges:
        """Return what has changed since the task began."""
        ...

    async def unmade(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the named files that were neither created nor changed since the task began."""
        ...


class BackgroundJobs(Protocol):
    """The commands of an agent that run in the background."""

    def begin(self) -> None:
        """A task begins."""
        ...

    async def news(self) -> list[str]:
        """Return messages for the agent about jobs that have ended."""
        ...

    async def delivered(self) -> None:
        """The agent has got its news."""
        ...

    def question(self) -> str | None:
        """Return the question whether a task may end while jobs run, once for each task; else None."""
        ...

    async def end(self) -> tuple[str, ...]:
        """Stop all jobs at the end of a task; return notes on them and on processes that commands have left."""
        ...


def working_context(
    config: AgentConfig, files: ContextFileSystem | None, tools: Registry, summarise: Summarise | None = None
) -> WorkingContext:
    """Create the context for a configuration; `summarise` asks a model for a summary as the last resort (O5)."""
    if files is None and config.offload_enabled:
        files = ContextFileSystem(config.offload_root_path)
    keep = {tool.name: tool.ephemeral for tool in tools if tool.ephemeral is not None}
    return WorkingContext(
        files,
        counter=config.counter,
        offload=OffloadPolicy(enabled=config.offload_enabled, threshold=config.offload_token_threshold),
        ephemeral=EphemeralPolicy(keep, config.ephemeral_keep_recent),
        compaction=SelectiveCompactionPolicy(config.context_tokens, summarise, language=config.language)
        if config.context_tokens
        else None,
        language=config.language,
    )
