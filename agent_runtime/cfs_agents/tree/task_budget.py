"""The budget of one task of a file-system agent, in tokens or US dollars (B7, H10).

What the task has used is in a file, so that the budget holds after a kill, too. What a lost request has cost is not
known, so the whole reservation for it counts.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cfs.errors import TooMany
from cfs.wire import Price, Usage
from cfs_agents.base.disk import disk_errors, encoded_line, replace_file
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.repairs import Warn, usable_file, without_damage
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.money import MoneyBudget
from cfs_agents.tree.step_costs import StepCosts

FILE = "budget.json"


@dataclass(slots=True)
class _Spending:
    agent_id: str
    tokens: int = 0
    cost: float = 0.0
    cost_reserved: float = 0.0


class TaskBudget:
    """Limits what a task may use: `tokens` read and written, or `cost` in US dollars. A `Meter`.

    A task may exceed its tokens by one reply at most, and its cost not at all.
    """

    def __init__(
        self,
        path: Path,
        agent_id: str,
        *,
        tokens: int | None = None,
        cost: float | None = None,
        language: Language = "en",
        warn: Warn,
    ) -> None:
        self.tokens = tokens or None
        self.cost = cost
        self._path = path
        self._say = catalogue(language)
        self._warn = warn
        self._money = MoneyBudget(cost, language)
        self._spending = _Spending(agent_id)
        self._costs = StepCosts(self._money, self._spending, self._save)

    def load(self) -> None:
        """Read what the task has used. Blocks; raises `Unavailable` if the disk refuses."""
        with disk_errors(self._path):
            self._path = usable_file(self._path, self._warn)
            try:
                stored = json.loads(self._path.read_bytes())
                tokens, cost, reserved = stored["tokens"], stored["cost"], stored["cost_reserved"]
                self._set(int(tokens), float(cost) + float(reserved))
            except FileNotFoundError:
                self._set(0, 0.0)
            except (ValueError, TypeError, KeyError):
                problem = "cannot be read: the budget of the task begins anew"
                self._path = without_damage(self._path, None, problem, self._warn)
                self._set(0, 0.0)

    async def begin(self) -> None:
        """Begin a task, which has used nothing."""
        self._set(0, 0.0)
        await self._save()

    def require(self, tokens: int) -> None:
        """Check that the next request, which reads so many tokens at least, is within the budget.

        Raises `TooMany`.
        """
        used = self._spending.tokens
        if self.tokens is not None and used + tokens > self.tokens:
            raise self._used_up(self._say.budget.format(self._spending.agent_id, used, self.tokens))

    async def count(self, usage: Usage) -> None:
        """Count what a request has used, and store it."""
        self._spending.tokens += usage.prompt_tokens + usage.completion_tokens
        await self._save()

    async def reserve(self, price: Price, prompt_tokens: int, reply_tokens: int) -> int:
        """Reserve the most that a request can cost (see `Meter`)."""
        try:
            return await self._costs.reserve(price, prompt_tokens, reply_tokens)
        except TooMany as error:
            raise self._used_up(error.detail) from None

    def settle(self, cost: float | None) -> None:
        """Count what a request has cost; None if that is not known."""
        self._costs.settle(cost)

    def _used_up(self, detail: str) -> TooMany:
        return TooMany(f"{detail}; {self._say.larger_budget}")

    def _set(self, tokens: int, cost: float) -> None:
        spending = self._spending
        spending.tokens, spending.cost, spending.cost_reserved = tokens, round(cost, 9), 0.0
        self._money.spent = spending.cost

    async def _save(self) -> None:
        def write() -> None:
            with disk_errors(self._path):
                replace_file(self._path, encoded_line(asdict(self._spending)))

        await to_the_end(write)
