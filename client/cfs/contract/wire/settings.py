"""Settings of sessions and turns (S9)."""

import re
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from cfs.contract.wire.base import Integral, WireModel

Overflow = Literal["shift", "error", "summarize"]
"""What becomes of a conversation that is longer than the model's context (S8)."""

_SPAN_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}

Keep = Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]{0,5}[mhdwy]|forever)$")]
"""How long to keep what does not change: a number of minutes, hours, days, weeks or years, such as `90d`."""


def seconds_of(span: str) -> float:
    """Return a time that is written as a number and a unit, such as `12h`, in seconds; `forever` is infinite."""
    return inf if span == "forever" else float(int(span[:-1]) * _SPAN_SECONDS[span[-1]])


Title = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A title: one line."""

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x20\x7f]+$")]
"""The name of a model: without spaces."""

Budget = Annotated[str, StringConstraints(pattern=r"^(\$[0-9]{1,9}(\.[0-9]{1,6})?|[1-9][0-9]{0,14})$")]
"""The most that a session may spend: a number of tokens, or an amount of US dollars such as `$0.50`."""

StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]

_NUMBER = r"^(0|[1-9][0-9]{0,8})$"


def _number(name: str) -> str:
    if not re.fullmatch(_NUMBER, name):
        raise ValueError(f"{name!r} is no number of a token, such as '1734'")
    return name


TokenId = Annotated[str, AfterValidator(_number), WithJsonSchema({"type": "string", "pattern": _NUMBER})]
"""The number of a token in the model's vocabulary; a text, as JSON has no other names of members."""

Count = Annotated[int, Field(ge=0, le=1_000_000), Integral]
Penalty = Annotated[float, Field(ge=-2, le=2)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1_024, json_schema_extra={"additionalProperties": False}),
]
"""What is added to the logits of tokens: -100 removes a token, 100 forces it."""
RepeatPenalty = Annotated[float, Field(gt=0, le=10)]
RepeatWindow = Annotated[int, Field(ge=-1, le=1_000_000), Integral]


class TurnSettings(WireModel):
    """Settings for one turn only: a key that is absent is the session's, a key that is null is the default."""  # S9

    max_tokens: Annotated[int, Field(ge=1, le=1_000_000), Integral] | None = None
    temperature: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: RepeatPenalty | None = None
    repeat_last_n: RepeatWindow | None = None
    logit_bias: LogitBias | None = None
    min_tokens: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32), Integral] | None = None
    stop: Annotated[tuple[StopString, ...], Field(max_length=16)] | None = None
    system: Annotated[str, StringConstraints(max_length=262_144)] | None = None
    prompt_style: Literal["auto", "chat", "transcript"] | None = None
    reproducible: bool | None = None
    overflow: Overflow | None = None
    model: ModelName | None = None


class SettingsPatch(TurnSettings):
    """A change of settings: a key that is absent stays, a key that is null goes back to its default."""  # S9

    driver: Literal["model", "agent"] | None = None
    paused: bool | None = None
    keep: Keep | None = None
    title: Title | None = None
    budget: Budget | None = None


def _is_text(annotation: Any) -> bool:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_text(parts[0])
    if origin in (Union, UnionType):
        return all(_is_text(part) for part in parts if part is not NoneType)
    return annotation is str or (origin is Literal and all(isinstance(part, str) for part in parts))


TEXT_SETTINGS = frozenset(name for name, field in SettingsPatch.model_fields.items() if _is_text(field.annotation))
"""Settings whose values are texts: attributes and command lines have them without quotation marks."""


class Settings(WireModel):
    """How a session's turns are made.

    `stop` left at null means the style's own: `["User:"]` for transcripts, none for chats, whose template ends turns
    by a token. In transcripts the prefix of any role at the beginning of a line ends a reply, too. `seed` left at
    null means a new one each turn. A seed alone gives nearly always the same text: rounding depends on who else
    computes. With `reproducible` a turn that has a seed, or a temperature of 0, is computed by itself and from its
    first token on: the same model, machine and options then give the same text, but more slowly.
    `frequency_penalty` is subtracted from the logit of a token once for each time that the reply has it,
    `presence_penalty` once if the reply has it. `repeat_penalty` divides the positive logits of the last
    `repeat_last_n` tokens of prompt and reply (-1: all) and multiplies the negative ones. `logit_bias` is added to the
    logits of tokens. The model does not end a reply before `min_tokens`; stop strings, schemas and `max_tokens` do.
    A history that the context does not hold is cut from its oldest messages on in the prompt (`overflow`), never in the
    transcript. An agent in whose session, or in one above it, `paused` is set waits before its next step.
    A session that has not changed for as long as `keep` says (`90d`, `12h`, or `forever`) is deleted with all below it;
    null is what the session above says, or the server (`--keep`). `title` is what listings show; null means the first
    line of the first message of a user. `model` names one of the server's models, which answers the turns that begin
    from now on; null means the server's default. A session that has spent its `budget`, a number of tokens or an amount
    such as `$0.50`, gets no more turns of the model.
    """  # S8, S9

    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    logit_bias: dict[str, float] | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    system: str | None = None
    prompt_style: Literal["auto", "chat", "transcript"] = "auto"
    driver: Literal["model", "agent"] = "model"
    paused: bool = False
    reproducible: bool = False
    overflow: Overflow = "shift"
    keep: Keep | None = None
    title: Title | None = None
    budget: Budget | None = None
    model: str | None = None

    def __hash__(self) -> int:
        """Hash all settings but `logit_bias`, which is a dictionary."""
        return hash(tuple(value for name, value in self if name != "logit_bias"))

    def patched(self, patch: SettingsPatch) -> "Settings":
        """Apply a change: keys set to null go back to their defaults."""
        changes = {key: getattr(patch, key) for key in patch.model_fields_set}
        unchanged = {key: value for key, value in self.model_dump().items() if changes.get(key, value) is not None}
        return Settings(**unchanged | {key: value for key, value in changes.items() if value is not None})
