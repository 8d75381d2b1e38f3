"""Sessions: listings, details, and requests that create, copy, rename or cancel."""

from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    Field,
)

from cfs.contract.transcript import PREFIXES
from cfs.contract.wire.base import Integral, NewId, WireModel
from cfs.contract.wire.messages import Message
from cfs.contract.wire.questions import Question
from cfs.contract.wire.settings import Settings, SettingsPatch
from cfs.contract.wire.work import AgentWork

State = Literal["idle", "generating", "waiting_for_agent"]


TRANSCRIPT_PATTERN = f"^($|{'|'.join(PREFIXES.values())})"
"""How a transcript begins (S6)."""


class Origin(WireModel):
    """Where a copy comes from: the id that the session had then, and how many of its messages were taken."""

    session: str
    messages: int


class SessionInfo(WireModel):
    """A session without its messages: a line of a listing."""  # H1

    id: str
    state: State
    queued: int = Field(description="Turns that wait behind the running one.")
    messages: int
    tokens: int = Field(0, description="Of the turns that have ended, read and written ones.")
    cost: float = Field(0.0, description="Of the turns that have ended, in US dollars.")
    turn_since: float | None = Field(None, description="When the message that is being answered was accepted.")
    size: int = Field(description="Bytes of the transcript in UTF-8.")
    created_at: float
    updated_at: float
    sub_sessions: int = Field(description="Number of direct children.")
    event: int = Field(description="Number of the session's last event.")
    etag: str
    open_questions: int = Field(0, description="Questions of its agent that wait for an answer.")
    failed: bool = Field(False, description="Whether the newest message is the error of a failed turn.")
    title: str | None = Field(
        None, description="The setting `title`, or what a user wrote first. Null without a right to read."
    )
    origin: Origin | None = Field(None, description="What it is a copy of; null unless that may be read, too.")


class SessionDetail(SessionInfo):
    """A session with its history, the messages that wait, and its settings."""

    history: tuple[Message, ...]
    times: tuple[float, ...] = Field((), description="When each message of the history was added.")
    queue: tuple[Message, ...]
    partial: str | None = Field(description="What the running turn has generated so far.")
    settings: Settings
    questions: tuple[Question, ...] = Field((), description="Questions of its agent that wait for an answer.")
    work: AgentWork | None = Field(None, description="What its agent has said last of its work.")


class SessionPage(WireModel):
    """A page of sessions in the order of their ids; `next` is the `after` of the next page."""

    sessions: tuple[SessionInfo, ...]
    next: str | None = None


class SessionTree(SessionInfo):
    """A session and everything below it."""

    children: tuple["SessionTree", ...] = ()


class NewSession(WireModel):
    """Body of `POST /v1/sessions`. Its history is a `transcript`, or `messages` with all that a transcript lacks.

    `tokens` are those that the session has used on another server, and `cost` what it has spent there, in US dollars.
    `times` says when the first of the `messages` were added, in seconds since 1970; the others are new.
    """

    id: Annotated[str | None, NewId] = None
    settings: SettingsPatch = SettingsPatch()
    transcript: Annotated[str | None, Field(json_schema_extra={"pattern": TRANSCRIPT_PATTERN})] = None
    messages: tuple[Message, ...] = ()
    times: tuple[Annotated[float, Field(ge=0, lt=2**53, allow_inf_nan=False)], ...] = ()
    tokens: Annotated[int, Field(ge=0, lt=2**53), Integral] = 0
    cost: Annotated[float, Field(ge=0, lt=2**53, allow_inf_nan=False)] = 0.0


class CancelRequest(WireModel):
    """Body of `POST .../cancel`: also the turns that wait, also the sub-sessions."""

    queued: bool = False
    cascade: bool = False


class Cancelled(WireModel):
    """How many turns were cancelled, running and waiting."""

    running: int
    queued: int


class ForkRequest(WireModel):
    """Body of `POST .../fork`: the copy's id, and how many messages of the history it takes (all unless set).

    Without an `id` it is that of the original with `-2`, or the next number. `at` is an older name of `messages`. With
    `files` it takes a copy of the workspace along, as it was when the history had these messages.
    """

    id: Annotated[str | None, NewId] = None
    messages: Annotated[int, Field(ge=0), Integral] | None = Field(
        None, validation_alias=AliasChoices("messages", "at")
    )
    files: bool = True


class Fork(SessionInfo):
    """A copy of a session. `warnings` say what is not in it: a sentence each for the agent, sub-sessions and files."""

    warnings: tuple[str, ...] = ()


class RenameRequest(WireModel):
    """Body of `POST .../rename`."""

    id: Annotated[str, NewId]
