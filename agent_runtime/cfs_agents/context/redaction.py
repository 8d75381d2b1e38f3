"""Removes secrets from texts before they are stored: keys of known formats, and values with names such as `password`.

Values that look like ordinary text stay: `max_tokens=512`, `password=$PASSWORD`, `token = next(tokens)`. A secret of an
unknown format without such a name is not found. The patterns are ASCII, work on UTF-8, and take linear time.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# The last words of a name decide: `DB_PASSWORD`, `apiKey` and `client-secret` name secrets; `max_tokens`, `token_count`
# and `public_key` do not.

_WORDS = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PASSWORDS = {b"password", b"passwd", b"passphrase", b"dbpassword", b"userpassword"}
_SECRETS = {b"secret", b"clientsecret", b"apisecret"}
_TOKENS = {b"token", b"authtoken", b"accesstoken", b"refreshtoken", b"apitoken"}
_KEYS = {b"apikey", b"secretkey", b"accesskey", b"privatekey"}
_KEYS_OF = {b"api", b"access", b"secret", b"private", b"auth", b"encryption", b"signing", b"account", b"master"}
_NO_TOKEN_AFTER = set(
    b"next last first prev previous current start stop end new each this"
    b" pad eos bos unk mask sep cls special max min num total per page".split()
)
_NO_VALUE = set(
    b"none null nil true false yes no undefined required optional empty unset"
    b" str string int bool bytes any object text number hidden".split()
)
_REFERENCE = re.compile(rb"[$%<{*@!]|\[redacted|(?:os|process|self|this|config|settings|env)\.")
_CALL = re.compile(rb"[(\[{]")
_ATTRIBUTE = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")
_DIGIT = re.compile(rb"[0-9]")
_SHORTEST = 3
_RANDOM_LENGTH = 8


def kind_of_name(name: bytes) -> str | None:
    """Return the kind of secret that this name announces: `password`, `secret`, `token` or `key`; None if none."""
    words = [word.lower() for word in _WORDS.findall(name)]
    last, before = words[-1] if words else b"", words[-2] if len(words) > 1 else b""
    if last in _PASSWORDS or (last == b"pass" and before and name.isupper()):
        return "password"
    if last in _SECRETS:
        return "secret"
    if last in _TOKENS and before not in _NO_TOKEN_AFTER:
        return "token"
    return "key" if last in _KEYS or (last == b"key" and before in _KEYS_OF) else None


@dataclass(frozen=True, slots=True)
class Style:
    """How a value is written after its name.

    A `quoted` value is always a value. Any other may be code: `spaced` if blanks follow the `=`, `colon` if there is a
    `:` instead, `shouted` if the name is in capitals, as in a settings file.
    """

    quoted: bool = False
    colon: bool = False
    spaced: bool = False
    shouted: bool = False
    last_of_line: bool = True


QUOTED = Style(quoted=True)


def is_secret_value(kind: str, value: bytes, style: Style) -> bool:
    """Return whether a value can be a secret itself, and not a reference, a type, code or prose."""
    if len(value) < _SHORTEST or value.lower() in _NO_VALUE or _REFERENCE.match(value):
        return False
    if value.count(value[:1]) == len(value):  # one character repeated, such as asterisks
        return False
    if style.quoted:
        return value.count(b" ") < 3 and not value.isspace()
    if kind != "password" and (value.isdigit() or not (style.shouted or _looks_random(value))):
        return False
    identifier = _IDENTIFIER.fullmatch(value) is not None
    if _CALL.search(value) or _ATTRIBUTE.fullmatch(value) or (identifier and kind_of_name(value) is not None):
        return False
    if kind != "password" or (style.shouted and not style.colon):
        return True
    return style.last_of_line if style.colon else not (style.spaced and identifier and value.islower())


def _looks_random(value: bytes) -> bool:
    return len(value) >= _RANDOM_LENGTH and _DIGIT.search(value) is not None


MARK = "[redacted: {}]"


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text or a JSON value without its secrets, and the number of removed secrets by kind."""

    value: Any
    found: Mapping[str, int]

    @property
    def text(self) -> str:
        """The redacted text."""
        return str(self.value)


class _EncodedText(NamedTuple):
    """A text in UTF-8, and the same with ASCII letters in lower case; positions are equal in both."""

    data: bytes
    lower: bytes

    def may_hold(self, word: bytes) -> bool:
        """Return whether all letters of a word occur somewhere in the text: a cheap test before a search."""
        return all(letter in self.lower for letter in word)


class _Span(NamedTuple):
    start: int
    end: int
    kind: str


def redact(text: str) -> Redacted:
    """Replace each secret by a mark with its kind. Redacting the result again changes nothing."""
    data = text.encode("utf-8", "surrogatepass")
    pieces: list[bytes] = []
    counts: Counter[str] = Counter()
    end = 0
    both = _EncodedText(data, data.lower())
    for span in sorted(span for rule in _RULES for span in rule(both)):
        if span.start < end:  # overlaps the last one
            end = max(end, span.end)
            continue
        pieces += [data[end : span.start], MARK.format(span.kind).encode()]
        counts[span.kind] += 1
        end = span.end
    if not counts:
        return Redacted(text, {})
    return Redacted(b"".join([*pieces, data[end:]]).decode("utf-8", "surrogatepass"), dict(counts))


def redact_json(value: Any) -> Redacted:
    """Redact all texts in a JSON value; a text under a key such as `password` is redacted as in `password="text"`."""
    counts: Counter[str] = Counter()
    return Redacted(_walked(value, None, counts), dict(counts))


def _walked(value: Any, name: str | None, counts: Counter[str]) -> Any:
    if isinstance(value, str):
        kind = kind_of_name(name.encode("utf-8", "surrogatepass")) if name is not None else None
        if kind is not None and is_secret_value(kind, value.encode("utf-8", "surrogatepass"), QUOTED):
            counts[kind] += 1
            return MARK.format(kind)
        redacted = redact(value)
        counts.update(redacted.found)
        return redacted.text
    if isinstance(value, Mapping):
        return {key: _walked(inner, str(key), counts) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(inner, name, counts) for inner in value]
    return value


_HAS_DIGIT = rb"(?=[A-Za-z_-]{0,64}[0-9])"


def _shape(mark: bytes, begins: bytes, rest: bytes) -> tuple[bytes, bytes, re.Pattern[bytes]]:
    """Describe keys with this prefix, at the beginning of a word or after a line break that is written as `\\n`."""
    word = rb"(?:(?<![A-Za-z0-9_-]%(it)s)|(?<=\\[nrt]%(it)s))" % {b"it": re.escape(begins)}
    return mark, begins, re.compile(re.escape(begins) + word + rest)


_SHAPES = [
    _shape(b"-", b"sk-", _HAS_DIGIT + rb"[A-Za-z0-9_-]{20,}"),
    _shape(b"-", b"glpat-", rb"[A-Za-z0-9_-]{20,}"),
    _shape(b"-", b"xox", rb"[abeoprs]-[A-Za-z0-9-]{10,}"),
    _shape(b"-", b"pypi-", rb"[A-Za-z0-9_-]{50,}"),
    _shape(b"_", b"sk_live_", rb"[A-Za-z0-9]{16,}"),
    _shape(b"_", b"rk_live_", rb"[A-Za-z0-9]{16,}"),
    _shape(b"_", b"gh", rb"[oprsu]_[A-Za-z0-9]{36,}"),
    _shape(b"_", b"github_pat_", rb"[A-Za-z0-9_]{36,}"),
    _shape(b"_", b"hf_", rb"[A-Za-z0-9]{30,}"),
    _shape(b"_", b"npm_", rb"[A-Za-z0-9]{36,}"),
    _shape(b"_", b"cfs_", _HAS_DIGIT + rb"[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape(b".", b"SG.", rb"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    _shape(b".", b"eyJ", rb"[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"),
    _shape(b"A", b"AKIA", rb"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _shape(b"A", b"ASIA", rb"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _shape(b"A", b"AIza", rb"[0-9A-Za-z_-]{35,}"),
]
"""A byte that a key must contain, its prefix, and its pattern: the fastest test comes first."""
_SHORTEST_KEY = 20
_RUNS = bytes(
    ord("w" if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-.") else " ") for byte in range(256)
)


def _keys(text: _EncodedText) -> Iterator[_Span]:
    """Find keys. Long words are searched first: there are few, and one search finds them for all formats."""
    marks = [mark for mark in (b"-", b"_", b".", b"A") if mark in text.data]
    candidates = b" ".join(text.data[start:end] for start, end in _long_words(text.data)) if marks else b""
    marks = [mark for mark in marks if mark in candidates]
    for mark, begins, shape in _SHAPES:
        if mark in marks and begins in candidates:
            for match in shape.finditer(text.data):
                yield _Span(*match.span(), "API key")


def _long_words(data: bytes) -> Iterator[tuple[int, int]]:
    words = data.translate(_RUNS)
    end = 0
    while (at := words.find(b"w" * _SHORTEST_KEY, end)) >= 0:
        end = words.find(b" ", at)
        end = len(words) if end < 0 else end
        yield at, end


_BEARER = re.compile(rb"bearer[ \t]{1,4}((?=[a-z._~+/=-]{0,256}[0-9])[a-z0-9._~+/=-]{16,})")
_AUTHORIZATION = re.compile(
    rb"authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:basic|token|digest)[ \t]{1,4}([^\s\"']{6,})"
)
_URL = re.compile(rb"://[^\s/:@\"'<>]{0,128}:([^\s/@\"'<>]{1,256})@")


def _headers(text: _EncodedText) -> Iterator[_Span]:
    for match in _BEARER.finditer(text.lower) if text.may_hold(b"bearer") else ():
        yield _Span(*match.span(1), "bearer token")
    for match in _AUTHORIZATION.finditer(text.lower) if text.may_hold(b"authorization") else ():
        yield _Span(*match.span(1), "credentials")


def _urls(text: _EncodedText) -> Iterator[_Span]:
    for match in _URL.finditer(text.data) if b"@" in text.data else ():
        if is_secret_value("password", match[1], QUOTED):
            yield _Span(*match.span(1), "password")


_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9_-]*")
_KEY_BODY = re.compile(rb"[A-Za-z0-9+/=\s\\]*")
_LONGEST_KEY = 20_000


def _private_keys(text: _EncodedText) -> Iterator[_Span]:
    for match in _KEY_BEGINS.finditer(text.data) if text.may_hold(b"-private key") else ():
        dashes = text.data.find(b"-----", match.end(), match.end() + _LONGEST_KEY)
        end = _KEY_ENDS.match(text.data, dashes) if dashes >= 0 else None
        end = end or _KEY_BODY.match(text.data, match.end())  # without its end: the part that looks like a key
        yield _Span(match.start(), end.end() if end else match.end(), "private key")


_BY = rb"[A-Za-z0-9_-]{0,32}(?P<end>)(?:\\?[\"']?[ \t]{0,4}(?P<by>=>|:=|[=:])[ \t]{0,4}"
_NAMES = [(stem, re.compile(stem + _BY + rb")")) for stem in (b"pass", b"secret", b"token", b"key")]
_FLAGS = re.compile(rb"--(?<![A-Za-z0-9-]--)[a-z-]{0,32}(?:pass|secret|token|key)" + _BY + rb"|[ \t]{1,4})")
_VALUE = re.compile(
    rb"\\\"(?P<escaped>[^\"\\\n]+)\\\""
    rb"|\"(?P<double>[^\"\\\n]*(?:\\.[^\"\\\n]*)*)(?:\"|(?=\n|\Z))"
    rb"|'(?P<single>[^'\\\n]*(?:\\.[^'\\\n]*)*)(?:'|(?=\n|\Z))"
    rb"|(?P<bare>[^\s,;\"'&\\]{1,256})"
)
_BARE = re.compile(rb"[^\s,;\"'&\\]*")
_LONGEST_NAME = 64
_OF_NAMES = (string.ascii_letters + string.digits + "_-").encode()


def _assignments(text: _EncodedText) -> Iterator[_Span]:
    """Find `NAME=value`, `"name": "value"`, `name: value` and `--name value`.

    There are four searches, one for each word of which a name must contain one. They take a tenth of the time of a
    single search for any of them. Each pattern begins with plain letters, because `re` finds these ten times faster.
    """
    patterns = [pattern for stem, pattern in _NAMES if text.may_hold(stem)]
    for pattern in [*patterns, _FLAGS] if patterns and b"--" in text.data else patterns:
        position = 0
        for match in pattern.finditer(text.lower):
            if match.start() >= position and (span := _assigned(text.data, match)) is not None:
                position = span.end
                yield span


def _assigned(data: bytes, match: re.Match[bytes]) -> _Span | None:
    name = _name_before(data, match.start("end"))
    kind = kind_of_name(name.lstrip(b"-"))
    value = _VALUE.match(data, match.end()) if kind is not None else None
    if kind is None or value is None:
        return None
    group = next(group for group, text in value.groupdict().items() if text is not None)
    style = Style(
        quoted=group != "bare",
        colon=match["by"] == b":",
        spaced=match["by"] is not None and match[0].endswith((b" ", b"\t")),
        shouted=name.isupper(),
        last_of_line=data[value.end() : value.end() + 1] in (b"", b"\n", b"\r"),
    )
    if not is_secret_value(kind, value[group], style):
        return None
    start, end = value.span(group)
    return _Span(start, _end_of_bare(data, end) if group == "bare" else end, kind)


def _name_before(data: bytes, end: int) -> bytes:
    """Return the name that ends at `end`, without the letter of a line break that is written as `\\n`."""
    before = data[max(0, end - _LONGEST_NAME) : end]
    name = before[len(before.rstrip(_OF_NAMES)) :]
    escaped = name[:1] in (b"n", b"r", b"t") and before[: len(before) - len(name)].endswith(b"\\")
    return name[1:] if escaped and len(name) > 1 else name


def _end_of_bare(data: bytes, end: int) -> int:
    """Return the end of a value without quotes, which may be longer than the pattern matches."""
    rest = _BARE.match(data, end)
    return rest.end() if rest else end


_RULES: list[Callable[[_EncodedText], Iterator[_Span]]] = [_private_keys, _keys, _headers, _urls, _assignments]
