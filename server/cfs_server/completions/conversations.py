"""Which completions belong to one conversation, when nobody says so: an engine keeps what it computed for each."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

from cfs.wire import Message

MOST = 1_024
"""Conversations that are remembered; the least recently used are forgotten first."""


class Conversations:
    """Keys under which an engine keeps the computation of conversations that no session holds.

    A conversation is known by its owner and by how it begins: up to the first message that is no system's. Two that
    begin alike share a key, which costs the one that pauses some of what was kept, and nothing else.
    """

    def __init__(self, forget: Callable[[str], None], most: int = MOST) -> None:
        self._forget = forget
        self._most = most
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Count the conversations that are remembered."""
        return len(self._keys)

    def key(self, owner: str, messages: Sequence[Message]) -> str:
        """Name the conversation that some messages belong to."""
        digest = hashlib.sha256(owner.encode())
        for message in messages:
            digest.update(f"\0{message.role}\0{message.content}".encode())
            if message.role != "system":
                break
        key = f"completion-{digest.hexdigest()[:32]}"
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._most:
            oldest, _ = self._keys.popitem(last=False)
            self._forget(oldest)
        return key
