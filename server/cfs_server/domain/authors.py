"""Who causes a change: a principal, and the agent that acts for it."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Author:
    """Who caused a change: a principal, and the agent and its tool call if one acts for it."""

    principal: str
    agent: str | None = None
    call: str | None = None


author: ContextVar[Author | None] = ContextVar("author", default=None)
"""The author of the changes that the current task makes."""
