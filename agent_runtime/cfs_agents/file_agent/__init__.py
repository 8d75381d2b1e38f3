"""The file-system agent: an agent whose whole state is a directory (A1)."""

from cfs_agents.file_agent.agent import AgentRoot, ContextSynchronizer, FileSystemAgent, FileSystemAgentConfig
from cfs_agents.file_agent.run_log import OperationLogger
from cfs_agents.messages import Language

__all__ = [
    "AgentRoot",
    "ContextSynchronizer",
    "FileSystemAgent",
    "FileSystemAgentConfig",
    "Language",
    "OperationLogger",
]
