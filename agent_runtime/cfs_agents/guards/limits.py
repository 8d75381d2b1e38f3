"""Limits of a tree: its depth, the number of its agents, and how often one goal may fail (B7). No I/O."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cfs_agents.base.messages import Language, catalogue
from cfs_agents.loop.repetition import masked
from cfs_agents.tools.errors import ToolError


@dataclass(frozen=True, slots=True)
class TreeLimits:
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


MAX_ATTEMPTS = 3
"""How many children of an agent may fail at one goal."""
MAX_FAILURES = 6
"""How many children of an agent may fail one after the other."""


def check_attempts(goal: str, outcomes: Sequence[tuple[str, bool]], language: Language = "en") -> None:
    """Check whether one more child makes sense. `outcomes` are the goals of an agent's children, and their success.

    Raises `ToolError` with the reason: a new child for the same goal is the same step again, whatever its name.
    """
    say = catalogue(language)
    failed = sum(_alike(other, goal) for other, ok in outcomes if not ok)
    if failed >= MAX_ATTEMPTS:
        raise ToolError(say.tried_often.format(failed))
    last = [ok for _, ok in outcomes[-MAX_FAILURES:]]
    if len(last) == MAX_FAILURES and not any(last):
        raise ToolError(say.all_failed.format(MAX_FAILURES))


def _alike(goal: str, other: str) -> bool:
    return _plain(goal) == _plain(other)


def _plain(goal: str) -> str:
    """Leave out what may differ between two wordings of a goal: case, white space, punctuation, ids and times."""
    return " ".join(re.findall(r"\w+", masked(goal).casefold()))
