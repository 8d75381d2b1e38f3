"""What a request says of the form of its reply: one value, passed whole from the request to the engine."""

from dataclasses import dataclass, fields
from typing import Any, Literal

ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """The tools that a reply may call, and its form.

    `json_schema` forces the reply to be JSON of that schema. `logprobs` requests the log-probability of each token of
    the text and of this many alternatives (0 to 20), by the model's raw logits: before temperature, filters and
    grammar.

    `tools` are described to the model in the form of the OpenAI API; `tool_choice` sets whether it may, must not or
    must call one. To require one certain tool, pass only that tool. Without `parallel_calls` a reply makes one call at
    most.
    """

    json_schema: dict[str, Any] | None = None
    logprobs: int | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_calls: bool = True


REPLY_OPTIONS = tuple(field.name for field in fields(ReplyOptions))
"""Their names."""
