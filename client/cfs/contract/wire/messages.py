"""Messages, the turns that answer them, and what a turn costs."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    StringConstraints,
    WithJsonSchema,
)

from cfs.contract.wire.base import Integral, WireModel
from cfs.contract.wire.settings import TurnSettings
from cfs.contract.wire.tools import NamedTool, ToolSpec

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "error"]


class ToolCall(WireModel):
    """A call that an assistant's message makes: the name of the tool and its arguments."""

    id: str
    name: str
    arguments: dict[str, Any]


class Message(WireModel):
    """One message of a history; `content` never carries a role prefix."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    thinking: str | None = None

    @property
    def offloaded(self) -> bool:
        """Whether an agent's context has moved the content to disk; `content` is its placeholder."""
        return self.offload_path is not None

    @property
    def offload_path(self) -> str | None:
        """Where the off-loaded content is."""
        return None

    def offloaded_to(self, path: str | None) -> "Message":
        """Return a copy that says where its content is; None takes that back."""
        values = {name: getattr(self, name) for name in Message.model_fields}
        if path is None:
            return Message.model_construct(self.model_fields_set, **values)
        copy = _OffloadedMessage.model_construct(self.model_fields_set, **values)
        copy._offload_path = path  # noqa: SLF001 - an attribute of a class of this module
        return copy


class _OffloadedMessage(Message):
    """A message whose content is on disk. A class of its own: a private attribute takes 100 bytes of each message."""

    _offload_path: str | None = PrivateAttr(default=None)
    """Never sent or stored: only the context of an agent knows it."""

    @property
    def offload_path(self) -> str | None:
        """Where the off-loaded content is."""
        return self._offload_path


class Usage(WireModel):
    """What one turn cost. `cached_tokens` of the `prompt_tokens` were computed before, for this turn or another.

    Seconds count from the moment at which the engine got the turn; `tokens_per_second` from the first text on.
    Prediction tokens are those that the engine guessed. The accepted ones are among the `completion_tokens`; the
    rejected ones are in no count and cost nothing.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    tokens_per_second: float = 0.0
    cost: float | None = Field(
        default=None, description="In US dollars, by the price at the end of the turn; null if the model has no price."
    )

    @property
    def tokens(self) -> int:
        """All tokens that were read, cached or not, and written."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Self) -> Self:
        """Add the tokens of two turns, and their costs as far as they have one; other figures are dropped."""
        costs = [usage.cost for usage in (self, other) if usage.cost is not None]
        return type(self)(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=round(sum(costs), 9) if costs else None,
        )

    def __sub__(self, other: Self) -> Self:
        """Return what was used after `other` was counted; figures that `+` drops are dropped here, too."""
        return type(self)(
            prompt_tokens=self.prompt_tokens - other.prompt_tokens,
            cached_tokens=self.cached_tokens - other.cached_tokens,
            completion_tokens=self.completion_tokens - other.completion_tokens,
            cost=None if self.cost is None else round(self.cost - (other.cost or 0.0), 9),
        )


RESPONSE_FORMAT = {
    "anyOf": [
        {"type": "null"},
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {"schema": {"type": "object"}},
                    "required": ["schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
    ]
}
"""What a reply's form may be, as OpenAPI says it."""


class TokenAlternative(WireModel):
    """A token that could stand at some place: its text, its bytes (a character may take several tokens), and the
    natural logarithm of its probability (-9999 for none).
    """

    token: str
    bytes: tuple[int, ...]
    logprob: float


class TokenLogprob(TokenAlternative):
    """A token of a reply, and the most probable ones at its place, as many as were asked for.

    Probabilities are the model's own, before bias, penalties, temperature, filters and grammar.
    """

    top: tuple[TokenAlternative, ...] = ()


class NewMessage(WireModel):
    """Body of `POST /v1/sessions/{id}/messages`. `generate` is true for a user's message unless set.

    `tools` may be called by the reply, in the form of the OpenAI API, as `tool_choice` says; they are for this turn
    only. Its calls come with the reply. A message of the role `tool` is the result of the call `tool_call_id`; the
    last result of a reply is posted with `generate`, and with the tools again. A message of the role `assistant` may
    have `tool_calls` and `thinking`: programs that keep a conversation here post what another model has said.

    `response_format` is `{"type": "json_schema", "json_schema": {"schema": ...}}` or `{"type": "json_object"}` and
    makes the model's reply follow that schema, by grammar. `logprobs` asks for the log-probability of each token of the
    reply, and of so many alternatives; they come with the reply (`wait=true`), not with events.
    """

    content: str
    role: Role = "user"
    settings: TurnSettings = TurnSettings()
    generate: bool | None = None
    response_format: Annotated[dict[str, Any] | None, WithJsonSchema(RESPONSE_FORMAT)] = None
    logprobs: Annotated[int, Field(ge=0, le=20), Integral] | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    tool_call_id: Annotated[str, StringConstraints(max_length=256)] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str | None = None
    name: str | None = None


class Accepted(WireModel):
    """Answer to a message that was stored: its turn and the number of the event that announces it."""

    session: str
    turn: str | None = Field(description="The turn that will answer; null when none was asked for.")
    event: int
    accepted_bytes: int


class Reply(WireModel):
    """Answer to a message with `wait=true`: the finished turn, and the transcript up to it if that was asked for."""

    session: str
    turn: str
    event: int
    reply: str
    tool_calls: tuple[ToolCall, ...] = ()
    transcript: str | None = None
    finish_reason: FinishReason
    error: str | None = None
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = Field(
        default=None, description="For each token of the reply, if they were asked for and the engine knows them."
    )
