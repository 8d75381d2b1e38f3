"""Logical paths, grants and handles: the gate every access passes."""

__all__: list[str] = []
