"""Detects repetition: a model that repeats the same steps (B7), or the same text within a reply.

Both detectors need limited memory, and limited time for each step or piece of text. They do no I/O.
"""

import json
import re
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b

from cfs.wire import ToolCall
from cfs_agents.base.events import ToolResult
from cfs_agents.base.messages import Language, catalogue

LONGEST_CYCLE = 8
"""Maximum number of steps of a cycle that is detected."""

SAME_STEPS = 4
"""How often a step may be the same in a row."""

SAME_CYCLES = 3
"""How often a cycle of several steps may repeat."""

SAME_ERRORS = 5
"""How often a tool may fail with the same error in a row, with any arguments."""

_MASKED_END = 4_000
_in_order = json.JSONEncoder(sort_keys=True).encode
_MOST_NAMED = 4

_KEY = (
    r"(?:[\w-]*[-_])?(?:(?:request|req|trace|span|correlation|run|call|invocation|execution|attempt)[-_]?id"
    r"|(?:cache[-_]?)?bust(?:er|ing)?|cb|rand(?:om)?|salt|nonce|uuid|guid|timestamp|datetime|now|uptime"
    r"|elapsed|duration|latency|took|(?:created|updated|modified|started|finished|ended|generated|served|checked"
    r"|expires|issued|received|sent)[-_]?at|ts|time)(?:[-_](?:ns|us|ms|s|sec|seconds|utc))?"
)
_MASKS = (  # where possible they begin with a character and not with \b, because such a search is faster
    # A key and its value: in JSON, in JSON within a JSON text, in a query or in a header.
    (
        re.compile(
            rf"""(?i)(?<![\w-])(?=[\w-]++\\{{0,4}}["']?\s{{0,9}}[:=])({_KEY}\\{{0,4}}["']?\s{{0,9}}[:=]\s{{0,9}})(?:(\\{{0,4}}["']).*?\2|[^\s,;&}}\])"'\\]+)"""
        ),
        lambda match: f"{match[1]}<any>",  # faster than a template
    ),
    (re.compile(r"[0-9a-fA-F](?<!\w.)[0-9a-fA-F]{7}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\d(?<!\w.)\d{3}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"\d(?<!\w.)\d?:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"1(?<!\w.)\d{9}(?:\d{3}|\.\d+)?\b"), "<time>"),
    (re.compile(r"\d(?<!\w.)\d*(?:\.\d+)? ?(?:ns|us|µs|ms|s|sec|seconds)\b"), "<time>"),
    (re.compile(r"\b(?=[0-9a-f]{7,64}\b)(?=[0-9a-f]*[a-f])[a-f]*\d[0-9a-f]*"), "<id>"),
    (re.compile(r"0x(?<!\w..)[0-9a-fA-F]+\b"), "<id>"),
    (re.compile(r"(?:p(?<!\w.)(?:id|rocess)|P(?<!\w.)ID) ?=?:? ?\d+\b"), "<id>"),
)


def masked(text: str) -> str:
    """Replace ids, times and durations by marks, in a long text only at its beginning and end."""
    if len(text) > 2 * _MASKED_END:
        return masked(text[:_MASKED_END]) + text[_MASKED_END:-_MASKED_END] + masked(text[-_MASKED_END:])
    for pattern, mark in _MASKS:
        text = pattern.sub(mark, text)
    return text


class RepeatedSteps:
    """Detects repeated steps of an agent in one task. A step is the calls of one reply with their results.

    Ids and times are masked, because they differ in each step without progress. Other numbers are not: a growing count
    is progress, so an agent may poll for it.
    """

    def __init__(self, language: Language = "en") -> None:
        self._say = catalogue(language)
        self._steps: deque[tuple[bytes, str]] = deque(maxlen=LONGEST_CYCLE)
        self._same = [0] * (LONGEST_CYCLE + 1)
        self._error: tuple[bytes, int] = (b"", 0)

    def clear(self) -> None:
        """Forget all steps, because the agent has got new input."""
        self._steps.clear()
        self._same = [0] * (LONGEST_CYCLE + 1)
        self._error = (b"", 0)

    def see(self, step: Sequence[tuple[ToolCall, ToolResult]]) -> str | None:
        """Add a step; returns the reason as a sentence if it is one repetition too many, else None."""
        if not step:
            return None
        calls = ((call, _in_order(call.arguments), result) for call, result in step)
        digest = _digest(
            *(f"{call.name} {result.ok} {masked(text + chr(10) + result.text)}" for call, text, result in calls)
        )
        before = list(self._steps)
        for length in range(1, len(before) + 1):  # how many steps in a row equal those one cycle before
            self._same[length] = self._same[length] + 1 if before[-length][0] == digest else 0
        names = [call.name for call, _ in step]
        self._steps.append((digest, ", ".join(names[:_MOST_NAMED]) + ("..." if len(names) > _MOST_NAMED else "")))
        return self._cycle() or self._same_error(step)

    def _cycle(self) -> str | None:
        for length in range(1, LONGEST_CYCLE + 1):
            often = SAME_STEPS if length == 1 else SAME_CYCLES
            if self._same[length] >= length * (often - 1):
                names = [name for _, name in self._steps][-length:]
                return self._say.repeats.format(", ".join(names), often)
        return None

    def _same_error(self, step: Sequence[tuple[ToolCall, ToolResult]]) -> str | None:
        for call, result in step:
            error, count = self._error
            digest = b"" if result.ok else _digest(call.name, masked(result.text))
            self._error = (digest, (count + 1 if digest == error else 1) if digest else 0)
            if self._error[1] >= SAME_ERRORS:
                return self._say.same_error.format(self._error[1])
        return None


def _digest(*parts: str) -> bytes:
    hasher = blake2b(digest_size=16)
    for part in parts:
        hasher.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return hasher.digest()


_WINDOW = 8_192
"""Number of characters of a text that are kept."""

_LOOK_EVERY = 64
_PROBE = 24
_MOST_PROBES = 4
_LEAST, _LEAST_CUT_OFF, _LEAST_WITHOUT_WORDS = 1_000, 200, 4_000
_WORD = re.compile(r"\b[A-Za-z]*([A-Za-z])(?!\1)[A-Za-z]+\b")
_IDEOGRAPHS = re.compile(r"[\u2e80-\uffdc]+")


class RepeatedText:
    """Detects that a text, which arrives in pieces, ends with many repetitions of one passage.

    Only exact repetitions without anything between them count, because tables, lists and code have similar lines. The
    repetitions must have about 1,000 characters and be six in number, or fewer if the passage is long. Text without
    words, such as rulers and zeros, needs 4,000 characters.
    """

    def __init__(self) -> None:
        self._tail = ""
        self._new: list[str] = []
        self._size = 0

    def feed(self, piece: str) -> bool:
        """Add the next piece; returns whether the text only repeats itself now."""
        self._new.append(piece)
        self._size += len(piece)
        if self._size < _LOOK_EVERY:
            return False
        self._tail = (self._tail + "".join(self._new))[-_WINDOW:]
        self._new, self._size = [], 0
        return _repeats(self._tail)


def ends_repeating(text: str) -> bool:
    """Return whether a truncated text ends with at least three repetitions of a passage."""
    return _repeats(text[-_WINDOW:], cut_off=True)


def _repeats(text: str, *, cut_off: bool = False) -> bool:
    """Return whether a text ends with many repetitions of a passage.

    The distance between the last characters and their previous occurrence is the length of the passage.
    """
    probe, position = text[-_PROBE:], len(text) - _PROBE
    for _ in range(_MOST_PROBES):
        position = text.rfind(probe, 0, max(0, position + _PROBE - 1))
        if position < 0:
            return False
        length = len(text) - _PROBE - position
        often = 3 * length if cut_off else min(6 * length, 2 * length + 2_000)
        needed = max(often, _least(text[-length:], _LEAST_CUT_OFF if cut_off else _LEAST))
        if len(text) >= needed and text[-needed:-length] == text[length - needed :]:
            return True
    return False


def _least(passage: str, usual: int) -> int:
    """Return the least length of repetitions of this passage; ideographs need a third, because each is a word."""
    if sum(map(len, _IDEOGRAPHS.findall(passage))) * 2 > len(passage) > 1:
        return usual // 3
    has_words = any(map(str.isspace, passage)) and _WORD.search(passage * 2)
    return usual if has_words else _LEAST_WITHOUT_WORDS
