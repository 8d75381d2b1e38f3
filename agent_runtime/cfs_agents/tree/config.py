"""The configuration of a tree of agents: language, limits, and tools (B7)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfs.wire import LEASE_SECONDS
from cfs_agents.base.messages import Language
from cfs_agents.context import OFFLOAD_THRESHOLD, TokenCounter
from cfs_agents.guards.rules import Policy
from cfs_agents.loop.config import MAX_ROUNDS
from cfs_agents.tools import Ask, CommandMode, Tool, command_mode
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.files import EDIT_FILE, LIST_DIRECTORY, READ_FILE, SEARCH_FILES, WRITE_FILE
from cfs_agents.tree.fibre_rules import PromptForm

DEFAULT_FILE_TOOLS = (READ_FILE, WRITE_FILE, LIST_DIRECTORY, COMMAND)
"""The tools besides those of Fibre, unless others are configured: prompt and tools must fit into a small context."""

MORE_FILE_TOOLS = (EDIT_FILE, SEARCH_FILES)
"""Further ones for models whose context has room for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FibreConfig:
    """The configuration of a tree. Times are in seconds, budgets in tokens; None is no limit.

    `prompt` is the form of the system prompt's fixed part: by default the short one if the model's context window is
    under 8,192 tokens, else the full one. `instruction` is the root's own part of its system prompt, `common` is added
    for all agents. `max_turns`, `timeout` and `budget` hold for an agent unless its parent gives others; those of the
    root begin with `root_`. `tree_budget` is what all agents of the tree may use together for one task of the root: by
    default 40 times the model's context window; 0 is no limit. `tree_cost` limits what they spend in US dollars, in
    place of the default in tokens; the model must have a price. `max_depth` counts the levels below the root,
    `max_alive` the sub-agents at work, and `max_agents` those that are started during one task of the root.
    `file_tools` names the tools besides those of Fibre (default: those for reading, writing and listing files, and for
    commands; with a context of 16,384 tokens or more also those for editing and searching); `tools` are further ones.
    With `commands` agents have a shell: anyone who can write to their sessions can then run commands;
    `CommandMode.ASK` awaits `ask` before each command, one at a time, and asks in the agent's session on the server;
    the first answer counts, and without a server it needs `ask`. Commands get the harmless part of the environment, and
    `keep_variables`. Results above `offload_token_threshold` tokens go to files below `.cfs` in the workspace, where
    the agent's tools can read them.
    `workflow` is shared by all agents. With `look_alikes` files may be created beside those whose names look the same.
    `policy` has the rules about calls, and lasting answers; `attended` says whether people answer questions in the
    sessions. If they do not, and `ask` is None, what would be asked is denied.
    `skills` is a folder with skills of the user, which are copied into the workspace.
    With `plan` a model with a context of 16,384 tokens or more gets the tool `update_plan`.
    With `publish` the files are also in the workspace of the root's session on the server, while agents work. The
    default is true unless they are in a folder of the user. `warn` is called with a sentence for each damaged file of
    an agent.
    """

    language: Language = "en"
    prompt: PromptForm | None = None
    instruction: str = ""
    common: str = ""
    user_id: str = "user"
    max_depth: int = 2
    max_alive: int = 64
    max_agents: int = 64
    max_turns: int = 10
    timeout: float | None = 600.0
    budget: int | None = None
    root_max_turns: int = MAX_ROUNDS
    root_timeout: float | None = None
    tree_budget: int | None = None
    tree_cost: float | None = None
    lock_seconds: float = 120.0
    tick_seconds: float = 0.2
    publish_seconds: float = 2.0
    lease_seconds: float = LEASE_SECONDS
    context_tokens: int | None = None
    offload_enabled: bool = True
    offload_token_threshold: int = OFFLOAD_THRESHOLD
    counter: TokenCounter | None = None
    file_tools: Sequence[str] | None = None
    commands: CommandMode = CommandMode.NONE
    ask: Ask | None = None
    keep_variables: frozenset[str] = frozenset()
    tools: Iterable[Tool | Callable[..., Any]] = ()
    workflow: Mapping[str, Any] = field(default_factory=dict)
    plan: bool = True
    publish: bool | None = None
    look_alikes: bool = False
    skills: Path | None = None
    policy: Policy = field(default_factory=Policy)
    attended: bool = True
    warn: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Check it."""
        object.__setattr__(self, "commands", command_mode(self.commands, self.ask, elsewhere=True))


_BUDGET_CONTEXTS = 40
"""The default budget of a tree: so many context windows. Each step of an agent reads one at most."""
_USUAL_BUDGET = 5_000_000
"""The default budget if the model does not say its context window."""


def tree_budget_of(config: FibreConfig, context_window: int | None) -> int | None:
    """Return the tokens that a tree may use for one task of its root; None is no limit."""
    if config.tree_budget is not None:
        return config.tree_budget or None
    if config.tree_cost is not None:
        return None
    return _BUDGET_CONTEXTS * context_window if context_window else _USUAL_BUDGET
