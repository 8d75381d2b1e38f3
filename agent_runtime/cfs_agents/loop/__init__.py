"""The loop of an agent: ask the model and run its tool calls until it answers."""

__all__: list[str] = []
