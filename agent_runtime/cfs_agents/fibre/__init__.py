"""Fibre: one agent becomes a tree of agents that share a workspace, each with its own conversation (B1-B9)."""

__all__: list[str] = []
