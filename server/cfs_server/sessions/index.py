"""The sessions of a store: by id, by key, as a tree, and by what their names look like (S1, S2, S12).

Of the names that look alike only those that folding changes are indexed: the others are found by the folded form
itself. So this index costs nothing for plain names, and a creation looks at no more than the names that look alike.
"""

import unicodedata
from bisect import bisect_left, insort
from collections.abc import Container, Iterator, Mapping, Sequence

from cfs_filesystem.look_alikes import folded
from cfs_server.domain.ids import parent_of
from cfs_server.sessions.session import Session


class SessionIndex(Mapping[str, Session]):
    """The sessions by id. Roots, and the children of each session, are listed in the order of their ids."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._children: dict[str, list[str]] = {}
        self.roots: list[str] = []
        self.look_alikes = LookAlikes(self._by_id)
        """The root sessions by what their names look like."""

    def __getitem__(self, session_id: str) -> Session:
        return self._by_id[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._by_id

    def with_key(self, key: str) -> Session | None:
        """Return the session with this key, whatever its id is now."""
        return self._by_key.get(key)

    def children(self, session_id: str) -> Sequence[str]:
        """Return the ids of the direct sub-sessions."""
        return self._children.get(session_id, [])

    def add(self, session: Session) -> None:
        """Add a session."""
        self._by_id[session.id] = self._by_key[session.key] = session
        insort(self._siblings(session.id), session.id)
        if parent_of(session.id) is None:  # the names of sub-sessions have only plain characters
            self.look_alikes.add(session.id)

    def remove(self, session_id: str) -> Session:
        """Remove a session, and return it."""
        session = self._by_id.pop(session_id)
        del self._by_key[session.key]
        if parent_of(session_id) is None:
            self.look_alikes.remove(session_id)
        siblings = self._siblings(session_id)
        del siblings[bisect_left(siblings, session_id)]
        if not siblings and (parent := parent_of(session_id)) is not None:
            del self._children[parent]
        return session

    def _siblings(self, session_id: str) -> list[str]:
        parent = parent_of(session_id)
        return self.roots if parent is None else self._children.setdefault(parent, [])

    def check_integrity(self) -> None:
        """Raise `AssertionError` if ids, keys, families or sessions contradict each other."""
        self.look_alikes.check_integrity(set(self.roots))
        listed = self.roots + [child for children in self._children.values() for child in children]
        if sorted(listed) != sorted(self._by_id) or self.roots != sorted(self.roots):
            raise AssertionError("the listing and the sessions differ")
        if len(self._by_key) != len(self._by_id):
            raise AssertionError("sessions are known by other keys")
        for name, session in self._by_id.items():
            if self._by_key.get(session.key) is not session:
                raise AssertionError(f"{name} is not known by its key")
            if session.id != name or session.deleted:
                raise AssertionError(f"{name} holds {session.id}")
            if (parent := parent_of(name)) is not None and parent not in self._by_id:
                raise AssertionError(f"{name} has no parent")


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
