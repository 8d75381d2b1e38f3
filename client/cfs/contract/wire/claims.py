"""Turns that an agent claims, updates and finishes (S10)."""

from typing import Annotated, Literal

from pydantic import (
    Field,
    StringConstraints,
)

from cfs.contract.wire.base import WireModel
from cfs.contract.wire.messages import Message, Usage
from cfs.contract.wire.work import AgentWork

MAX_SUBJECT = 1_000
"""Longest subject of a decision about a call, in characters."""

LEASE_SECONDS = 30.0
"""Default time for which an agent owns a turn that it has claimed or updated."""


class ClaimRequest(WireModel):
    """Body of `POST .../claim`: the lease in seconds, and how long to wait for a message."""  # S10

    lease: Annotated[float, Field(gt=0, le=3600)] = LEASE_SECONDS
    wait: Annotated[float, Field(ge=0, le=60)] = 0.0


class Claim(WireModel):
    """A queued message that an agent may now answer, and the secret that its calls for this turn carry.

    `traceparent` is the turn's trace (W3C Trace Context) if the server records one. `rewound` is the version of the
    session's last rewind: an agent that has not followed it continues from the history that the session has now.
    """  # S10

    session: str
    turn: str
    claim: str
    message: Message
    expires_at: float
    traceparent: str | None = None
    rewound: int = Field(0, exclude_if=lambda version: version == 0)  # agents of before refuse unknown members


class CallDecision(WireModel):
    """What was decided about a call of a tool before it happened: by a rule, or by a person who was `asked`.

    `call` is the id of the call, and `subject` what it is about, shortened. `rule` is the text of the rule that decided
    or asked, and `source` where it stands; both are empty for a default. `by` names the principal who answered, null
    for the agent's own terminal or editor. `digest` covers the exact arguments: a changed call is another call.
    """  # A11

    call: Annotated[str, StringConstraints(max_length=256)]
    tool: Annotated[str, StringConstraints(max_length=256)]
    subject: Annotated[str, StringConstraints(max_length=MAX_SUBJECT)] = ""
    verdict: Literal["allowed", "denied"]
    asked: bool = False
    by: Annotated[str, StringConstraints(max_length=256)] | None = None
    rule: Annotated[str, StringConstraints(max_length=4_096)] = ""
    source: Annotated[str, StringConstraints(max_length=4_096)] = ""
    digest: Annotated[str, StringConstraints(max_length=128)]


class AgentUpdate(WireModel):
    """What an agent adds to the turn it holds: text as it comes, or whole messages (tool calls and results).

    `work` is what it says of its work; without it that stays as it was. `decisions` about its calls become events
    `call.decided`.
    """

    claim: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    decisions: Annotated[tuple[CallDecision, ...], Field(max_length=1_000)] = ()
    lease: Annotated[float, Field(gt=0, le=3600)] = LEASE_SECONDS
    work: AgentWork | None = None


class AgentFinish(WireModel):
    """How an agent ends its turn: with a reply (or else the text it streamed) or an error."""

    claim: str
    reply: str | None = None
    error: str | None = None
    usage: Usage = Usage()
    work: AgentWork | None = None
