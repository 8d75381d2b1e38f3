"""Folds names that look alike to one text, so that a second name that reads as an existing one is noticed (G1, S1).

Two names look alike if a person cannot tell them apart on a screen: composed and decomposed characters, full-width
forms, kinds of spaces, quotes and dashes, and characters that have no width. Case counts. Pure: no I/O.
"""

import unicodedata

_QUOTES = {"'": "\u2018\u2019\u201a\u201b\u02b9\u02bb\u02bc\u02bd\u2032", '"': "\u201c\u201d\u201e\u201f\u2033"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212"
_BLANK = "\u1680\u2800"
"""Spaces that the normal form keeps."""
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10)))
"""Characters without a width that are not of the category of format characters."""

_FOLDED = str.maketrans(
    {sign: plain for plain, signs in _QUOTES.items() for sign in signs}
    | dict.fromkeys(_DASHES, "-")
    | dict.fromkeys(_BLANK, " ")
    | dict.fromkeys(_INVISIBLE, "")
)


def folded(name: str) -> str:
    """Return the text that all names which look like this one share. It is for comparisons only, and is no name."""
    if name.isascii() and "  " not in name and name == name.strip():
        return name
    visible = "".join(sign for sign in name.translate(_FOLDED) if unicodedata.category(sign) != "Cf")
    normal = unicodedata.normalize("NFKC", visible).translate(_FOLDED)
    return " ".join(normal.split())
