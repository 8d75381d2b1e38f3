"""The file agent: an agent whose whole state is a directory (A1)."""

from cfs_agents.file_agent.agent import FileAgent, FileAgentConfig
from cfs_agents.file_agent.root import AgentRoot
from cfs_agents.sentences import Language

__all__ = ["AgentRoot", "FileAgent", "FileAgentConfig", "Language"]
