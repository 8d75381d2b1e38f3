"""What a program asks for: a completion, or a number of tokens."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from cfs import wire
from cfs.completions.messages import ChatMessage, Open
from cfs.wire import NamedTool, ToolSpec


class StreamOptions(Open):
    """`include_usage`: a last chunk says what the completion cost."""

    include_usage: bool = False


Number = Annotated[float, Field(allow_inf_nan=False)]


class ChatRequest(Open):
    """Body of `POST /v1/chat/completions`.

    Any `model` is taken: a server has one, and answers by its name. `user` names the account within the caller's that
    the completion draws on. `n` may be 1 only, penalties 0 only. Members that are not listed are ignored.
    """

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1)]
    model: str = ""
    tools: tuple[ToolSpec, ...] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[dict[str, Any] | None, WithJsonSchema(wire.RESPONSE_FORMAT)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | tuple[str, ...] | None = None
    seed: int | None = None
    n: Annotated[int | None, WithJsonSchema({"enum": [None, 1]})] = None
    presence_penalty: Annotated[Number | None, WithJsonSchema({"enum": [None, 0]})] = None
    frequency_penalty: Annotated[Number | None, WithJsonSchema({"enum": [None, 0]})] = None
    logit_bias: Annotated[dict[str, Any] | None, WithJsonSchema({"type": ["object", "null"], "maxProperties": 0})] = (
        None
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    functions: Annotated[Any, WithJsonSchema({"type": "null"})] = None
    function_call: Annotated[Any, WithJsonSchema({"type": "null"})] = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None


class TokensRequest(Open):
    """Body of `POST /v1/tokens`: texts, each of which is counted, and a conversation whose prompt is."""

    texts: tuple[str, ...] = ()
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[ToolSpec, ...] | None = None
