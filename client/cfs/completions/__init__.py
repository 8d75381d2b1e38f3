"""Requests and responses of the OpenAI completions API as pydantic models (H4).

Server and clients use the same models. Unknown members of a request are ignored, and responses omit what is not listed
here. Some members are not OpenAI's: `top_k`, `min_p`, `repeat_penalty`, `repeat_last_n` and `min_tokens` of a request,
`reasoning_content` of a message (the model's thinking), `cfs` of a response (the session that recorded it), and its
`warnings` (what could not be carried out).
"""

from cfs.completions.messages import (
    UNREADABLE,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    TextPart,
    read_arguments,
    write_arguments,
)
from cfs.completions.models import (
    CachedTokens,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    ChunkDelta,
    CompletionReason,
    CompletionUsage,
    ContentLogprob,
    FunctionPiece,
    LogitOptions,
    ModelCard,
    ModelList,
    Recorded,
    StreamOptions,
    TokenCounts,
    TokensRequest,
    ToolCallPiece,
    TopLogprob,
)
from cfs.completions.reading import DONE, CompletionAccumulator, CompletionReader
from cfs.contract.wire import FunctionName, FunctionSpec, NamedTool, ToolSpec

__all__ = [
    "DONE",
    "UNREADABLE",
    "CachedTokens",
    "ChatChunk",
    "ChatCompletion",
    "ChatMessage",
    "ChatRequest",
    "ChatToolCall",
    "Choice",
    "ChoiceLogprobs",
    "ChunkChoice",
    "ChunkDelta",
    "CompletionAccumulator",
    "CompletionReader",
    "CompletionReason",
    "CompletionUsage",
    "ContentLogprob",
    "FunctionCall",
    "FunctionName",
    "FunctionPiece",
    "FunctionSpec",
    "LogitOptions",
    "ModelCard",
    "ModelList",
    "NamedTool",
    "Recorded",
    "StreamOptions",
    "TextPart",
    "TokenCounts",
    "TokensRequest",
    "ToolCallPiece",
    "ToolSpec",
    "TopLogprob",
    "read_arguments",
    "write_arguments",
]
