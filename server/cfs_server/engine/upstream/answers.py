"""Reads the body of an answer: events, or JSON in their place, as objects. Pure: no I/O.

Servers send more than the standard has. The trackers that are named at the lines are where each of these was seen.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler

from cfs.contract.sse import ServerSentEvent, SSEDecoder
from cfs.wire import FinishReason
from cfs_server.engine.upstream import failures

END = "[DONE]"
"""The last event of a stream in OpenAI's protocol."""
ERROR = "error"
"""The name of an event that is an error, whatever its data are."""

_IDLE = re.compile(
    r"[\s:\[]*(ping|pong|keep[-_ ]?alive|heart[-_ ]?beat|openrouter processing)?[\s\]:.]*", re.IGNORECASE
)
_SPACE = re.compile(r"\s*")
_JSON = json.JSONDecoder(strict=False)


class AnswerDecoder:
    """Decodes the body of an answer, in pieces of any size.

    A body that begins with `{` or `[` is no stream: it is a whole answer, an error, or JSON in lines
    (diegosouzapw/OmniRoute#3108, fox1245/NeoGraph#124). Whatever its type says: some gateways pass such a body on as an
    event stream (lemonade-sdk/lemonade#2826).
    """

    def __init__(self) -> None:
        self._stream = _LenientDecoder()
        self._begun = False
        self._document: bytearray | None = None

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Decode the next bytes; return the completed events."""
        if not self._begun and (first := data.lstrip(b"\xef\xbb\xbf \t\r\n")):
            self._begun = True
            if first[:1] in (b"{", b"["):
                self._document = bytearray()
        if self._document is None:
            return self._stream.feed(data)
        self._document += data
        return []

    def finish(self) -> list[ServerSentEvent]:
        """Return the last events: a document, and an event without the empty line that ends it.

        The standard drops such an event, but servers end like that after `[DONE]` or the last chunk. One that is cut
        off is dropped.
        """
        if self._document is not None:
            return [ServerSentEvent(data=self._document.decode("utf-8-sig", "replace"))]
        return [event for event in self._stream.feed(b"\n\n") if _is_whole(event.data)]


class _LenientDecoder(SSEDecoder):
    def unknown(self, line: str) -> ServerSentEvent | None:
        """Read JSON outside of events. llama-server has sent its errors as a field (ggml-org/llama.cpp#16109)."""
        field, _, value = line.partition(":")
        text = value if field == ERROR else line
        if not text.lstrip().startswith("{") or not _is_whole(text):
            return None
        return ServerSentEvent(ERROR if field == ERROR else "message", text)


def _is_whole(text: str) -> bool:
    try:
        return any(True for _ in values_of(text))
    except ValueError:
        return False


def values_of(text: str) -> Iterator[Any]:
    """Yield the JSON values in a text, and `END` for its mark. Raises `ValueError` for other text.

    There are several if lines of JSON are the body, or if only one line end is between two events
    (ggml-org/llama.cpp#14268).
    """
    position, size = _skipped(text, 0), len(text)
    while position < size:
        if text.startswith(END, position):
            value, position = END, position + len(END)
        else:
            value, position = _JSON.raw_decode(text, position)
        yield value
        position = _skipped(text, position)


def _skipped(text: str, position: int) -> int:
    """Return the position behind white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def objects_of(event: ServerSentEvent) -> Iterator[dict[str, Any] | None]:
    """Yield the objects of an event; None stands for the mark of the end. Signs of life have none.

    Such signs are `null` (NousResearch/hermes-agent#80822), empty data (caozhiyuan/copilot-api#88), and a comment as
    data (anomalyco/opencode#50871). Raises `Failure` for an error and for anything else.
    """
    if event.event == ERROR:
        raise failures.of_event(failures.refusal_of(event.data))
    try:
        for value in values_of(event.data):
            yield from _objects(value, event.data)
    except ValueError:
        if event.event.lower() not in ("ping", "heartbeat", "keepalive") and not _IDLE.fullmatch(event.data):
            raise failures.nonsense(event.data) from None


def _objects(value: Any, data: str) -> Iterator[dict[str, Any] | None]:
    match value:
        case "[DONE]":
            yield None
        case dict():
            yield value
        case list():  # Gemini sends its errors in a list
            for part in value:
                yield from _objects(part, data)
        case None | "" | True:
            pass
        case _:
            raise failures.nonsense(data)


def or_nothing(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Validate a member that no reply depends on, such as the usage: None if it is odd."""
    try:
        return read(value)
    except ValidationError:
        return None


_DECLINED = frozenset({"content_filter", "safety", "sensitive", "refusal", "recitation", "prohibited_content"})
_BROKEN = frozenset({"error", "abort", "aborted", "failed", "network_error", "malformed_function_call"})


def ending(reason: str, reasons: Mapping[str, FinishReason], *, spoke: bool) -> tuple[FinishReason, tuple[str, ...]]:
    """Return how a reply has ended, and warnings. Raises `Failure` for the end of no reply.

    An end that is not known is no success: the reply is cut off, for all that is known (crewAIInc/crewAI#7013).
    """
    name = reason.lower()
    if name in reasons:
        return reasons[name], ()
    if name in _DECLINED:
        raise failures.declined(f"the upstream's model or its content filter declined to answer: {reason}")
    if name in _BROKEN:
        raise failures.interrupted(f"the upstream ended its reply by an error: {reason}")
    if not spoke:
        raise failures.interrupted(f"the upstream ended its reply without a word: {reason}")
    return "length", (f"the reply may be cut off: the upstream ended it for the unknown reason {reason!r}",)
