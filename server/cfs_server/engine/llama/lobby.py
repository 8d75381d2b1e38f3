"""The turns that wait, in the order in which they may come in: fair shares first, then arrival."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from cfs_server.engine.fairness import WEIGHTS, Fairness
from cfs_server.engine.llama.sequences import Generation


class Lobby:
    """Owns the queue and the accounts of all unfinished turns, of those that run too."""

    def __init__(self, slice_seconds: float) -> None:
        self.waiting: deque[Generation] = deque()
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
        self._settle()
        self._fairness.leave(turn.share)
        if turn in self.waiting:
            self.waiting.remove(turn)

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

    def gives_way(self, running: Iterable[Generation]) -> Generation | None:
        """Find a turn that had its slice, if one waits whose account has had less."""
        if not self.waiting:
            return None
        self._settle()
        spent = [turn for turn in running if turn.slice >= self._slice_seconds]
        if not spent:
            return None
        longest = max(spent, key=self._rank)
        least = min((self._rank(turn) for turn in self.waiting if not turn.solo), default=None)
        return longest if least is not None and least < self._rank(longest) else None

    def victim(self, running: Sequence[Generation]) -> Generation:
        """Choose who is put aside when there is no room: the least urgent, then the youngest; never the oldest."""
        return max(running[1:], key=lambda turn: (-WEIGHTS[turn.share[1]], running.index(turn)))

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
