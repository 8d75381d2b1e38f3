"""The file-system agent: an agent whose whole state is a directory (A1)."""

from cfs_agents.base.messages import Language
from cfs_agents.tree.directory import AgentRoot
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.operations import OperationLogger
from cfs_agents.tree.sync import ContextSynchronizer

__all__ = [
    "AgentRoot",
    "ContextSynchronizer",
    "FileSystemAgent",
    "FileSystemAgentConfig",
    "Language",
    "OperationLogger",
]
