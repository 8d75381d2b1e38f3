"""The token budget of a tree (B7). No I/O.

Each agent draws on its own budget and on the budgets of all its ancestors. The check before a model request uses the
minimum cost of the request, so an agent can exceed its budget by at most one reply.
"""

from dataclasses import dataclass, field

from cfs.errors import TooMany
from cfs_agents.base.messages import Language, catalogue


@dataclass(slots=True)
class _Account:
    parent: str | None
    limit: int | None
    used: int = 0
    before: int = 0
    reserved: dict[str, int] = field(default_factory=dict)

    @property
    def spoken_for(self) -> int:
        return self.used - self.before + sum(self.reserved.values())


class TreeBudget:
    """The accounts of one tree's agents, in tokens read and written. `limit` None is no limit of its own."""

    def __init__(self, language: Language = "en") -> None:
        self._say = catalogue(language)
        self._accounts: dict[str, _Account] = {}

    def open(self, agent_id: str, parent: str | None, limit: int | None, used: int = 0) -> None:
        """Open an account below the parent's; `used` is the agent's usage in an earlier process.

        An existing account gets the limit and keeps its usage.
        """
        if agent_id in self._accounts:
            self._accounts[agent_id].limit = limit
            return
        self._accounts[agent_id] = _Account(parent, limit)
        self.draw(agent_id, used)

    def renew(self, agent_id: str, limit: int | None, before: int) -> None:
        """Limit what an agent, and all below it, use from now on; `before` is what they had used before its task."""
        account = self._accounts[agent_id]
        account.limit, account.before = limit, before

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
        """Release the reservations of an agent that has ended."""
        for name in self._line(agent_id):
            self._accounts[name].reserved.pop(agent_id, None)

    def limit(self, agent_id: str) -> int | None:
        """Return an agent's own limit, which holds for all its descendants, too."""
        return self._accounts[agent_id].limit

    def used(self, agent_id: str) -> int:
        """Return the usage of an agent and all its descendants."""
        return self._accounts[agent_id].used

    def _line(self, agent_id: str) -> list[str]:
        """Return an agent and all above it."""
        line: list[str] = []
        name: str | None = agent_id
        while name is not None and name in self._accounts:
            line.append(name)
            name = self._accounts[name].parent
        return line
