"""The calls of the server that the bridge makes, each interruptible by the caller's signals (F3)."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from cfs import api, wire
from cfs.stream import StreamEvent
from cfs.transports.http import Client
from cfs_fuse.waiting import Patience

T = TypeVar("T")

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Text:
    """A transcript as bytes, and the name of its version."""

    data: bytes
    etag: str


class Server:
    """The server behind the mount; all methods raise `CfsError`, or `OSError` as `Patience` does."""

    def __init__(self, client: Client, patience: Patience) -> None:
        self.client = client
        self._patience = patience

    def call(self, call: api.Call[T]) -> T:
        """Send a call and wait for its answer."""
        return self._patience.call(lambda: self.client.call(call))

    def append(self, session: str, life: str, message: bytes) -> wire.Accepted:
        """Append a message to this life of a session; it is never made by this.

        An empty message changes nothing, and tells whether one might be appended. Raises `Gone` when the session is
        not there any more, or another one has its name.
        """
        call = api.append(session, message)
        headers = {**call.request.headers, "If-Match": "*"} | ({api.LIFE: life} if life else {})
        return self.call(replace(call, request=replace(call.request, headers=headers)))

    def text(self, session: str) -> Text:
        """Read a transcript as it is now."""
        return self.call(
            api.Call(api.transcript(session).request, lambda answer: Text(answer.body, answer.headers.get("etag", "")))
        )

    def history(self, session: str) -> Generator[StreamEvent, None, None]:
        """Yield the events of a session that the server still has; goes on to wait for more at the end."""
        yield from self.client.events(api.events(session, after="0"), attempts=0)


def listing(client: Client) -> Iterator[wire.SessionInfo]:
    """Yield every session that the caller may see, with all that is below it."""
    after = ""
    while True:
        page = client.call(api.list_sessions(after=after, limit=PAGE))
        for info in page.sessions:
            yield info
            if info.sub_sessions:
                yield from _below(client.call(api.sub_sessions(info.id)))
        if page.next is None:
            return
        after = page.next


def _below(tree: wire.SessionTree) -> Iterator[wire.SessionInfo]:
    for child in tree.children:
        yield child
        yield from _below(child)
