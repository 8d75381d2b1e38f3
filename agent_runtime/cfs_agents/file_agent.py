"""The file-system agent: an agent whose whole state is a directory (A1)."""

from cfs_agents.base.messages import Language
from cfs_agents.tree.file_agent import AgentRoot, ContextSynchronizer, FileSystemAgent, FileSystemAgentConfig
from cfs_agents.tree.run_log import OperationLogger

__all__ = [
    "AgentRoot",
    "ContextSynchronizer",
    "FileSystemAgent",
    "FileSystemAgentConfig",
    "Language",
    "OperationLogger",
]
