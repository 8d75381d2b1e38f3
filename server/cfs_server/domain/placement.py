"""Decides where sessions belong: from a name to a slot, and from a slot to a replica. Pure: no I/O.

A *slot* is one part of all sessions, with a store of its own. A *replica* is one server. The name of a session's root
gives its slot. The living replicas give the place of each slot: every replica computes the same plan from the same
view, so no replica leads. A plan moves few slots when a replica comes or goes, and no replica has more than its part.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

SLOTS = 16
"""Slots of a new store. Their number never changes, and is the maximum number of replicas that share the work."""
OPENINGS = 8
"""Slots that a replica opens at a time. The first of many replicas that start leaves the others to those that come."""

_BASES = (
    re.compile(r"\.(.+)\.sw[a-z]"),  # vim
    re.compile(r"\.#(.+)"),  # emacs
    re.compile(r"\._(.+)"),  # macOS
    re.compile(r"#(.+)#"),
    re.compile(r"(.+)~"),
    re.compile(r"(.+?)(?:\.[0-9a-f]{6,16})?\.partial"),  # rclone
    re.compile(r"\.(.+)\.[A-Za-z0-9]{6}"),  # rsync
)
"""Names of temporary files that contain the name of the file they belong to."""


def slot_of(name: str, slots: int) -> int:
    """Return the slot in which a session is created: that of the name of its root.

    A program's temporary file is in the slot of the session that it belongs to, where its name says which one.
    """
    root = name.partition("/")[0]
    root = next((match[1] for base in _BASES if (match := base.fullmatch(root)) is not None), root)
    return int.from_bytes(hashlib.blake2b(root.encode("utf-8", "surrogatepass"), digest_size=8).digest()) % slots


def assign(slots: int, replicas: Iterable[str], owners: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Return the replica of each slot; empty without replicas.

    All replicas get equally many slots; where that is impossible, some get one more. `owners` are the present owners:
    they keep as many of their slots as that allows. Each other slot ranks the replicas by a hash (rendezvous hashing)
    and takes the first one that has room. A plan does not change while it is carried out, in whatever order.
    """
    return _plan(slots, tuple(sorted(set(replicas))), tuple(owners))


@lru_cache(maxsize=8)
def _plan(slots: int, living: tuple[str, ...], owners: tuple[str | None, ...]) -> tuple[str, ...]:
    """Make a plan. It is asked for several times a second, and seldom another one."""
    if not living:
        return ()
    base_count, more = divmod(slots, len(living))
    held: dict[str, list[int]] = {name: [] for name in living}
    for slot, owner in enumerate(owners):
        if owner in held:
            held[owner].append(slot)
    larger = set([name for name in living if len(held[name]) > base_count][:more])  # these have one more
    plan: dict[int, str] = {}
    for name, owned in held.items():
        part = base_count + (name in larger)
        retained = (
            sorted(owned, key=lambda slot: _weight(slot, name), reverse=True)[:part] if len(owned) > part else owned
        )
        plan |= dict.fromkeys(retained, name)
        held[name] = retained
    counts = {name: len(slots_of_replica) for name, slots_of_replica in held.items()}
    for slot in range(slots):
        if slot in plan:
            continue
        max_slots = base_count + (len(larger) < more)
        chosen = next(name for name in _ranking(slot, living) if name not in larger and counts[name] < max_slots)
        if counts[chosen] == base_count:
            larger.add(chosen)
        counts[chosen] += 1
        plan[slot] = chosen
    return tuple(plan[slot] for slot in range(slots))


@lru_cache(maxsize=4096)
def _ranking(slot: int, replicas: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(replicas, key=lambda replica: _weight(slot, replica), reverse=True))


def _weight(slot: int, replica: str) -> bytes:
    return hashlib.blake2b(f"{slot}\n{replica}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot as the database shows it. `held` says whether its owner is there: connected, or heard of lately."""

    slot: int
    epoch: int
    owner: str | None
    held: bool


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as the database shows it. One that is `leaving` keeps what it has until others take it."""

    id: str
    url: str
    alive: bool
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Moves:
    """What one replica has to do: slots to claim now, and slots to hand over when they can be."""

    claim: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def moves_of(
    me: str,
    slots: Sequence[SlotView],
    replicas: Mapping[str, ReplicaView],
    late: Mapping[int, int] = MappingProxyType({}),
    room: int = OPENINGS,
) -> Moves:
    """Return what a replica has to do in this view. `room` is the number of slots that it may claim now.

    A slot without an owner is claimed by the replica that the plan names. If that replica does not do so in time,
    others do: as many as `late` says, the first ones in the slot's order. A slot is handed over if the plan names
    another replica. A replica that leaves hands over everything, and claims nothing.
    """
    staying = tuple(sorted(one.id for one in replicas.values() if one.alive and not one.leaving))
    mine = [view.slot for view in slots if view.owner == me]
    if me not in staying:
        return Moves((), tuple(mine))
    plan = assign(len(slots), staying, [view.owner for view in slots])
    free = [view.slot for view in slots if not view.held]
    claim = [
        slot for slot in free if plan[slot] == me or (slot in late and me in _ranking(slot, staying)[: late[slot]])
    ]
    return Moves(tuple(claim[: max(0, room)]), tuple(slot for slot in mine if plan[slot] != me))


def slot_in(key: str, slots: int) -> int:
    """Return the slot that a session's key contains. A key that no store made is in any slot."""
    return int(key[:4], 16) % slots


def new_key(slot: int) -> str:
    """Return a new key for a session in a slot: it stays there under any name."""
    return f"{slot:04x}{uuid.uuid4().hex[4:]}"
