"""Divides texts into words for the search, reads what somebody searches for, and finds it in a text.

A word is a run of letters and digits, without regard to case. Each Chinese, Japanese or Korean character, and each
symbol such as an emoji, is a word of its own: so words of two characters are found as phrases, without a dictionary.
The stores index these words, so what they find and what `SearchQuery.match` finds is the same.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self
from unicodedata import normalize, unidata_version

from cfs.errors import InvalidParameters

FORMAT = f"1 {unidata_version}"
"""Names how texts are divided. An index of another format is built again."""
MAX_LETTERS = 64
"""Characters of a word that count. Longer ones are data, such as base64."""
_MIN_PREFIX = 2
"""Characters before a `*`. Shorter beginnings stand for too many words."""
_BEFORE, _AFTER = 60, 140
"""Characters of an excerpt before and after the beginning of the first match."""
_SESSIONS_AT_ONCE = 400
"""Sessions that one query of an index names."""
_ALONE = (
    "\u2190-\u2bff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d"
    "\U0001f000-\U0001faff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}](?:[^\W_{_ALONE}]|[\u0300-\u036f])*")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_PART = re.compile(r'"([^"]*)"(\*?)|(\S+)')


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, as they are compared."""
    if text.isascii():
        return [word[:MAX_LETTERS] for word in _ASCII_WORD.findall(text.lower())]
    return [_fold(word) for word in _WORD.findall(text)]


def _fold(word: str) -> str:
    folded = word.lower() if word.isascii() else normalize("NFC", word).casefold()
    return folded[:MAX_LETTERS]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a text, and where the words are in it, in characters. `begin` is the first match in the whole text."""

    text: str
    ranges: tuple[tuple[int, int], ...]
    begin: int


@dataclass(frozen=True, slots=True)
class Term:
    """Words that follow each other. With `prefix`, the last one is the beginning of a word."""

    words: tuple[str, ...]
    prefix: bool = False

    def starts(self, words: list[str]) -> list[int]:
        """Return where the term begins in a list of words."""
        *before, last = self.words
        count = len(before)
        ends = (index for index, word in enumerate(words) if word == last or (self.prefix and word.startswith(last)))
        return [end - count for end in ends if end >= count and words[end - count : end] == before]


@dataclass(frozen=True)
class SearchQuery:
    """What somebody searches for: all of the terms must occur in a text, in any order."""

    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read words, "phrases" and beginnings (`word*`). What is none of these is taken as it stands.

        Raises `InvalidParameters` if there is no word, or a beginning is too short.
        """
        terms: list[Term] = []
        for match in _PART.finditer(text):
            phrase, star, word = match.groups()
            prefix = bool(star) if word is None else word.endswith("*")
            words = tuple(words_of(phrase if word is None else word))
            if words:
                terms.append(Term(words, prefix))
        if not terms:
            raise InvalidParameters(f"{text!r} contains no word: search for letters, digits or symbols")
        for term in terms:
            if term.prefix and len(term.words) == 1 and len(last := term.words[0]) < _MIN_PREFIX and last.isascii():
                raise InvalidParameters(f"'{last}*' stands for too many words: write at least {_MIN_PREFIX} letters")
        return cls(tuple(dict.fromkeys(terms)))

    @cached_property
    def words(self) -> frozenset[str]:
        """All words of the terms. Each is part of each text that matches."""
        return frozenset(word for term in self.terms for word in term.words)

    def score(self, text: str) -> float:
        """Estimate how much a text is about the words, from 0 to 1; 0 if it cannot match. Fast.

        Counts occurrences, and less of them in a longer text.
        """
        folded = text.lower() if text.isascii() else normalize("NFC", text).casefold()
        total, length = 0.0, 0.5 + len(text) / 400
        for word in self.words:
            count = folded.count(word)
            if not count:
                return 0.0
            total += count / (count + length)
        return round(total / len(self.words), 1) or 0.05

    def match(self, text: str) -> Excerpt | None:
        """Return the part of a text around the first match, with all matches in it; None if not all terms occur."""
        spans = [(match.start(), match.end()) for match in _WORD.finditer(text)]
        words = [_fold(text[begin:end]) for begin, end in spans]
        ranges: list[tuple[int, int]] = []
        for term in self.terms:
            starts = term.starts(words)
            if not starts:
                return None
            ranges += [(spans[start][0], spans[start + len(term.words) - 1][1]) for start in starts]
        return _excerpt(text, sorted(ranges))


def _excerpt(text: str, ranges: list[tuple[int, int]]) -> Excerpt:
    first, last = ranges[0]
    begin, end = max(0, first - _BEFORE), min(len(text), max(last, first + _AFTER))
    shift = (1 if begin else 0) - begin
    marks: list[tuple[int, int]] = []
    for start, stop in ranges:
        if stop > end:
            continue
        if marks and start + shift <= marks[-1][1]:  # terms may overlap
            marks[-1] = marks[-1][0], max(stop + shift, marks[-1][1])
        else:
            marks.append((start + shift, stop + shift))
    return Excerpt(("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else ""), tuple(marks), first)


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which messages to find: those with some words, of one role or all, and since a time in seconds."""

    query: SearchQuery
    role: str | None = None
    since: float = 0.0

    def alternatives(self, keys: Sequence[str] | None) -> list[list[str]]:
        """Return words of which a document must have one each: of the role, and of the sessions with these keys."""
        roles, sessions = [self.role] if self.role else [], keys or ()
        return [words for words in (list(map(_role_word, roles)), list(map(_session_word, sessions))) if words]


def parts_of(keys: Sequence[str] | None) -> list[Sequence[str] | None]:
    """Divide the keys of sessions into as many as one query of an index can name; None stands for all sessions."""
    if keys is None:
        return [None]
    return [keys[start : start + _SESSIONS_AT_ONCE] for start in range(0, len(keys), _SESSIONS_AT_ONCE)]


def document_words(role: str, key: str, content: str) -> list[str]:
    """Return the words under which a message of a session is indexed; none if its content has none.

    The first two, for its role and its session, cannot occur in a content.
    """
    words = words_of(content)
    return [_role_word(role), _session_word(key), *words] if words else []


def _role_word(role: str) -> str:
    return f"\ue000{role[0]}"


def _session_word(key: str) -> str:
    return f"\ue001{key}"
