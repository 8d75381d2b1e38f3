"""Shows any logical file system as WebDAV."""

__all__: list[str] = []
