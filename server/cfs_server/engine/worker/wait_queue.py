"""All unfinished turns by state, the order in which waiting turns start, and how long a new one would wait.

Fair shares go first, then arrival.

Paused turns use no account, so they earn no credit. When they resume, they go before turns of accounts with the same
usage.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

from cfs_server.engine.contract.backlog import Backlog
from cfs_server.engine.contract.fair_queue import FairQueue
from cfs_server.engine.contract.fairness import WEIGHTS, Fairness
from cfs_server.engine.llama.prompt_budget import PromptBudget
from cfs_server.engine.worker.generation import (
    COMPETING,
    QUEUED,
    TRANSITIONS,
    Generation,
    GenerationState,
    InvalidGenerationTransition,
)

_LEARNING_RATE = 0.1
_FIRST_GUESS = 128.0
"""Tokens of a reply, before any has ended."""
_RESTS = 20.0
"""A backlog is computed again after this many times what it took: thousands of waiting turns take milliseconds."""


class WaitQueue:
    """Owns the lists of turns and the accounts that unfinished turns draw on; `move` is the only change of a state.

    `running` has the turns that share steps, the longest running first; deterministic ones are counted apart.
    """

    def __init__(self, slice_seconds: float) -> None:
        self.waiting: dict[Generation, None] = {}
        self.running: list[Generation] = []
        self.deterministic: list[Generation] = []
        self.paused: list[Generation] = []
        self._fairness = Fairness()
        self._order: dict[bool, FairQueue[Generation]] = {
            deterministic: FairQueue(self._fairness) for deterministic in (False, True)
        }
        """The waiting turns in their order, those that are not deterministic and those that are."""
        self._by_id: dict[str, Generation] = {}
        self._by_key: defaultdict[str, set[Generation]] = defaultdict(set)
        self._slice_seconds = slice_seconds
        self._owing: set[Generation] = set()

    @property
    def turns(self) -> tuple[Generation, ...]:
        """All turns that are not finished."""
        return (*self.running, *self.deterministic, *self.waiting, *self.paused)

    def __len__(self) -> int:
        """The number of turns that are not finished."""
        return len(self._by_id)

    def named(self, name: str) -> Generation | None:
        """Return the turn with this id; None if it is finished."""
        return self._by_id.get(name)

    def of_session(self, key: str) -> Collection[Generation]:
        """Return the turns of a session."""
        return self._by_key.get(key, ())

    def add(self, turn: Generation) -> None:
        """Add a new turn."""
        self._settle()
        self._by_id[turn.id] = turn
        self._by_key[turn.cache_key].add(turn)
        self._fairness.join(turn.share)
        self._enter(turn, first=False)

    def move(self, turn: Generation, state: GenerationState, *, first: bool = False) -> None:
        """Change the state of a turn, and with it its list and its account; raises `InvalidGenerationTransition`.

        A new waiting turn is the last among accounts with the same usage, or with `first` the first.
        """
        before = turn.state
        if state not in TRANSITIONS[before]:
            raise InvalidGenerationTransition(f"turn {turn.id} is {before.value} and cannot become {state.value}")
        turn.state = state
        if self._list(turn, before) is not self._list(turn, state):
            self._leave(turn, before)
            self._enter(turn, first=first)
        if state is GenerationState.RUNNING:
            turn.slice = 0.0
        if (before in COMPETING) != (state in COMPETING):
            self._settle()
            change = self._fairness.join if state in COMPETING else self._fairness.leave
            change(turn.share)

    def in_order(self, *, deterministic: bool) -> Iterator[Generation]:
        """Yield the waiting turns that are deterministic or not, those first whose account has had least."""
        self._settle()
        return self._order[deterministic].in_order()

    def charge(self, shares: Mapping[Generation, int], seconds: float) -> None:
        """Divide the time of a step among its turns, by their tokens. Accounts are charged when they are compared."""
        per_share = seconds / sum(shares.values())
        for turn, count in shares.items():
            turn.slice += per_share * count
            turn.owed += per_share * count
        self._owing.update(shares)

    def gives_way(self, can_keep: Callable[[Generation], bool] = lambda _turn: True) -> Generation | None:
        """Find a running turn that had its slice and can keep its state, if the account of a waiting turn had less."""
        if not self.waiting:
            return None
        spent = [turn for turn in self.running if turn.slice >= self._slice_seconds]
        if not spent:
            return None
        self._settle()
        if (first := self._order[False].first()) is None:
            return None
        lowest = self._rank(first)
        longest_first = sorted(spent, key=self._rank, reverse=True)
        return next((turn for turn in longest_first if lowest < self._rank(turn) and can_keep(turn)), None)

    def victim(self) -> Generation:
        """Choose the running turn to preempt when there is no room; never the oldest.

        Turns that lost their state before are last. Among the others the least urgent is first, then the youngest.
        """
        running = self.running
        return max(running[1:], key=lambda turn: (not turn.losses, -WEIGHTS[turn.share[1]], running.index(turn)))

    def check_integrity(self) -> list[str]:
        """Compare states, lists and accounts; every line is a violation."""
        turns = self.turns
        lost = [turn for turn in turns if not self._is_listed(turn)]
        problems = [f"{turn.id} is {turn.state.value} and in the wrong list" for turn in lost]
        if len(set(turns)) != len(turns):
            problems.append("a turn is listed twice")
        if set(self._by_id.values()) != set(turns) or set().union(*self._by_key.values()) != set(turns):
            problems.append("the turns by name and by session are others than those that are listed")
        for deterministic, order in self._order.items():
            if {turn for turn in self.waiting if turn.deterministic is deterministic} != set(order.in_order()):
                problems.append("the order of the waiting turns lacks some, or has others")
            problems += order.check_integrity()
        return problems + self._fairness.check_integrity([turn.share for turn in turns if turn.state in COMPETING])

    def _enter(self, turn: Generation, *, first: bool) -> None:
        """Put a turn into the list of its state."""
        entered = self._list(turn, turn.state)
        if entered is self.waiting:
            self.waiting[turn] = None
            self._order[turn.deterministic].add(turn, turn.share, first=first)
        elif isinstance(entered, list):
            entered.insert(0 if first else len(entered), turn)
        else:
            del self._by_id[turn.id]
            self._by_key[turn.cache_key].remove(turn)
            if not self._by_key[turn.cache_key]:
                del self._by_key[turn.cache_key]

    def _leave(self, turn: Generation, state: GenerationState) -> None:
        """Take a turn out of the list of an earlier state."""
        left = self._list(turn, state)
        if left is self.waiting:
            del self.waiting[turn]
            self._order[turn.deterministic].remove(turn)
        elif isinstance(left, list):
            left.remove(turn)

    def _list(self, turn: Generation, state: GenerationState) -> "list[Generation] | dict[Generation, None] | None":
        """Return the list of the turns in a state."""
        if state is GenerationState.RUNNING:
            return self.deterministic if turn.deterministic else self.running
        if state is GenerationState.PAUSED:
            return self.paused
        return self.waiting if state in QUEUED else None

    def _is_listed(self, turn: Generation) -> bool:
        index = self._list(turn, turn.state)
        return index is not None and turn in index

    def _settle(self) -> None:
        """Charge the accounts for their turns' time; while no turn waits, steps skip this work."""
        for turn in self._owing:
            self._fairness.charge(turn.share, turn.owed)
            turn.owed = 0.0
        self._owing.clear()

    def _rank(self, turn: Generation) -> tuple[float, ...]:
        return self._fairness.rank(turn.share)


class Forecast:
    """Learns the length of replies; gets the cost of prompts and steps from the budget."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._reply_tokens = _FIRST_GUESS
        self._backlog, self._count, self._until = Backlog(), 0, 0.0

    def saw_reply(self, tokens: int) -> None:
        """Learn from a turn that ended."""
        self._reply_tokens += _LEARNING_RATE * (tokens - self._reply_tokens)

    def outdated(self, waiting: Collection[Generation]) -> bool:
        """Whether more or fewer turns wait than at the last prediction, and it is time for another."""
        return len(waiting) != self._count and (not waiting or time.monotonic() >= self._until)

    def backlog(self, running: Collection[Generation], waiting: Collection[Generation], parallel: int) -> Backlog:
        """Predict the work before a new turn, or return the last prediction if it is new enough."""
        began = time.monotonic()
        if not waiting or began >= self._until:
            self._backlog, self._count = self._predict(running, waiting, parallel), len(waiting)
            self._until = began + (time.monotonic() - began) * _RESTS
        return self._backlog

    def _predict(self, running: Collection[Generation], waiting: Collection[Generation], parallel: int) -> Backlog:
        """Sum up the waiting turns. Where some wait, or all places are taken, a running turn must end first."""
        if not waiting and len(running) < parallel:
            return Backlog()
        prompt, reply = self._budget.seconds(1), self._budget.reply_seconds(parallel)
        first_free = min((self._seconds(turn, prompt, reply) for turn in running), default=0.0)
        return Backlog.of(first_free, ((*turn.share[:2], self._seconds(turn, prompt, reply)) for turn in waiting))

    def _seconds(self, turn: Generation, per_prompt_token: float, per_reply_token: float) -> float:
        computed = max(turn.computed, turn.spared)
        prompt = max(0, turn.prompt_tokens - computed) if not turn.completion_tokens else 0
        reply = max(1.0, min(self._reply_tokens, turn.max_tokens) - turn.completion_tokens)
        return prompt * per_prompt_token + reply * per_reply_token
