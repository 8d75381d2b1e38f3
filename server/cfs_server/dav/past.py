"""`.versions` on WebDAV: the past, in the folder of all sessions and in each workspace (W3).

No listing shows it, so that what copies, compares or deletes the folder around it leaves the past alone.
"""

from collections.abc import Iterable
from io import BytesIO
from typing import BinaryIO

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from cfs.contract.ids import VERSIONS
from cfs.errors import Forbidden, NotFound
from cfs_filesystem import FileSystemError
from cfs_server.dav.fixed import FixedTree
from cfs_server.http.file_content import content_of
from cfs_server.http.version_folders import VersionFolderEntry, VersionFolders
from cfs_webdav import MountView, Resource
from cfs_webdav.tree import media_type_of

_READING = ("OPTIONS", "PROPFIND")


def past_in_sessions(path: str) -> str | None:
    """Return the path in the past that a path of `/dav/sessions` names; None if it names something else."""
    match path.strip("/").split("/"):
        case [first, *rest] if first == VERSIONS:
            return "/".join(rest)
    return None


async def past_in_workspaces(path: str, tree: MountView) -> str | None:
    """Return the path in the past that a path of `/dav/workspaces` names; None if it names something else.

    A workspace that has a file or folder of this name shows that one.
    """
    match path.strip("/").split("/"):
        case [workspace, second, *rest] if second == VERSIONS:
            entry = await to_thread.run_sync(_look, tree, f"/{workspace}/{VERSIONS}")
            return "/".join(["workspaces", workspace, *rest]) if entry is None else None
    return None


async def past_tree(folders: VersionFolders, method: str, depth: str, inside: str, path: str) -> "PastTree":
    """Return what a request asks of the past at a path, which is `inside` for `VersionFolders`.

    Raises `Forbidden` for a method that would change something, and `NotFound`.
    """
    if method not in _READING:
        raise unchangeable(path)
    entry = await folders.look(inside)
    members = await folders.members(inside) if entry.folder and depth == "1" else []
    return PastTree(path, entry, members)


async def read(request: Request, folders: VersionFolders, inside: str) -> Response:
    """Return a file of the past, or the names in a folder of it, one per line."""
    header = request.headers.get
    try:
        opened = await folders.open(inside)
    except NotFound:
        if not (await folders.look(inside)).folder:
            raise
        names = [entry.name + "/" * entry.folder for entry in await folders.members(inside)]
        return PlainTextResponse("".join(f"{name}\n" for name in names), headers={"Cache-Control": "no-cache"})
    path = inside if opened.meta is None else opened.meta["path"]
    return content_of(request, path, opened, header("range"), header("if-range"), header("if-none-match"))


def unchangeable(path: str) -> Forbidden:
    """Return why nothing can be changed at a path."""
    return Forbidden(f"{path!r} is the past, which can only be read: read a version, and write it where you want it")


class PastTree(FixedTree):
    """One entry of the past and what is directly in it, as they were when the request came."""

    def __init__(self, path: str, entry: VersionFolderEntry, members: Iterable[VersionFolderEntry]) -> None:
        self._path = path
        self._entry = entry
        self._members = members

    def refused(self, path: str) -> Forbidden:
        """Return why nothing can be changed at a path."""
        return unchangeable(path)

    def look(self, path: str) -> Resource | None:
        """Return the entry of the request."""
        return _shown(path, self._entry) if path == self._path else None

    def members(self, path: str) -> Iterable[Resource]:
        """Return what is in the folder of the request."""
        return [_shown(f"{path}/{member.name}", member) for member in self._members]

    def open(self, path: str) -> BinaryIO:  # noqa: ARG002 - `read` answers what reads a file
        """Return nothing."""
        return BytesIO()


def _shown(path: str, entry: VersionFolderEntry) -> Resource:
    if entry.folder:
        return Resource(path, collection=True, modified=entry.at or None)
    return Resource(path, False, entry.size, entry.at, entry.version, media_type_of(path))


def _look(tree: MountView, path: str) -> Resource | None:
    try:
        tree.check(path)
        return tree.look(path)
    except FileSystemError:  # the caller may not know
        return None
