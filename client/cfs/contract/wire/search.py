"""Results of a search in messages, titles and files."""

from typing import Literal

from cfs.contract.wire.base import WireModel
from cfs.contract.wire.messages import Role


class SearchResult(WireModel):
    """Something that contains the words, and the part of its text around the first of them.

    A message has its `role`, and its `index` in the history of its session. For the title or name of a session,
    `index` is 0. For a file, `path` is its path below the workspace, and `index` its line, from 1. `ranges` are the
    places of the words in `text`, in characters. `score`, from 0 to 1, says how much it is about the words.
    """

    kind: Literal["message", "title", "file"] = "message"
    session: str
    title: str | None
    index: int
    role: Role | None
    time: float
    text: str
    ranges: tuple[tuple[int, int], ...]
    score: float = 0.0
    path: str | None = None

    @property
    def place(self) -> str:
        """Where it is, for a line of text: session and message, file and line, or the session whose title it is."""
        match self.kind:
            case "message":
                return f"{self.session} #{self.index} {self.role}"
            case "file":
                return f"{self.session}/{self.path}:{self.index}"
        return f"{self.session} title"


class SearchResults(WireModel):
    """The best matches first; of equal ones, the newest. `truncated` says whether there may be more.

    `indexing` says that the server still builds its index, so that newer messages may be missing.
    """

    results: tuple[SearchResult, ...]
    truncated: bool
    indexing: bool = False
