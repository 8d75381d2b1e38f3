"""Parts of a content: which bytes a `Range` header asks for (RFC 9110, 14)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.errors import RangeNotSatisfiable
from cfs_server.http.ranges import part_of

_SIZES = st.integers(0, 60)
_NUMBERS = st.integers(0, 80)


def bytes_of(header: str | None, size: int) -> bytes | None:
    """The part itself; None where there is none to be had."""
    content = bytes(range(size))
    try:
        part = part_of(header, size)
    except RangeNotSatisfiable:
        return None
    if part is None:
        return content
    assert part, "a part is never empty: Content-Range could not name it"
    assert part.step == 1
    assert 0 <= part.start < part.stop <= size
    return content[part.start : part.stop]


@given(_SIZES, _NUMBERS, _NUMBERS)
def test_a_range_is_from_its_first_byte_to_its_last_or_the_content_s(size: int, first: int, last: int) -> None:
    content = bytes(range(size))
    if last < first:
        assert part_of(f"bytes={first}-{last}", size) is None, "no range at all"
    else:
        assert bytes_of(f"bytes={first}-{last}", size) == (content[first : last + 1] or None)


@given(_SIZES, _NUMBERS)
def test_an_open_range_goes_to_the_end(size: int, first: int) -> None:
    assert bytes_of(f"bytes={first}-", size) == (bytes(range(size))[first:] or None)


@given(_SIZES, _NUMBERS)
def test_a_suffix_is_as_many_bytes_from_the_end_as_there_are(size: int, count: int) -> None:
    wanted = bytes(range(size))[-count:] if count else None
    assert bytes_of(f"bytes=-{count}", size) == wanted


@given(_SIZES, st.integers(1, 20))
def test_parts_one_after_the_other_are_the_whole(size: int, step: int) -> None:
    parts = [bytes_of(f"bytes={start}-{start + step - 1}", size) for start in range(0, size, step)]
    assert b"".join(part or b"?" for part in parts) == bytes(range(size))


@given(st.text(), _SIZES)
def test_whatever_is_sent_there_is_an_answer(header: str, size: int) -> None:
    bytes_of(header, size)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=1",
        "bytes=--1",
        "bytes=+1-2",
        "bytes=1.0-2",
        "bytes=1 2-3",
        "bytes=0x1-2",
        "bytes=\u0661-\u0662",
        "bytes=1-2,4-5",
        "bytes=1-2;4-5",
        "lines=0-1",
        "0-1",
    ],
)
def test_what_is_not_one_range_of_bytes_is_as_if_it_were_not_there(header: str | None) -> None:
    assert part_of(header, 10) is None


@pytest.mark.parametrize("header", ["bytes=2-3", " bytes=2-3 ", "Bytes=2-3", "bytes=02-0003"])
def test_a_range_may_be_written_in_several_ways(header: str) -> None:
    assert part_of(header, 10) == range(2, 4)
