"""The programs of agents: the command line, the console, the runtimes and test doubles."""

__all__: list[str] = []
