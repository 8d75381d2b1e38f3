"""The Python SDK of CFS, its wire models, and the command line.

Modules that need pydantic are imported on first use, so that importing the package is fast.
"""

import importlib
import typing

from cfs.contract.errors import (
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
    TokenRefused,
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
    from cfs.contract.options import SessionOptions, TurnOptions
    from cfs.contract.wire import Settings, Usage
    from cfs.session.async_session import AsyncChatIterator, AsyncSession
    from cfs.session.response import Response
    from cfs.session.session import ChatIterator, Session
    from cfs.session.tools import FunctionTool, Tool
    from cfs.state.tree_state import AgentOutcome, TreeAgent, TreeFile, TreeOutcome
    from cfs.tree.async_tree import AsyncTree
    from cfs.tree.tree import Tree

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
    "TokenRefused",
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
    "AgentOutcome": "cfs.state.tree_state",
    "AsyncChatIterator": "cfs.session.async_session",
    "AsyncSession": "cfs.session.async_session",
    "AsyncTree": "cfs.tree.async_tree",
    "ChatIterator": "cfs.session.session",
    "FunctionTool": "cfs.session.tools",
    "Response": "cfs.session.response",
    "Session": "cfs.session.session",
    "SessionOptions": "cfs.contract.options",
    "Settings": "cfs.contract.wire",
    "Tool": "cfs.session.tools",
    "Tree": "cfs.tree.tree",
    "TreeAgent": "cfs.state.tree_state",
    "TreeFile": "cfs.state.tree_state",
    "TreeOutcome": "cfs.state.tree_state",
    "TurnOptions": "cfs.contract.options",
    "Usage": "cfs.contract.wire",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
