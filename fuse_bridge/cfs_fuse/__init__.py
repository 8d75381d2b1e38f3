"""Mounts the server's sessions as files with FUSE."""

__all__: list[str] = []
