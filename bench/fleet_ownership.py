"""Simulates who owns the slots of many replicas while replicas, networks and the database fail (`scripts/bench fleet`).

Real are the policy (`cfs_server.domain.placement`) and its times. Simulated are the clock, the database, and what a
replica does with the policy's result, as in `cfs_server.cluster.replica` and `PostgresBackend`: it looks at the
directory, claims slots, opens them one after another, and hands them over. A run is repeated by its seed.

A replica *answers* for a slot while its process runs, has opened the slot, and believes that it still owns it. The
ledger counts the times without an answer and those with two.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Literal

from cfs_server.cluster.directory import _BEAT_SECONDS, _TIMEOUT_SECONDS, LEASE_SECONDS, SETTLING_SECONDS
from cfs_server.cluster.replica import _HANDOVER_SECONDS, _LOOK_SECONDS, _URGENT_SECONDS
from cfs_server.domain.placement import OPENINGS, ReplicaView, SlotView, assign, moves_of

ROUND_TRIP = 0.001
CLAIM = 0.010
"""A new connection, the lock, the row of the slot, and the commit."""
CLOSE = 0.020
"""The end of a slot's application, when no turn runs in it."""
OPEN = 0.020
OPEN_SESSION = 20e-6
"""Processor time to open a slot, and for each of its sessions: from the starts in docs/benchmarks.md."""


class Why(Enum):
    """Why a slot got another owner."""

    RELEASED = "released by its owner"
    DEAD = "the owner's process had ended"
    EXPIRED = "the owner was frozen or cut off"
    UNJUSTIFIED = "the owner was there"


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of `Replica` and `Directory` that a run may replace, to compare. The defaults are those of a first version.

    `by_beat`: an owner's lease counts from its last heartbeat, not from its last look at the directory.
    `from_memory`: when an owner that cannot reach the database answers on: `always`, `never` beyond its lease, or in an
    `outage` only: while no other replica reaches it.
    `settling`: a replica that has just connected takes all others to be there for `SETTLING_SECONDS`.
    """

    by_beat: bool = False
    from_memory: Literal["always", "outage", "never"] = "always"
    settling: bool = False


@dataclass(slots=True)
class SlotRow:
    """A row of the table of slots. `holder` is the process whose connection has the lock of the slot."""

    epoch: int = 0
    owner: str | None = None
    holder: "Process | None" = None
    served_by: str | None = None
    """The last replica that answered: not in the database, for the ledger."""


@dataclass(slots=True)
class Hosted:
    """A slot at a process: being opened until it serves."""

    slot: int
    epoch: int = 0
    serves: bool = False
    leaving: bool = False


class Database:
    """The tables and locks that the replicas share."""

    def __init__(self, slots: int) -> None:
        self.rows = [SlotRow() for _ in range(slots)]
        self.beats: dict[str, float] = {}
        self.leaving: set[str] = set()
        self.locks: dict[str, Process] = {}
        self.is_up = True
        self.restarts = 0
        self.version = 0
        """Grows with each change of owners and of replicas, but not with heartbeats."""
        self.statements: Counter[str] = Counter()
        self._alive: dict[bool, tuple[float, frozenset[str]]] = {}
        """By `by_locks`: until when it holds unless something else happens, and who is alive."""
        self._views: dict[tuple[int, frozenset[str]], tuple[list[SlotView], dict[str, ReplicaView]]] = {}

    def view(self, alive: frozenset[str]) -> tuple[list[SlotView], dict[str, ReplicaView]]:
        """Return the directory, in which these replicas are alive."""
        key = self.version, alive
        if key not in self._views:
            if len(self._views) > 8:
                self._views.clear()
            slots = [SlotView(number, row.epoch, row.owner, row.owner in alive) for number, row in enumerate(self.rows)]
            there = {name: ReplicaView(name, name, name in alive, name in self.leaving) for name in self.beats}
            self._views[key] = slots, there
        return self._views[key]

    def alive(self, now: float, *, by_locks: bool) -> frozenset[str]:
        """Return the replicas with a heartbeat, and with their lock if that counts."""
        until, found = self._alive.get(by_locks, (0.0, frozenset()))
        if now >= until:
            there = {name: beat for name, beat in self.beats.items() if now - beat < LEASE_SECONDS}
            found = frozenset(name for name in there if not by_locks or name in self.locks)
            self._alive[by_locks] = min(there.values(), default=now) + LEASE_SECONDS, found
        return found

    def beat(self, name: str, now: float) -> None:
        """Write a heartbeat."""
        if now - self.beats.get(name, -1e9) >= LEASE_SECONDS:
            self._alive.clear()
        self.beats[name] = now
        self.statements["beat"] += 1

    def connect(self, process: "Process") -> None:
        """Make a connection, which takes the lock of the replica if it is free."""
        self.locks.setdefault(process.name, process)
        self.statements["connect"] += 1
        self._alive.clear()

    def forget(self, name: str) -> None:
        """Remove a replica that has ended in order."""
        if self.is_up and self.beats.pop(name, None) is not None:
            self.leaving.discard(name)
            self.version += 1
            self._alive.clear()

    def restart(self) -> None:
        """End all connections, and with them all locks."""
        self.is_up = False
        self.restarts += 1
        self.locks.clear()
        self._alive.clear()
        for row in self.rows:
            row.holder = None

    def drop(self, process: "Process") -> None:
        """End all connections of a process, and with them its locks."""
        if self.locks.get(process.name) is process:
            del self.locks[process.name]
            self._alive.clear()
        for row in self.rows:
            if row.holder is process:
                row.holder = None


class Ledger:
    """For how long slots had no replica that answers, or two; and why slots moved."""

    def __init__(self, slots: int) -> None:
        self.answering: list[set[Process]] = [set() for _ in range(slots)]
        self.gaps: list[float] = []
        self.overlaps: list[tuple[float, bool]] = []
        """Their seconds, and whether one of both could not reach the database."""
        self.moves: Counter[Why] = Counter()
        self.refused = 0
        """Claims that came too late, or for nothing."""
        self._since: dict[int, float] = {}
        self._begun: dict[int, tuple[float, bool]] = {}

    def change(self, now: float, slot: int, process: "Process", *, answers: bool) -> None:
        """Note that a process answers for a slot from now on, or does not."""
        there = self.answering[slot]
        if len(there) == 2 and not answers and process in there:
            begun, problem = self._begun.pop(slot)
            self.overlaps.append((now - begun, problem or any(each.problem for each in there)))
        (there.add if answers else there.discard)(process)
        if not there:
            self._since.setdefault(slot, now)
        elif slot in self._since:
            self.gaps.append(now - self._since.pop(slot))
        if len(there) == 2 and answers:
            self._begun.setdefault(slot, (now, any(each.problem for each in there)))

    def unowned(self) -> list[int]:
        """Return the slots for which no replica answers."""
        return [slot for slot, there in enumerate(self.answering) if not there]

    def clear(self) -> None:
        """Forget what happened, but not who answers."""
        self.gaps, self.overlaps, self.refused = [], [], 0
        self.moves.clear()


class Process:
    """A replica's process. `problem` says that it could not reach the database when it last tried."""

    def __init__(self, name: str, fleet: "Fleet") -> None:
        self.name = name
        self.fleet = fleet
        self.runs = True
        self.problem = False
        self.hosted: dict[int, Hosted] = {}
        self.cut_until = self.frozen_until = 0.0
        self.answers = False
        self.leaving = False
        self._asked_at = self._beat_at = self._connected_at = -1e9
        self._connection: int | None = None
        """Before which restart of the database it was made."""
        self._free_since: dict[int, float] = {}
        self._busy_until = 0.0
        self._seen: object = None
        self._watched = False

    # -- what it believes -----------------------------------------------------------------------------------------

    def _lease_ends(self) -> float:
        rules = self.fleet.rules
        is_out = not self.fleet.database.is_up
        if self.problem and (rules.from_memory == "always" or (rules.from_memory == "outage" and is_out)):
            return float("inf")
        return (self._beat_at if rules.by_beat else self._asked_at) + LEASE_SECONDS

    def refresh(self) -> None:
        """Record in the ledger whether this process begins or ceases to answer for its slots."""
        now = self.fleet.now
        ends = self._lease_ends()
        answers = self.runs and now >= self.frozen_until and now < ends
        if answers != self.answers:
            self.answers = answers
            for hosted in self.hosted.values():
                if hosted.serves:
                    self.fleet.ledger.change(now, hosted.slot, self, answers=answers)
        if answers and not self._watched and ends < float("inf"):
            self._watched = True
            self.fleet.at(ends, self._watch)

    def _watch(self) -> None:
        self._watched = False
        self.refresh()

    def end_serving(self, hosted: Hosted) -> None:
        """Answer no longer for a slot."""
        if hosted.serves:
            hosted.serves = False
            if self.answers:
                self.fleet.ledger.change(self.fleet.now, hosted.slot, self, answers=False)

    # -- following the directory ----------------------------------------------------------------------------------

    def awake(self, step: Callable[[], None]) -> bool:
        """Return whether this process runs now. A frozen one does the step when it goes on."""
        if self.runs and self.fleet.now < self.frozen_until:
            self.fleet.at(self.frozen_until, step)
            return False
        return self.runs

    def reaches(self) -> bool:
        """Return whether there is a way to the database, and it is up."""
        return self.fleet.database.is_up and self.fleet.now >= self.cut_until

    def look(self) -> None:
        """Look at the directory; then do what the policy says, and look again."""
        if not self.awake(self.look):
            return
        database, now = self.fleet.database, self.fleet.now
        if not self.reaches() or self._connection not in (None, database.restarts):
            self._connection = None
            lost = _TIMEOUT_SECONDS if now < self.cut_until else 0.0
            self.fleet.at(now + lost, self._fail)
            return
        if self._connection is None:
            database.connect(self)
            self._connection, self._connected_at, self._beat_at = database.restarts, now, -1e9
        self._see()
        self.fleet.at(now + _LOOK_SECONDS + ROUND_TRIP, self.look)

    def _see(self) -> None:
        """Write the heartbeat when it is due, and do what the directory says: one round trip."""
        database, now = self.fleet.database, self.fleet.now
        self._asked_at, self.problem = now, False
        if now - self._beat_at >= _BEAT_SECONDS or self.leaving:
            self._beat(now)
        database.statements["look"] += 1
        is_new = now - self._connected_at < SETTLING_SECONDS
        settles = is_new and self.fleet.rules.settling
        alive = frozenset(database.beats) if settles else database.alive(now, by_locks=not is_new)
        self._follow(alive)
        self.refresh()

    def _fail(self) -> None:
        if self.awake(self._fail):
            self.problem = True
            self.refresh()
            self.fleet.at(self.fleet.now + _LOOK_SECONDS, self.look)

    def _beat(self, now: float) -> None:
        database = self.fleet.database
        if self.name not in database.beats or (self.name in database.leaving) != self.leaving:
            database.version += 1
        (database.leaving.add if self.leaving else database.leaving.discard)(self.name)
        database.beat(self.name, now)
        self._beat_at = now

    def _follow(self, alive: frozenset[str]) -> None:
        """Do what `Replica._drop_lost` and `Replica._act` do. While nothing changes there is nothing to do."""
        database, now = self.fleet.database, self.fleet.now
        slots, replicas = database.view(alive)
        seen = database.version, alive, tuple(self.hosted)
        if seen == self._seen and not self._free_since:
            return
        self._seen = seen
        for hosted in list(self.hosted.values()):
            row = database.rows[hosted.slot]
            if hosted.serves and row.owner != self.name and row.epoch > hosted.epoch:
                self._end(hosted)
        slots = [
            replace(view, held=False) if view.owner == self.name and view.slot not in self.hosted else view
            for view in slots
        ]
        self._free_since = {view.slot: self._free_since.get(view.slot, now) for view in slots if not view.held}
        late = {slot: int((now - since) / _URGENT_SECONDS) for slot, since in self._free_since.items()}
        opening = sum(not hosted.serves for hosted in self.hosted.values())
        moves = moves_of(self.name, slots, replicas, late, OPENINGS - opening)
        for slot in moves.claim:
            if slot not in self.hosted and not self.leaving:
                self.hosted[slot] = Hosted(slot)
                self.fleet.later(CLAIM, partial(self._claim, self.hosted[slot]))
        for slot in moves.release:
            kept = self.hosted.get(slot)
            if kept is not None and kept.serves and not self.leaving:
                self.leave(kept, _HANDOVER_SECONDS)

    # -- slots ----------------------------------------------------------------------------------------------------

    def _claim(self, hosted: Hosted) -> None:
        """Claim a slot as `PostgresBackend` does: its owner must have no connection, or no heartbeat."""
        if not self.awake(lambda: self._claim(hosted)):
            return
        now, ledger = self.fleet.now, self.fleet.ledger
        row = self.fleet.database.rows[hosted.slot]
        self.fleet.database.statements["claim"] += 1
        beats = row.owner is not None and now - self.fleet.database.beats.get(row.owner, -1e9) < LEASE_SECONDS
        if not self.reaches() or (row.holder is not None and row.holder is not self and beats):
            ledger.refused += 1
            del self.hosted[hosted.slot]
            return
        if row.served_by not in (None, self.name):
            ledger.moves[self.fleet.why(row)] += 1
        row.epoch, row.owner, row.holder, row.served_by = row.epoch + 1, self.name, self, self.name
        hosted.epoch = row.epoch
        self.fleet.database.version += 1
        self._busy_until = max(self._busy_until, now) + self.fleet.open_seconds
        self.fleet.at(self._busy_until, lambda: self._serve(hosted))

    def _serve(self, hosted: Hosted) -> None:
        if self.awake(lambda: self._serve(hosted)):
            hosted.serves, self._seen = True, None
            if self.answers:
                self.fleet.ledger.change(self.fleet.now, hosted.slot, self, answers=True)
            if self.leaving:
                self.leave(hosted, 0.0)

    def write(self, hosted: Hosted) -> None:
        """Commit something: a connection that was lost is made again, and with it the lock of the slot."""
        row = self.fleet.database.rows[hosted.slot]
        if not self.awake(lambda: self.write(hosted)) or not hosted.serves or not self.reaches():
            return
        if row.epoch != hosted.epoch:
            self._end(hosted)
        elif row.holder is None:
            row.holder = self

    def leave(self, hosted: Hosted, grace: float) -> None:
        """Hand a slot over when no turn runs in it, in `grace` seconds at the latest."""
        if not hosted.leaving:
            hosted.leaving = True
            self.fleet.later(self.fleet.until_idle(grace), lambda: self._end(hosted))

    def _end(self, hosted: Hosted) -> None:
        if self.awake(lambda: self._end(hosted)) and hosted.serves:
            self.end_serving(hosted)
            self.fleet.later(CLOSE, lambda: self._release(hosted))

    def _release(self, hosted: Hosted) -> None:
        if not self.awake(lambda: self._release(hosted)):
            return
        row = self.fleet.database.rows[hosted.slot]
        if self.reaches() and row.epoch == hosted.epoch:
            row.owner = row.holder = None
            self.fleet.database.version += 1
        del self.hosted[hosted.slot]

    def drain(self) -> None:
        """Leave all slots, as a server does that ends."""
        if self.leaving or not self.awake(self.drain):
            return
        self.leaving = True
        if self.reaches() and self._connection == self.fleet.database.restarts:
            self._see()  # the others know it before they see slots without an owner
        for hosted in list(self.hosted.values()):
            if hosted.serves:
                self.leave(hosted, _HANDOVER_SECONDS)
        self._depart()

    def _depart(self) -> None:
        """End when nothing is hosted any more."""
        if not self.runs:
            return
        if self.hosted:
            self.fleet.later(_LOOK_SECONDS, self._depart)
            return
        self.fleet.end(self)
        self.fleet.database.forget(self.name)


@dataclass(slots=True)
class Fleet:
    """Replicas and their database at one moment of simulated time. `busy` is the mean number of turns in a slot."""

    slots: int
    seed: int = 1
    rules: Rules = field(default_factory=Rules)
    sessions: int = 0
    busy: float = 0.0
    turn_seconds: float = 8.0
    now: float = 0.0
    database: Database = field(init=False)
    ledger: Ledger = field(init=False)
    replicas: dict[str, Process] = field(default_factory=dict)
    """The running process of each replica."""
    open_seconds: float = field(init=False)
    rng: random.Random = field(init=False)
    checks: int = 0
    violations: list[str] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self.database, self.ledger = Database(self.slots), Ledger(self.slots)
        self.rng = random.Random(self.seed)
        self.open_seconds = OPEN + OPEN_SESSION * self.sessions / self.slots

    # -- time -----------------------------------------------------------------------------------------------------

    def at(self, moment: float, step: Callable[[], None]) -> None:
        """Do a step at a moment."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, step))

    def later(self, seconds: float, step: Callable[[], None]) -> None:
        """Do a step in so many seconds."""
        self.at(self.now + seconds, step)

    def run(self, seconds: float) -> None:
        """Let so many seconds pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, step = heapq.heappop(self._events)
            step()
        self.now = end

    def settle(self, most: float = 600.0) -> float:
        """Let time pass until each slot is where the policy wants it. Returns for how long."""
        begun = self.now
        while not self.is_settled() and self.now - begun < most:
            self.run(_LOOK_SECONDS)
            self.checks += 1
            self.violations += self.check()
        return self.now - begun

    # -- what happens ---------------------------------------------------------------------------------------------

    def start(self, names: Iterable[str]) -> None:
        """Start replicas."""
        for name in names:
            process = self.replicas[name] = Process(name, self)
            self.later(self.rng.random() * _LOOK_SECONDS, process.look)

    def end(self, process: Process) -> None:
        """End a process: its connections are closed."""
        process.runs = False
        process.refresh()
        self.database.drop(process)
        if self.replicas.get(process.name) is process:
            del self.replicas[process.name]

    def crash(self, name: str) -> None:
        """Kill a replica."""
        self.end(self.replicas[name])

    def leave(self, name: str) -> None:
        """End a replica in order."""
        self.replicas[name].drain()

    def freeze(self, name: str, seconds: float) -> None:
        """Stop a process for a time, in which its connections stay open."""
        process = self.replicas[name]
        process.frozen_until = max(process.frozen_until, self.now + seconds)
        process.refresh()
        self.at(process.frozen_until, process.refresh)

    def cut(self, name: str, seconds: float) -> None:
        """Let nothing pass between a replica and the database for a time. The database does not notice."""
        process = self.replicas[name]
        process.cut_until = max(process.cut_until, self.now + seconds)

    def restart_database(self, seconds: float) -> None:
        """End the database and start it again after a time."""
        database = self.database
        database.restart()

        def up() -> None:
            database.is_up = True
            if self.busy:
                for process in list(self.replicas.values()):
                    for hosted in process.hosted.values():
                        self.later(self.rng.expovariate(self.busy / self.turn_seconds), partial(process.write, hosted))

        self.later(seconds, up)

    # -- what the simulated world knows ---------------------------------------------------------------------------

    def why(self, row: SlotRow) -> Why:
        """Return why a slot may be claimed now."""
        if row.owner is None:
            return Why.RELEASED
        owner = self.replicas.get(row.owner)
        if owner is None:
            return Why.DEAD
        if self.now < owner.frozen_until or self.now < owner.cut_until:
            return Why.EXPIRED
        return Why.UNJUSTIFIED

    def until_idle(self, most: float) -> float:
        """Draw for how long turns run in a slot: new ones begin while it is used."""
        if not self.busy or not most:
            return 0.0
        running, left = self._running(), 0.0
        while running and left < most:
            left += self.rng.expovariate((self.busy + running) / self.turn_seconds)
            running += 1 if self.rng.random() < self.busy / (self.busy + running) else -1
        return min(left, most)

    def _running(self) -> int:
        """Draw the number of turns that run in a slot (Poisson)."""
        count, passed = 0, self.rng.expovariate(1.0)
        while passed < self.busy:
            count, passed = count + 1, passed + self.rng.expovariate(1.0)
        return count

    def owned(self) -> Counter[str]:
        """Count the slots of each replica."""
        return Counter(row.owner for row in self.database.rows if row.owner is not None)

    def is_settled(self) -> bool:
        """Return whether every slot is where the policy wants it, and nothing else moves it."""
        there = [name for name, process in self.replicas.items() if not process.leaving]
        owners = [row.owner for row in self.database.rows]
        return not self.ledger.unowned() and owners == list(assign(self.slots, there, owners))

    def check(self) -> list[str]:
        """Check what must hold at any moment; every line is a violation."""
        serving: dict[tuple[int, int], list[str]] = {}
        for process in self.replicas.values():
            for hosted in process.hosted.values():
                if hosted.serves:
                    serving.setdefault((hosted.slot, hosted.epoch), []).append(process.name)
        return [
            f"slot {slot} is served in epoch {epoch} by {sorted(names)}"
            for (slot, epoch), names in sorted(serving.items())
            if len(names) > 1
        ]
