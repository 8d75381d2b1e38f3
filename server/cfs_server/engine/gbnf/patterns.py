"""Regular expressions for the characters of a JSON string, as GBNF. Pure: no I/O.

Python's parser reads the expression: JSON Schema's dialect is ECMAScript's, and the part that both share is what is
taken. Whatever matches is written as JSON writes it, so a quotation mark that matches `.` does not end the string.
"""

import importlib
import re
from collections.abc import Iterator
from typing import Any

_parser: Any = importlib.import_module("re._parser")
"""`re` shows its parser under this name alone (`sre_parse` is deprecated)."""

MOST = 1000
"""Up to here the library takes a number of repetitions as it stands; above it we write them in blocks."""
_BLOCK = 500
ENDLESS = 100_000
"""No reply has as many characters or items: a bound above this is none."""
CHARACTER = (
    r'[\x20-\x21\x23-\x5B\x5D-\uD7FF\uE000-\U0010FFFF] | "\\" '
    r'(["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
)
"""The rule `char`: one character of a string, and no half of a surrogate pair, which is no text."""
_TOP = 0x10FFFF
_CONTROLS = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
"""Characters that a JSON string holds only behind a backslash, and what stands there."""
_PLAIN = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, _TOP)]
_DIGIT = [(48, 57)]
_WORD = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE = [(9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
          (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
_CLASSES = {"DIGIT": _DIGIT, "WORD": _WORD, "SPACE": _SPACE}
_BEYOND_ASCII = [(0x80, _TOP)]
_LINE_ENDS = [(10, 10), (13, 13), (0x2028, 0x2029)]

Ranges = list[tuple[int, int]]
"""A set of characters, as ranges with both ends."""


def pattern(expression: str) -> str:
    """Write a rule for what stands between a string's quotation marks; raises `ValueError` for what is not taken.

    The rule may speak of `char`. An expression without `^` or `$` matches anywhere in a string, so anything may come
    before and behind it.
    """
    try:
        parts = list(_parser.parse(expression))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the pattern {expression!r} is not understood: {error}") from error
    if any(str(kind) == "BRANCH" for kind, _ in parts) and len(parts) == 1:
        return " | ".join(_anywhere(list(branch)) for branch in parts[0][1][1])
    return _anywhere(parts)


def repeated(rule: str, least: int, most: int | None) -> str:
    """Write a rule so many times; `most` None, or more than any reply holds: any number.

    Raises `ValueError` for a `least` that is too large.
    """
    if least > MOST:
        raise ValueError(f"at least {least} times is too much")
    if most is not None and most < least:
        raise ValueError(f"at least {least} and at most {most} times")
    if most == 0:
        return '""'
    if most is not None and most > ENDLESS:
        most = None
    if most is not None and most > MOST:
        more = most - least
        head = f"({rule}){{{least}}} " if least else ""
        if more <= MOST:
            return f"{head}({rule}){{0,{more}}}"
        blocks, rest = divmod(more, _BLOCK)
        return f"{head}(({rule}){{{_BLOCK}}}){{0,{blocks - 1}}} ({rule}){{0,{_BLOCK + rest}}}"
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    times = f"{{{least},{'' if most is None else most}}}"
    return f"({rule}){simple.get((least, most), times)}"


def literal(text: str) -> str:
    """Write text that stands as it is."""
    return '"' + "".join(f"\\x{ord(each):02X}" if each in '"\\' or each < " " else each for each in text) + '"'


def _anywhere(parts: list[Any]) -> str:
    begins = bool(parts) and _is_at(parts[0], "AT_BEGINNING", "AT_BEGINNING_STRING")
    ends = bool(parts) and _is_at(parts[-1], "AT_END", "AT_END_STRING")
    inner = parts[1 if begins else 0 : len(parts) - 1 if ends else len(parts)]
    return " ".join([*([] if begins else ["char*"]), *map(_one, inner), *([] if ends else ["char*"])]) or '""'


def _is_at(part: Any, *places: str) -> bool:
    return str(part[0]) == "AT" and str(part[1]) in places


def _sequence(parts: Any) -> str:
    return " ".join(_one(part) for part in parts) or '""'


def _one(part: Any) -> str:
    kind, value = str(part[0]), part[1]
    match kind:
        case "LITERAL":
            return _set([(value, value)])
        case "NOT_LITERAL":
            return _set(_without([(value, value)]))
        case "ANY":
            return _set(_without(_LINE_ENDS))
        case "IN":
            return _set(_members(value))
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, inner = value
            return repeated(_sequence(inner), least, None if most is _parser.MAXREPEAT else most)
        case "SUBPATTERN" if not value[1] and not value[2]:
            return f"({_sequence(value[3])})"
        case "BRANCH":
            return f"({' | '.join(_sequence(branch) for branch in value[1])})"
    raise ValueError(f"patterns with {kind.lower()} are not taken here")


def _members(parts: Any) -> Ranges:
    negated, found = False, []
    for kind, value in parts:
        match str(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                found.append((value, value))
            case "RANGE":
                found.append(tuple(value))
            case _:
                found += _category(str(value))
    return _without(found) if negated else found


def _category(name: str) -> Ranges:
    base = name.rpartition("_")[2]
    if "_NOT_" not in name:
        return _CLASSES[base]
    return _without([*_CLASSES[base], *([] if base == "SPACE" else _BEYOND_ASCII)])  # dialects differ on the rest


def _without(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for low, high in sorted(ranges):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _TOP)] if start <= _TOP else found


def _set(ranges: Ranges) -> str:
    """Write one character of a set, as a JSON string holds it."""
    plain = [(max(a, c), min(b, d)) for a, b in ranges for c, d in _PLAIN if max(a, c) <= min(b, d)]
    if len(plain) == 1 and plain[0][0] == plain[0][1]:
        ways = [literal(chr(plain[0][0]))]
    else:
        ways = ["[" + "".join(_range(low, high) for low, high in plain) + "]"] if plain else []
    ways += list(_escaped(ranges))
    if not ways:
        raise ValueError("the pattern has a set of characters in which there is none")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _range(low: int, high: int) -> str:
    return _sign(low) if low == high else f"{_sign(low)}-{_sign(high)}"


def _sign(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\U{code:08X}"


def _escaped(ranges: Ranges) -> Iterator[str]:
    for code, name in _CONTROLS.items():
        if any(low <= code <= high for low, high in ranges):
            yield literal("\\" + name)
