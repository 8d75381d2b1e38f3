"""Decodes Server-Sent Events: bytes in, split anywhere, events out (H2). Pure: no I/O.

Follows the WHATWG HTML standard, "Interpreting an event stream": lines end in CR, LF or CRLF, a BOM at the beginning is
dropped, and an incomplete event at the end of the stream is discarded.
"""

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event. `id` is the last id that the stream has sent so far, "" before the first."""

    event: str = "message"
    data: str = ""
    id: str = ""


class SSEDecoder:
    """Decodes a stream in pieces. A reader reconnects with `last_event_id` after `retry` milliseconds."""

    def __init__(self) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest: list[str] = []
        self._begun = False
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Decode the next bytes and return the completed events."""
        text = self._decoder.decode(data)
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix("\ufeff")
        if self._after_cr and text:  # the CR has already ended the line; an LF after it belongs to it
            text = text.removeprefix("\n")
            self._after_cr = False
        self._after_cr = self._after_cr or text.endswith("\r")
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines:
            lines[0] = "".join(self._rest) + lines[0]
            self._rest.clear()
        if rest:
            self._rest.append(rest)
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self._id = value
        elif field == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value)
        elif field:  # an empty field is a comment
            return self.unknown(line)
        return None

    def unknown(self, line: str) -> ServerSentEvent | None:  # noqa: ARG002 - for subclasses
        """Process a line whose field the standard does not have; it is ignored, unless a subclass can read it."""
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        self.last_event_id = self._id
        return ServerSentEvent(event or "message", "\n".join(data), self._id) if data else None
