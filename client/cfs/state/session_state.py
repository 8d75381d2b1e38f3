"""Computes the state of a session from its events; the only reducer in Python (S11). Pure: no I/O.

SDK, command line and mount use this module; the dashboard uses its counterpart `session_state.js`. The tests of both
replay the same recorded events, `tests/fixtures/events/*.json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cfs.api import life_in
from cfs.contract.errors import Unavailable, departed
from cfs.contract.transcript import TranscriptMessage
from cfs.contract.wire import (
    AgentWork,
    FinishReason,
    Message,
    Origin,
    Question,
    SessionDetail,
    SessionInfo,
    Settings,
    ToolCall,
    Usage,
)
from cfs.state.replies import MessageOutcome, asked_last, end_of_answer, error_in
from cfs.state.stream import StreamEvent

IDLE = "idle"
GENERATING = "generating"


@dataclass(eq=False, slots=True)
class TurnState:
    """One turn: what it has generated so far, and its result once it has ended.

    `id` is empty while it is not known, for a turn that began before the events. Events up to `since` are included
    already. `left` counts the messages that did not fit into the prompt.
    """

    id: str = ""
    pieces: list[str] = field(default_factory=list)
    since: int = 0
    thinking: str = ""
    calls: list[Mapping[str, Any]] = field(default_factory=list)
    tokens: int = 0
    left: int = 0
    ended: bool = False
    reply: str = ""
    error: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(self.pieces)

    def apply(self, event: StreamEvent) -> None:
        """Apply the next event of this turn."""
        data = event.data
        match event.type:
            case "token":
                self.pieces.append(data["text"])
                self.thinking += data.get("thinking", "")
                self.calls += data.get("calls", ())
                self.tokens += data.get("tokens", 0)
            case "context.shifted":
                self.left = data["messages"]
            case "turn.finished" | "turn.failed":
                self.ended = True
                self.reply = data["reply"]
                self.error = data.get("error")
                self.finish_reason = data.get("finish_reason")
                self.usage = data.get("usage")

    def rest(self) -> str | None:
        """Return what the reply has beyond the text, such as `[Cancelled]`; None if it does not continue the text."""
        for text in (self.text, self.text.strip()):
            if self.reply.startswith(text):
                return self.reply[len(text) :]
        return None


class ShownText:
    """The text of a reply as a reader has seen it. A turn may begin again; what was shown is not shown twice."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._before = ""
        """What was shown before the turn began again, and has not come again yet."""

    def add(self, piece: str) -> str:
        """Add the next piece of the reply and return what is to be shown; another reply begins on a new line."""
        self._pieces.append(piece)
        if not self._before:
            return piece
        text, before = "".join(self._pieces), self._before
        if before.startswith(text):
            return ""
        self._before = ""
        return text[len(before) :] if text.startswith(before) else f"\n{text}"

    def again(self) -> None:
        """Begin again: the next piece is the first one of the reply."""
        self._before = self._before or "".join(self._pieces)
        self._pieces.clear()


class TurnReader:
    """Reads the reply to one message from the events of its turn (S4).

    `caught_up` is true if the end of the turn was among lost events, so that no other event will report it.
    """

    def __init__(self, session: str, message: TranscriptMessage) -> None:
        self.caught_up = False
        self._session = session
        self._message = message
        self._turn = TurnState()
        self._shown = ShownText()
        self._end = 0
        self._calls: tuple[ToolCall, ...] = ()

    @property
    def error(self) -> str | None:
        """Why the turn failed, if it did."""
        return self._turn.error

    def feed(self, event: StreamEvent) -> str:
        """Apply the next event and return the text that it adds to the reply.

        Raises `SessionDeleted` or `SessionRenamed` if the session leaves its name, and `Unavailable` if too many
        events were lost to find the reply.
        """
        match event.type:
            case "message.added":
                self._end = event.data["index"] + 1
                self._calls = _calls_of(event.data.get("message", {}))
            case "token":
                self._turn.apply(event)
                return self._shown.add(self._turn.pieces[-1])
            case "turn.interrupted":
                self._turn = TurnState()
                self._shown.again()
            case "turn.finished" | "turn.failed":
                self._turn.apply(event)
                return self._add(self._turn.rest()) if self.error is None else ""
            case "session.deleted":
                raise departed(self._session, event.data.get("renamed_to"))
            case "stale":
                return self._catch_up(event.data.get("session") or {})
        return ""

    def outcome(self, history: Sequence[TranscriptMessage]) -> MessageOutcome:
        """Return the reply, and the history at the end of the turn."""
        turn = self._turn
        reason = cast("FinishReason | None", turn.finish_reason)
        usage = None if turn.usage is None else Usage.model_validate(turn.usage)
        return MessageOutcome(turn.reply, history[: self._end], turn.error, reason, usage, self._calls)

    def _add(self, text: str | None) -> str:
        self._turn.pieces.append(text or "")
        return self._shown.add(text or "")

    def _catch_up(self, session: Mapping[str, Any]) -> str:
        """Reconstruct lost events from the current state."""
        history = [TranscriptMessage(message["role"], message["content"]) for message in session.get("history", ())]
        begin = self._end or (asked_last(history, self._message) or 0) + 1
        if len(history) < begin:
            raise Unavailable(f"too many events of {self._session!r} were lost to follow the turn: read the session")
        self._end = begin
        answers = history[begin : end_of_answer(history, begin - 1)]
        partial = session.get("partial")
        rest: str | None
        if answers and (partial is None or len(history) > self._end + len(answers)):
            self.caught_up = True
            self._turn.reply = partial = answers[-1].content
            self._end += len(answers)
            self._calls = _calls_of(session["history"][self._end - 1])
            rest = self._turn.rest()
        else:
            text, partial = self._turn.text, partial or ""
            rest = partial[len(text) :] if partial.startswith(text) else None
        if rest is None:  # the reply has begun again
            self._turn.pieces.clear()
            self._shown.again()
        return self._add(partial if rest is None else rest)


def _calls_of(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    return tuple(map(ToolCall.model_validate, message.get("tool_calls", ())))


@dataclass(eq=False, slots=True)
class SessionState:
    """The state of a session, as its events show it.

    `event` is the number of the last event that is included. `messages` counts the history; `history` holds the
    messages themselves if they are followed, and is None if they are unknown. `changed_at` is the time of the
    last change of the transcript in seconds since the epoch, `tokens` what the ended turns cost, `tool` the name of the
    tool that was called and has not answered yet. `open_questions` counts the questions of its agent that wait for an
    answer; `questions` holds those that are known, by id, oldest first: a listing only counts them. `work` is what its
    agent has said last of its work, if that is known. `failed` says whether the newest message is the error of a failed
    turn.
    """

    event: int = 0
    life: str = ""
    state: str = IDLE
    queued: int = 0
    messages: int = 0
    size: int = 0
    changed_at: float = 0.0
    tokens: int = 0
    tool: str | None = None
    settings: Settings | None = None
    turn: TurnState | None = None
    history: list[Message] | None = None
    open_questions: int = 0
    questions: dict[str, Question] = field(default_factory=dict)
    work: AgentWork | None = None
    failed: bool = False
    title: str | None = None
    origin: Origin | None = None
    deleted: bool = False
    renamed_to: str | None = None

    @property
    def idle(self) -> bool:
        """Whether no turn runs or waits."""
        return self.state == IDLE

    def restore(self, info: SessionInfo) -> None:
        """Replace the state by the current one: from a listing, or from the session with its history and settings."""
        self.event, self.life = info.event, life_of(info)
        self.state, self.queued = info.state, info.queued
        self.messages, self.size, self.changed_at = info.messages, info.size, info.updated_at
        self.tokens, self.tool, self.turn = info.tokens, None, None
        self.settings = self.history = self.work = None
        self.open_questions, self.questions = info.open_questions, {}
        self.failed, self.title, self.origin = info.failed, info.title, info.origin
        if isinstance(info, SessionDetail):
            self.settings, self.history, self.work = info.settings, list(info.history), info.work
            self.questions = {question.id: question for question in info.questions}
            if info.partial is not None:
                self.turn = TurnState("", [info.partial], info.event)

    def apply(self, event: StreamEvent) -> bool:
        """Apply the next event; returns False, and changes nothing, if it is already included."""
        if event.number <= self.event:
            return False
        self.event = event.number
        data = event.data
        self.title = data.get("title", self.title)
        match event.type:
            case "session.created":
                self.life, self.changed_at = data.get("life", ""), event.time
                self.messages, self.size = data["messages"], data["size"]
                self.settings = Settings.model_validate(data["settings"])
                self.history = [] if self.history is not None and not self.messages else None
                self.deleted, self.renamed_to = False, None
                self.title, self.failed = data.get("title"), data.get("failed", False)
                self.origin = Origin.model_validate(data["origin"]) if "origin" in data else None
                if "renamed_from" not in data:
                    self.open_questions, self.questions, self.work = 0, {}, None
            case "message.added":
                self._add(data, event.time)
            case "history.replaced":
                self.messages, self.size, self.changed_at = data["messages"], data["size"], event.time
                self.history, self.failed = None, data.get("failed", False)
            case "settings.changed":
                self.settings = Settings.model_validate(data["settings"])
            case "turn.started":
                self.turn = TurnState(data["turn"])
                self.state = GENERATING
            case "turn.interrupted":
                self.turn = None  # it starts again
            case "token" | "context.shifted":
                self._turn(event)
            case "turn.finished" | "turn.failed":
                self._turn(event)
                usage = data.get("usage") or {}
                self.tokens += usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
                self.tool = None
            case "state.changed":
                self.state, self.queued = data["state"], data["queued"]
            case "question.asked":
                self.open_questions += 1
                question = {"asked_at": event.time, "state": "open", **data}
                self.questions[data["id"]] = Question.model_validate(question)
            case "question.answered":
                self.open_questions -= 1
                self.questions.pop(data["id"], None)
            case "work.reported":
                self.work = AgentWork.model_validate(data["work"])
            case "session.deleted":
                self.deleted, self.renamed_to = True, data.get("renamed_to")
        return True

    def _add(self, data: Mapping[str, Any], when: float) -> None:
        message, index = data["message"], data["index"]
        self.messages, self.changed_at = index + 1, when
        self.size = data.get("size", self.size)
        self.failed = message["role"] == "assistant" and error_in(message["content"]) is not None
        if self.history is not None:
            self.history[index:] = [Message.model_validate(message)]
        if message["role"] == "user":
            self.state = data.get("state", GENERATING)  # no reader slips in before the event that says so
        elif message["role"] == "tool":
            self.tool = None
        elif calls := message.get("tool_calls"):
            self.tool = calls[-1]["name"]

    def _turn(self, event: StreamEvent) -> None:
        turn = self.turn
        if turn is None or turn.id not in ("", event.turn) or event.number <= turn.since:
            return
        turn.apply(event)
        if calls := event.data.get("calls"):
            self.tool = calls[-1]["name"]


def life_of(info: SessionInfo) -> str:
    """Return the name of this life of a session, which is a part of its ETag."""
    return life_in(info.etag)
