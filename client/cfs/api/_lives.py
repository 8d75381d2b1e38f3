"""The life of a session: restricts calls to the session that a client has seen."""

import dataclasses

from cfs.api._calls import LIFE, ApiResponse, Call, Request, Stream, T


class Life:
    """The life of a session that a client has seen. Later calls apply to that life only.

    If the session was deleted or lost, calls raise `Gone`, even if another session has the name now. Without this an
    append would create an empty session, or add to another one.
    """

    def __init__(self) -> None:
        self.nonce = ""

    def forget(self) -> None:
        """Accept the session that has the name now."""
        self.nonce = ""

    def saw(self, token: str | None) -> None:
        """Store the life from an event cursor, an ETag or the header."""
        self.nonce = self.nonce or life_in(token or "")

    def call(self, call: Call[T]) -> Call[T]:
        """Restrict a call to this life, and store the life from its response."""

        def read(answer: ApiResponse) -> T:
            self.saw(answer.headers.get(LIFE.lower()))
            return call.read(answer)

        return Call(self._request(call.request), read)

    def stream(self, stream: Stream) -> Stream:
        """Restrict a stream to this life; the ids of its events are passed to `saw`."""
        return dataclasses.replace(stream, request=self._request(stream.request))

    def _request(self, request: Request) -> Request:
        if not self.nonce:
            return request
        return dataclasses.replace(request, headers={**request.headers, LIFE: self.nonce})


def life_in(token: str) -> str:
    """Return the life of a session in an ETag, an event cursor (`LIFE.EPOCH-NUMBER`) or the header."""
    return token.strip('"').partition("-")[0].partition(".")[0]
