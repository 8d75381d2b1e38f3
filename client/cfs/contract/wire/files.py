"""Files of workspaces (G2)."""

from typing import Annotated, Literal

from cfs.contract.wire.base import NewId, WireModel


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


class FileVersion(WireModel):
    """What a change left at a path: a `file`, `folder` or `link` with its permission bits, size and SHA-256.

    `removed` if nothing is there any more. Bytes of a name or target that are no UTF-8 are written as `\\xNN`. `target`
    is where a link leads, for those who may read it.
    """

    path: str
    type: Literal["file", "folder", "link", "removed"]
    mode: int = 0
    size: int = 0
    sha256: str | None = None
    target: str | None = None


class FileChange(WireModel):
    """A change of a workspace, with its number there and its author. `outside` is one by a program on the disk."""

    number: int
    at: float
    kind: Literal["write", "delete", "move", "copy", "folder", "rewind", "fork", "merge", "outside"]
    principal: str | None = None
    agent: str | None = None
    tool_call: str | None = None
    files: tuple[FileVersion, ...]


class PastEntry(WireModel):
    """A file or folder of the past: a transcript or a file as it was, or a folder of such.

    `at` is when it was made, `mode` its permission bits, which do not allow writes. `version` is equal for equal
    contents.
    """

    name: str
    type: Literal["file", "folder"]
    at: float
    size: int = 0
    mode: int
    version: str | None = None


class PastFolder(WireModel):
    """What is in a folder of the past."""

    entries: tuple[PastEntry, ...]


class FileChanges(WireModel):
    """A page of changes, the newest first; `next` is the `before` of the next page.

    Versions from `oldest` to `last` can be read.
    """

    changes: tuple[FileChange, ...]
    oldest: int
    last: int
    next: int | None = None


class MergeRequest(WireModel):
    """Body of `POST /v1/versions/{path}`: the workspace to merge, by its name, which is that of its session.

    With `dry_run` nothing is changed; the answer says what would be.
    """

    source: Annotated[str, NewId]
    dry_run: bool = False


class MergedFile(WireModel):
    """What a merge does at a path. `merged` is a text to which both sides have contributed lines."""

    path: str
    change: Literal["added", "changed", "merged", "removed"]


class MergeConflict(WireModel):
    """A path that both sides have changed and that could not be merged, why, and the files that hold what they have.

    `reason` is `changed` if both have changed the content, `type` if a file, folder or link has become something else,
    `removed` if the target has removed what the source has changed, and `removed_by_source` for the reverse.
    """

    path: str
    reason: Literal["changed", "type", "removed", "removed_by_source"]
    files: tuple[str, ...]


class MergedFiles(WireModel):
    """What a merge has done, or would do. `number` is that of its change; None if nothing changes.

    `left` are paths that stayed as they are because a program changed them meanwhile, or has files of its own there.
    """

    target: str
    source: str
    number: int | None = None
    files: tuple[MergedFile, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    left: tuple[str, ...] = ()
    dry_run: bool = False
