"""Draws some of the figures as SVG. matplotlib is needed only here."""

from pathlib import Path

from engine_bench.report import Figures


def draw(found: Figures, folder: Path) -> None:
    """Draw what there is."""
