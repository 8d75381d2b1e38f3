"""The events of an agent at work."""

from cfs_agents.base.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    EndReason,
    FileChanges,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    ToolResult,
    TurnUsage,
    Warned,
)

__all__ = [
    "AgentEvent",
    "CallFinished",
    "CallStarted",
    "ContextShortened",
    "ContextUpdated",
    "EndReason",
    "FileChanges",
    "Finished",
    "Retrying",
    "RoundStarted",
    "Text",
    "Thinking",
    "ToolResult",
    "TurnUsage",
    "Warned",
]
