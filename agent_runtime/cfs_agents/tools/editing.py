"""Exact replacement in a text. Pure: no I/O."""

from cfs_agents.tools.errors import ToolError

_MOST_PLACES = 10


def replaced(path: str, text: str, old: str, new: str) -> tuple[str, int]:
    """Replace the one place where `old` stands; returns the new text and the number of its first line there.

    Raises `ToolError` when there is none, or more than one, saying where; `path` is for the reason only.
    """
    if not old:
        raise ToolError("'old' is empty: give the text that is to be replaced")
    if old == new:
        raise ToolError("'old' and 'new' are the same: nothing would change")
    places = _places(text, old)
    if not places:
        raise ToolError(f"'old' is not in {path!r}{_near(text, old)}; nothing was changed")
    if len(places) > 1:
        lines = ", ".join(str(_line(text, place)) for place in places[:_MOST_PLACES])
        more = ", ..." if len(places) > _MOST_PLACES else ""
        raise ToolError(
            f"'old' is {len(places)} times in {path!r}, at the lines {lines}{more}; nothing was changed:"
            " give more of the text around the place that is meant"
        )
    start = places[0]
    return text[:start] + new + text[start + len(old) :], _line(text, start)


def _places(text: str, old: str) -> list[int]:
    """Find every place where it stands; places may overlap, as each of them could be meant."""
    places: list[int] = []
    start = text.find(old)
    while start >= 0:
        places.append(start)
        start = text.find(old, start + 1)
    return places


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _near(text: str, old: str) -> str:
    """Say where it nearly stands: but for white space, or for the ends of lines."""
    if "\r\n" in text and old.replace("\n", "\r\n") in text:
        return ": the file's lines end in '\\r\\n'"
    wanted = [line.strip() for line in old.strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for at in range(len(lines) - len(wanted) + 1) if wanted else ():
        if lines[at : at + len(wanted)] == wanted:
            return f": it is at line {at + 1} but for white space, copy the text exactly"
    return ""
