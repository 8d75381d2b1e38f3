"""Locks of files (B7).

Locks are advisory and expire. They are in memory only, so a kill of the runtime releases all of them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cfs_agents.base.messages import Language, catalogue
from cfs_agents.guards.claims import relative
from cfs_agents.tools.errors import ToolError


@dataclass(frozen=True, slots=True)
class Lock:
    """The agent that reserved a file, and the end of the lock by the locks' clock."""

    agent_id: str
    until: float


class Locks:
    """The locks of one tree; each ends after so many `seconds`, or with its agent."""

    def __init__(
        self, seconds: float = 120.0, *, language: Language = "en", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._say = catalogue(language)
        self._clock = clock
        self._locks: dict[str, Lock] = {}

    def acquire(self, agent_id: str, path: str) -> str:
        """Reserve a file, or renew it; raises `ToolError` that names the agent that has it."""
        relative_path, now = self._place(path), self._clock()
        held = self._held(relative_path)
        if held is not None and held.agent_id != agent_id:
            raise ToolError(self._say.locked_by.format(relative_path, held.agent_id, max(1.0, round(held.until - now))))
        self._locks[relative_path] = Lock(agent_id, now + self.seconds)
        return (self._say.locked if held is None else self._say.renewed).format(relative_path, self.seconds)

    def release(self, agent_id: str, path: str) -> str:
        """Release a file; raises `ToolError` if it is not the agent's."""
        relative_path = self._place(path)
        held = self._held(relative_path)
        if held is None or held.agent_id != agent_id:
            raise ToolError(self._say.not_locked.format(relative_path))
        del self._locks[relative_path]
        return self._say.unlocked.format(relative_path)

    def release_all(self, agent_id: str) -> None:
        """Release all files of an agent, as it has ended."""
        self._locks = {path: lock for path, lock in self._locks.items() if lock.agent_id != agent_id}

    def held(self) -> dict[str, str]:
        """Return all locks."""
        return {path: self._locks[path].agent_id for path in list(self._locks) if self._held(path) is not None}

    def _held(self, relative_path: str) -> Lock | None:
        lock = self._locks.get(relative_path)
        if lock is not None and lock.until <= self._clock():
            del self._locks[relative_path]
            return None
        return lock

    def _place(self, path: str) -> str:
        relative_path = relative(path)
        if relative_path is None:
            raise ToolError(self._say.no_path.format(path[:100]))
        return relative_path
