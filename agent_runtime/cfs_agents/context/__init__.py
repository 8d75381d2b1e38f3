"""The context of an agent: a conversation short enough for its model, and the rest of it on disk."""

from cfs_agents.context.changes import ConversationChange
from cfs_agents.context.cleaning import CleaningPolicy, clean, clean_root, clean_sessions
from cfs_agents.context.compaction import Compaction, SelectiveCompactionPolicy, Summarise
from cfs_agents.context.conversation import Conversation
from cfs_agents.context.documents import ItemRecord
from cfs_agents.context.items import ContextItem, ItemType
from cfs_agents.context.offload import OFFLOAD_THRESHOLD, EphemeralPolicy, OffloadPolicy
from cfs_agents.context.redaction import Redacted, redact, redact_json
from cfs_agents.context.store import ContextFileSystem, Offloaded, Restored
from cfs_agents.context.tokens import CachedCounter, EstimatingCounter, TokenCounter
from cfs_agents.context.working import ContextUsage, WorkingContext

__all__ = [
    "OFFLOAD_THRESHOLD",
    "CachedCounter",
    "CleaningPolicy",
    "Compaction",
    "ContextFileSystem",
    "ContextItem",
    "ContextUsage",
    "Conversation",
    "ConversationChange",
    "EphemeralPolicy",
    "EstimatingCounter",
    "ItemRecord",
    "ItemType",
    "OffloadPolicy",
    "Offloaded",
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
