"""What queries of Prometheus name: metrics, labels and their values, as a server and a replica have them."""

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.support import Process

SELECTOR = re.compile(r"(?P<name>[a-z_]+)(?P<matchers>\{[^}]*\})(?P<range>\[[^\]]+\])?")
MATCHER = re.compile(r'(?P<label>\w+)(?:=~|!~|!=|=)"(?P<value>[^"]*)"')
GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")

ADDED_BY_PROMETHEUS = {"instance", "job"}
Series = dict[str, dict[str, set[str]]]
"""The values of each label of each metric."""
CLUSTER: Series = {
    "cfs_cluster_slots": {},
    "cfs_cluster_replicas": {},
    "cfs_cluster_database_up": {},
    "cfs_cluster_relayed_total": {"outcome": {"answered", "elsewhere", "moved", "stopped", "unreached", "lost"}},
}
"""What only a server with `--store postgresql://...` has."""


def histogram_of(name: str) -> str:
    """Return the name of the histogram of one of its three series; that of another metric as it is."""
    return re.sub(r"_(bucket|count|sum)$", "", name)


def series_of(server: Process) -> Series:
    """Let a server answer a turn, refuse a request and say that it is ready; return what it then measures."""
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        client.post("/v1/sessions/shown/messages", params={"wait": "true"}, content=b"Hello")
        client.get("/v1/sessions/none")
        client.get("/readyz")
        text = client.get("/metrics").text
    return CLUSTER | series_in(text)


def series_in(text: str) -> Series:
    """Return what is in an answer of `/metrics`."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found
