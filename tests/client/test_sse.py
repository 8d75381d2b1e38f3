"""The decoder of event streams follows the standard, wherever the network cuts (H2)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.sse import ServerSentEvent, SSEDecoder

Event = ServerSentEvent


def decode(data: bytes) -> list[ServerSentEvent]:
    return SSEDecoder().feed(data)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [Event("message", "a")]),
        (b"data:a\n\n", [Event("message", "a")]),
        (b"data:  a\n\n", [Event("message", " a")]),
        (b"data: a\rdata: b\r\r", [Event("message", "a\nb")]),
        (b"data: a\r\ndata: b\r\n\r\n", [Event("message", "a\nb")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("message", "a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"event: token\nid: 7\ndata: a\n\ndata: b\n\n", [Event("token", "a", "7"), Event("message", "b", "7")]),
        (b"id: 7\ndata: a\n\nid\ndata: b\n\n", [Event("message", "a", "7"), Event("message", "b")]),
        (b"id: 7\ndata: a\n\nid: 8\0\ndata: b\n\n", [Event("message", "a", "7"), Event("message", "b", "7")]),
        (b": ping\n\n", []),
        (b"event: empty\n\n", []),
        (b"event: lost\n\ndata: a\n\n", [Event("message", "a")]),
        (b"data\n\n", [Event("message", "")]),
        (b"data\ndata\n\n", [Event("message", "\n")]),
        (b"nonsense: x\ndata: a\n\n", [Event("message", "a")]),
        (b"data: cut short\n", []),
        (b"data: a: b\n\n", [Event("message", "a: b")]),
        (b"data: \xff\n\n", [Event("message", "\ufffd")]),
        (b"data: a\x0bb\xe2\x80\xa8c\n\n", [Event("message", "a\x0bb\u2028c")]),
    ],
)
def test_a_stream_reads_as_the_standard_says(stream: bytes, events: list[ServerSentEvent]) -> None:
    assert decode(stream) == events


def test_an_id_counts_as_seen_only_when_its_event_is_complete() -> None:
    decoder = SSEDecoder()
    decoder.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert decoder.last_event_id == "1"
    decoder.feed(b"\n")
    assert decoder.last_event_id == "2"


@pytest.mark.parametrize(("line", "retry"), [(b"retry: 250", 250), (b"retry: 1.5", None), (b"retry: -1", None)])
def test_retry_takes_digits_only(line: bytes, retry: int | None) -> None:
    decoder = SSEDecoder()
    decoder.feed(line + b"\n\n")
    assert decoder.retry == retry


_FIELDS = st.sampled_from(
    ["data: x", "data: é漢\U0001f600", "event: token", "id: 5", "", "", ": c", "retry: 9", "\ufeff", "data"]
)
_ENDS = st.sampled_from(["\n", "\r", "\r\n"])
_LINES = st.lists(st.tuples(_FIELDS, _ENDS), max_size=30).map(lambda lines: "".join(a + b for a, b in lines).encode())


@given(_LINES | st.binary(max_size=80), st.lists(st.integers(0, 200), max_size=40))
def test_no_cut_changes_what_is_read(stream: bytes, cuts: list[int]) -> None:
    decoder = SSEDecoder()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == decode(stream)
