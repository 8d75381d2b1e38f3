"""The turns that wait, in the order in which they may come in: fair shares first, then arrival.

Beside them sit those that are paused because nobody reads what they say. They draw on no account, so they save up no
share meanwhile; when they go on they stand before those whose account has had as much.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from cfs_server.engine.fairness import WEIGHTS, Fairness
from cfs_server.engine.llama.sequence import Generation


class WaitQueue:
    """Owns the queue and the accounts of all unfinished turns, of those that run too."""

    def __init__(self, slice_seconds: float) -> None:
        self.waiting: deque[Generation] = deque()
        self.paused: list[Generation] = []
        self._fairness = Fairness()
        self._slice_seconds = slice_seconds
        self._owing: set[Generation] = set()

    def arrive(self, turn: Generation) -> None:
        """Take in a new turn."""
        self._settle()
        self._fairness.join(turn.share)
        self.waiting.append(turn)

    def gone(self, turn: Generation) -> None:
        """Forget a turn that is over."""
        if turn in self.paused:
            self.paused.remove(turn)
            return
        self._settle()
        self._fairness.leave(turn.share)
        if turn in self.waiting:
            self.waiting.remove(turn)

    def pause(self, turn: Generation) -> None:
        """Pause a turn that has no allocation; one that is paused stays so."""
        if turn not in self.paused:
            self.gone(turn)
            self.paused.append(turn)

    def resume(self, name: str) -> None:
        """Let a paused turn wait for an allocation again."""
        for turn in [turn for turn in self.paused if turn.id == name]:
            self.paused.remove(turn)
            self._settle()
            self._fairness.join(turn.share)
            self.waiting.appendleft(turn)

    def in_order(self) -> list[Generation]:
        """List who waits: those whose account has had least first."""
        if not self.waiting:
            return []
        self._settle()
        return sorted(self.waiting, key=self._rank)

    def admit(self, turn: Generation) -> None:
        """Let a turn run."""
        self.waiting.remove(turn)
        turn.slice = 0.0

    def charge(self, shares: Mapping[Generation, int], seconds: float) -> None:
        """Spread the time of a step over its turns, by their tokens; it is booked when somebody asks."""
        each = seconds / sum(shares.values())
        for turn, count in shares.items():
            turn.slice += each * count
            turn.owed += each * count
        self._owing.update(shares)

    def gives_way(
        self, running: Iterable[Generation], can_keep: Callable[[Generation], bool] = lambda _turn: True
    ) -> Generation | None:
        """Find a turn that had its slice and can keep its state, if one waits whose account has had less."""
        if not self.waiting:
            return None
        spent = [turn for turn in running if turn.slice >= self._slice_seconds]
        if not spent:
            return None
        self._settle()
        least = min((self._rank(turn) for turn in self.waiting if not turn.deterministic), default=None)
        if least is None:
            return None
        longest_first = sorted(spent, key=self._rank, reverse=True)
        return next((turn for turn in longest_first if least < self._rank(turn) and can_keep(turn)), None)

    def victim(self, running: Sequence[Generation]) -> Generation:
        """Choose which turn is preempted when there is no room; never the oldest.

        Those who lost their state before come last, then the least urgent goes first, then the youngest.
        """
        return max(running[1:], key=lambda turn: (not turn.losses, -WEIGHTS[turn.share[1]], running.index(turn)))

    def check_integrity(self, turns: Iterable[Generation]) -> list[str]:
        """Compare the accounts with the turns that there are; every line is a violation."""
        return self._fairness.check_integrity([turn.share for turn in turns])

    def _settle(self) -> None:
        """Book what turns owe. Streams that nobody waits for would pay for these sums in every step."""
        for turn in self._owing:
            self._fairness.charge(turn.share, turn.owed)
            turn.owed = 0.0
        self._owing.clear()

    def _rank(self, turn: Generation) -> tuple[float, ...]:
        return self._fairness.rank(turn.share)
