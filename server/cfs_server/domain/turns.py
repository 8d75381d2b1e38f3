"""A turn: one message from its acceptance by a session to its reply (S4, S5)."""

import asyncio
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, takewhile
from types import MappingProxyType
from typing import Any, Self

from pydantic import model_validator

from cfs.completions import UNREADABLE, read_arguments, write_arguments
from cfs.errors import CfsError, EngineError
from cfs.wire import EventType, FinishReason, Message, Settings, SettingsPatch, TokenLogprob, ToolCall, Usage
from cfs_server.domain.authors import Author
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.ids import family_of, parent_of
from cfs_server.domain.message_sizes import cost_of
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest, Kind
from cfs_server.engine.contract.reply_options import REPLY_OPTIONS, ReplyOptions

CANCELLED = "[Cancelled]"
"""The end of a reply that was cancelled."""


class TurnState(StrEnum):
    """The state of a turn."""

    QUEUED = "queued"
    """The turn waits for earlier turns or for an agent."""
    RUNNING = "running"
    """The model answers the turn."""
    CANCELLING = "cancelling"
    """The engine has been asked to stop. The text generated so far becomes the reply."""
    LEASED = "leased"
    """An agent answers the turn under a lease (S10)."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[TurnState, frozenset[TurnState]] = MappingProxyType(
    {
        TurnState.QUEUED: frozenset(
            {TurnState.RUNNING, TurnState.LEASED, TurnState.FINISHED, TurnState.FAILED, TurnState.CANCELLED}
        ),
        TurnState.RUNNING: frozenset(
            {  # queued: the server was restarted
                TurnState.QUEUED,
                TurnState.CANCELLING,
                TurnState.FINISHED,
                TurnState.FAILED,
                TurnState.CANCELLED,
            }
        ),
        TurnState.CANCELLING: frozenset({TurnState.FINISHED, TurnState.FAILED, TurnState.CANCELLED}),
        TurnState.LEASED: frozenset(
            {TurnState.QUEUED, TurnState.FINISHED, TurnState.FAILED, TurnState.CANCELLED}  # queued: the lease expired
        ),
        TurnState.FINISHED: frozenset(),
        TurnState.FAILED: frozenset(),
        TurnState.CANCELLED: frozenset(),
    }
)
"""The allowed transitions. A message without a reply goes from `queued` to `finished`."""


class InvalidTransition(Exception):
    """A turn cannot enter this state from its current one: a defect in the server."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A message and how to answer it, as its writer sent it.

    `view` is the conversation before the message as its writer knows it. When the turn starts, a different history is
    replaced by it (H4) if the writer `may_replace` it. None leaves the history unchanged. Without `generate` the
    message is only added to the history, in the order of the queue. The turn begins after `delay` seconds, or as soon
    as somebody waits for it: until then its writer can take the message back. The session sets the `author`.
    """

    message: Message
    generate: bool = True
    settings: SettingsPatch = field(default_factory=SettingsPatch)
    options: ReplyOptions = field(default_factory=ReplyOptions)
    view: SizedMessages | None = None
    may_replace: bool = False
    delay: float = 0.0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    accepted_at: float = field(default_factory=time.time)
    author: Author | None = None

    @model_validator(mode="before")
    @classmethod
    def _nest_options(cls, stored: dict[str, Any]) -> dict[str, Any]:
        # Records have the options of the reply beside the other members: they are older than the bundle.
        options = {name: stored[name] for name in REPLY_OPTIONS if name in stored}
        others = {name: value for name, value in stored.items() if name not in options}
        return others | {"options": options} if options else stored

    @property
    def cost(self) -> int:
        """The memory of its messages in bytes."""
        return (self.view.cost if self.view else 0) + cost_of(self.message)

    def model(self, settings: Settings) -> str | None:
        """Return the model that answers, in a session with these settings; None is the server's default."""
        return self.settings.model if "model" in self.settings.model_fields_set else settings.model


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a turn: `event` is the number of its last event, `messages` the final length of the history."""

    reply: str
    reason: FinishReason
    usage: Usage
    event: int
    messages: int
    failure: CfsError | None = None
    calls: tuple[ToolCall, ...] = ()

    @property
    def error(self) -> str | None:
        """The error in one sentence; None without an error."""
        return None if self.failure is None else self.failure.detail


@dataclass(frozen=True, slots=True)
class Lease:
    """An agent's right to answer a turn (S10): the secret for its calls, and when the right ends."""

    secret: str
    expires_at: float

    @staticmethod
    def new_secret() -> str:
        """Return a new secret for an agent's calls for this turn."""
        return secrets.token_urlsafe(16)


@dataclass(frozen=True, slots=True)
class TurnHead:
    """A running or waiting turn as stored."""

    request: TurnRequest
    base: int | None = None
    state: TurnState = TurnState.QUEUED
    said: tuple[Delta, ...] = ()
    lease: Lease | None = None
    stored: int = 0


@dataclass(eq=False, slots=True)
class Turn:
    """A request that a session has accepted, and its progress.

    `base` is the length of the history before the turn's own message; None until the message is in the history. A fork
    of a busy session copies the messages before it. `said` is what was streamed so far, `stored` the number of its
    pieces that are in messages which an agent has added in between. An expired `lease` stays: its agent may
    continue until another one claims the turn. `stop` is the stop string that ended the reply, if that is known;
    `warnings` are those of the engine. `times` counts how often this process has begun the reply. `delayed` says that
    it waits for the end of its delay. These, `task`, `timer` and `result` belong to the running process only: after a
    restart no turn is delayed.
    """

    request: TurnRequest
    base: int | None = None
    state: TurnState = TurnState.QUEUED
    said: list[Delta] = field(default_factory=list)
    lease: Lease | None = None
    stored: int = 0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    stop: str = ""
    warnings: tuple[str, ...] = ()
    times: int = 1
    delayed: bool = False
    result: asyncio.Future[TurnResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @classmethod
    def restored(cls, head: TurnHead) -> Self:
        """Return the turn of a stored head."""
        return cls(head.request, head.base, head.state, list(head.said), head.lease, head.stored)

    def head(self) -> TurnHead:
        """Return the turn as stored."""
        return TurnHead(self.request, self.base, self.state, tuple(self.said), self.lease, self.stored)

    def enter(self, state: TurnState) -> None:
        """Enter a state. Raises `InvalidTransition` if the current state does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"turn {self.id} is {self.state} and cannot become {state}")
        self.state = state

    def stop_timer(self) -> None:
        """Stop the timer of the lease or of the delay, which is over."""
        self.delayed = False
        if self.timer is not None:
            self.timer.cancel()

    @property
    def id(self) -> str:
        """The id of the turn."""
        return self.request.id

    @property
    def message(self) -> Message:
        """The message that it answers."""
        return self.request.message

    @property
    def generate(self) -> bool:
        """Whether the message requires a reply."""
        return self.request.generate

    @property
    def waiting_bytes(self) -> int:
        """The memory of its messages in bytes until they are in the history, which counts them afterwards."""
        return self.request.cost if self.base is None else 0

    @property
    def text(self) -> str:
        """The text that has been generated so far."""
        return "".join(delta.text for delta in self.said)

    @property
    def unstored(self) -> str:
        """The generated text that no message of the history has yet."""
        return "".join(delta.text for delta in self.said[self.stored :])

    def note_stored(self, content: str) -> None:
        """Note a message that an agent has added: it may hold the text that was streamed before it."""
        if content.strip().startswith(self.unstored.strip()):
            self.stored = len(self.said)

    @property
    def ranked(self) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of the reply's tokens, if requested."""
        return tuple(chain.from_iterable(delta.logprobs for delta in self.said))

    def generation(
        self,
        session_id: str,
        key: str,
        family: str,
        messages: tuple[Message, ...],
        settings: Settings,
        owner: str,
        seconds: float,
        times: int,
    ) -> GenerationRequest:
        """Return the engine's request for these messages, which end with the turn's own. The limit is in seconds.

        `key` is the session's, `family` that of the root of its tree.
        """
        request, settings = self.request, settings.patched(self.request.settings)
        return GenerationRequest(
            self.id,
            key,
            messages,
            settings,
            request.options,
            owner=owner,
            account=family_of(session_id),
            family=family,
            kind=kind_of(session_id),
            deadline_seconds=seconds,
            may_shorten=settings.overflow != "error",
            times=times,
        )

    def reply(self, content: str, *, cut: bool) -> Message:
        """Return the reply message: a content, with the calls and the thinking of the turn.

        If the reply was `cut` off, only complete calls are included. Otherwise also those that cannot be read: who runs
        the calls has to tell the model.
        """
        calls = [call for call, text in _calls(self.said) if not cut or (text and UNREADABLE not in call.arguments)]
        thinking = "".join(delta.thinking for delta in self.said)
        return Message(role="assistant", content=content, tool_calls=tuple(calls), thinking=thinking or None)


TURN_EVENTS: frozenset[EventType] = frozenset(
    {"message.added", "turn.started", "token", "turn.finished", "turn.failed"}
)
"""The events from which an ended turn is rebuilt."""


def has_ended(own: Sequence[LoggedEvent], number: int) -> bool:
    """Return whether the events of a turn up to this number show its end.

    A message that requires a reply is followed immediately by the start of its turn.
    """
    kinds = {event.type for event in own}
    if "turn.started" in kinds or "message.added" not in kinds:
        return not kinds.isdisjoint(("turn.finished", "turn.failed"))
    return number > own[-1].number


def ended_turn(turn_id: str, events: Iterable[LoggedEvent]) -> Turn | None:
    """Rebuild a turn that has ended from the events of its session; None if its message is not among them.

    It has no settings and no log-probabilities. Its pieces are those that were streamed, if they make its reply.
    """
    turn_events = [event for event in events if event.data.get("turn") == turn_id]
    added = [event for event in turn_events if event.type == "message.added"]
    end = next((event for event in turn_events if event.type in ("turn.finished", "turn.failed")), None)
    if not added and end is None:
        return None
    added_messages = [Message.model_validate(event.data["message"]) for event in added]
    turn = Turn(
        TurnRequest(
            added_messages[0] if added_messages else Message(role="user", content=""),
            generate=end is not None,
            id=turn_id,
            accepted_at=turn_events[0].time,
        )
    )
    messages = added[-1].data["index"] + 1 if added else 0
    turn.base = _opening(turn_events)
    if end is None:
        turn.state = TurnState.FINISHED
        turn.result.set_result(TurnResult("", "stop", Usage(), added[-1].number, messages))
        return turn
    reply = (
        added_messages[-1]
        if added_messages and added_messages[-1].role == "assistant"
        else Message(role="assistant", content="")
    )
    calls = tuple(
        CallDelta(index, call.id, call.name, write_arguments(call.arguments))
        for index, call in enumerate(reply.tool_calls)
    )
    streamed, text = _streamed(turn_events), end.data["reply"]
    if "error" in end.data or "".join(delta.text for delta in streamed).strip() == text.removesuffix(CANCELLED).strip():
        turn.said += streamed
    else:  # an agent may finish a turn with another text than it streamed
        turn.said.append(Delta(reply.content, 0, thinking=reply.thinking or "", calls=calls))
    reason, error = end.data["finish_reason"], end.data.get("error")
    turn.state = TurnState.FAILED if error else TurnState.CANCELLED if reason == "cancelled" else TurnState.FINISHED
    failure = None if error is None else EngineError(error)
    usage = Usage.model_validate(end.data["usage"])
    turn.result.set_result(
        TurnResult(end.data["reply"], reason, usage, end.number, messages, failure, reply.tool_calls)
    )
    return turn


def _opening(events: Sequence[LoggedEvent]) -> int | None:
    """Return the index of a turn's own message: the last one that was added before the reply began."""
    before = takewhile(lambda event: event.type != "turn.started", events)
    return max((event.data["index"] for event in before if event.type == "message.added"), default=None)


def _streamed(events: Iterable[LoggedEvent]) -> list[Delta]:
    """Return the pieces of a turn's reply. A turn that began again has dropped those before."""
    deltas: list[Delta] = []
    for event in events:
        if event.type == "turn.started":
            deltas.clear()
        elif event.type == "token":
            data = event.data
            calls = tuple(CallDelta(**call) for call in data.get("calls", ()))
            deltas.append(Delta(data["text"], data["tokens"], data.get("thinking", ""), calls))
    return deltas


def kind_of(session_id: str) -> Kind:
    """Return the priority class of a session's turns. Those of sub-sessions are work of agents."""
    return "agent" if parent_of(session_id) else "interactive"


def _calls(deltas: Iterable[Delta]) -> list[tuple[ToolCall, str]]:
    """Join the pieces of calls, in the order of their indices. Each has the text of its arguments with it."""
    ids: dict[int, str] = {}
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for piece in (piece for delta in deltas for piece in delta.calls):
        ids.setdefault(piece.index, piece.id or "")
        names.setdefault(piece.index, piece.name or "")
        arguments.setdefault(piece.index, []).append(piece.arguments)
    texts = {index: "".join(pieces) for index, pieces in sorted(arguments.items())}
    return [
        (ToolCall(id=ids[index], name=names[index], arguments=read_arguments(text)), text.strip())
        for index, text in texts.items()
    ]
