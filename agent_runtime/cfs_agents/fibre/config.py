"""The configuration of a tree of agents: its language, its limits, its tools (B7)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cfs.wire import LEASE_SECONDS
from cfs_agents.config import MAX_ROUNDS
from cfs_agents.context import OFFLOAD_THRESHOLD, TokenCounter
from cfs_agents.fibre.prompts import PromptForm
from cfs_agents.messages import Language
from cfs_agents.tools import Ask, CommandMode, Tool, command_mode
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.files import LIST_DIRECTORY, READ_FILE, WRITE_FILE

DEFAULT_FILE_TOOLS = (READ_FILE, WRITE_FILE, LIST_DIRECTORY, COMMAND)
"""The tools besides those of Fibre, unless others are configured: prompt and tools must fit into a small context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FibreConfig:
    """The configuration of a tree. Times are in seconds, budgets in tokens; None is no limit.

    `prompt` is the form of the system prompt's fixed part: by default the short one if the model's context window is
    under 8,192 tokens, else the full one. `instruction` is the root's own part of its system prompt, `common` is added
    for all agents. `max_turns`, `timeout` and `budget` hold for an agent unless its parent gives others; those of the
    root begin with `root_`. `tree_budget` is what all agents of the tree may use together. `max_depth` counts the
    levels below the root, `max_alive` and `max_agents` the sub-agents at work and in all. `file_tools` names the tools
    besides those of Fibre, and `tools` are further ones. With `commands` agents have a shell: anyone who can write to
    their sessions can then run commands; `CommandMode.ASK` awaits `ask` before each command, one at a time. Commands
    get the harmless part of the environment, and `keep_variables`. Results above `offload_token_threshold` tokens go to
    files below `.cfs` in the workspace, where the agent's tools can read them. `workflow` is shared by all agents.
    """

    language: Language = "en"
    prompt: PromptForm | None = None
    instruction: str = ""
    common: str = ""
    user_id: str = "user"
    max_depth: int = 2
    max_alive: int = 64
    max_agents: int = 256
    max_turns: int = 10
    timeout: float | None = 600.0
    budget: int | None = None
    root_max_turns: int = MAX_ROUNDS
    root_timeout: float | None = None
    tree_budget: int | None = None
    lock_seconds: float = 120.0
    tick_seconds: float = 0.2
    lease_seconds: float = LEASE_SECONDS
    context_tokens: int | None = None
    offload_enabled: bool = True
    offload_token_threshold: int = OFFLOAD_THRESHOLD
    counter: TokenCounter | None = None
    file_tools: Sequence[str] = DEFAULT_FILE_TOOLS
    commands: CommandMode = CommandMode.NONE
    ask: Ask | None = None
    keep_variables: frozenset[str] = frozenset()
    tools: Iterable[Tool | Callable[..., Any]] = ()
    workflow: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check it."""
        object.__setattr__(self, "commands", command_mode(self.commands, self.ask))
