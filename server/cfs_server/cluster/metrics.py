"""The metrics of a replica: those of each of its slots, with the slot as a label, and those of the replica itself."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest

_COMMON = ("cfs_engine", "python_", "process_")
"""Beginnings of the names of metrics that all slots of a process have in common."""
_OUTCOMES = ("answered", "elsewhere", "lost", "moved", "stopped", "unreached")


class ClusterMetrics:
    """The figures of the replica itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._slots = Gauge("cfs_cluster_slots", "Slots that this replica serves.", registry=self.registry)
        self._replicas = Gauge("cfs_cluster_replicas", "Living replicas, with this one.", registry=self.registry)
        self._databases = Gauge(
            "cfs_cluster_database_up", "Whether the databases can be reached.", registry=self.registry
        )
        self.relayed = Counter(
            "cfs_cluster_relayed", "Requests sent to other replicas, by outcome.", ["outcome"], registry=self.registry
        )
        for outcome in _OUTCOMES:  # each is there from the beginning, so that rates are right
            self.relayed.labels(outcome)

    def update(self, slots: int, replicas: int, *, database_up: bool) -> None:
        """Set what is true now."""
        self._slots.set(slots)
        self._replicas.set(replicas)
        self._databases.set(database_up)


def merged(common: CollectorRegistry, of_slots: Mapping[int, CollectorRegistry], own: CollectorRegistry) -> bytes:
    """Return the metrics of a replica in Prometheus' text format.

    `common` has those of the application without sessions: the engine's figures are taken from it. Its other figures
    have the label `slot="none"`.
    """
    families: dict[str, Metric] = {}
    for slot, registry in (
        ("none", common),
        *((str(number), registry_of_slot) for number, registry_of_slot in sorted(of_slots.items())),
    ):
        for family in registry.collect():
            is_common = family.name.startswith(_COMMON)
            if is_common and slot != "none":
                continue
            labels = {} if is_common else {"slot": slot}
            merged_family = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged_family.samples += [sample._replace(labels=sample.labels | labels) for sample in family.samples]
    return generate_latest(_Families(families.values())) + generate_latest(own)


class _Families:
    """A registry of given families of metrics."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
