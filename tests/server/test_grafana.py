"""The Grafana dashboard: each name and label of its queries exists at `/metrics`, which it shows whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.metrics import ADDED_BY_PROMETHEUS, GROUPING, MATCHER, SELECTOR, Series, histogram_of

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = json.loads((ROOT / "deploy/grafana/cfs.json").read_text(encoding="utf-8"))
LEFT_OUT = re.compile(r"cfs_\w+_created")
"""When a counter began, which the client library adds to each."""

FUNCTIONS = {"sum", "min", "rate", "increase", "histogram_quantile", "by", "le"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Each query with the legend of its lines."""
    return [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize(("query", "legend"), queries())
def test_a_query_names_what_exists(query: str, legend: str, series: Series) -> None:
    """Metrics, labels, the values of labels, what lines are grouped by, and what legends quote."""
    selectors = list(SELECTOR.finditer(query))
    assert selectors, query
    labels = set(ADDED_BY_PROMETHEUS)
    for selector in selectors:
        assert selector["name"] in series, f"/metrics has no {selector['name']}"
        known = series[selector["name"]]
        labels |= known.keys()
        for matcher in MATCHER.finditer(selector["matchers"]):
            label, value = matcher["label"], matcher["value"]
            assert label in known.keys() | ADDED_BY_PROMETHEUS, f"{selector['name']} has no label {label}"
            if label in known:
                assert any(re.fullmatch(value, each) for each in known[label]), f"{label} is never {value}"
        assert 'instance=~"$instance"' in selector["matchers"], "the choice of a server counts everywhere"
    for group in GROUPING.findall(query):
        assert {each.strip() for each in group.split(",")} <= labels, query
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels, legend
    rest = GROUPING.sub("by", SELECTOR.sub("", query))
    assert set(re.findall(r"[a-z_]+", rest)) <= FUNCTIONS, "each metric has a selector"
    assert query.count("(") == query.count(")")


def test_a_counter_is_shown_as_a_rate() -> None:
    """The sum since the start of a server says nothing over time."""
    for query, _ in queries():
        for selector in SELECTOR.finditer(query):
            is_counter = selector["name"].endswith(("_total", "_bucket", "_count", "_sum"))
            assert is_counter == (selector["range"] is not None), query


def test_every_metric_is_shown(series: Series) -> None:
    """A new metric needs a panel; of a histogram one of its three series is enough."""
    shown = {selector["name"] for query, _ in queries() for selector in SELECTOR.finditer(query)}
    ours = {name for name in series if name.startswith("cfs_") and not LEFT_OUT.fullmatch(name)}
    assert set(map(histogram_of, ours)) == set(map(histogram_of, shown))


def test_panels_do_not_overlap_and_explain_themselves() -> None:
    """Each has a title, a sentence and a place of its own, in a grid of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["description"].endswith(".") for panel in panels())
