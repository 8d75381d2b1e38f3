"""Checks of `cfs doctor`.

A package adds checks through an entry point of the group `cfs.checks`: a function that yields them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

GROUP = "cfs.checks"
Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: an `error` prevents `cfs serve`, a `warning` affects something else."""

    name: str
    status: Status
    found: str
    advice: str = ""


Checks = Callable[[], Iterable[Check]]


def fine(name: str, state: str) -> Check:
    """Report a passed check."""
    return Check(name, "ok", state)


def missing(name: str, state: str, advice: str) -> Check:
    """Report a problem that does not affect `cfs serve`."""
    return Check(name, "warning", state, advice)


def needed(name: str, state: str, advice: str) -> Check:
    """Report a problem that prevents `cfs serve`."""
    return Check(name, "error", state, advice)
