"""Tool calls as JSON: the end of the JSON, and the calls in it."""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

_OUTSIDE = re.compile(r'["{}\[\]]')


_INSIDE = re.compile(r'["\\]')


_ARGUMENTS = ("arguments", "parameters")


_KEYS = frozenset({"name", "type", "id", "function", *_ARGUMENTS})


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call in a reply: the tool's name and its arguments, a JSON object."""

    name: str
    arguments: dict[str, Any]

    @property
    def json(self) -> str:
        """The arguments as text."""
        return json.dumps(self.arguments, ensure_ascii=False)


class JsonEnd:
    """Finds where an object or array ends that begins at `start` of a text which may still grow.

    Brackets are counted and strings skipped; whether it is JSON at all is another question. No character is looked at
    twice.
    """

    def __init__(self, start: int) -> None:
        self._at = start
        self._depth = 0
        self._quoted = False

    def find(self, text: str) -> int | None:
        """Return the index after the end, or None until the end arrives."""
        while match := (_INSIDE if self._quoted else _OUTSIDE).search(text, self._at):
            mark = match[0]
            if mark == "\\":
                if match.end() == len(text):
                    self._at = match.start()
                    return None
                self._at = match.end() + 1
                continue
            self._at = match.end()
            if mark == '"':
                self._quoted = not self._quoted
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    return self._at
        self._at = len(text)
        return None


def calls_in(text: str, *, strict: bool) -> list[FoundCall]:
    """Parse the call, or the list of calls, in a piece of JSON; empty when it contains something else.

    `strict` accepts only JSON with a name, arguments and no member that a call does not have. It is for JSON without a
    mark.
    """
    value = read_json(text)
    values = value if isinstance(value, list) else [value]
    calls = [_call(entry, strict=strict) for entry in values]
    complete = [call for call in calls if call is not None]
    return complete if len(complete) == len(calls) else []


def read_json(text: str) -> Any:
    """Read JSON, line breaks in strings included, that can be written as JSON and UTF-8 again; else None."""
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


def may_be_call(text: str) -> bool:
    """Whether an incomplete piece of JSON may still be a call, judged by its first key."""
    return _BEGINNING.fullmatch(text) is not None or _FIRST_KEY.match(text) is not None


_FIRST_KEY = re.compile(r'\s*(\[\s*)?\{\s*"(' + "|".join(sorted(_KEYS)) + r')"')


_BEGUN_KEY = "|".join(sorted(key[:size] for key in _KEYS for size in range(len(key) + 1)))


_BEGINNING = re.compile(r"\s*(\[\s*)?(\{\s*(\"(" + _BEGUN_KEY + "))?)?")


def _call(value: Any, *, strict: bool) -> FoundCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        if strict and value.keys() - _KEYS:
            return None
        return _call(value["function"], strict=strict)
    name = value.get("name")
    keys = [key for key in _ARGUMENTS if key in value]
    if not isinstance(name, str) or not name or len(keys) > 1:
        return None
    if strict and (not keys or value.keys() - _KEYS):
        return None
    arguments = value[keys[0]] if keys else {}
    if isinstance(arguments, str):  # some write the arguments' JSON as a string
        arguments = read_json(arguments) if arguments.strip() else {}
    elif arguments is None and not strict:
        arguments = {}
    return FoundCall(name, arguments) if isinstance(arguments, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
