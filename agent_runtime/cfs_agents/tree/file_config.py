"""The settings of a file-system agent."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from cfs_agents.guards.rules import Policy
from cfs_agents.loop.config import AgentConfig
from cfs_agents.tools import Ask, CommandMode, Limits, command_mode
from cfs_agents.tree.sync import WINDOW_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemAgentConfig(AgentConfig):
    """Settings of a file-system agent; `tools` are added to its own, and the runtime sets `system` and `sync_turn`.

    - `window_tokens`: maximum size of the context window.
    - `commands`: whether it may run commands. `CommandMode.ASK` awaits `ask` before each one.
    - `network`: whether sandboxed commands reach the network.
    - `keep_variables`: environment variables that commands get, in addition to harmless ones.
    - `limits`: what commands may use (default: `usual_limits`).
    - `look_alikes`: whether files may be created beside those whose names look the same.
    - `skills`: a folder with skills of the user, which are copied into the workspace.
    - `policy`: the rules about calls, and lasting answers.
    - `plan`: whether a model with a context of 16,384 tokens or more gets the tool `update_plan`.
    - `task_budget`, `task_cost`: what a task may use, in tokens read and written (0 is no limit) or in US dollars.
    - `warn`: called with each warning, one sentence.
    """

    window_tokens: int = WINDOW_TOKENS
    commands: CommandMode = CommandMode.NONE
    ask: Ask | None = None
    network: bool = False
    keep_variables: frozenset[str] = frozenset()
    limits: Limits | None = None
    look_alikes: bool = False
    skills: Path | None = None
    policy: Policy = field(default_factory=Policy)
    plan: bool = True
    task_budget: int | None = None
    task_cost: float | None = None
    warn: Callable[[str], None] | None = None

    @classmethod
    def of(cls, config: AgentConfig | None) -> "FileSystemAgentConfig":
        """Return the settings of any agent as those of a file-system agent; without one, the defaults."""
        if config is None or isinstance(config, FileSystemAgentConfig):
            return config or cls()
        return cls(**{config_field.name: getattr(config, config_field.name) for config_field in fields(AgentConfig)})

    def __post_init__(self) -> None:
        """Check the settings that depend on each other."""
        AgentConfig.__post_init__(self)
        object.__setattr__(self, "commands", command_mode(self.commands, self.ask))
