"""What `cfs doctor` finds out: one thing each, how it is, and what to do about it.

A room adds checks of its own by an entry point of the group `cfs.checks`: a function that yields them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

GROUP = "cfs.checks"

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing and how it is: `error` keeps `cfs serve` from working, `warning` something else."""

    name: str
    status: Status
    found: str
    advice: str = ""


Checks = Callable[[], Iterable[Check]]


def fine(name: str, found: str) -> Check:
    """Report what is as it should be."""
    return Check(name, "ok", found)


def missing(name: str, found: str, advice: str) -> Check:
    """Report what is not there or not right, and not needed by `cfs serve`."""
    return Check(name, "warning", found, advice)


def needed(name: str, found: str, advice: str) -> Check:
    """Report what keeps `cfs serve` from working."""
    return Check(name, "error", found, advice)
