"""Ids of any kind become names of files that are safe and distinct on every disk (O1)."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.errors import InvalidIdentifier
from cfs_agents.context.names import distinct_name, new_session_id, safe_name, valid_session_id

SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
ODD = [
    *("../../etc/passwd", "/absolute", "a/b", "a\\b", "nul\0byte", "..", ".", ".hidden", "a.", "con", "NUL", "Com1"),
    *(
        "line\nbreak",
        "space in it",
        "中文",
        "é",
        "e\u0301",
        "🙂" * 100,
        "x" * 300,
        "*",
        "?",
        "~",
        "-rf",
        "\ud800",
        "a:b",
    ),
]


@pytest.mark.parametrize("plain", ["call_1", "call_Ab9xYz", "toolu_01A09q90qw90lq917835lq9", "0", "chatcmpl-tool-1f"])
def test_a_plain_id_is_its_own_name(plain: str) -> None:
    """A person who looks into the folder recognises it."""
    assert safe_name(plain, "item") == plain


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_id_has_a_safe_name_the_same_each_time(odd: str) -> None:
    """No separator, dot, device, blank or foreign letter gets in."""
    assert SAFE.fullmatch(safe_name(odd, "item"))
    assert safe_name(odd, "item") == safe_name(odd, "item")


def test_odd_ids_stay_apart() -> None:
    """Not even ids that look alike share a name, also where the disk does not tell cases apart."""
    names = [safe_name(odd, "item").lower() for odd in ODD]
    assert len(set(names)) == len(names)
    assert safe_name("x" * 300, "item") != safe_name("x" * 301, "item")


def test_an_empty_id_takes_the_items() -> None:
    """Some models give their calls no id."""
    assert safe_name("", "item_1") == "item_1"


@given(st.lists(st.text(max_size=12), max_size=12))
def test_names_that_are_given_out_are_distinct(ids: list[str]) -> None:
    """Ids that repeat, or differ in case only, get names of their own."""
    taken: set[str] = set()
    for number, raw in enumerate(ids):
        name = distinct_name(safe_name(raw, f"item_{number}"), f"item_{number}", taken)
        assert SAFE.fullmatch(name)
        assert name.lower() not in taken
        taken.add(name.lower())


def test_a_session_is_named_after_its_time() -> None:
    """`session_{YYYYMMDD_HHMMSS}_{6 random}`, and two of one second are two."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    names = {new_session_id(now) for _ in range(20)}
    assert all(re.fullmatch(r"session_20260102_030405_[a-z0-9]{6}", name) for name in names)
    assert len(names) == 20


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\0", "x" * 129, "con", "-x", "a b"])
def test_a_session_cannot_be_somewhere_else(bad: str) -> None:
    """An id that is no plain name of a folder is refused, not repaired."""
    with pytest.raises(InvalidIdentifier):
        valid_session_id(bad)
