"""Lines and matches: what is returned, and what a hostile pattern cannot do (G3)."""

import re
from functools import partial

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from cfs_filesystem import FsHandle, InMemoryFileSystem, InvalidArgumentError, NotFoundError
from cfs_filesystem._text import matches_of
from tests.filesystem.support import everything, refusal


@pytest.fixture
def handle() -> FsHandle:
    return everything(InMemoryFileSystem())


@pytest.mark.parametrize("text", ["0\n1\n2\n3\n", "0\n1\n2\n3", "\n\n\n\n", "0\r\n1\r2\x0b3\x0c4\u2028\n\x855\n6\n"])
def test_every_range_of_lines(handle: FsHandle, text: str) -> None:
    """A line ends with a newline and nothing else; line ends are returned as stored."""
    handle.write("/a", text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    for index in range(len(lines)):
        assert handle.read_file("/a", index) == "".join(lines[index:])
        for count in range(1, len(lines) + 2):
            assert handle.read_file("/a", index, count) == "".join(lines[index : index + count])
    for count in range(1, len(lines) + 2):
        assert handle.read_file("/a", line=count) == "".join(lines[:count])
    for index in (len(lines), len(lines) + 1, 10**9):
        with pytest.raises(NotFoundError, match=f"it has {len(lines)}, counted from 0"):
            handle.read_file("/a", index)
        with pytest.raises(NotFoundError):
            handle.read_file("/a", index, 1)


def test_an_empty_file_has_no_lines_but_can_be_read_from_the_start(handle: FsHandle) -> None:
    """So a program that reads a file in pieces need not ask for its size first."""
    handle.write("/a", "")
    assert handle.read_file("/a") == handle.read_file("/a", 0) == handle.read_file("/a", 0, 10) == ""
    with pytest.raises(NotFoundError, match="it has 0"):
        handle.read_file("/a", 1)


@given(st.text(alphabet="ab\n\r", max_size=30), st.integers(1, 4))
def test_pieces_make_up_the_whole(text: str, count: int) -> None:
    handle = everything(InMemoryFileSystem())
    handle.write("/a", text)
    pieces: list[str] = []
    index = 0
    while index == 0 or "".join(pieces) != text:
        pieces.append(handle.read_file("/a", index, count))
        index += count
    assert "".join(pieces) == text
    if text:
        with pytest.raises(NotFoundError):
            handle.read_file("/a", index)


@pytest.mark.parametrize(("index", "line"), [(-1, None), (None, 0), (0, -1), (1.0, None), ("0", None), (None, True)])
def test_numbers_that_mean_no_lines(handle: FsHandle, index: int | None, line: int | None) -> None:
    handle.write("/a", "x\n")
    with pytest.raises(InvalidArgumentError, match=r"(index|line) must be a whole number"):
        handle.read_file("/a", index, line)


def test_text_that_is_no_utf8(handle: FsHandle) -> None:
    handle.write("/a", b"good \xff bad")
    for action in (lambda: handle.read_file("/a"), lambda: handle.read_re("/a", "x")):
        with pytest.raises(InvalidArgumentError, match=r"byte 5.*read_binary"):
            action()
    assert handle.read_binary("/a") == b"good \xff bad"


def test_a_byte_order_mark_is_kept(handle: FsHandle) -> None:
    handle.write("/a", b"\xef\xbb\xbfx")
    assert handle.read_file("/a") == "\ufeffx"


def test_every_match_is_returned_in_order(handle: FsHandle) -> None:
    handle.write("/a", "one 1\ntwo 22\nthree 333\n")
    assert handle.read_re("/a", r"\d+") == ["1", "22", "333"]
    assert handle.read_re("/a", r"(\w+) (\d+)") == ["one 1", "two 22", "three 333"], "the match, not its groups"
    assert handle.read_re("/a", r"(?m)^t\w+") == ["two", "three"]
    assert handle.read_re("/a", r"(?m)\d$") == ["1", "2", "3"]
    assert handle.read_re("/a", "none") == []
    assert handle.read_re("/a", "two.*three", 5) == []
    assert handle.read_re("/a", "(?s)two.*three") == ["two 22\nthree"]
    handle.write("/empty", "")
    assert handle.read_re("/empty", "x*") == [""]
    assert handle.read_re("/empty", "x", 3) == []


_PATTERNS = st.sampled_from(
    [
        "a",
        "ab",
        "a+b",
        "a{1,3}",
        "x*",
        "a*?b",
        "(?:ab|a)c?",
        "b?",
        "(?<=a)b",
        "(?<!a)b",
        "a(?=b)",
        r"\bab",
        "(?m)^a",
        "$",
        "",
    ]
)


@settings(max_examples=settings().max_examples * 2)
@given(_PATTERNS, st.text(alphabet="aabbc\n ", max_size=60), st.integers(1, 9))
def test_overlapping_matches_are_those_of_a_search_from_each_place(pattern: str, text: str, overlap: int) -> None:
    """Each match is the first that starts late enough to share no more than allowed with the one before."""
    at_each_place = {match.start(): match for match in regex.finditer(pattern, text, overlapped=True)}
    expected, earliest = [], 0
    for start in sorted(at_each_place):
        if start >= earliest:
            expected.append(at_each_place[start][0])
            earliest = max(start + 1, at_each_place[start].end() - overlap)
    assert matches_of(text, pattern, overlap, 10) == expected
    apart = [match[0] for match in regex.finditer(pattern, text)]
    assert matches_of(text, pattern, 0, 10) == apart == matches_of(text, pattern, None, 10)


def test_a_match_may_share_some_characters_with_the_one_before(handle: FsHandle) -> None:
    handle.write("/a", "aaaa ababa needle")
    assert handle.read_re("/a", "aa") == handle.read_re("/a", "aa", 0) == ["aa", "aa"]
    assert handle.read_re("/a", "aa", 1) == ["aa", "aa", "aa"]
    assert handle.read_re("/a", "a{2,3}", 1) == ["aaa", "aa"]
    assert handle.read_re("/a", "a{2,3}", 2) == ["aaa", "aaa", "aa"]
    assert handle.read_re("/a", "aba", 1) == handle.read_re("/a", "aba", 10**30) == ["aba", "aba"]
    assert handle.read_re("/a", "needle", 6) == ["needle"]


def test_overlapping_matches_are_bounded_in_size_and_time() -> None:
    """Each of a million overlapping matches can be nearly the whole text."""
    memory = InMemoryFileSystem()
    handle = everything(memory)
    handle.write("/a", "a" * 1_000_000)
    with pytest.raises(InvalidArgumentError, match="overlapping matches have more than"):
        handle.read_re("/a", "a+", 10**9)
    memory.match_seconds = 0.02
    with pytest.raises(InvalidArgumentError, match="given up"):
        handle.read_re("/a", "aa", 1)
    with pytest.raises(InvalidArgumentError, match="backwards"):
        handle.read_re("/a", "(?r)aa", 1)


@pytest.mark.parametrize("overlap", [-1, 1.5, "2", True])
def test_an_overlap_that_is_none(handle: FsHandle, overlap: int) -> None:
    handle.write("/a", "x")
    with pytest.raises(InvalidArgumentError, match="overlap"):
        handle.read_re("/a", "x", overlap)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "[", "a**", "\\", "(?P<a>x)(?P<a>", "(?<=", r"\p{Foo}", r"\N{no such name}", "(?a)(?u)x",
        r"\L<words>", "x{0,99999999999999}", "(?:" * 500 + "a" + ")*" * 500, "(?z)", r"\2(a)",
    ],
    ids=lambda pattern: pattern[:20],
)  # fmt: skip
def test_what_is_no_pattern(handle: FsHandle, pattern: str) -> None:
    handle.write("/a", "x")
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        handle.read_re("/a", pattern)


@pytest.mark.parametrize("pattern", [None, b"x", 1, re.compile("x")])
def test_a_pattern_is_a_string(handle: FsHandle, pattern: object) -> None:
    handle.write("/a", "x")
    with pytest.raises(InvalidArgumentError, match="a pattern must be a string"):
        handle.read_re("/a", pattern)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a|aa)+$", "a" * 100 + "b"),
        ("(?:(?:a|aa)+b?)+$", "a" * 100 + "!"),
        ("(?:a|b|ab)*c", "ab" * 200),
        ("(.+)+(.+)+=x", "=" * 2000),
        ("(?:abc){e<=3}(?:abd){e<=3}zz", "abd" * 3000),
        ("(?r)x(?:a|aa)+", "y" + "a" * 100),
    ],
)
def test_a_catastrophic_pattern_is_given_up(pattern: str, text: str) -> None:
    """If this does not end, the time limit of the test run says so."""
    memory = InMemoryFileSystem()
    memory.match_seconds = 0.05
    handle = everything(memory)
    handle.write("/a", text)
    for overlap in (None, 50):
        error = refusal(partial(handle.read_re, "/a", pattern, overlap))
        assert error is None or "given up" in error.detail or (overlap and "backwards" in error.detail)


def test_the_limit_is_for_all_matches_together() -> None:
    """Many matches that are each quick do not add up to more than the limit."""
    memory = InMemoryFileSystem()
    memory.match_seconds = 0.02
    handle = everything(memory)
    handle.write("/a", "a" * 2_000_000)
    with pytest.raises(InvalidArgumentError, match="given up"):
        handle.read_re("/a", "a")


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{1000}){1000}){1000}", "(?:(?:a{1000}){1000}){1000}", "(((((((a{10}){10}){10}){10}){10}){10}){10})",
        "(?x) ( ( a {999} ) # comment )\n {999} ) {999}", "([)]{999}){999}", r"(\({999}){999}", "a{99999999}",
        "a{999999999999999999999}", "(a{ 999}){ 999}", "(?R)", "(a(?1)?b)", "(?P<x>a(?&x)?)", "(?P<x>a(?P>x)?)",
        "a" * 4097,
    ],
    ids=lambda pattern: pattern[:30],
)  # fmt: skip
def test_what_would_cost_too_much_before_the_first_character(handle: FsHandle, pattern: str) -> None:
    """Compiling writes counted repeats out, and a call of itself nests without end: refused unseen."""
    handle.write("/a", "x")
    with pytest.raises(InvalidArgumentError):
        handle.read_re("/a", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}",
        r"(\d{4})-(\d{2})-(\d{2})",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})",
        r"(?:\d{1,3}\.){3}\d{1,3}",
        "(commit|tree) [0-9a-f]{40}",
        r"(?i)(error|warn(?:ing)?)\b.{0,200}",
        r"(?P<key>\w+)=(?(key)\w+)",
        r"(?>a+)(?-i:b)(?#comment)",
    ],
)
def test_patterns_of_every_day_are_not_refused(handle: FsHandle, pattern: str) -> None:
    handle.write("/a", "x")
    assert handle.read_re("/a", pattern) == []
