"""The alerts for Prometheus: each name, label and value in them exists at `/metrics`, and each one is documented."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.metrics import ADDED_BY_PROMETHEUS, GROUPING, MATCHER, Series

ROOT = Path(__file__).parent.parent.parent
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
SELECTOR = re.compile(r"\b(?P<name>up|cfs_[a-z_]+)(?P<matchers>\{[^}]*\})?(?P<range>\[[^\]]+\])?")
STATUS = re.compile(r"[45]\d\d")
OF_PROMETHEUS: Series = {"up": {"job": {"cfs"}}}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_what_exists(rule: dict[str, Any], series: Series) -> None:
    """Metrics, labels, the values of labels, and what it is grouped by; a counter is used as a rate."""
    query = rule["expr"]
    known = series | OF_PROMETHEUS
    labels = set(ADDED_BY_PROMETHEUS)
    selectors = list(SELECTOR.finditer(query))
    assert selectors, query
    for selector in selectors:
        name = selector["name"]
        assert name in known, f"/metrics has no {name}"
        labels |= known[name].keys()
        for matcher in MATCHER.finditer(selector["matchers"] or ""):
            values = known[name].get(matcher["label"])
            assert values is not None, f"{name} has no label {matcher['label']}"
            is_status = matcher["label"] == "status" and STATUS.fullmatch(matcher["value"])  # not provoked here
            assert is_status or any(re.fullmatch(matcher["value"], value) for value in values), matcher[0]
        assert name.endswith(("_total", "_bucket", "_count", "_sum")) == (selector["range"] is not None), query
    for group in GROUPING.findall(query):
        assert {each.strip() for each in group.split(",")} <= labels, query
    quoted = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert quoted <= ADDED_BY_PROMETHEUS, "what is summed up has lost its other labels"


def test_each_alert_says_what_it_means_and_the_manual_what_to_do() -> None:
    manual = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"].endswith("."), rule["alert"]
        assert f"| `{rule['alert']}` |" in manual, rule["alert"]
