"""The file agent: an agent whose whole state is a directory (A1)."""

from cfs_agents.file_agent.agent import AgentRoot, FileAgent, FileAgentConfig
from cfs_agents.messages import Language

__all__ = ["AgentRoot", "FileAgent", "FileAgentConfig", "Language"]
