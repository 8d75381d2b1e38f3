"""Folds names that look alike: other compositions of letters, other spaces, quotes or dashes. Pure: no I/O."""

import unicodedata

_INVISIBLE = (
    "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
    # soft hyphen, joiners, marks of direction, variation selectors, byte order mark
)
_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_SINGLE_QUOTES = "\u0060\u00b4\u02b9-\u02bc\u02c8\u02ca\u02cb\u2018-\u201b\u2032\u2035\ua78c\uff07"
_DOUBLE_QUOTES = "\u02ba\u02ee\u201c-\u201f\u2033\u2036\u3003\u301d-\u301f\uff02"
_DASHES = "\u02d7\u058a\u2010-\u2015\u2043\u2212\u2796\ufe58\ufe63\uff0d"


def _each_of(ranges: str) -> list[str]:
    """Return the characters of a text in which `a-c` stands for a range."""
    characters: list[str] = []
    for place, character in enumerate(ranges):
        if character == "-":
            characters += map(chr, range(ord(ranges[place - 1]) + 1, ord(ranges[place + 1])))
        else:
            characters.append(character)
    return characters


_FOLDED = str.maketrans(
    {
        **dict.fromkeys(_each_of(_INVISIBLE), ""),
        **dict.fromkeys(_each_of(_SPACES), " "),
        **dict.fromkeys(_each_of(_SINGLE_QUOTES), "'"),
        **dict.fromkeys(_each_of(_DOUBLE_QUOTES), '"'),
        **dict.fromkeys(_each_of(_DASHES), "-"),
    }
)


def folded(name: str) -> str:
    """Return the form that a name shares with all names that look like it.

    Folded are the composition of letters (NFC), spaces, quotes and dashes; invisible characters are left out. Case and
    white space at the ends stay.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).translate(_FOLDED))
