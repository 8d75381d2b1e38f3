"""Names that look alike have one folded form; names that a person can tell apart have not (G1, S1)."""

import unicodedata

import pytest

from cfs_filesystem.look_alikes import folded

ALIKE = {
    "decomposed": ("café", unicodedata.normalize("NFD", "café")),
    "no-break space": ("a b", "a\N{NO-BREAK SPACE}b"),
    "thin space": ("a b", "a\N{THIN SPACE}b"),
    "Ogham space": ("a b", "a\N{OGHAM SPACE MARK}b"),
    "space at the end": ("a b", "a b "),
    "two spaces": ("a b", "a  b"),
    "curly apostrophe": ("it's", "it\N{RIGHT SINGLE QUOTATION MARK}s"),
    "curly quotes": ('"a"', "\N{LEFT DOUBLE QUOTATION MARK}a\N{RIGHT DOUBLE QUOTATION MARK}"),
    "non-breaking hyphen": ("a-b", "a\N{NON-BREAKING HYPHEN}b"),
    "dash": ("a-b", "a\N{EN DASH}b"),
    "soft hyphen": ("ab", "a\N{SOFT HYPHEN}b"),
    "zero-width space": ("ab", "a\N{ZERO WIDTH SPACE}b"),
    "byte order mark": ("ab", "\N{ZERO WIDTH NO-BREAK SPACE}ab"),
    "direction mark": ("ab", "ab\N{RIGHT-TO-LEFT MARK}"),
    "variation selector": ("☎", "☎\N{VARIATION SELECTOR-15}"),
    "full width": ("chat!", "ｃｈａｔ！"),
    "ligature": ("file", "ﬁle"),
}


@pytest.mark.parametrize("title", ALIKE)
def test_names_that_look_alike(title: str) -> None:
    """Both have the same folded form."""
    one, other = ALIKE[title]
    assert one != other
    assert folded(one) == folded(other)


@pytest.mark.parametrize(
    ("one", "other"), [("Chat", "chat"), ("e", "é"), ("a-b", "a_b"), ("ab", "a b"), ("你", "妳"), ("'a'", '"a"')]
)
def test_names_that_do_not(one: str, other: str) -> None:
    """Case, accents, and the presence of a space count."""
    assert folded(one) != folded(other)


def test_folding_twice_is_folding_once() -> None:
    """It holds for every character that folding changes."""
    changed = [form for code in range(0xD800) if (form := folded(chr(code))) != chr(code)]
    assert len(changed) > 1_000
    assert [form for form in changed if folded(form) != form] == []
