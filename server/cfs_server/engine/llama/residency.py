"""Where the attention state of each session is: in the pool, parked in memory, or nowhere.

The pool's cells and its sequence ids ("slots") are owned here and nowhere else. State that no running turn needs is
parked, least recently used first, when cells or slots are short or when it rested for a while as others compute
(resident but idle state makes every step slower); parked state is dropped when it is over its budget of memory.
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cfs_server.engine.llama.ffi import Context, Tokens


@dataclass(eq=False, slots=True)
class Kept:
    """The computation kept for one session: the tokens it covers, and where it is.

    `pinned` while a turn runs on it. At most one of `slot` and `state` is set; with neither, `tokens` is empty.
    """

    key: str
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    slot: int | None = None
    state: NDArray[np.uint8] | None = None
    pinned: bool = False
    forgotten: bool = False
    used: float = 0.0

    @property
    def sequence(self) -> int:
        """The sequence id, for one that must be in the pool."""
        if self.slot is None:
            raise RuntimeError(f"{self.key!r} is not in the pool")
        return self.slot

    def shared_prefix(self, prompt: Tokens) -> int:
        """Number of leading tokens that are the same in `prompt`."""
        length = min(len(self.tokens), len(prompt))
        different = np.flatnonzero(np.frombuffer(self.tokens, dtype=np.int32)[:length] != prompt[:length])
        return int(different[0]) if len(different) else length


class Residency:
    """Decides whose state is in the pool."""

    def __init__(self, context: Context, parked_bytes: int, idle_seconds: float) -> None:
        self._context = context
        self._parked_limit = parked_bytes
        self._idle_seconds = idle_seconds
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._anonymous = 0
        self._slots = list(range(context.sequences))
        self.parked_bytes = 0

    @property
    def resident(self) -> list[Kept]:
        """Everything that has a slot, least recently used first."""
        return [kept for kept in self._kept.values() if kept.slot is not None]

    @property
    def pinned(self) -> list[Kept]:
        """Everything that an unfinished turn works on."""
        return [kept for kept in self._kept.values() if kept.pinned]

    @property
    def parked(self) -> int:
        """Number of sessions whose state is in memory outside of the pool."""
        return sum(kept.state is not None for kept in self._kept.values())

    @property
    def cells_used(self) -> int:
        """Cells that hold something."""
        return sum(len(kept.tokens) for kept in self.resident)

    @property
    def cells_free(self) -> int:
        """Cells that hold nothing."""
        return self._context.cells - self.cells_used

    def pin(self, key: str) -> Kept:
        """Take what is kept for a session, for one turn; a second turn at the same time starts from nothing."""
        kept = self._kept.get(key)
        if kept is not None and kept.pinned:
            self._anonymous += 1
            key = f"{key}\0{self._anonymous}"
            kept = None
        if kept is None:
            kept = self._kept[key] = Kept(key)
            kept.forgotten = "\0" in key
        kept.pinned = True
        self._kept.move_to_end(key)
        return kept

    def unpin(self, kept: Kept) -> None:
        """Give back after a turn; the state stays for the next one unless its session is gone."""
        kept.pinned = False
        kept.used = time.monotonic()
        if kept.forgotten or (kept.slot is None and kept.state is None):
            self._drop(kept)

    def forget(self, key: str) -> None:
        """Free what is kept for a session now, or at the end of the turn that runs on it."""
        kept = self._kept.get(key)
        if kept is None:
            return
        kept.forgotten = True
        if not kept.pinned:
            self._drop(kept)

    def bring_in(self, kept: Kept, log: Tokens) -> bool:
        """Put a session into the pool with as much of `log` as is known, all but its last token at most.

        False, and nothing changed for this session, when there is no slot or no room for its parked state.
        """
        if kept.slot is None:
            slot = self._take_slot()
            if slot is None:
                return False
            if kept.state is not None and not self._restore(kept, slot):
                self._slots.append(slot)
                return False
            kept.slot = slot
        self._truncate(kept, min(kept.shared_prefix(log), len(log) - 1))
        return True

    def make_room(self, cells: int) -> bool:
        """Park idle sessions until this many cells are free; false when there are no more of them."""
        while self.cells_free < cells:
            if not self.park_longest_idle():
                return False
        return True

    def park_longest_idle(self) -> bool:
        """Park the idle session that was not used for the longest time; false when there is none."""
        idle = next((kept for kept in self.resident if not kept.pinned), None)
        if idle is not None:
            self.park(idle)
        return idle is not None

    def park(self, kept: Kept) -> None:
        """Move a session's state out of the pool, and drop the oldest parked state when it is too much."""
        if kept.slot is None:
            return
        if kept.tokens:
            kept.state = self._context.save(kept.slot)
            self.parked_bytes += kept.state.nbytes
        self._leave(kept)
        for oldest in self._over_budget():
            self.lose(oldest)

    def park_rested(self) -> None:
        """Park what has been idle for a while."""
        limit = time.monotonic() - self._idle_seconds
        for kept in self.resident:
            if not kept.pinned and kept.used < limit:
                self.park(kept)

    def lose(self, kept: Kept) -> None:
        """Forget the computation of a session: its tokens must be evaluated again."""
        if kept.state is not None:
            self.parked_bytes -= kept.state.nbytes
            kept.state = None
        if kept.slot is not None:
            self._leave(kept)
        del kept.tokens[:]
        if not kept.pinned:
            self._kept.pop(kept.key, None)

    def check_integrity(self) -> list[str]:
        """Compare the books with the pool; every line is a violation."""
        held = [kept.sequence for kept in self.resident]
        problems = [f"slot {slot} is held twice" for slot in set(held) if held.count(slot) > 1]
        if sorted([*held, *self._slots]) != list(range(self._context.sequences)):
            problems.append(f"slots are lost: held {held}, free {self._slots}")
        expected = {kept.slot: len(kept.tokens) for kept in self.resident}
        for slot in range(self._context.sequences):
            length = expected.get(slot, 0)
            span = self._context.span(slot)
            if span != ((0, length - 1) if length else (-1, -1)):
                problems.append(f"slot {slot} holds positions {span} in place of {length} tokens")
        states = [kept.state.nbytes for kept in self._kept.values() if kept.state is not None]
        if sum(states) != self.parked_bytes or self.parked_bytes > self._parked_limit:
            problems.append(f"parked are {sum(states)} bytes, booked {self.parked_bytes} of {self._parked_limit}")
        for kept in self._kept.values():
            if kept.slot is not None and kept.state is not None:
                problems.append(f"{kept.key!r} is in the pool and parked")
            if kept.slot is None and kept.state is None and kept.tokens:
                problems.append(f"{kept.key!r} has tokens but no state")
        return problems

    def _take_slot(self) -> int | None:
        if not self._slots:
            self.park_longest_idle()
        return self._slots.pop() if self._slots else None

    def _restore(self, kept: Kept, slot: int) -> bool:
        if kept.state is None or not self.make_room(len(kept.tokens)):
            return False
        if not self._context.restore(slot, kept.state):
            self._context.clear(slot)
            return False
        self.parked_bytes -= kept.state.nbytes
        kept.state = None
        return True

    def _truncate(self, kept: Kept, length: int) -> None:
        if length == len(kept.tokens):
            return
        if not self._context.truncate(kept.sequence, length):
            # Recurrent and hybrid models keep no history to go back to (ENGINE.md): start again.
            self._context.clear(kept.sequence)
            length = 0
        del kept.tokens[length:]

    def _over_budget(self) -> Iterator[Kept]:
        parked = [kept for kept in self._kept.values() if kept.state is not None]
        # State of turns that were put aside in the middle goes last: their readers wait.
        for kept in sorted(parked, key=lambda kept: kept.pinned):
            if self.parked_bytes <= self._parked_limit:
                return
            yield kept

    def _leave(self, kept: Kept) -> None:
        self._context.clear(kept.sequence)
        self._slots.append(kept.sequence)
        kept.slot = None

    def _drop(self, kept: Kept) -> None:
        kept.pinned = False
        self.lose(kept)
