"""A turn: one message on its way through a session, from acceptance to its reply (S4, S5)."""

import asyncio
import secrets
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from cfs.completions import UNREADABLE, read_arguments
from cfs.errors import CfsError
from cfs.wire import FinishReason, Message, Settings, SettingsPatch, TokenLogprob, ToolCall, Usage
from cfs_server.engine.interface import Delta, GenerationRequest, Kind, ToolChoice
from cfs_server.sessions.history import Weighed, cost_of
from cfs_server.sessions.ids import family_of, parent_of


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended; `event` is the number of the event that said so, `messages` the length of the history then."""

    reply: str
    reason: FinishReason
    usage: Usage
    event: int
    messages: int
    error: str | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(slots=True)
class Lease:
    """An agent's hold on a turn (S10): until when, by which secret, and the timer that ends it."""

    secret: str
    expires_at: float
    timer: asyncio.TimerHandle

    @staticmethod
    def new_secret() -> str:
        """Make the secret that an agent's calls for this turn must carry."""
        return secrets.token_urlsafe(16)


@dataclass(eq=False, slots=True)
class Turn:
    """One message and what becomes of it.

    `view` is the conversation before the message as its writer knows it: when the turn begins, that is what the history
    is (H4), if the writer `may_replace` one that does not fit; None leaves the history as it is. `tools`, `tool_choice`
    and `parallel_calls` are the request's. `generate` is false for a message that is only to be added to the history,
    in its place in the queue.
    `base` is the length of the history before the turn's own message: what a fork of a busy session copies.
    `logprobs` asks the engine for log-probabilities; those of the reply are `ranked`.
    `lapsed` is the secret of an agent whose lease has run out, who may still go on as long as nobody else has.
    `waiting_bytes` count for the session's account as long as the message is not in its history.
    """

    message: Message
    generate: bool = True
    settings: SettingsPatch = field(default_factory=SettingsPatch)
    json_schema: dict[str, Any] | None = None
    logprobs: int | None = None
    view: Weighed | None = None
    may_replace: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_calls: bool = True
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    accepted_at: float = field(default_factory=time.time)
    base: int | None = None
    waiting_bytes: int = 0
    said: list[Delta] = field(default_factory=list)
    failure: CfsError | None = None
    lease: Lease | None = None
    lapsed: str | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    result: asyncio.Future[TurnResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def text(self) -> str:
        """What has been generated so far."""
        return "".join(delta.text for delta in self.said)

    @property
    def ranked(self) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of the reply's tokens, if they were asked for."""
        return tuple(chain.from_iterable(delta.logprobs for delta in self.said))

    @property
    def cost(self) -> int:
        """Bytes of memory that the messages take which the turn brings."""
        return (self.view.cost if self.view else 0) + cost_of(self.message)

    def request(
        self, session_id: str, key: str, messages: tuple[Message, ...], settings: Settings, owner: str, seconds: float
    ) -> GenerationRequest:
        """Say to an engine what it is to do within some seconds: answer these messages, which end with the turn's."""
        settings = settings.patched(self.settings)
        return GenerationRequest(
            self.id,
            key,
            messages,
            settings,
            json_schema=self.json_schema,
            logprobs=self.logprobs,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_calls=self.parallel_calls,
            owner=owner,
            account=family_of(session_id),
            kind=kind_of(session_id),
            deadline_seconds=seconds,
            may_shorten=settings.overflow != "error",
        )

    def reply(self, content: str, *, cut: bool) -> Message:
        """Make the message that answers: a content, with the calls and the thinking of the turn.

        Of a reply that was `cut` off only whole calls are kept.
        """
        calls = [call for call in _calls(self.said) if not (cut and UNREADABLE in call.arguments)]
        thinking = "".join(delta.thinking for delta in self.said)
        return Message(role="assistant", content=content, tool_calls=tuple(calls), thinking=thinking or None)


def kind_of(session_id: str) -> Kind:
    """Say how urgent a session's turns are: those of sub-sessions are work of agents."""
    return "agent" if parent_of(session_id) else "interactive"


def _calls(said: Iterable[Delta]) -> list[ToolCall]:
    """Put the pieces of calls together, in the order of their indices."""
    ids: dict[int, str] = {}
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for piece in (piece for delta in said for piece in delta.calls):
        ids.setdefault(piece.index, piece.id or "")
        names.setdefault(piece.index, piece.name or "")
        arguments.setdefault(piece.index, []).append(piece.arguments)
    return [
        ToolCall(id=ids[index], name=names[index], arguments=read_arguments("".join(pieces)))
        for index, pieces in sorted(arguments.items())
    ]
