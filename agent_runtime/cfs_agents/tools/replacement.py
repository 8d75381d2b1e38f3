"""Replaces a passage of a text that occurs exactly once. No I/O."""

from cfs_agents.tools.errors import ToolError

_MOST_PLACES = 10


def replaced(path: str, text: str, old: str, new: str) -> tuple[str, int]:
    """Replace the only occurrence of `old`; returns the new text and the offset of the occurrence.

    Raises `ToolError` if there is no occurrence, or more than one (with their lines). `path` is for the error only.
    """
    if not old:
        raise ToolError("'old' is empty: give the text that is to be replaced")
    if old == new:
        raise ToolError("'old' and 'new' are the same: nothing would change")
    places = _places(text, old)
    if not places:
        raise ToolError(f"'old' is not in {path!r}{_near(text, old)}; nothing was changed")
    if len(places) > 1:
        lines = ", ".join(str(line_of(text, position)) for position in places[:_MOST_PLACES])
        more = ", ..." if len(places) > _MOST_PLACES else ""
        raise ToolError(
            f"'old' is {len(places)} times in {path!r}, at the lines {lines}{more}; nothing was changed:"
            " give more of the text around the place that is meant"
        )
    start = places[0]
    return text[:start] + new + text[start + len(old) :], start


def _places(text: str, old: str) -> list[int]:
    """Return the position of every occurrence; occurrences may overlap."""
    places: list[int] = []
    start = text.find(old)
    while start >= 0:
        places.append(start)
        start = text.find(old, start + 1)
    return places


def line_of(text: str, position: int) -> int:
    """Return the number of the line in which a position is, from 1."""
    return text.count("\n", 0, position) + 1


def _near(text: str, old: str) -> str:
    """Return a hint to a place that differs only in white space or in the ends of its lines."""
    if "\r\n" in text and old.replace("\n", "\r\n") in text:
        return ": the file's lines end in '\\r\\n'"
    old_lines = [line.strip() for line in old.strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for at in range(len(lines) - len(old_lines) + 1) if old_lines else ():
        if lines[at : at + len(old_lines)] == old_lines:
            return f": it is at line {at + 1} but for white space, copy the text exactly"
    return ""
