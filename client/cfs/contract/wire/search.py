"""Results of a search in messages."""

from cfs.contract.wire.base import WireModel
from cfs.contract.wire.messages import Role


class SearchResult(WireModel):
    """A message that contains the words: its session, its index in the history, and a part of its text.

    `ranges` are the places of the words in `text`, in characters.
    """

    session: str
    title: str | None
    index: int
    role: Role
    time: float
    text: str
    ranges: tuple[tuple[int, int], ...]


class SearchResults(WireModel):
    """The newest messages that contain some words; `truncated` says whether there may be more."""

    results: tuple[SearchResult, ...]
    truncated: bool
