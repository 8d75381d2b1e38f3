"""What the bridge knows of one session, and how each event changes that (F7). No I/O; the cache's lock guards it."""

import math
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from cfs.stream import StreamEvent
from cfs.transcript import render_one
from cfs.wire import Message, SessionInfo, Settings

IDLE = "idle"
_MOMENT = 0.1


class Follower(Protocol):
    """Somebody who wants to see what happens to a session: an open control file."""

    def happened(self, event: StreamEvent) -> None:
        """Take notice; called under the cache's lock, before those who wait are woken."""
        ...


@dataclass(eq=False, slots=True)
class RunningTurn:
    """The text of a turn as it comes.

    `since` is the number of the last event that it includes from elsewhere; its `id` is empty where nobody knows it.
    """

    id: str
    said: list[str] = field(default_factory=list)
    since: int = 0
    ended: bool = False

    def finish(self, reply: str) -> None:
        """Add what the reply has beyond the tokens: the mark of a cancelled turn, the reason of a failed one."""
        said = "".join(self.said).strip()
        if not reply.startswith(said):
            self.said.append("\n" + reply)
        elif rest := reply[len(said) :]:
            self.said.append(rest)
        self.ended = True


@dataclass(eq=False, slots=True)
class Entry:
    """One session in one life of its name; it keeps its identity when it is renamed.

    `event` is the number of the last event that is in it. `version` grows with each change of the transcript, `edits`
    with each that did more than append. `changed_at` is when the transcript changed, in seconds since the epoch.
    `text` holds the transcript in pieces, where somebody has read it lately. `written_at` is when the server last took
    something from this mount, on the monotonic clock.
    """

    id: str
    created_at: float
    state: str = IDLE
    queued: int = 0
    messages: int = 0
    size: int = 0
    changed_at: float = 0.0
    event: int = 0
    version: int = 0
    edits: int = 0
    gone: bool = False
    life: str = ""
    written_at: float = -math.inf
    settings: Settings | None = None
    text: list[bytes] | None = None
    turn: RunningTurn | None = None
    followers: list[Follower] = field(default_factory=list)
    moved: threading.Condition | None = None
    talked: threading.Condition | None = None

    @classmethod
    def of(cls, info: SessionInfo) -> "Entry":
        """Take over a line of a listing."""
        entry = cls(info.id, info.created_at)
        entry.take(info)
        return entry

    def take(self, info: SessionInfo) -> None:
        """Take over the present state; what happened in between is not known."""
        self.created_at, self.life = info.created_at, _life_of(info)
        self.state, self.queued, self.event = info.state, info.queued, info.event
        self.messages, self.size, self.changed_at = info.messages, info.size, info.updated_at
        self.settings = self.text = None
        self.version += 1
        self.edits += 1
        if self.turn is not None:
            self.turn.ended = True
            self.turn = None

    def is_life_of(self, info: SessionInfo) -> bool:
        """Tell whether a line of a listing means this session, or another one that has its name now.

        A server that is older than this says no life in its events; the event is a moment younger than the session.
        """
        if self.life and (life := _life_of(info)):
            return self.life == life
        return abs(info.created_at - self.created_at) < _MOMENT

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits in it."""
        return self.state == IDLE

    def apply(self, event: StreamEvent) -> bool:
        """Take over an event; False for one of the past, which is in here already, or of an earlier life."""
        if event.number <= self.event or event.time < self.created_at:
            return False
        self.event = event.number
        data = event.data
        match event.type:
            case "message.added":
                self._grow(data, event.time)
            case "history.replaced":
                self._rewrite(data, event.time)
            case "settings.changed":
                self.settings = Settings.model_validate(data["settings"])
            case "turn.started":
                self.turn = RunningTurn(data["turn"])
                self.state = data.get("state", "generating")
            case "token" if (turn := self._running(event)) is not None and event.number > turn.since:
                turn.said.append(data["text"])
            case "turn.finished" | "turn.failed" if (turn := self._running(event)) is not None:
                turn.finish(data["reply"])
            case "state.changed":
                self.state, self.queued = data["state"], data["queued"]
        return True

    def begin(self, event: StreamEvent) -> None:
        """Take over the event that made the session, or gave it its name."""
        self.event, self.changed_at = event.number, event.time
        self.life = event.data.get("life", "")
        self.messages, self.size = event.data["messages"], event.data["size"]
        self.settings = Settings.model_validate(event.data["settings"])

    def _running(self, event: StreamEvent) -> RunningTurn | None:
        return self.turn if self.turn is not None and self.turn.id in ("", event.turn) else None

    def _grow(self, data: dict[str, Any], when: float) -> None:
        said = data["message"]
        rendered = (render_one(Message.model_validate(said)) + "\n").encode()
        if self.text is not None:
            self.text.append(rendered)
        self.size = data.get("size", self.size + len(rendered))
        self.messages = data["index"] + 1
        self.changed_at = when
        self.version += 1
        if said["role"] == "user":
            self.state = data.get("state", "generating")  # so no reader slips in before the event that says so

    def _rewrite(self, data: dict[str, Any], when: float) -> None:
        self.messages, self.size, self.changed_at = data["messages"], data["size"], when
        self.text = None
        self.version += 1
        self.edits += 1


def _life_of(info: SessionInfo) -> str:
    return info.etag.strip('"').partition("-")[0]
