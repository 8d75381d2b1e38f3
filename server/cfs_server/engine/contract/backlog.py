"""The backlog: the turns that wait for an engine, and the expected wait of a new turn.

The expected wait depends on the owner. With fair shares a new turn passes the many turns of another owner. It starts
after its owner's waiting turns, when each other owner has had an equal share of the engine and one more turn. The
same holds among the owner's kinds of work, by weight. All turns of the same kind and owner count as ahead of it, in
any account.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from cfs_server.engine.contract.fairness import WEIGHTS

MOST_OWNERS = 64
"""Owners that are listed, those with most work; the work of all others counts as ahead of every turn."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Seconds of the engine's time: until a turn can start, of a usual turn, and of the waiting work by owner and kind.

    `rest` is the waiting work of owners that are not listed. The default is an engine where a turn can start at once.
    """

    place: float = 0.0
    turn: float = 0.0
    waiting: dict[str, dict[str, float]] = field(default_factory=dict)
    rest: float = 0.0

    @classmethod
    def of(cls, place: float, turns: Iterable[tuple[str, str, float]]) -> "Backlog":
        """Sum up turns that wait: owner, kind, seconds."""
        waiting: dict[str, dict[str, float]] = {}
        count, total = 0, 0.0
        for owner, kind, seconds in turns:
            kinds = waiting.setdefault(owner, {})
            kinds[kind] = kinds.get(kind, 0.0) + seconds
            count, total = count + 1, total + seconds
        busiest = dict(heapq.nlargest(MOST_OWNERS, waiting.items(), key=lambda entry: sum(entry[1].values())))
        listed = sum(sum(kinds.values()) for kinds in busiest.values())
        rest = total - listed if len(busiest) < len(waiting) else 0.0
        return cls(place, total / count if count else 0.0, busiest, rest)

    def wait(self, owner: str, kind: str) -> float:
        """Predict the wait of a new turn: for the next start, and for all that fair shares put before it."""
        kinds = self.waiting.get(owner, {})
        same = kinds.get(kind, 0.0)
        rival = ((WEIGHTS[other] / WEIGHTS[kind], seconds) for other, seconds in kinds.items() if other != kind)
        seconds_before = same + sum(min(seconds, (same + self.turn) * weight) for weight, seconds in rival)
        others = (sum(kinds.values()) for other, kinds in self.waiting.items() if other != owner)
        return (
            self.place
            + seconds_before
            + sum(min(seconds, seconds_before + self.turn) for seconds in others)
            + self.rest
        )
