"""Finds sessions whose names look like a new one (S1).

Only names that folding changes are indexed: the others are found by the folded form itself. So the index costs nothing
for plain names, and a creation looks at no more than the names that look alike.
"""

import unicodedata
from collections.abc import Container, Iterator

from cfs_filesystem.look_alikes import folded


class LookAlikes:
    """An index of the root sessions of a store by what their names look like."""

    def __init__(self, names: Container[str]) -> None:
        """Begin without names. `names` are all sessions of the store."""
        self._names = names
        self._folded: dict[str, set[str]] = {}

    def add(self, name: str) -> None:
        """Add a name."""
        if (form := folded(name)) != name:
            self._folded.setdefault(form, set()).add(name)

    def remove(self, name: str) -> None:
        """Remove a name."""
        if (form := folded(name)) != name:
            names = self._folded[form]
            names.remove(name)
            if not names:
                del self._folded[form]

    def of(self, name: str) -> Iterator[str]:
        """Yield the other names that look like this one."""
        form = folded(name)
        if form != name and form in self._names:
            yield form
        yield from sorted(self._folded.get(form, set()) - {name})

    def check_integrity(self, names: set[str]) -> None:
        """Raise `AssertionError` unless exactly these names are indexed."""
        if {name for names in self._folded.values() for name in names} != {n for n in names if folded(n) != n}:
            raise AssertionError("the index of names that look alike and the sessions differ")


def difference(name: str, other: str) -> str:
    """Describe the characters that only one of two names has, so that a person can tell them apart."""
    signs = sorted(set(name) ^ set(other))
    return ", ".join(f"U+{ord(sign):04X} {unicodedata.name(sign, '')}".strip() for sign in signs) or "their spaces"
