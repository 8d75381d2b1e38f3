"""Fibre: one agent that becomes many, which share a workspace and nothing of what they have in mind (B1-B9)."""

__all__: list[str] = []
