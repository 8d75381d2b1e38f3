"""Fibre: an agent can start sub-agents that share its workspace (B1-B9). Each has its own conversation."""

__all__: list[str] = []
