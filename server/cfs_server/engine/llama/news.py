"""What happened since the last frame to the server."""

from dataclasses import dataclass, field

from cfs_server.engine.backlog import Backlog
from cfs_server.engine.frames import Counters, Ended, Started, Step, Text, Told


@dataclass(slots=True)
class News:
    """Collected during a step, sent as one frame."""

    started: list[Started] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    logs: list[Told] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.started or self.texts or self.ended or self.logs)

    def step(self, counters: Counters, backlog: Backlog) -> Step:
        """Make the frame."""
        return Step(counters, self.started, self.texts, self.ended, backlog, self.logs)
