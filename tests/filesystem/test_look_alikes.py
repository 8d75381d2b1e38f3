"""Names that look alike have one folded form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_filesystem.look_alikes import folded


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("\u1100\u1161", "\uac00"),
        ("a b", "a\u00a0b"),
        ("a b", "a\u202fb"),
        ("it's", "it\u2019s"),
        ('"x"', "\u201cx\u201d"),
        ("a-b", "a\u2014b"),
        ("ab", "a\u200b\u2060\ufeffb"),
        ("caf\u00e9", "cafe\u200b\u0301"),
    ],
)
def test_look_alikes_fold_to_one_name(one: str, other: str) -> None:
    assert folded(one) == folded(other)


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("a", "a "), ("a", "\u0430"), ("e", "\u00e9"), ("a b", "ab")])
def test_other_names_stay_apart(one: str, other: str) -> None:
    assert folded(one) != folded(other)


@given(st.text())
def test_a_folded_name_stays_as_it_is(name: str) -> None:
    assert folded(folded(name)) == folded(name)
