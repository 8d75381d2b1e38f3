"""The colours of code: they can be read on every ground on which code stands, light and dark."""

import itertools
import re
from pathlib import Path

import pytest

from cfs_server.http.markup import to_html
from make_code_css import COLOURS, PAGE, render

TOKENS = (Path(PAGE).parent / "tokens.css").read_text(encoding="utf-8")
GROUNDS = ("ground", "raised", "sunken", "added", "removed")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("ground", "scheme"), list(itertools.product(GROUNDS, (0, 1))))
def test_code_can_be_read(ground: str, scheme: int) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5."""
    found = re.search(rf"--{ground}: light-dark\((#\w{{6}}), (#\w{{6}})\)", TOKENS)
    assert found is not None
    for name, pair in COLOURS.items():
        low, high = sorted((luminance(pair[scheme]), luminance(found[scheme + 1])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_style_sheet_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render()


def test_parts_of_code_have_colours() -> None:
    """A keyword, a name, a string and a comment of rendered code each match a rule."""
    html = to_html('def f():  # why\n    return "x"', "python")
    classes = set(re.findall(r'class="(k|nf|c1|s2)"', html))
    assert classes == {"k", "nf", "c1", "s2"}
    for name in classes:
        assert len(re.findall(rf"\.{name}\b", PAGE.read_text(encoding="utf-8"))) == 1
