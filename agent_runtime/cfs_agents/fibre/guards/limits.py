"""Limits of a tree: how deep it may grow, how many agents may be at work, and how many in all (B7). Pure: no I/O."""

from dataclasses import dataclass

from cfs_agents.fibre.guards.words import guard_words
from cfs_agents.sentences import Language
from cfs_agents.tools.errors import ToolError


@dataclass(frozen=True, slots=True)
class Limits:
    """`depth` counts the levels below the root; `alive` and `total` count sub-agents."""

    depth: int = 2
    alive: int = 64
    total: int = 256

    def check_spawn(self, *, depth: int, alive: int, total: int, language: Language = "en") -> None:
        """Judge one more agent, which would be so many levels below the root. Raises `ToolError` with the reason."""
        say = guard_words(language)
        if depth > self.depth:
            raise ToolError(say.too_deep.format(self.depth))
        if total >= self.total:
            raise ToolError(say.too_many.format(total))
        if alive >= self.alive:
            raise ToolError(say.too_many_alive.format(alive))
