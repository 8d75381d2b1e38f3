"""Text leaves the engine in whole characters, without stop strings, without outer white space."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_server.engine.worker.text import TextStream


def stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """Feed pieces until a stop string is met; what came out, and whether one was."""
    text = TextStream(stops)
    shown = []
    for piece in pieces:
        shown.append(text.feed(piece))
        if text.stopped:
            return shown, True
    return [*shown, text.finish()], False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at some places."""
    borders = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *borders], [*borders, len(data)], strict=True)]


CASES = [
    ([b"Hello", b" world"], (), ["Hello", " world", ""]),
    (["你好".encode()[:2], "你好".encode()[2:4], "你好".encode()[4:]], (), ["", "你", "好", ""]),
    (["👩‍🚀".encode()[:6], "👩‍🚀".encode()[6:]], (), ["👩", "\u200d🚀", ""]),
    ([b"Hi", b"\nUs", b"er", b": more"], ("User:",), ["Hi", "", "", ""]),
    ([b"Hi", b"\nUs", b"ual"], ("User:",), ["Hi", "", "\nUsual", ""]),
    ([b"a<", b"st", b"op", b">b"], ("<stop>",), ["a", "", "", ""]),
    ([b"aaab"], ("aab",), ["a"]),
    ([b"one", b"two"], ("two", "et"), ["on", ""]),
    ([b" \n ", b" x", b" ", b" y ", b"\n"], (), ["", "x", "", "  y", "", ""]),
    ([b"x\n", b"\ny"], ("\n\n",), ["x", ""]),
    ([b"ok", b"\xff", b"\xe4\xbd"], (), ["ok", "\ufffd", "", ""]),
    ([b"   "], (), ["", ""]),
    ([], (), [""]),
]


@pytest.mark.parametrize(("pieces", "stops", "shown"), CASES)
def test_what_leaves_when(pieces: list[bytes], stops: tuple[str, ...], shown: list[str]) -> None:
    """Each token's text leaves as soon as it is certain."""
    assert stream(pieces, stops)[0] == shown


@given(st.text(), st.lists(st.integers(0, 400)))
def test_without_stops_nothing_is_lost(text: str, places: list[int]) -> None:
    """However the bytes are cut, the stripped text comes out."""
    shown, stopped = stream(cut(text.encode(), places))
    assert "".join(shown) == text.strip()
    assert not stopped


@given(
    st.text("abU: \n", max_size=40),
    st.lists(st.integers(0, 60)),
    st.lists(st.text("abU: \n", min_size=1, max_size=4), max_size=3),
)
def test_the_reply_ends_before_the_first_stop_string(text: str, places: list[int], stops: list[str]) -> None:
    """With several of them, the first in the text; and none is ever shown, however the bytes are cut."""
    whole = stream([text.encode()], tuple(stops))
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    expected = text[: min(found)] if found else text
    assert "".join(whole[0]) == expected.strip()
    shown, stopped = stream(cut(text.encode(), places), tuple(stops))
    assert stopped == bool(found)
    assert not any(stop in "".join(shown) for stop in stops)


@pytest.mark.parametrize(("said", "stop"), [("one two", "two"), ("two ten", "two"), ("ten two", "ten"), ("one", "")])
def test_it_is_known_which_stop_string_ended_the_text(said: str, stop: str) -> None:
    text = TextStream(("ten", "two"))
    text.feed(said.encode())
    assert (text.stop, text.stopped) == (stop, bool(stop))


@given(st.text("ab\n ", max_size=30), st.text("ab\n ", min_size=1, max_size=4), st.lists(st.integers(0, 60)))
def test_one_stop_string_ends_the_reply_however_it_is_cut(text: str, stop: str, places: list[int]) -> None:
    """A stop string that is spread over tokens ends the reply at the same place as one in a single token."""
    assert "".join(stream(cut(text.encode(), places), (stop,))[0]) == text.split(stop, 1)[0].strip()
