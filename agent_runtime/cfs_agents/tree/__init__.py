"""Agents with a state on disk: the file-system agent, and Fibre, an agent that can start sub-agents (B1-B9)."""

__all__: list[str] = []
