"""The past of transcripts and files as folders, as `/v1/past`, WebDAV and the mount show it (S14, G3, F5, W3).

    sessions/NAME/@12              the transcript of a session after its change 12
    workspaces/NAME/@12/src/a.py   a file as it was after change 12 of its workspace, in the whole tree of then
    workspaces/NAME/src/a.py/@12   the same file, beside its other versions

Folders of a workspace list what was ever there, also what was deleted. Nothing can be changed here, and the rights of
the present hold.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import BinaryIO, TypeVar

from anyio import to_thread

from cfs.contract.ids import check_id, file_name_of, id_of_file_name
from cfs.contract.transcript import render
from cfs.errors import InvalidIdentifier, InvalidParameters, NotFound
from cfs_filesystem import (
    AccessDeniedError,
    FileSystemError,
    FsHandle,
    InvalidArgumentError,
    NotFoundError,
    Path,
    VersionedEntryMeta,
    validate_path,
)
from cfs_filesystem.versions import Author, Entry, EntryType, Kind, PastFileSystem
from cfs_server.domain.ids import SESSIONS, WORKSPACES
from cfs_server.domain.loop_bridge import aside
from cfs_server.domain.past import Past, Version
from cfs_server.domain.transcripts import transcript_size
from cfs_server.domain.version_names import moment_of, version_name
from cfs_server.http.caller import Caller
from cfs_server.sessions.session import Session
from cfs_server.workspaces.file_service import Read, problem_of
from cfs_server.workspaces.history import split

MOST_VERSIONS = 1_000
"""Maximum number of versions that a folder of a workspace lists: the newest. Older ones can be named."""
_FILE, _FOLDER = 0o444, 0o555

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class VersionFolderEntry:
    """A file or a folder of the past. `at` is when it was made; `mode` holds the permission bits, none to write."""

    name: str
    folder: bool
    at: float
    size: int = 0
    mode: int = _FILE
    version: str | None = None


class VersionFolders:
    """The folders of the past that one caller may see. Paths have no `/` at either end; `""` is the topmost folder.

    All methods raise `NotFound`, `NotGranted` or `Forbidden`, and `Unsupported` for files if no versions are kept.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._handle: FsHandle = caller.principal.handle

    async def look(self, path: str) -> VersionFolderEntry:
        """Return the file or folder at a path."""
        match [part for part in path.split("/") if part]:
            case [] | ["sessions"] | ["workspaces"]:
                return _folder(path, 0.0)
            case ["sessions", name]:
                return _folder(name, (await self._past(name))[1].current.at)
            case ["sessions", name, version]:
                session, past = await self._past(name)
                return await self._transcript_entry(session, past, _version(past, version), version)
            case ["workspaces", workspace, *rest]:
                moment, inside = _resolved(rest)
                name, logical = ([workspace, *rest])[-1], "/".join([f"{WORKSPACES}{workspace}", *inside])
                if moment is not None:
                    return await self._in_thread(partial(self._look_at, logical, moment, name))
                entries = await self._entries(logical)
                return _folder(name, max((entry.at for entry in entries.values()), default=0.0))
        raise _nothing(path)

    async def members(self, path: str) -> list[VersionFolderEntry]:
        """Return what is directly in a folder."""
        match [part for part in path.split("/") if part]:
            case []:
                return [_folder("sessions", 0.0), _folder("workspaces", 0.0)]
            case ["sessions"]:
                return list(self._sessions())
            case ["workspaces"]:
                _ = self._caller.files.history  # before anything is listed that cannot be read
                return await self._in_thread(self._workspaces)
            case ["sessions", name]:
                return await self._transcripts(*await self._past(name))
            case ["workspaces", workspace, *rest]:
                moment, inside = _resolved(rest)
                logical = "/".join([f"{WORKSPACES}{workspace}", *inside])
                if moment is not None:
                    return await self._in_thread(partial(self._members_at, logical, moment))
                return await self._versions(logical)
        raise _nothing(path)

    async def open(self, path: str) -> Read[BinaryIO]:
        """Open a file, which the caller closes."""
        match [part for part in path.split("/") if part]:
            case ["sessions", name, name_of_version]:
                session, past = await self._past(name)
                version = _version(past, name_of_version)
                history = past.messages(version.number)
                text = await aside(history.size, self._caller.principal.name, partial(render, history.messages))
                meta = VersionedEntryMeta(
                    path=f"{SESSIONS}{name}",
                    size=history.size,
                    updated_at=datetime.fromtimestamp(version.at, UTC),
                    version=f"{session.nonce}-{version.number}",
                )
                return Read(BytesIO(text.encode()), meta)
            case ["workspaces", workspace, *rest]:
                moment, inside = _resolved(rest)
                if moment is not None and inside:
                    try:
                        return await self._caller.files.at(moment).open("/".join([f"{WORKSPACES}{workspace}", *inside]))
                    except InvalidParameters as error:  # a number that the workspace does not have
                        raise NotFound(error.detail) from None
        raise _nothing(path)

    # Transcripts of sessions.

    async def _past(self, name: str) -> tuple[Session, Past]:
        with suppress(InvalidIdentifier):
            return await self._caller.sessions.past(check_id(id_of_file_name(name) or ""))
        raise _nothing(name)

    def _sessions(self) -> Iterator[VersionFolderEntry]:
        gate = self._caller.sessions
        roots = {root.id: root for root in (*gate.page(limit=1 << 40), *gate.roots_with_children())}
        for root in roots.values():
            for session in (root, *gate.below(root.id)):
                if gate.may("read_binary", session.id):
                    yield _folder(file_name_of(session.id), session.history.changed_at)

    async def _transcripts(self, session: Session, past: Past) -> list[VersionFolderEntry]:
        def entries() -> list[VersionFolderEntry]:
            size, listing = 0, []
            for version in past.versions:
                if version.messages is not None:
                    size = version.messages.size
                elif version.message is not None:
                    size += transcript_size(version.message)
                listing.append(_of_version(session, version, _name_of(version), size))
            return listing

        return await aside(session.history.size, self._caller.principal.name, entries)

    async def _transcript_entry(self, session: Session, past: Past, version: Version, name: str) -> VersionFolderEntry:
        owner = self._caller.principal.name
        size = (await aside(session.history.size, owner, partial(past.messages, version.number))).size
        return _of_version(session, version, name, size)

    # Files of workspaces.

    def _workspaces(self) -> list[VersionFolderEntry]:
        members = self._handle.scan(WORKSPACES)
        return [
            _folder(meta["path"].removeprefix(WORKSPACES), meta["updated_at"].timestamp())
            for meta in members
            if meta.get("directory")
        ]

    async def _entries(self, logical: Path) -> dict[str, Entry]:
        """Return what was ever at and below a path. Raises `NotFound` if that is nothing."""
        await self._in_thread(partial(validate_path, logical))
        entries = await self._caller.files.paths_with_versions(logical)
        is_workspace = not split(logical)[1] and await self._in_thread(partial(self._handle.is_directory, logical))
        if not entries and not is_workspace:
            raise await self._in_thread(partial(self._nothing_at, logical))
        return entries

    async def _versions(self, logical: Path) -> list[VersionFolderEntry]:
        """Return the versions at a path, and the names of what was ever directly in it."""
        _, inside = split(logical)
        entries = await self._entries(logical)
        newest = entries.get(inside)
        listing = []
        if not inside or newest is not None:
            page = await self._caller.files.changes(logical, None, MOST_VERSIONS)  # looks at the folder first
            entries = await self._entries(logical)
            for change in page.changes:
                entry = change.entries.get(inside)
                author = _author(change.author, change.kind)
                if not inside:
                    listing.append(_folder(version_name(change.number, change.at, author), change.at))
                elif entry is not None and entry.type is EntryType.FILE:
                    listing.append(_of_file(entry, version_name(change.number, change.at, author, logical)))
        above = f"{inside}/" if inside else ""
        folders: dict[str, float] = {}
        for path, entry in entries.items():
            name = path.removeprefix(above).partition("/")[0]
            if path != inside and _is_legal(f"{WORKSPACES}w/{above}{name}"):
                folders[name] = max(entry.at, folders.get(name, 0.0))
        return listing + [_folder(name, at) for name, at in sorted(folders.items())]

    def _look_at(self, logical: Path, moment: int | datetime, name: str) -> VersionFolderEntry:
        past = self._at(moment)
        workspace, inside = split(logical)
        with _numbers_as_names():
            if inside and past.allows("file", logical):
                with suppress(NotFoundError):
                    past.file(logical)
                    return self._entry(workspace, inside, moment, name)
            if past.is_directory(logical):
                return self._entry(workspace, inside, moment, name)
        raise self._nothing_at(logical)

    def _members_at(self, logical: Path, moment: int | datetime) -> list[VersionFolderEntry]:
        with _numbers_as_names():
            members = self._at(moment).scan(logical)
        return [
            self._entry(*split(path), moment, path.rpartition("/")[2]) for path in (meta["path"] for meta in members)
        ]

    def _at(self, moment: int | datetime) -> FsHandle:
        return self._handle.on(PastFileSystem(self._caller.files.history.store, WORKSPACES, moment))

    def _entry(self, workspace: str, inside: str, moment: int | datetime, name: str) -> VersionFolderEntry:
        store = self._caller.files.history.store
        number = moment if isinstance(moment, int) else store.number_at(workspace, moment.timestamp())
        if inside and (entry := store.at(workspace, inside, number)) is not None:
            return _of_file(entry, name) if entry.type is EntryType.FILE else _folder(name, entry.at)
        changes = store.changes(workspace, "", number + 1, 1)
        return _folder(name, changes[0].at if changes else 0.0)

    def _nothing_at(self, logical: Path) -> NotFoundError:
        """Return the error of a path where nothing is; raises `AccessDeniedError` without the right to know that."""
        self._handle.require("file", logical)
        return NotFoundError(f"{logical!r} has no version, or was not there then", logical)

    async def _in_thread(self, action: Callable[[], _T]) -> _T:
        try:
            return await to_thread.run_sync(action)
        except FileSystemError as error:
            if isinstance(error, AccessDeniedError):
                error.operation = error.operation or "file"
            raise problem_of(self._caller.principal.authorization, error) from None


@contextmanager
def _numbers_as_names() -> Iterator[None]:
    """Raise `NotFoundError` for a number that the workspace does not have: here it is a part of a path."""
    try:
        yield
    except InvalidArgumentError as error:
        raise NotFoundError(error.detail, error.path) from None


def _resolved(parts: list[str]) -> tuple[int | datetime | None, list[str]]:
    """Return the version that a path in a workspace names, and the path without it."""
    for index, part in enumerate(parts):
        if (moment := moment_of(part)) is not None:
            return moment, parts[:index] + parts[index + 1 :]
    return None, parts


def _version(past: Past, name: str) -> Version:
    moment = moment_of(name)
    if moment is None:
        raise _nothing(name)
    version = past.at(moment.timestamp() if isinstance(moment, datetime) else moment)
    if version is None:
        raise NotFound("the session did not exist at that time")
    return version


def _name_of(version: Version) -> str:
    agent = version.author.agent if version.author is not None else None
    if agent is None and version.message is not None and version.message.role == "assistant":
        agent = "model"
    principal = version.author.principal if version.author is not None else None
    return version_name(version.number, version.at, agent or principal or "unknown")


def _author(author: Author, kind: Kind) -> str:
    return "outside" if kind is Kind.OUTSIDE else author.agent or author.principal or "unknown"


def _of_version(session: Session, version: Version, name: str, size: int) -> VersionFolderEntry:
    return VersionFolderEntry(name, False, version.at, size, _FILE, f"{session.nonce}-{version.number}")


def _of_file(entry: Entry, name: str) -> VersionFolderEntry:
    return VersionFolderEntry(name, False, entry.at, entry.size, entry.mode & 0o555 | 0o444, entry.digest[:32])


def _folder(name: str, at: float) -> VersionFolderEntry:
    return VersionFolderEntry(name, True, at, mode=_FOLDER)


def _is_legal(path: Path) -> bool:
    try:
        validate_path(path)
    except FileSystemError:
        return False
    return True


def _nothing(path: str) -> NotFound:
    return NotFound(f"there is nothing at {path!r} in the past: name a version by its number or a time, as in @12")
