"""The metrics of a replica: those of each of its slots, with the slot as a label, and those of the replica itself."""

import re
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_COMMON = ("cfs_engine", "python_", "process_")
"""Beginnings of the names of metrics that all applications of a process have in common."""
_OUTCOMES = ("answered", "elsewhere", "lost", "moved", "stopped", "unreached")


class ClusterMetrics:
    """The figures of the replica itself."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._slots = Gauge("cfs_cluster_slots", "Slots that this replica serves.", registry=self._registry)
        self._replicas = Gauge("cfs_cluster_replicas", "Living replicas, with this one.", registry=self._registry)
        self._databases = Gauge(
            "cfs_cluster_database_up", "Whether the databases can be reached.", registry=self._registry
        )
        self.relayed = Counter(
            "cfs_cluster_relayed", "Requests sent to other replicas, by outcome.", ["outcome"], registry=self._registry
        )
        for outcome in _OUTCOMES:  # each is there from the beginning, so that rates are right
            self.relayed.labels(outcome)

    def render(self, slots: int, replicas: int, *, database_up: bool) -> str:
        """Return the metrics in Prometheus' text format."""
        self._slots.set(slots)
        self._replicas.set(replicas)
        self._databases.set(database_up)
        return generate_latest(self._registry).decode()


def merged(common: str, of_slots: Mapping[int, str], own: str) -> str:
    """Return the metrics of a replica in Prometheus' text format.

    `common` is the text of the application without sessions: the engine's figures are taken from it. Its other figures
    have the label `slot="none"`.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for slot, text in (("none", common), *((str(number), text) for number, text in sorted(of_slots.items()))):
        name = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                name = line.split(" ", 3)[2]
                if line not in heads.setdefault(name, []):
                    heads[name].append(line)
            elif (found := _SAMPLE.fullmatch(line)) is not None:
                if not name.startswith(_COMMON):
                    labels = f"{found[2]},slot=" if found[2] else "slot="
                    line = f'{found[1]}{{{labels}"{slot}"}} {found[3]}'
                elif slot != "none":
                    continue
                samples.setdefault(name, []).append(line)
    return "".join("".join(f"{line}\n" for line in (*heads[name], *samples.get(name, ()))) for name in heads) + own
