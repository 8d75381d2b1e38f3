"""Translates regular expressions of JSON schemas for llguidance: from ECMAScript to the dialect of Rust's `regex`.

The dialects look alike but differ. In Rust `.` matches a carriage return, `\\d` matches a digit of any script, `[[a]`
is a nested set, and `{,3}` is a repetition. So a pattern is parsed and translated part by part. A part without an exact
counterpart is refused.
"""

import re

_DIGIT, _WORD = "0-9", "0-9A-Z_a-z"
_SPACE = r"\t-\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")
_TOKEN = re.compile(
    r"""
      \\(?:x(?P<hex>[0-9A-Fa-f]{2}) | u(?P<unicode>[0-9A-Fa-f]{4}) | u\{(?P<long>[0-9A-Fa-f]{1,6})\}
         | c(?P<control>[A-Za-z]) | (?P<escape>.))
    | (?P<group>\((?:\?:|\?<[A-Za-z_$][\w$]*>|(?!\?)))
    | (?P<repeat>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_LEAP = r"[12][0-9](0[48]|[2468][048]|[13579][26])|2[048]00|1[26]00"
_DATE = (
    r"([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-(0[1-9]|1[0-9]|2[0-8]))|({_LEAP})-02-29)"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9](-?[A-Za-z0-9]){0,15}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_SPAN = r"T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = r"([0-9]{1,4}Y([0-9]{1,2}M([0-9]{1,2}D)?)?|[0-9]{1,2}M([0-9]{1,2}D)?|[0-9]{1,4}D)"
_GROUP = r"[0-9a-f]{1,4}"
_PATH = r"([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})"
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P({_DAYS}({_SPAN})?|{_SPAN}|[0-9]{{1,4}}W)$",
    "uuid": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    "ipv4": rf"^{_BYTE}(\.{_BYTE}){{3}}$",
    "ipv6": rf"^(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,6}}:{_GROUP})$",
    "email": rf"^[A-Za-z0-9_]{{1,16}}([.+-][A-Za-z0-9_]{{1,16}}){{0,2}}@({_LABEL}\.){{1,3}}[A-Za-z]{{2,12}}$",
    "hostname": rf"^{_HOST}$",
    "uri": rf"^[a-z][a-z0-9]{{1,15}}://{_HOST}(:[1-9][0-9]{{0,3}})?(/{_PATH}*)?(\?{_PATH}*)?(\#{_PATH}*)?$",
}
"""Patterns for the formats of JSON Schema: every match has the format. Years are from 1000 to 2999."""
STANDARD_FORMATS = frozenset(FORMATS) | {
    *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
}
"""The formats that JSON Schema knows. Any other name is an annotation."""


def translated(pattern: str) -> str:
    """Write a pattern for llguidance, which matches it anywhere in a string; raises `ValueError` if it cannot."""
    pieces: list[str] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise _refusal(pattern, at)
        at = token.end()
        kind, text = str(token.lastgroup), token[0]
        if kind == "group":
            pieces.append("(?:")
        elif kind == "repeat" or (kind == "other" and text in "^$|)"):
            pieces.append(text)
        elif text == ".":
            pieces.append(r"[^\n\r\x{2028}\x{2029}]")
        elif text == "[":
            part, at = _set(pattern, at)
            pieces.append(part)
        elif kind == "escape" and text[1].lower() in _CLASSES:
            pieces.append(f"[{'^' if text[1].isupper() else ''}{_CLASSES[text[1].lower()]}]")
        elif text in "({}]":
            raise _refusal(pattern, at - 1)
        else:
            pieces.append(_character(_code(token, pattern)))
    return "".join(pieces)


def anchored(expression: str) -> str:
    """Make an expression match whole strings only."""
    return f"^(?:{expression})$"


def escaped(text: str) -> str:
    """Write a pattern for one text."""
    return "".join(_character(ord(character)) for character in text)


def _set(pattern: str, at: int) -> tuple[str, int]:
    """Read a set of characters behind its bracket; returns it, and where it ends."""
    negated = pattern.startswith("^", at)
    at += negated
    pieces: list[str] = []
    while not pattern.startswith("]", at):
        part, low, at = _member(pattern, at)
        if pattern.startswith("-", at) and not pattern.startswith("-]", at):
            _, high, at = _member(pattern, at + 1)
            if low is None or high is None or low > high:
                raise _refusal(pattern, at - 1)
            part = f"{_character(low)}-{_character(high)}"
        pieces.append(part)
    if not pieces and not negated:
        raise ValueError(f"the pattern {pattern!r} has a set of characters in which there is none")
    return (f"[{'^' if negated else ''}{''.join(pieces)}]" if pieces else r"[\x{0}-\x{10FFFF}]"), at + 1


def _member(pattern: str, at: int) -> tuple[str, int | None, int]:
    """Read one member of a set: how it is written, its code if it is one character, and where it ends."""
    token = _TOKEN.match(pattern, at)
    if token is None:
        raise _refusal(pattern, at)
    if token["escape"] is None and not token[0].startswith("\\"):
        return _character(ord(pattern[at])), ord(pattern[at]), at + 1
    letter = token["escape"] or ""
    if letter and letter.lower() in _CLASSES:
        inner = _CLASSES[letter.lower()]
        return (f"[^{inner}]" if letter.isupper() else inner), None, token.end()
    code = 8 if letter == "b" else _code(token, pattern)
    return _character(code), code, token.end()


def _code(token: re.Match[str], pattern: str) -> int:
    """Return the character that a token stands for."""
    digits = token["hex"] or token["unicode"] or token["long"]
    if digits:
        code = int(digits, 16)
    elif token["control"]:
        code = ord(token["control"]) % 32
    elif token["escape"]:
        is_control = token["escape"] in _CONTROLS and not pattern[token.end() : token.end() + 1].isdigit()
        if not is_control and token["escape"] not in _SYNTAX:
            raise _refusal(pattern, token.start())
        code = _CONTROLS[token["escape"]] if is_control else ord(token["escape"])
    else:
        code = ord(token[0])
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise _refusal(pattern, token.start())
    return code


def _character(code: int) -> str:
    letter = chr(code)
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{code:X}}}"


def _refusal(pattern: str, at: int) -> ValueError:
    return ValueError(f"the pattern {pattern!r} cannot be enforced from {pattern[at : at + 10]!r} on")
