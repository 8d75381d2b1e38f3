"""Following a stream of events over lost connections: bytes in, events out, and what to ask for next (S11). No I/O.

An `EventSource` takes the bytes that arrive and learns of lost connections; it returns the request that continues where
the last one ended. Nothing is skipped silently: where a cursor is too old, the server sends one `stale` event; where
there was no cursor yet, the source makes that event itself.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cfs import api
from cfs.errors import CfsError, InvalidTranscript, TooMany, Unavailable, Unreachable
from cfs.sse import ServerSentEvent, SSEDecoder
from cfs.transcript import PREFIXES, Turn, parse
from cfs.wire import FinishReason, ToolCall, Usage

# Finding the reply to a message in a transcript that grows (C3, C4). Pure: no I/O.
#
# Where the file itself does not say whether a turn is running (a plain directory, davfs2), its text does: a
# transcript
# is settled when it ends in a line end and its last message is not a user's.

_ERROR = re.compile(r"\[Error: (.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a message as far as it is there; `end` is the number of messages up to it."""

    text: str
    end: int
    complete: bool


def as_written(message: str) -> bytes:
    """Write a message as the bytes that a file takes: whatever it begins or ends with arrives as it is (S3)."""
    return f"{PREFIXES['user']}{message}\n".encode()


def decode(data: bytes) -> str:
    """Decode what is there of a text; a character that is cut at the end is left for the next time."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def turns_of(text: str) -> list[Turn]:
    """Read a transcript that may be in the middle of a change: what does not read as turns has none yet."""
    try:
        return parse(text)
    except InvalidTranscript:
        return []


def settled(text: str) -> bool:
    """Whether nothing more is to come."""
    turns = turns_of(text)
    return not text or (text.endswith("\n") and bool(turns) and turns[-1].role != "user")


def asked_last(turns: Sequence[Turn], message: Turn) -> int | None:
    """Find the last message of this role and content."""
    return next((n for n in range(len(turns) - 1, -1, -1) if turns[n] == message), None)


def end_of_answer(turns: Sequence[Turn], asked: int) -> int:
    """Count the messages up to the end of the turn that a message began: to the next user's one."""
    return next((n for n in range(asked + 1, len(turns)) if turns[n].role == "user"), len(turns))


def find_reply(text: str, turns: Sequence[Turn], message: str) -> Found | None:
    """Find what answers the last user's message of this content; None when it is not answered yet.

    Text that was written raw and would read as other turns is not found, and so waited for: it is shown escaped as
    soon as it has been taken in.
    """
    asked = asked_last(turns, Turn("user", message))
    if asked is None:
        return None
    end = end_of_answer(turns, asked)
    if end == asked + 1 or turns[end - 1].role != "assistant":
        return None
    return Found(turns[end - 1].content, end, complete=end < len(turns) or text.endswith("\n"))


def error_in(reply: str) -> str | None:
    """Read why a turn has failed from its reply, which is all that a file shows of it (S5)."""
    found = _ERROR.fullmatch(reply)
    return found[1] if found else None


FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event. A stream resumes after `id`; `data` is what happened, by the `type` (docs/sessions.md).

    `stale` means that events were missed: its `data` holds the present state under `session` (not in the stream of
    all sessions, nor where a connection was lost before the first event). `time` is in seconds since the epoch.
    """

    type: str
    data: dict[str, Any]
    id: str = ""
    session: str = ""
    number: int = 0
    position: int = 0
    time: float = 0.0

    @property
    def turn(self) -> str | None:
        """Id of the turn that it is about."""
        turn = self.data.get("turn")
        return turn if isinstance(turn, str) else None


@dataclass
class EventSource:
    """A reader of one stream. `attempts` is how often in a row a lost connection is made again."""

    stream: api.Stream
    attempts: float = 8
    ended: bool = False
    _cursor: str = ""
    _turn: str | None = field(init=False)
    _failures: int = 0
    _again: bool = False
    _reached: bool = field(init=False)
    _decoder: SSEDecoder = field(default_factory=SSEDecoder)

    def __post_init__(self) -> None:
        self._turn = self.stream.turn
        self._reached = self.stream.turn is not None  # by the request that named it

    @property
    def request(self) -> api.Request:
        """What to send now: the stream's own request, or the one that continues it."""
        if not self._again:
            return self.stream.request
        resumed = api.events(self.stream.session).request
        headers = dict(resumed.headers) | ({"Last-Event-ID": self._cursor} if self._cursor else {})
        if self._cursor and self.stream.one_turn:  # a turn ends with its session, whatever has the name then
            headers[api.LIFE] = self._cursor.partition("-")[0]
        params = {} if self._cursor else self.stream.request.params
        return replace(resumed, headers=headers, params=params)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next request."""
        return min(FIRST_PAUSE * 2.0 ** min(self._failures, 10) / 2, LONGEST_PAUSE)

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Take bytes of the present connection; yield the events of the stream among what they complete."""
        for raw in self._decoder.feed(data):
            if self.ended:
                return
            event = read_event(raw)
            self._failures = 0
            self._cursor = event.id or self._cursor
            if self.stream.one_turn and self._turn is None:
                self._turn = event.turn
            if self._wanted(event):
                yield event
                self.ended = self._last(event)

    def connected(self) -> Iterator[StreamEvent]:
        """Begin reading a new connection; yields `stale` when what came before it cannot be asked for."""
        self._decoder = SSEDecoder()
        self._reached = True
        if self.stream.announce:
            yield StreamEvent("connected", {})
        if self._again and not self._cursor and "after" not in self.stream.request.params:
            yield StreamEvent("stale", {})

    @property
    def cut(self) -> bool:
        """Whether to hang up: the stream is over for its reader, and the server does not end it by itself."""
        return self.ended and (self._again or self.stream.request.method != "POST")

    def lost(self, reason: CfsError | None = None) -> None:
        """Prepare to continue after the end of a connection; raises the reason when that is not possible or no use.

        Without a reason the server has ended it. Where the stream has ended, too, nothing is to be done.
        """
        if self.ended:
            return
        reason = reason or Unreachable("the stream of events ended before its end")
        if not isinstance(reason, Unavailable | TooMany):
            raise reason
        if not self._reached:
            raise reason
        if self.stream.one_turn and self._turn is None:
            raise reason  # nobody knows whether the message has been stored: sending it again might store it twice
        self._failures += 1
        if self._failures > self.attempts:
            raise reason
        self._again = True

    def _wanted(self, event: StreamEvent) -> bool:
        if not self.stream.one_turn or event.type in ("stale", "session.deleted"):
            return True
        return self._turn is not None and event.turn == self._turn

    def _last(self, event: StreamEvent) -> bool:
        if self.stream.one_turn and event.type in ("turn.finished", "turn.failed"):
            return True
        return event.type == "session.deleted" and self.stream.session is not None and "renamed_to" not in event.data


def read_event(raw: ServerSentEvent) -> StreamEvent:
    """Read one event of the server; raises `Unreachable` for what is no event of CFS."""
    try:
        found = json.loads(raw.data)
    except ValueError:
        raise Unreachable(f"the stream holds something that is no event of CFS: {raw.data[:80]!r}") from None
    if raw.event in ("stale", "goodbye"):
        return StreamEvent(raw.event, found, raw.id)
    return StreamEvent(
        raw.event,
        found["data"],
        raw.id,
        found["session"],
        found["number"],
        found["position"],
        found["time"],
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one message: the reply, and the history up to it. What a way cannot know is None."""

    reply: str
    history: Sequence[Turn]
    error: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    calls: tuple[ToolCall, ...] = ()
