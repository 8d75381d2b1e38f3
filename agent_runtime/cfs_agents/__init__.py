"""Tools, context, the file-system agent and Fibre; talks to the server by HTTP only."""

__all__: list[str] = []
