"""The names of one slot: which sessions may be created in it, and which were moved to another slot (S14).

A session is created in the slot of its name, and stays in its slot when it gets another name. The new name then belongs
to another slot, its *home*. The owner of the home notes where the name is now (a `NameLocation`), so that there is
never a second session of this name. A note outlives the session: a new one of this name is created where the note says.

Each note has a random mark. A request that was sent to a slot because of a note carries the mark. When the home gives
the name away again, the slot refuses the old mark, so that no request on its way can create the name twice.
"""

import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from cfs_server.http.idempotency import Documents

SPACE = "cluster.names"
_REFUSED = 4_096
"""Number of old marks that a slot remembers. A request carries its mark for some seconds only."""


@dataclass(frozen=True, slots=True)
class NameLocation:
    """Where a name is that is not in the slot of its name."""

    slot: int
    mark: str


class Names:
    """The names of one slot. All methods run on the event loop of its owner."""

    def __init__(self, slot: int, home_of: Callable[[str], int], documents: Documents) -> None:
        """Read the notes. `home_of` returns the slot of a name."""
        self._slot = slot
        self._home_of = home_of
        self._documents = documents
        self._moved = {name: NameLocation(**json.loads(document)) for name, document in documents.kept(SPACE).items()}
        self._granted: dict[str, str] = {}
        self._refused: OrderedDict[str, None] = OrderedDict()

    def may_create(self, name: str) -> bool:
        """Return whether a session with this root may be created in this slot."""
        return name in self._granted or (self._home_of(name) == self._slot and name not in self._moved)

    def place(self, name: str) -> NameLocation | None:
        """Return the note about a name whose home is this slot; None if there is none."""
        return self._moved.get(name)

    def admit(self, name: str, mark: str | None) -> bool:
        """Accept a request that was sent here because of a note, if its mark is still valid."""
        if mark is None or mark in self._refused:
            return self.may_create(name)
        self._granted[name] = mark
        return True

    def note(self, name: str, slot: int) -> NameLocation:
        """Note that a name of this home is in another slot now. The caller has checked that it is nowhere else."""
        location = NameLocation(slot, secrets.token_hex(8))
        if slot == self._slot:  # it is back at its home
            self._moved.pop(name, None)
            self._documents.keep(SPACE, name, None)
        else:
            self._moved[name] = location
            self._documents.keep(SPACE, name, json.dumps({"slot": slot, "mark": location.mark}))
        return location

    def grant(self, name: str, mark: str) -> bool:
        """Allow a name here that its home has given to this slot. Returns False if it was given up before this arrived.

        The home may give the name away again while its answer is on its way here.
        """
        if mark in self._refused:
            return False
        self._granted[name] = mark
        return True

    def give_up(self, name: str, mark: str) -> None:
        """Refuse a name here from now on. The caller has checked that no session here has it."""
        self._granted.pop(name, None)
        self._refused[mark] = None
        while len(self._refused) > _REFUSED:
            self._refused.popitem(last=False)
