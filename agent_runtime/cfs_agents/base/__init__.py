"""What all parts of the agents use: events, messages, files on disk, logs and traces."""

__all__: list[str] = []
