"""The contents that a store of versions was given last, in memory: most writes are edits of one of them."""

from collections import OrderedDict

_RECENT = 16 << 20
"""Maximum bytes of memory for contents that were written last."""


class RecentContents:
    """The contents that were written last, by scope and digest. It may be used by one thread at a time."""

    def __init__(self) -> None:
        self._contents: OrderedDict[tuple[bytes, bytes], bytes] = OrderedDict()
        self._size = 0

    def get(self, scope: bytes, digest: bytes) -> bytes | None:
        """Return a content, or None."""
        return self._contents.get((scope, digest))

    def add(self, scope: bytes, digest: bytes, content: bytes) -> None:
        """Keep a content, unless it is a large one."""
        if len(content) > _RECENT // 4 or (scope, digest) in self._contents:
            return
        self._contents[scope, digest] = content
        self._size += len(content)
        while self._size > _RECENT:
            self._size -= len(self._contents.popitem(last=False)[1])

    def forget(self, scope: bytes) -> None:
        """Drop the contents of a scope."""
        for key in [key for key in self._contents if key[0] == scope]:
            self._size -= len(self._contents.pop(key))
