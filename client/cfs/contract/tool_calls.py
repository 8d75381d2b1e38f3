"""Parses the tool calls in a reply: `[CALL:name(arguments)]` is parsed, never evaluated (C8)."""

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

LONGEST_CALL = 16 << 10
"""Maximum characters of one call's arguments; longer ones are refused."""

MOST_ENDS = 32
"""Maximum number of `)]` that are tried as the end of one call."""

MOST_CALLS = 32
"""Maximum calls of one reply; further ones are treated as text."""

_START = re.compile(r"\[CALL:([A-Za-z_][A-Za-z0-9_.-]{0,127})\(")


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call of a reply. With a `refusal` its arguments could not be parsed as literals.

    `id` is set for calls that are separate from the text of the reply.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    id: str | None = None


class NotLiteral(ValueError):
    """The arguments of a call are invalid; the message is for the model."""


def find_calls(reply: str) -> list[ToolRequest]:
    """Return all calls of a reply in order. Text inside a call's strings is not a call."""
    calls: list[ToolRequest] = []
    position = 0
    while len(calls) < MOST_CALLS and (start := _START.search(reply, position)):
        call, position = _read_call(reply, start)
        calls.append(call)
    return calls


def _read_call(reply: str, start: re.Match[str]) -> tuple[ToolRequest, int]:
    """Read the call that begins there; returns it with the place behind it."""
    name, begin = start[1], start.end()
    problem = "its end, ')]', is missing"
    end = begin - 1
    for _ in range(MOST_ENDS):
        end = reply.find(")]", end + 1, begin + LONGEST_CALL)
        if end < 0:
            break
        try:
            parsed = parse_arguments(reply[begin:end])
        except NotLiteral as error:
            return ToolRequest(name, refusal=str(error)), end + 2
        if parsed is not None:
            arguments, keywords = parsed
            return ToolRequest(name, arguments, keywords), end + 2
        problem = "its arguments are no Python literals, like 1, 'text' or key='value'"
    return ToolRequest(name, refusal=problem), begin


def parse_arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Read the arguments of a call; None when the text is no call's arguments, or not all of them.

    Raises `NotLiteral` for what could be arguments, but would have to be evaluated.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a string is the model's, and no defect here
            tree = ast.parse(f"_({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        return None  # "1)(2" closes the call and opens another one
    keywords: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in keywords:
            raise NotLiteral("each keyword must be named once, and '**' is not allowed")
        keywords[keyword.arg] = _literal(keyword.value)
    return tuple(map(_literal, tree.args)), keywords


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        text = ast.unparse(node)[:60] if _is_shallow(node) else "an argument"
        raise NotLiteral(f"{text} is no literal: write the value itself, like 1, 'text', True or [1, 2]") from None


def _is_shallow(node: ast.expr) -> bool:
    return sum(1 for _ in zip(ast.walk(node), range(200), strict=False)) < 200
