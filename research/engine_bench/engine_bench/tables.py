"""Results in Markdown: tables and verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a bar is met: `value` against `bar`, at most it or at least it."""

    what: str
    value: float
    bar: float
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        """Say so in a line."""
        side = "at least" if self.at_least else "at most"
        told = "met" if self.met else f"**missed by {abs(self.value - self.bar):.3g}{self.unit}**"
        return f"{self.what}: {self.value:.3g}{self.unit}, bar {side} {self.bar:g}{self.unit}: {told}."


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Write a table; the first `left` columns are words, the rest numbers."""
    lines = ["| " + " | ".join(columns) + " |"]
    lines.append("|" + "|".join("---" if place < left else "--:" for place in range(len(columns))) + "|")
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def verdicts(found: Iterable[Verdict]) -> str:
    """List verdicts."""
    return "\n".join(f"- {verdict}" for verdict in found)


def between_markers(text: str, name: str, part: str) -> str:
    """Replace what stands between `<!-- NAME -->` and `<!-- /NAME -->`; raises `SystemExit` if they are not there."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"the page has no place for {name}")
    return f"{before}{begin}{part}\n{end}{after}"
