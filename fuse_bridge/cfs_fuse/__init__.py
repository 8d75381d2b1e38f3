"""Shows the server's sessions as files of the kernel."""

__all__: list[str] = []
