"""A write over a file that changed since this agent last read it is refused, and who changed it is named (B7)."""

from collections.abc import Iterator
from contextlib import contextmanager

from cfs_agents.fibre.guards.claims import relative
from cfs_agents.fibre.guards.ledger import Ledger
from cfs_agents.fibre.guards.words import guard_words
from cfs_agents.sentences import Language
from cfs_agents.tools.errors import ToolError


class StaleWrites:
    """The gate before one agent's writes: a `FileGate`. Any number of threads; all of a tree share the ledger.

    What the agent knows of a file is what it last read or wrote. What it has never seen it may replace, if no other
    agent wrote it and it is as it was when the agent's work began.
    """

    def __init__(self, ledger: Ledger, agent_id: str, language: Language = "en") -> None:
        self._ledger = ledger
        self._agent_id = agent_id
        self._say = guard_words(language)
        self._seen: dict[str, str | None] = {}
        self._over = False

    def close(self) -> None:
        """Let nothing be written any more, also by a thread that outlives its agent."""
        self._over = True

    def open(self) -> None:
        """Let the agent write again: it has another task."""
        self._over = False

    def seen(self, path: str) -> None:
        """The agent is about to read a file: what it finds is the file as it is now, or a newer one."""
        if (place := relative(path)) is not None:
            self._seen[place] = self._ledger.present(place)

    @contextmanager
    def writing(self, path: str, *, whole: bool) -> Iterator[None]:
        """Let one write through. A `whole` one replaces all that is there, so it has to know it.

        Raises `ToolError` when the agent does not, or has ended.
        """
        if self._over:
            raise ToolError(self._say.over)
        place = relative(path)
        if place is None:
            yield
            return
        with self._ledger.writing(self._agent_id, place) as now:
            if whole and now is not None and self._stale(place, now):
                who = self._ledger.last_by(place) or self._say.somebody
                raise ToolError(self._say.stale.format(place, who))
            self._ledger.begins(self._agent_id, place)
            yield
            self._seen[place] = self._ledger.present(place)

    def _stale(self, place: str, now: str) -> bool:
        if place in self._seen:
            return self._seen[place] != now
        others = self._ledger.last_by(place) not in (None, self._agent_id)
        return others or self._ledger.known_to(self._agent_id, place) != now
