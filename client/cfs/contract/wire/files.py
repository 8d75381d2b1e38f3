"""Files of workspaces (G2)."""

from cfs.contract.wire.base import WireModel


class FileInfo(WireModel):
    """What is known of a file without reading it; `size` is in bytes, `version` changes with every write."""  # G2

    path: str
    size: int
    updated_at: float
    version: str | None = None


class FilePage(WireModel):
    """A page of files in the order of their paths; `next` is the `after` of the next page."""

    files: tuple[FileInfo, ...]
    next: str | None = None


class Matches(WireModel):
    """What a regular expression matched in a file, in its order."""

    matches: tuple[str, ...]
