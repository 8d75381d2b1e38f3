"""Repetition: the same calls with the same results again and again, also in cycles of two and three (B7). Pure: no I/O.

What changes by itself, such as ids and times, is masked, so that it does not pass for something new. Numbers are not:
an answer that counts up is progress, and who polls for it does no wrong.
"""

import json
import re
from collections import deque
from dataclasses import dataclass

from cfs.wire import ToolCall
from cfs_agents.fibre.guards.words import guard_words
from cfs_agents.sentences import Language
from cfs_agents.tools.results import ToolResult

ROUNDS = {1: 4, 2: 3, 3: 3}
"""How often a cycle of so many calls may come in a row."""

SAME_ERRORS = 5
"""How often the same tool may fail in the same way in a row, whatever it is called with."""

_LONGEST_COMPARED = 20_000

_MASKS = (
    (re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"\b\d\d?:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b1\d{9}(?:\d{3}|\.\d+)?\b"), "<time>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|sec|seconds)\b"), "<time>"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<id>"),
    (re.compile(r"\b(?:pid|process|PID) ?=?:? ?\d+\b"), "<id>"),
)


def masked(text: str) -> str:
    """Replace ids, times and durations by marks."""
    text = text[:_LONGEST_COMPARED]
    for pattern, mark in _MASKS:
        text = pattern.sub(mark, text)
    return text


@dataclass(frozen=True, slots=True)
class Step:
    """A call and its result, as far as they tell anything."""

    name: str
    arguments: str
    result: str
    ok: bool


class Repetitions:
    """Watches the calls of one agent on one task."""

    def __init__(self, language: Language = "en") -> None:
        self._say = guard_words(language)
        self._steps: deque[Step] = deque(maxlen=max(length * often for length, often in ROUNDS.items()))
        self._errors: tuple[str, str, int] = ("", "", 0)

    def clear(self) -> None:
        """Begin anew: somebody has told the agent something."""
        self._steps.clear()
        self._errors = ("", "", 0)

    def see(self, call: ToolCall, result: ToolResult) -> str | None:
        """Take one call in; return in words why it is one too many, if it is."""
        step = Step(call.name, masked(json.dumps(call.arguments, sort_keys=True)), masked(result.text), result.ok)
        self._steps.append(step)
        return self._cycle() or self._same_error(step)

    def _cycle(self) -> str | None:
        steps = list(self._steps)
        for length, often in ROUNDS.items():
            last = steps[-length * often :]
            if len(last) == length * often and all(step == last[at % length] for at, step in enumerate(last)):
                return self._say.repeats.format(", ".join(step.name for step in last[:length]), often)
        return None

    def _same_error(self, step: Step) -> str | None:
        if step.ok:
            self._errors = ("", "", 0)
            return None
        name, text, count = self._errors
        count = count + 1 if (name, text) == (step.name, step.result) else 1
        self._errors = (step.name, step.result, count)
        return self._say.same_error.format(count) if count >= SAME_ERRORS else None
