"""What an agent keeps in mind: the items of its context, and what of them goes to disk."""

__all__: list[str] = []
