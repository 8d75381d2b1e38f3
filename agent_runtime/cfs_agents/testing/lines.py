"""The lines of a script: what a model says, which tools it calls, how it fails. Pure: no I/O."""

import json
from dataclasses import dataclass, replace
from typing import Any

from cfs.errors import CfsError
from cfs.wire import FinishReason, Usage
from cfs_agents.llm import Retrying


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a script: a reply, or how one fails. Made by `says`, `calls` and their like.

    `calls` are names with the JSON text of their arguments. After its pieces the line raises `error`; with `retrying`
    it breaks off, and the next line is the reply that was asked for again. `delay` is in seconds of the model's clock.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    error: CfsError | None = None
    retrying: Retrying | None = None
    delay: float = 0.0
    usage: Usage | None = None
    finish_reason: FinishReason | None = None


def says(text: str, *, thinking: str = "", delay: float = 0.0, usage: Usage | None = None) -> Line:
    """Answer in words."""
    return Line(text, thinking, delay=delay, usage=usage)


def calls(name: str, /, **arguments: Any) -> Line:
    """Call a tool."""
    return Line(calls=((name, json.dumps(arguments, ensure_ascii=False)),))


def garbles(name: str, arguments: str, /) -> Line:
    """Call a tool with arguments in this text, which may be no JSON."""
    return Line(calls=((name, arguments),))


def raises(error: CfsError, *, after: str = "") -> Line:
    """Fail, after some text or at once."""
    return Line(after, error=error)


def breaks_off(text: str = "", *, reason: str = "the connection was lost", seconds: float = 1.0) -> Line:
    """Begin a reply that breaks off and is asked for again; the next line of the script is that one."""
    return Line(text, retrying=Retrying(reason, seconds))


def cut_off(line: Line) -> Line:
    """Let a reply end at its limit of tokens."""
    return replace(line, finish_reason="length")


def together(first: Line, *others: Line) -> Line:
    """Say and call several things in one reply."""
    for line in others:
        first = replace(
            first,
            text=first.text + line.text,
            thinking=first.thinking + line.thinking,
            calls=first.calls + line.calls,
            error=first.error or line.error,
            delay=first.delay + line.delay,
            usage=line.usage or first.usage,
        )
    return first
