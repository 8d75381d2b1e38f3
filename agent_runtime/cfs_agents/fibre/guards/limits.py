"""Limits of a tree: its depth, the number of agents, and the token budget (B7). Pure: no I/O."""

from dataclasses import dataclass, field

from cfs.errors import TooMany
from cfs.wire import Usage
from cfs_agents.messages import Language, catalogue
from cfs_agents.tools.registry import ToolError

# The token budget: each agent draws from its own and from those of all agents above it. It is checked before a model is
# asked, with the least that the question costs, so each agent can exceed it by one reply and no more.


def tokens(usage: Usage) -> int:
    """Return the tokens that a usage counts: all that were read, cached or not, and written."""
    return usage.prompt_tokens + usage.completion_tokens


@dataclass(slots=True)
class _Account:
    parent: str | None
    limit: int | None
    used: int = 0
    reserved: dict[str, int] = field(default_factory=dict)

    @property
    def spoken_for(self) -> int:
        return self.used + sum(self.reserved.values())


class TreeBudget:
    """The accounts of one tree's agents, in tokens read and written. `limit` None is no limit of its own."""

    def __init__(self, language: Language = "en") -> None:
        self._say = catalogue(language)
        self._accounts: dict[str, _Account] = {}

    def open(self, agent_id: str, parent: str | None, limit: int | None, used: int = 0) -> None:
        """Open an account below the parent's; `used` is what the agent has used in an earlier process.

        An existing account gets the limit, and keeps what was used.
        """
        if agent_id in self._accounts:
            self._accounts[agent_id].limit = limit
            return
        self._accounts[agent_id] = _Account(parent, limit)
        self.draw(agent_id, used)

    def reserve(self, agent_id: str, tokens: int) -> None:
        """Reserve the least that the next question costs, until something is drawn.

        Raises `TooMany` if the agent's budget, or one above it, does not have that much.
        """
        line = self._line(agent_id)
        for name in line:
            self._accounts[name].reserved.pop(agent_id, None)
        for name in line:
            account = self._accounts[name]
            if account.limit is not None and account.spoken_for + tokens > account.limit:
                raise TooMany(self._say.budget.format(name, account.spoken_for, account.limit))
        for name in line:
            self._accounts[name].reserved[agent_id] = tokens

    def draw(self, agent_id: str, tokens: int) -> None:
        """Draw the cost of a reply from the agent's account and all above it."""
        for name in self._line(agent_id):
            self._accounts[name].used += tokens
            self._accounts[name].reserved.pop(agent_id, None)

    def release(self, agent_id: str) -> None:
        """Release what an agent has reserved, as it has ended."""
        for name in self._line(agent_id):
            self._accounts[name].reserved.pop(agent_id, None)

    def used(self, agent_id: str) -> int:
        """Return what an agent and all below it have used."""
        return self._accounts[agent_id].used

    def _line(self, agent_id: str) -> list[str]:
        """Return an agent and all above it."""
        line: list[str] = []
        name: str | None = agent_id
        while name is not None and name in self._accounts:
            line.append(name)
            name = self._accounts[name].parent
        return line


@dataclass(frozen=True, slots=True)
class Limits:
    """`depth` counts the levels below the root; `alive` and `total` count sub-agents."""

    depth: int = 2
    alive: int = 64
    total: int = 256

    def check_spawn(self, *, depth: int, alive: int, total: int, language: Language = "en") -> None:
        """Check one more agent, `depth` levels below the root. Raises `ToolError` with the reason."""
        say = catalogue(language)
        if depth > self.depth:
            raise ToolError(say.too_deep.format(self.depth))
        if total >= self.total:
            raise ToolError(say.too_many.format(total))
        if alive >= self.alive:
            raise ToolError(say.too_many_alive.format(alive))
