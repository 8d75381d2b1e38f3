"""Keeps threads and memories of LangGraph in workspaces."""

from cfs_langgraph.saver import CFSSaver
from cfs_langgraph.store import CFSStore

__all__ = ["CFSSaver", "CFSStore"]
