"""The Python SDK of CFS, its wire models, and the command line.

Modules that need pydantic are imported on first use, so that importing the package is fast.
"""

import importlib
import typing

from cfs.errors import (
    AlreadyExists,
    Busy,
    CfsError,
    Conflict,
    ContextTooLong,
    EngineError,
    Forbidden,
    Gone,
    InProgress,
    InvalidIdentifier,
    InvalidParameters,
    InvalidPath,
    InvalidReply,
    InvalidRequest,
    InvalidSettings,
    InvalidTranscript,
    KeyReused,
    LooksAlike,
    MethodNotAllowed,
    ModelNotFound,
    NotAcceptable,
    NotFound,
    NotGranted,
    PreconditionFailed,
    PreconditionRequired,
    RangeNotSatisfiable,
    SchemaRefused,
    ServerError,
    SessionDeleted,
    SessionLost,
    SessionRenamed,
    StorageFull,
    Timeout,
    TooLarge,
    TooMany,
    TooManyRounds,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unsupported,
    UnsupportedMedia,
    Unverified,
    UpstreamBusy,
    UpstreamRefused,
    WorkerCrashed,
)

if typing.TYPE_CHECKING:
    from cfs.async_session import AsyncChatIterator, AsyncSession
    from cfs.async_tree import AsyncTree
    from cfs.options import SessionOptions, TurnOptions
    from cfs.response import Response
    from cfs.session import ChatIterator, Session
    from cfs.tools import FunctionTool, Tool
    from cfs.tree import Tree
    from cfs.tree_state import AgentOutcome, TreeAgent, TreeFile, TreeOutcome
    from cfs.wire import Settings, Usage

__all__ = [
    "AgentOutcome",
    "AlreadyExists",
    "AsyncChatIterator",
    "AsyncSession",
    "AsyncTree",
    "Busy",
    "CfsError",
    "ChatIterator",
    "Conflict",
    "ContextTooLong",
    "EngineError",
    "Forbidden",
    "FunctionTool",
    "Gone",
    "InProgress",
    "InvalidIdentifier",
    "InvalidParameters",
    "InvalidPath",
    "InvalidReply",
    "InvalidRequest",
    "InvalidSettings",
    "InvalidTranscript",
    "KeyReused",
    "LooksAlike",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotAcceptable",
    "NotFound",
    "NotGranted",
    "PreconditionFailed",
    "PreconditionRequired",
    "RangeNotSatisfiable",
    "Response",
    "SchemaRefused",
    "ServerError",
    "Session",
    "SessionDeleted",
    "SessionLost",
    "SessionOptions",
    "SessionRenamed",
    "Settings",
    "StorageFull",
    "Timeout",
    "TooLarge",
    "TooMany",
    "TooManyRounds",
    "Tool",
    "Tree",
    "TreeAgent",
    "TreeFile",
    "TreeOutcome",
    "TurnOptions",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "UnsupportedMedia",
    "Unverified",
    "UpstreamBusy",
    "UpstreamRefused",
    "Usage",
    "WorkerCrashed",
]

_LATER = {
    "AgentOutcome": "cfs.tree_state",
    "AsyncChatIterator": "cfs.async_session",
    "AsyncSession": "cfs.async_session",
    "AsyncTree": "cfs.async_tree",
    "ChatIterator": "cfs.session",
    "FunctionTool": "cfs.tools",
    "Response": "cfs.response",
    "Session": "cfs.session",
    "SessionOptions": "cfs.options",
    "Settings": "cfs.wire",
    "Tool": "cfs.tools",
    "Tree": "cfs.tree",
    "TreeAgent": "cfs.tree_state",
    "TreeFile": "cfs.tree_state",
    "TreeOutcome": "cfs.tree_state",
    "TurnOptions": "cfs.options",
    "Usage": "cfs.wire",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
