"""Completions in the protocol of the OpenAI API: what a program sends, and what it gets back (H4).

One pydantic model per thing, for the server and its clients. What the protocol knows beyond this is ignored in a
request and left out of an answer. Some members are not OpenAI's: `top_k` and `min_p` of a request,
`reasoning_content` of a message (what the model said to itself), and `cfs` of an answer (where it was recorded).
"""

from cfs.completions.answers import (
    CachedTokens,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    ChunkDelta,
    CompletionReason,
    CompletionUsage,
    ContentLogprob,
    FunctionPiece,
    ModelCard,
    ModelList,
    Recorded,
    TokenCounts,
    ToolCallPiece,
    TopLogprob,
)
from cfs.completions.messages import (
    UNREADABLE,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    TextPart,
    read_arguments,
    write_arguments,
)
from cfs.completions.reading import DONE, Assembly, CompletionReader
from cfs.completions.requests import (
    ChatRequest,
    StreamOptions,
    TokensRequest,
)
from cfs.wire import FunctionName, FunctionSpec, NamedTool, ToolSpec

__all__ = [
    "DONE",
    "UNREADABLE",
    "Assembly",
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
    "CompletionReader",
    "CompletionReason",
    "CompletionUsage",
    "ContentLogprob",
    "FunctionCall",
    "FunctionName",
    "FunctionPiece",
    "FunctionSpec",
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
