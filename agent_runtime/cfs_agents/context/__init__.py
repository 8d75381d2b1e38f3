"""The context of an agent: a conversation short enough for its model, and the rest of it on disk."""

from cfs_agents.context.compaction import Compaction, SelectiveCompactionPolicy, Summarise
from cfs_agents.context.conversation import (
    CachedCounter,
    Change,
    Context,
    ContextItem,
    EstimatingCounter,
    ItemType,
    TokenCounter,
)
from cfs_agents.context.offload import OFFLOAD_THRESHOLD, EphemeralPolicy, OffloadPolicy
from cfs_agents.context.redaction import Redacted, redact, redact_json
from cfs_agents.context.store import ContextFileSystem, Offloaded, Record, Restored
from cfs_agents.context.working import CleaningPolicy, ContextUsage, WorkingContext, clean, clean_root, clean_sessions

__all__ = [
    "OFFLOAD_THRESHOLD",
    "CachedCounter",
    "Change",
    "CleaningPolicy",
    "Compaction",
    "Context",
    "ContextFileSystem",
    "ContextItem",
    "ContextUsage",
    "EphemeralPolicy",
    "EstimatingCounter",
    "ItemType",
    "OffloadPolicy",
    "Offloaded",
    "Record",
    "Redacted",
    "Restored",
    "SelectiveCompactionPolicy",
    "Summarise",
    "TokenCounter",
    "WorkingContext",
    "clean",
    "clean_root",
    "clean_sessions",
    "redact",
    "redact_json",
]
