"""Draws the figures of a run as SVG. Runs under a Python that has matplotlib, and needs nothing else.

PYTHON research/engine_bench/engine_bench/drawing.py FIGURES.json FOLDER
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]

mpl.use("svg")
import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

Rows = dict[str, Any]
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""A picture says nothing about when and by what it was made."""
COLOURS = {"CFS": "#1b6ca8", "raw": "#888888", "llama.cpp server": "#d1603d", "batch server": "#6a994e"}
STYLE = {
    "svg.hashsalt": "cfs",  # the same figures make the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def colour(side: str) -> str:
    """One colour for each side in all pictures."""
    return COLOURS.get(side, "#a07cc5")


def streams(axes: Any, found: Rows) -> None:
    """W1: tokens a second over the number of streams, on the first model."""
    rows = [row for row in found["widths"] if row["model"] == found["widths"][0]["model"]]
    widths = [row["streams"] for row in rows]
    lines = {"raw": [row["raw"]["rate"] for row in rows], "CFS": [row["ours"]["rate"] for row in rows]}
    for name in rows[0]["peers"]:
        lines[name] = [row["peers"][name]["rate"] for row in rows if name in row["peers"]]
    for name, rates in lines.items():
        label = "bare loop" if name == "raw" else name
        axes.plot(widths[: len(rates)], rates, marker="o", markersize=3, color=colour(name), label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_xlabel("streams")
    axes.set_ylabel("tokens a second, all together")


def first_tokens(axes: Any, found: Rows) -> None:
    """W2: how many turns had their first token within a time."""
    for row in found["rows"]:
        seconds = sorted(row["first_tokens"])
        shares = [(place + 1) / len(seconds) for place in range(len(seconds))]
        label = f"{row['side']}, {row['memory_mib']} MiB for state"
        axes.plot(seconds, shares, color=colour(row["side"]), label=label)
    axes.axhline(0.95, color="#888888", linewidth=0.7, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("seconds to the first token")
    axes.set_ylabel("share of turns")


def fan_out(axes: Any, found: Rows) -> None:
    """W3: tokens evaluated over the ideal, the worst number of children of each kind."""
    kinds = list(dict.fromkeys(case["kind"] for case in found["cases"]))
    sides = list(dict.fromkeys(case["side"] for case in found["cases"]))
    for number, side in enumerate(sides):
        worst = [
            max(
                (
                    case["evaluated"] / case["ideal"]
                    for case in found["cases"]
                    if case["side"] == side and case["kind"] == kind and case["evaluated"]
                ),
                default=0,
            )
            for kind in kinds
        ]
        places = [place + (number - (len(sides) - 1) / 2) * 0.8 / len(sides) for place in range(len(kinds))]
        axes.bar(places, worst, width=0.75 / len(sides), color=colour(side), label=side)
    axes.axhline(1, color="#888888", linewidth=0.7, linestyle=":")
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("tokens evaluated over ideal, worst case")


def gaps(axes: Any, found: Rows) -> None:
    """W4: the longest time for which a stream stood still."""
    rows = found["rows"]
    names = [row["side"].replace(", ", ",\n") for row in rows]
    axes.barh(names, [row["longest_gap"] for row in rows], color=[colour(row["side"]) for row in rows])
    axes.axvline(0.3, color="#888888", linewidth=0.7, linestyle=":")
    axes.invert_yaxis()
    axes.set_xlabel("longest gap between two tokens of a stream, seconds")


PICTURES: dict[str, tuple[str, Callable[[Any, Rows], None]]] = {
    "W1": ("streams", streams),
    "W2": ("first-tokens", first_tokens),
    "W3": ("fan-out", fan_out),
    "W4": ("gaps", gaps),
}


def main() -> None:
    """Draw each picture whose workload was run."""
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["results"]
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for workload, (name, picture) in PICTURES.items():
        if not results.get(workload, {}).get("figures"):
            continue
        with plt.rc_context(STYLE):
            figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
            picture(axes, results[workload]["figures"])
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False, fontsize=8)
            figure.savefig(folder / f"bench-{name}.svg", metadata=NO_METADATA)
            plt.close(figure)


if __name__ == "__main__":
    main()
