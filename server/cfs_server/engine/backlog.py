"""What waits for an engine, and how long a turn that came now would wait behind it: not the same for everybody.

Fair shares let a newcomer pass a crowd. His turn comes when all that he has waiting already is served, and each other
owner has had as much of the engine and a turn. The same holds among his own kinds of work, by their weights. Turns of
one kind count as ahead of him, whichever of his accounts they are of.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from cfs_server.engine.fairness import WEIGHTS

MOST_OWNERS = 64
"""So many are told apart, those with most work; what the others have waiting goes before everybody."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Seconds of the engine's time: until a place is free, for a usual turn, and by owner and kind what waits.

    `rest` is what waits of owners that are not listed. The default is an engine that has a place.
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
        """Predict for a turn that came now: the next place, and whatever fair shares put before it."""
        kinds = self.waiting.get(owner, {})
        same = kinds.get(kind, 0.0)
        rival = ((WEIGHTS[other] / WEIGHTS[kind], seconds) for other, seconds in kinds.items() if other != kind)
        own = same + sum(min(seconds, (same + self.turn) * weight) for weight, seconds in rival)
        others = (sum(kinds.values()) for other, kinds in self.waiting.items() if other != owner)
        return self.place + own + sum(min(seconds, own + self.turn) for seconds in others) + self.rest
