"""A turn: one message on its way through a session, from acceptance to its reply (S4, S5)."""

import asyncio
import secrets
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from cfs.wire import FinishReason, Message, SettingsPatch, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended; `event` is the number of the event that said so, `messages` the length of the history then."""

    reply: str
    reason: FinishReason
    usage: Usage
    event: int
    messages: int
    error: str | None = None


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

    `generate` is false for a message that is only to be added to the history, in its place in the queue.
    `base` is the length of the history before the turn's own message: what a fork of a busy session copies.
    `logprobs` asks the engine for log-probabilities; those of the reply are collected in `ranked`.
    `waiting_bytes` count for the session's account as long as the message is not in its history.
    """

    message: Message
    generate: bool = True
    settings: SettingsPatch = field(default_factory=SettingsPatch)
    json_schema: dict[str, Any] | None = None
    logprobs: int | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    accepted_at: float = field(default_factory=time.time)
    base: int | None = None
    waiting_bytes: int = 0
    partial: list[str] = field(default_factory=list)
    ranked: list[TokenLogprob] = field(default_factory=list)
    lease: Lease | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    result: asyncio.Future[TurnResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def text(self) -> str:
        """What has been generated so far."""
        return "".join(self.partial)
