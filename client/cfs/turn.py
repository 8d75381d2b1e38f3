"""One turn, read from its events: the text as it comes, and in the end what came of it (S4, S11). Pure: no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cfs.errors import Gone, Unavailable
from cfs.following import StreamEvent
from cfs.replies import asked_last, end_of_answer
from cfs.transcript import Turn
from cfs.wire import FinishReason, ToolCall, Usage


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one message: the reply, and the history up to it. What a way cannot know is None."""

    reply: str
    history: Sequence[Turn]
    error: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    calls: tuple[ToolCall, ...] = ()


class TurnReader:
    """Takes the events of one turn of a session.

    `caught_up` says that its end was among lost events: no other event will tell it.
    """

    def __init__(self, session: str, message: Turn) -> None:
        self.caught_up = False
        self.error: str | None = None
        self._session = session
        self._message = message
        self._text = ""
        self._end = 0
        self._reply = ""
        self._finish_reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._calls: tuple[ToolCall, ...] = ()

    def feed(self, event: StreamEvent) -> str:
        """Take the next event; return the text that it adds to the reply.

        Raises `Gone` when the session is deleted, and `Unavailable` when so many events were lost that nobody can say
        what belongs to the turn.
        """
        match event.type:
            case "message.added":
                self._end = event.data["index"] + 1
                self._calls = _calls_of(event.data.get("message", {}))
            case "token":
                return self._add(event.data["text"])
            case "turn.finished" | "turn.failed":
                return self._finish(event.data)
            case "session.deleted":
                raise Gone(f"session {self._session!r} has been deleted")
            case "stale":
                return self._catch_up(event.data.get("session") or {})
        return ""

    def outcome(self, history: Sequence[Turn]) -> Outcome:
        """Say what came of it; of the history only what was there when the turn was over."""
        return Outcome(self._reply, history[: self._end], self.error, self._finish_reason, self._usage, self._calls)

    def _add(self, text: str) -> str:
        self._text += text
        return text

    def _finish(self, data: Mapping[str, Any]) -> str:
        self._reply = data["reply"]
        self.error = data.get("error")
        self._finish_reason = cast("FinishReason", data["finish_reason"])
        self._usage = Usage.model_validate(data["usage"])
        return self._rest(self._reply) if self.error is None else ""

    def _catch_up(self, session: Mapping[str, Any]) -> str:
        """Find in the present state what the lost events said."""
        history = [Turn(message["role"], message["content"]) for message in session.get("history", ())]
        begin = self._end or (asked_last(history, self._message) or 0) + 1
        if len(history) < begin:
            raise Unavailable(f"too many events of {self._session!r} were lost to follow the turn: read the session")
        self._end = begin
        answers = history[begin : end_of_answer(history, begin - 1)]
        if answers and (session.get("partial") is None or len(history) > self._end + len(answers)):
            self.caught_up = True
            self._reply = answers[-1].content
            self._end += len(answers)
            self._calls = _calls_of(session["history"][self._end - 1])
            return self._rest(self._reply)
        return self._rest(session.get("partial") or "")

    def _rest(self, text: str) -> str:
        """Take what a text has beyond what came already: `[Cancelled]`, or what was lost on the way."""
        return self._add(text[len(self._text) :] if text.startswith(self._text) else "")


def _calls_of(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    return tuple(map(ToolCall.model_validate, message.get("tool_calls", ())))
