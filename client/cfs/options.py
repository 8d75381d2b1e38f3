"""The settings of sessions and turns as keyword arguments, for type checkers (S9).

`cfs.wire.TurnSettings` and `SettingsPatch` say which values are valid, and check them.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class TurnOptions(TypedDict, total=False):
    """Settings for one turn only. None is the default."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: Sequence[str] | None
    system: str | None
    prompt_style: Literal["auto", "chat", "transcript"] | None
    reproducible: bool | None
    overflow: Literal["shift", "error", "summarize"] | None
    model: str | None


class SessionOptions(TurnOptions, total=False):
    """Settings of a session. None resets a setting to its default."""

    driver: Literal["model", "agent"] | None
    paused: bool | None
    keep: str | None
    title: str | None
