"""Simulate replicas, sessions and workers beyond one machine: 100 replicas, a million sessions, and what fails.

    scripts/bench fleet [--only placement,faults,directory,merging,latency] [--replicas N] [--sessions N] [--slots N]
                        [--seed N] [--smoke] [--docs] [--json FILE]

- **placement**: how evenly sessions and their turns are spread, and how many slots move when replicas come and go;
- **faults**: for how long a slot has no owner after each kind of failure, and for how long it has two;
- **directory**: what the replicas ask the database while nothing happens;
- **merging**: what a listing and a stream of all sessions cost as replicas and slots grow;
- **latency**: the time to the first token at 60, 80 and 95 % of what the workers can do, by the choice of the worker.

Nothing waits and nothing is measured: times are simulated (`fleet_ownership`, `fleet_load`), so a run is repeated by
its seed on any machine. The policy is the real one.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cfs_server.cluster.directory import LEASE_SECONDS
from cfs_server.cluster.event_merging import encode
from cfs_server.domain.placement import assign
from fleet_load import Population, Route, Use, Worker, visit_seconds
from fleet_ownership import OPEN, OPEN_SESSION, Fleet, Rules, Why

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PARTS = ("placement", "faults", "directory", "merging", "latency")
SLOTS = (16, 64, 256, 1024)
LOADS = (0.6, 0.8, 0.95)
PAGE_ROWS = 100
"""Sessions of a page of a listing."""
RULES = {
    "before": Rules(),
    "changed": Rules(by_beat=True, from_memory="outage", settling=True),
}
BUSY = 2.0
"""Turns that run in a slot, on average."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is simulated. `seconds` are those of people and agents, of which the first fifth is not counted."""

    replicas: int = 100
    sessions: int = 1_000_000
    slots: int = 256
    rounds: int = 10
    seconds: float = 200.0
    seed: int = 1

    @property
    def names(self) -> list[str]:
        """The replicas."""
        return [f"cfs-{number}" for number in range(self.replicas)]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# -- placement --------------------------------------------------------------------------------------------------------


def moved(old: Sequence[str], new: Sequence[str]) -> int:
    """Count the slots with another owner."""
    return sum(one != other for one, other in zip(old, new, strict=True))


def least_moves(owned: Mapping[str, int], slots: int, replicas: int) -> int:
    """Return how many slots must move when replicas come, so that all have equally many, or one more."""
    least, most = slots // replicas, -(-slots // replicas)
    return max((replicas - len(owned)) * least, sum(max(0, count - most) for count in owned.values()))


def placement(sizes: Sizes, population: Population) -> list[dict[str, Any]]:
    """Spread all sessions over slots and replicas, and let replicas come and go."""
    found = []
    names, half = sizes.names, sizes.names[: sizes.replicas // 2]
    for slots in SLOTS:
        plan = assign(slots, names)
        counts, loads = population.spread(slots, plan, names)
        per_slot = Counter(slot % slots for slot in population.slots)
        joined = assign(slots, [*names, "new"], plan)
        ends = [moved(plan, assign(slots, set(names) - {name}, plan)) - plan.count(name) for name in names]
        fewer = assign(slots, half, plan)
        found.append(
            {
                "slots": slots,
                "sessions of a slot": len(population) / slots,
                "largest slot": max(per_slot.values()) / (len(population) / slots),
                "replicas with slots": len(set(plan)),
                "sessions": max(counts.values()) / (len(population) / len(names)),
                "load": loads[-1],
                "open": OPEN + OPEN_SESSION * len(population) / slots,
                "join": moved(plan, joined),
                "least join": slots // (len(names) + 1),
                "more than the slots of one that ends": max(ends),
                "half": moved(plan, fewer),
                "least half": sum(owner not in half for owner in plan),
                "double": moved(fewer, assign(slots, names, fewer)),
                "least double": least_moves(Counter(fewer), slots, len(names)),
            }
        )
    return found


# -- faults -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fault:
    """What a kind of failure did, all its rounds together. Seconds; `cut` are those in which one owner was cut off."""

    name: str
    rules: str
    rounds: int = 0
    least: int = 0
    gaps: list[float] = field(default_factory=list)
    two_owners: float = 0.0
    cut: float = 0.0
    moves: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    seconds: float = 0.0
    unowned: int = 0

    def add(self, fleet: Fleet, seconds: float) -> None:
        """Add what the ledger has, and clear it."""
        ledger = fleet.ledger
        self.rounds += 1
        self.gaps += ledger.gaps
        self.two_owners = max([self.two_owners, *(length for length, is_cut in ledger.overlaps if not is_cut)])
        self.cut = max([self.cut, *(length for length, is_cut in ledger.overlaps if is_cut)])
        for why, count in ledger.moves.items():
            self.moves[why.name.lower()] = self.moves.get(why.name.lower(), 0) + count
        self.refused += ledger.refused
        self.seconds = max(self.seconds, seconds)
        self.unowned += len(ledger.unowned())
        ledger.clear()

    def figures(self) -> dict[str, Any]:
        """Return what is shown."""
        gaps = self.gaps
        return {key: value for key, value in asdict(self).items() if key != "gaps"} | {
            "without an owner": len(gaps),
            "p50": quantile(gaps, 0.5),
            "p99": quantile(gaps, 0.99),
            "max": max(gaps, default=0.0),
        }


class Trials:
    """The faults of one fleet, one after another. Each begins when the one before has settled."""

    def __init__(self, sizes: Sizes, rules: str) -> None:
        self._sizes = sizes
        self._rules = rules
        self.fleet = Fleet(sizes.slots, sizes.seed, RULES[rules], sizes.sessions, BUSY)
        self._turn = 0
        self._restarts = 0

    def run(self) -> Iterator[Fault]:
        """Let everything happen, and yield what it did."""
        yield self._all("start of all", self.fleet.start, self._sizes.names, least=0)
        yield self._each("crash, back after 5 s", self._crash)
        yield self._each("machine lost, back after 30 s", self._lose)
        for seconds in (2.0, 2.8, 5.0):
            freeze = partial(self._freeze, seconds)
            yield self._each(f"frozen for {seconds:g} s", freeze, moves=seconds > LEASE_SECONDS)
        yield self._each("cut off for 20 s", partial(self._cut, 20.0))
        for seconds in (1.0, 10.0):
            away = partial(self._database, seconds)
            yield self._each(f"database away for {seconds:g} s", away, moves=False)
        yield self._each("ends in order, back after 5 s", self._leave)
        yield self._upgrade()
        half = self._sizes.names[self._sizes.replicas // 2 :]
        kept = [name for name in self._sizes.names if name not in half]
        owned = self.fleet.owned()
        yield self._all("half of all end", self._end_all, half, least=sum(owned[name] for name in half))
        become = f"{len(kept)} become {self._sizes.replicas}"
        least = least_moves(self.fleet.owned(), self._sizes.slots, self._sizes.replicas)
        yield self._all(become, self.fleet.start, half, least=least)

    @property
    def _floor(self) -> int:
        return self._sizes.slots // self._sizes.replicas

    def _all(self, what: str, do: Callable[[list[str]], None], names: list[str], *, least: int) -> Fault:
        fault = Fault(what, self._rules, least=least)
        begun = self.fleet.now
        do(names)
        self._wait()
        fault.add(self.fleet, self.fleet.now - begun)
        return fault

    def _wait(self) -> None:
        """Let time pass until all replicas that end have ended, all that start again have started, and all is still."""
        self.fleet.run(2.0)
        while self._restarts or any(process.leaving for process in self.fleet.replicas.values()):
            self.fleet.run(1.0)
        self.fleet.run(1.0)
        self.fleet.settle()

    def _each(self, what: str, do: Callable[[str], float], *, moves: bool = True) -> Fault:
        """Do something to one replica after another, which returns for how long to wait.

        With `moves` its slots must move, and as many come to it when it is back.
        """
        fault = Fault(what, self._rules)
        for _ in range(self._sizes.rounds):
            name = self._sizes.names[self._turn * 7 % self._sizes.replicas]
            self._turn += 1
            fault.least += self.fleet.owned()[name] + self._floor if moves else 0
            self.fleet.run(self.fleet.rng.random())
            waited = do(name)
            self.fleet.run(waited)
            fault.add(self.fleet, waited + self.fleet.settle())
        return fault

    def _crash(self, name: str) -> float:
        self.fleet.crash(name)
        self.fleet.later(5.0, lambda: self.fleet.start([name]))
        return 6.0

    def _lose(self, name: str) -> float:
        """End a machine without a sign: the database holds its connections for open."""
        self.fleet.freeze(name, 1e9)
        process = self.fleet.replicas[name]

        def back() -> None:
            self.fleet.end(process)
            self.fleet.start([name])

        self.fleet.later(30.0, back)
        return 31.0

    def _freeze(self, seconds: float, name: str) -> float:
        self.fleet.freeze(name, seconds)
        return seconds + 1.0

    def _cut(self, seconds: float, name: str) -> float:
        self.fleet.cut(name, seconds)
        return seconds + 3.0

    def _database(self, seconds: float, _name: str) -> float:
        self.fleet.restart_database(seconds)
        return seconds + 3.0

    def _leave(self, name: str) -> float:
        self._restart(name, 5.0)
        self._wait()
        return 1.0

    def _restart(self, name: str, seconds: float) -> None:
        """End a replica in order, and start it again some seconds after it has ended."""
        process = self.fleet.replicas[name]

        def look() -> None:
            if process.runs:
                self.fleet.later(1.0, look)
            else:
                self.fleet.later(seconds, start)

        def start() -> None:
            self._restarts -= 1
            self.fleet.start([name])

        self._restarts += 1
        self.fleet.leave(name)
        look()

    def _end_all(self, names: list[str]) -> None:
        for name in names:
            if name in self.fleet.replicas:
                self.fleet.leave(name)

    def _upgrade(self) -> Fault:
        """Restart all replicas, a twentieth of them at a time."""
        names, begun = self._sizes.names, self.fleet.now
        size = max(1, len(names) // 20)
        fault = Fault(f"upgrade of all, {size} at a time", self._rules)
        for first in range(0, len(names), size):
            batch = names[first : first + size]
            fault.least += sum(self.fleet.owned()[name] for name in batch)
            for name in batch:
                self._restart(name, 3.0)
            self._wait()
        fault.add(self.fleet, self.fleet.now - begun)
        return fault


def faults(sizes: Sizes) -> dict[str, Any]:
    """Let everything fail, with each set of rules."""
    found: dict[str, Any] = {"rows": [], "checks": 0, "violations": []}
    for rules in RULES:
        trials = Trials(sizes, rules)
        for fault in trials.run():
            found["rows"].append(fault.figures())
            print(f"  {fault.name}, {rules}", file=sys.stderr, flush=True)
        found["checks"] += trials.fleet.checks
        found["violations"] += trials.fleet.violations
    return found


# -- what a quiet fleet costs -----------------------------------------------------------------------------------------


def directory(sizes: Sizes) -> list[dict[str, Any]]:
    """Count what the replicas ask while nothing happens."""
    found = []
    for replicas in sorted({2, 10, sizes.replicas // 2, sizes.replicas} - {0, 1}):
        fleet = Fleet(sizes.slots, sizes.seed, sessions=sizes.sessions)
        fleet.start(sizes.names[:replicas])
        fleet.settle()
        fleet.database.statements.clear()
        fleet.run(60.0)
        looks, beats = (fleet.database.statements[kind] / 60 for kind in ("look", "beat"))
        rows = looks * (sizes.slots + 2 * replicas)
        found.append({"replicas": replicas, "trips": looks, "statements": 3 * looks + beats, "rows": rows})
    return found


def merging(sizes: Sizes) -> list[dict[str, Any]]:
    """Count what one listing and one stream of all sessions need, and measure the cursor of each event."""
    cursors = {slots: dict.fromkeys(range(slots), "00000000.00000000-1000000") for slots in SLOTS}
    return [
        {
            "replicas": replicas,
            "slots": slots,
            "requests": replicas - 1,
            "without slots": max(0, replicas - slots),
            "answers": slots,
            "rows": min(slots * PAGE_ROWS, sizes.sessions),
            "streams": replicas - 1,
            "cursor": len(encode(cursors[slots])),
        }
        for replicas, slots in ((2, 16), (10, 64), (100, 16), (100, 256), (100, 1024))
    ]


# -- latency ----------------------------------------------------------------------------------------------------------


def routes(sizes: Sizes, population: Population) -> dict[str, Route]:
    """Return the ways to choose the worker of a turn."""
    count = sizes.replicas
    index = {name: number for number, name in enumerate(sizes.names)}
    place = [index[name] for name in assign(sizes.slots, sizes.names)]

    def of_slot(session: int, _workers: Sequence[Worker]) -> int:
        return place[population.slots[session] % sizes.slots]

    def of_session(session: int, _workers: Sequence[Worker]) -> int:
        return (population.roots[session] * 2_654_435_761 >> 7) % count

    def fewest(_session: int, workers: Sequence[Worker]) -> int:
        return min(range(count), key=lambda number: workers[number].turns)

    return {"the owner's": of_slot, "by a hash of the session": of_session, "with the fewest turns": fewest}


def latency(sizes: Sizes, population: Population) -> list[dict[str, Any]]:
    """Let people and agents use the sessions."""
    found = []
    rate = sizes.replicas / visit_seconds(population, sizes.seed)
    begin = sizes.seconds / 5
    for load in LOADS:
        for name, route in routes(sizes, population).items():
            use = Use(population, sizes.replicas, route, load * rate, sizes.seed)
            use.run(sizes.seconds)
            told = [each for worker in use.workers for each in worker.first if each[0] >= begin]
            people = [seconds for _, kind, seconds in told if kind == "interactive"]
            agents = [seconds for _, kind, seconds in told if kind == "agent"]
            busy = [worker.busy / sizes.seconds for worker in use.workers]
            found.append(
                {
                    "load": load,
                    "worker": name,
                    "turns": use.turns,
                    "begun": sum(len(worker.first) for worker in use.workers) / use.turns,
                    "computed": sum(each.computed for each in use.workers) / sum(each.given for each in use.workers),
                    "busy": sum(busy) / len(busy),
                    "busiest": max(busy),
                    "people": [quantile(people, share) for share in (0.5, 0.95, 0.99)],
                    "agents": [quantile(agents, share) for share in (0.5, 0.95, 0.99)],
                }
            )
            print(f"  {name}, load {load}", file=sys.stderr, flush=True)
    return found


# -- report -----------------------------------------------------------------------------------------------------------


def _table(head: str, rows: Sequence[Sequence[str]], words: int = 1) -> str:
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * words + "--:|" * (columns - words)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _placement_table(rows: list[dict[str, Any]]) -> str:
    head = (
        "slots | sessions of a slot | largest slot / mean | replicas with slots | sessions of a replica, largest / mean"
        " | its turns in the busiest hour, largest / mean | seconds to open a slot | moved by a join (least)"
        " | moved by an end, beyond its own | half end: moved (least) | twice as many: moved (least)"
    )
    shown = [
        [
            f"{row['slots']}",
            f"{row['sessions of a slot']:,.0f}",
            f"{row['largest slot']:.2f}",
            f"{row['replicas with slots']}",
            f"{row['sessions']:.2f}",
            f"{row['load']:.2f}",
            f"{row['open']:.2f}",
            f"{row['join']} ({row['least join']})",
            f"{row['more than the slots of one that ends']}",
            f"{row['half']} ({row['least half']})",
            f"{row['double']} ({row['least double']})",
        ]
        for row in rows
    ]
    return _table(head, shown, 0)


def _faults_table(found: dict[str, Any]) -> str:
    head = (
        "what happened | rules | slots without an owner | p50 s | p99 s | longest s | moved (least) | claims refused"
        " | two owners, longest s | one of them cut off, longest s"
    )
    shown = [
        [
            row["name"],
            row["rules"],
            f"{row['without an owner']}",
            f"{row['p50']:.2f}",
            f"{row['p99']:.2f}",
            f"{row['max']:.2f}",
            f"{sum(row['moves'].values())} ({row['least']})",
            f"{row['refused']}",
            f"{row['two_owners']:.2f}",
            f"{row['cut']:.2f}",
        ]
        for row in found["rows"]
    ]
    left = sum(row["unowned"] for row in found["rows"])
    for rules in RULES:
        unjustified = sum(
            row["moves"].get(Why.UNJUSTIFIED.name.lower(), 0) for row in found["rows"] if row["rules"] == rules
        )
        shown.append([f"moved although the owner was there, {rules}", "", "", "", "", "", f"{unjustified}", "", "", ""])
    checked = f"{found['checks']:,} checks: {len(found['violations'])} times two owners in one epoch"
    return _table(head, shown, 2) + f"\n\n{checked}; {left} slots without an owner at the end."


def _directory_table(rows: list[dict[str, Any]]) -> str:
    head = "replicas | round trips a second | statements a second | rows read a second"
    return _table(
        head,
        [
            [f"{row['replicas']}", f"{row['trips']:,.0f}", f"{row['statements']:,.0f}", f"{row['rows']:,.0f}"]
            for row in rows
        ],
        0,
    )


def _merging_table(rows: list[dict[str, Any]]) -> str:
    head = (
        "replicas | slots | requests for a listing | of these to replicas without slots | answers of slots | rows for a"
        " page of 100, at most | streams for a reader of all events | bytes of the cursor in each event"
    )
    keys = ("replicas", "slots", "requests", "without slots", "answers", "rows", "streams", "cursor")
    return _table(head, [[f"{row[key]:,}" for key in keys] for row in rows], 0)


def _latency_table(rows: list[dict[str, Any]]) -> str:
    head = (
        "load | worker | tokens of prompts computed | workers busy, mean and most | turns begun"
        " | people: p50, p95, p99 s | agents: p50, p95, p99 s"
    )
    shown = [
        [
            f"{row['load']:.0%}",
            row["worker"],
            f"{row['computed']:.0%}",
            f"{row['busy']:.0%}, {row['busiest']:.0%}",
            f"{row['begun']:.0%}",
            *(", ".join(f"{value:.2f}" for value in row[kind]) for kind in ("people", "agents")),
        ]
        for row in rows
    ]
    return _table(head, shown, 2)


TABLES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "placement": ("Sessions, slots and replicas", _placement_table),
    "faults": ("What fails", _faults_table),
    "directory": ("The directory, while nothing happens", _directory_table),
    "merging": ("Listings and streams of all sessions", _merging_table),
    "latency": ("Seconds to the first token", _latency_table),
}


def tables(found: dict[str, Any]) -> str:
    """Write the tables of the documentation."""
    return "\n\n".join(
        f"#### {title}\n\n{show(found[name])}" for name, (title, show) in TABLES.items() if name in found
    )


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=256, help="slots of the parts that compare nothing else")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="as little as possible, for tests")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md")
    asked = parser.parse_args()
    sizes = Sizes(asked.replicas, asked.sessions, asked.slots, seed=asked.seed)
    if asked.smoke:
        sizes = Sizes(6, 2_000, 16, 1, 20.0, asked.seed)
    only = asked.only.split(",")
    population = Population(sizes.sessions if {"placement", "latency"} & {*only} else 1, sizes.seed)
    parts: dict[str, Callable[[], Any]] = {
        "placement": lambda: placement(sizes, population),
        "faults": lambda: faults(sizes),
        "directory": lambda: directory(sizes),
        "merging": lambda: merging(sizes),
        "latency": lambda: latency(sizes, population),
    }
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    for name in only:
        found[name] = parts[name]()
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    print(shown := tables(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    if asked.docs:
        page = re.sub(
            r"(?s)(<!-- fleet -->\n).*?(<!-- /fleet -->)", lambda m: f"{m[1]}{shown}\n{m[2]}", PAGE.read_text()
        )
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
