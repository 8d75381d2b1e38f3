"""Has the figures drawn, in an environment that has matplotlib: nothing else here needs it."""

import subprocess
import tempfile
from pathlib import Path

from engine_bench import report
from engine_bench.environments import PLOTS

_DRAWING = Path(__file__).with_name("drawing.py")


def draw(found: report.Figures, folder: Path) -> None:
    """Draw what there is into a folder, as `bench-*.svg`; raises `SideError` if matplotlib cannot be had."""
    with tempfile.TemporaryDirectory() as scratch:
        figures = Path(scratch) / "figures.json"
        report.write(found, figures)
        subprocess.run([PLOTS.python(), _DRAWING, figures, folder], check=True)
