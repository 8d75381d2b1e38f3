"""The session mounts: `/dav/sessions` with each root session as a file, and `/dav/sub_sessions` (W2, W3)."""

import io
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from pydantic import ValidationError

from cfs.contract.ids import name_below
from cfs.errors import (
    Conflict,
    Forbidden,
    InvalidIdentifier,
    InvalidSettings,
    NotFound,
    TooLarge,
    UnsupportedMedia,
)
from cfs.transports.attributes import PREFIX, read_settings, write_settings
from cfs.wire import Settings, SettingsPatch, State
from cfs_server.dav.paths import (
    Family,
    MountPath,
    Root,
    ScratchPath,
    SessionPath,
    in_sessions,
    in_sub_sessions,
    is_legal,
)
from cfs_server.dav.put import Put, is_rclone, require_size
from cfs_server.dav.scratch import CAP_FILE, ClientState, Scratch
from cfs_server.domain.loop_bridge import LoopBridge
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session
from cfs_webdav.tree import Conditions, MountView, Resource

# Settings and state of a session as WebDAV properties in the namespace `cfs:` (W5, S9). Pure functions, no I/O.

NAMESPACE = "{cfs:}"
"""In Clark's notation."""

_LIVE = ("state", "queued")


@lru_cache(maxsize=256)  # most sessions of a listing have the same settings
def settings_shown(settings: Settings) -> Mapping[str, str]:
    """Return the settings that have a value. Numbers and lists are JSON, texts are unchanged."""
    written = write_settings(SettingsPatch(**settings.model_dump()))
    values = {
        NAMESPACE + name: value.decode()
        for name in Settings.model_fields
        if (value := written[PREFIX + name]) is not None
    }
    return MappingProxyType(values)


def state_shown(state: State, queued: int) -> Mapping[str, str]:
    """Return the state of the session."""
    return {NAMESPACE + "state": state, NAMESPACE + "queued": str(queued)}


def is_ours(name: str) -> bool:
    """Return whether a property belongs to the session. Clients may store other properties."""
    return name.startswith(NAMESPACE)


def change_of(name: str, value: str | None) -> SettingsPatch:
    """Parse the change of one property. None resets the setting to its default.

    Raises `Forbidden` for a read-only property, and `Conflict` for an unknown setting or an invalid value.
    """
    key = name.removeprefix(NAMESPACE)
    if key in _LIVE:
        raise Forbidden(f"{key!r} says what the session is doing; it cannot be set")
    if key not in SettingsPatch.model_fields:
        raise Conflict(f"there is no setting {key!r}; there are {', '.join(SettingsPatch.model_fields)}")
    try:
        return SettingsPatch.model_validate({key: None if value is None else _read(key, value)})
    except (ValidationError, InvalidSettings) as error:
        raise Conflict(f"{key} cannot be {value!r}: {_reason(error)}") from None


def _read(key: str, value: str) -> object:
    return getattr(read_settings({PREFIX + key: value.encode()}), key)


def _reason(error: ValidationError | InvalidSettings) -> str:
    return error.detail if isinstance(error, InvalidSettings) else error.errors()[0]["msg"]


# Snapshots of sessions and scratch files, and their entries in a mount.
#
# The rows of a listing are taken on the event loop, which must be short. Their entries are created in a thread.

MEDIA_TYPE = "text/plain; charset=utf-8"


class ListedSession(NamedTuple):
    """A session at one moment."""

    id: str
    size: int
    changed_at: float
    etag: str
    state: State
    queued: int
    settings: Settings

    def entry(self, path: str) -> Resource:
        """Return its entry at a path."""
        return Resource(path, False, self.size, self.changed_at, self.etag, MEDIA_TYPE)


def row_of(session: Session) -> ListedSession:
    """Return the current row of a session. Runs on the event loop."""
    history = session.history
    queued = len(session.queue)
    return ListedSession(
        session.id, history.size, history.changed_at, session.etag[1:-1], session.state, queued, session.settings
    )


def scratch_entry(path: str, file: Scratch) -> Resource:
    """Return the entry of a scratch file."""
    return Resource(path, False, len(file.data), file.changed_at, file.etag)


_NO_CONDITIONS = Conditions()


class RootSessionTree(MountView):
    """The root sessions that one caller may use, for one request. Used by threads and on the loop.

    A caller with any right at a session can see that it exists. Its size and version require the right to list or to
    read it, as in REST. A session is one under any name; other names of a certain form are those of scratch files
    (`cfs.contract.ids`).

    Some programs save by renaming the old file (`chat1` to `chat1~`) and writing a new one. `chat1~` is then a copy of
    the transcript, and the session keeps its id for all clients. A real rename would take the session away from its
    turn, its agent and other clients, and the new file would be another session. If the session were only hidden, a
    crash of the program would lose it. The next PUT therefore finds the session, and the rules find the one added
    message. A program that requires a new file by `If-None-Match: *` is accepted for a minute.

    Other programs write a new file and move it over the old one; see `cfs_server.dav.new_files`.
    """

    flat = True
    namespace = NAMESPACE
    _mount = "/dav/sessions"

    def __init__(
        self,
        gate: AuthorizedSessions,
        state: ClientState,
        user_agent: str = "",
        on_loop: LoopBridge | None = None,
        fork: Callable[[str, str], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        """With a `fork`, this copies a session; otherwise the messages are copied alone."""
        self.gate = gate
        self._fork = fork or self._fork_messages
        self._on_loop = on_loop or state.on_loop
        self._scratch = state.scratch
        self._clients = state.clients
        self._user_agent = user_agent
        self._rows: dict[str, ListedSession] = {}  # the sessions that the caller may see, as first read
        self._properties: dict[str, Mapping[str, str]] = {}

    def look(self, path: str) -> Resource | None:
        """Return the current entry of a session, a scratch file or a collection."""
        with suppress(InvalidIdentifier):
            return self._on_loop(partial(self._look, self.resolve(path), path))
        return None

    def check(self, path: str) -> None:
        """Raise `InvalidIdentifier` for an invalid id, and `NotGranted` if the caller has no rights."""
        match self.resolve(path):
            case SessionPath(session_id) | Family(session_id):
                self.gate.require_any(session_id)

    def require_write(self, path: str) -> None:
        """Raise `NotGranted` or `Forbidden` if the caller may not write a session."""
        target = self.resolve(path)
        if isinstance(target, SessionPath):
            self.gate.require("write", target.id)

    def members(self, path: str) -> Iterable[Resource]:
        """Return the entries directly in a collection, all from one moment."""
        rows, collections, scratch = self._on_loop(partial(self._below, self.resolve(path), path))
        listed = {self.path_of(row.id): row for row in rows}
        self._rows |= listed
        entries = [row.entry(where) for where, row in listed.items()]
        entries += [Resource(where, collection=True, modified=at) for where, at in collections]
        return entries + [scratch_entry(where, file) for where, file in scratch]

    def open(self, path: str) -> BinaryIO:
        """Open the current transcript. `cfs_server.dav.get` reads it with a wait."""
        return io.BytesIO(self._content(path)[0])

    def scratch(self, path: str) -> Scratch:
        """Return a scratch file. Runs on the event loop. Raises `NotFound`."""
        return self._scratch.get(self._key(path))

    def properties(self, path: str) -> Mapping[str, str]:
        """Return the settings and the state of a session."""
        if (cached := self._properties.get(path)) is not None:
            return cached
        target = self.resolve(path)
        if not isinstance(target, SessionPath):
            return {}
        if path not in self._rows:
            self.look(path)
        row = self._rows.get(path)
        properties: dict[str, str] = {}
        if row is not None:
            properties.update(state_shown(row.state, row.queued))
            if self.gate.may("read_binary", row.id):
                properties.update(settings_shown(row.settings))
        self._properties[path] = properties  # each property is read by its own call
        return properties

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str:
        """Execute a PUT; see `cfs_server.dav.put`. The bytes of a scratch file are stored unchanged."""
        target = self.resolve(path)
        if isinstance(target, SessionPath):
            self._on_loop(partial(require_size, self.gate, target.id, body.seek(0, os.SEEK_END)))
            body.seek(0)
            return self._put(target.id, body.read(), conditions)
        if isinstance(target, ScratchPath):
            data = body.read(CAP_FILE + 1)
            return self._on_loop(partial(self._scratch.write, self._key(path), data, conditions)).etag
        raise self._no_file(path)

    def make(self, path: str) -> None:
        """Create an empty session or scratch file if it does not exist (S2)."""
        target = self.resolve(path)
        if isinstance(target, SessionPath):
            self._on_loop(partial(self._make, target.id))
        elif isinstance(target, ScratchPath):
            if self.look(path) is None:
                self._on_loop(partial(self._scratch.put, self._key(path), b""))
        else:
            raise self._no_file(path)

    def make_collection(self, path: str) -> None:  # noqa: ARG002 - wherever it is
        """Refuse: only sessions create collections."""
        raise Forbidden(f"no collection can be made in {self._mount}: write a session, or use /dav/workspaces")

    def delete(self, path: str) -> None:
        """Delete a scratch file, or a session with everything below it (S2)."""
        target = self.resolve(path)
        if isinstance(target, SessionPath):
            self._on_loop(partial(self._delete, target.id))
        elif isinstance(target, ScratchPath):
            self._on_loop(partial(self._scratch.delete, self._key(path)))
        else:
            raise self._no_file(path)

    def copy(self, path: str, target: str, *, overwrite: bool = True, members: bool = True) -> None:  # noqa: ARG002
        """Fork a session (S14). A copy to or from a scratch file transfers bytes; a session receives them as a PUT."""
        match self.resolve(path), self.resolve(target):
            case SessionPath(source), SessionPath(new):
                self._on_loop.wait(self._fork(source, new))
            case ScratchPath(), SessionPath(new):
                self._publish(path, new)
            case ((SessionPath() | ScratchPath()), ScratchPath()):
                self._copy_to_scratch(path, target)
            case source, _:
                raise self._no_file(target if isinstance(source, SessionPath | ScratchPath) else path)

    async def _fork_messages(self, source: str, new: str) -> None:
        async with self.gate.loaded(source):
            self.gate.fork(source, new)

    def move(self, path: str, target: str, *, overwrite: bool = True) -> None:  # noqa: ARG002
        """Rename a session (S14). A scratch file moved onto it is a PUT. For a move to a scratch file see the class.

        So is a new file that a program has just written; it is deleted in the same step. If its body is refused, it
        becomes a scratch file, because it is no message.
        """
        match self.resolve(path), self.resolve(target):
            case SessionPath(source), SessionPath(new):
                with self._on_loop.within(self.gate.loaded(source)):
                    body = self._on_loop(partial(self._temporary, source, new))
                if body is None:
                    self._on_loop(partial(self.gate.rename, source, new))
                else:
                    self._replace(path, source, new, body)
            case SessionPath(source), ScratchPath():
                self._copy_to_scratch(path, target)
                self._on_loop(partial(self._set_aside, source))
            case ScratchPath(), SessionPath(new):
                file = self._publish(path, new)
                self._on_loop(partial(self._scratch.delete, self._key(path), file))
            case ScratchPath(), ScratchPath():
                self._on_loop(partial(self._scratch.move, self._key(path), self._key(target)))
            case source, _:
                raise self._no_file(target if isinstance(source, SessionPath | ScratchPath) else path)

    def may_overwrite(self, path: str, target: str) -> bool:
        """Return whether the target may be replaced: by the temporary file of a program, but by no other session."""
        match self.resolve(path), self.resolve(target):
            case _, ScratchPath():
                return True
            case ScratchPath(), SessionPath():
                return True
            case SessionPath(source), SessionPath(new):
                with self._on_loop.within(self.gate.loaded(source)):
                    return self._on_loop(partial(self._temporary, source, new)) is not None
        return False

    def may_write(self, path: str) -> bool:
        """Return whether the caller may write there. Only files can be locked."""
        match self.resolve(path):
            case SessionPath(session_id):
                return self.gate.may("write", session_id)
            case ScratchPath():
                return True
        return False

    def set_property(self, path: str, name: str, value: str | None, *, dry_run: bool) -> bool:
        """Change a setting (S9). Properties of other namespaces are not handled here."""
        target = self.resolve(path)
        if not isinstance(target, SessionPath) or not is_ours(name):
            return False
        self._on_loop(partial(self._configure, target.id, name, value, dry_run=dry_run))
        self._rows.pop(path, None)
        self._properties.pop(path, None)
        return True

    def resolve(self, path: str) -> MountPath | None:
        """Return the meaning of a path. A session has its name on all interfaces, whatever name it is.

        Threads call this, too: the store and the scratch files are only asked for a name.
        """
        target = self._parse(path)
        is_scratch = self._key(path) in self._scratch
        match target:
            case ScratchPath():
                target = self._session_named(path) or target
            case SessionPath(session_id) if is_scratch and self.gate.known(session_id) is None:
                target = ScratchPath(path)
        if is_scratch and not isinstance(target, ScratchPath):  # a session has its name now
            self._on_loop(partial(self._scratch.discard, self._key(path)))
        return target

    def etag_after_move(self, session_id: str) -> str | None:
        """Return the ETag for a HEAD of what this client has just moved to a session; None if it has not."""
        return self._clients.moved(self._user_agent, session_id)

    def note_read(self, session_id: str) -> None:
        """Note that somebody has read a session. Runs on the event loop."""
        if (session := self.gate.known(session_id)) is not None:
            self._clients.new_files.forget(session)

    def _parse(self, path: str) -> MountPath | None:
        return in_sessions(path)

    def _session_named(self, path: str) -> MountPath | None:
        """Return the session at a path that has the form of a scratch file's."""
        name = path.strip("/")
        return SessionPath(name) if is_legal(name) and self.gate.known(name) is not None else None

    def path_of(self, session_id: str) -> str:
        """Return the path of a session."""
        return "/" + session_id

    def _listed(self, target: MountPath | None) -> list[Session]:
        """Return the sessions directly in a collection. Runs on the loop."""
        return self.gate.page(limit=1 << 40) if isinstance(target, Root) else []

    def _collections(self, target: MountPath | None) -> list[tuple[str, float]]:  # noqa: ARG002 - used below the roots
        """Return the paths and the times of change of the collections in a collection. Runs on the loop."""
        return []

    def _look_at_family(self, target: Family, path: str) -> Resource | None:  # noqa: ARG002
        return None

    def _look(self, target: MountPath | None, path: str) -> Resource | None:
        match target:
            case Root():
                return Resource("/", collection=True)
            case Family():
                return self._look_at_family(target, path)
            case ScratchPath():
                file = self._scratch.find(self._key(path))
                return None if file is None else scratch_entry(path, file)
            case SessionPath(session_id):
                row = self._row_of(session_id)
                if row is None:
                    return None
                if not self._sees(session_id):
                    return Resource(path, media_type=MEDIA_TYPE)
                self._rows[path] = row
                return row.entry(path)
        return None

    def _below(
        self, target: MountPath | None, path: str
    ) -> tuple[list[ListedSession], list[tuple[str, float]], list[tuple[str, Scratch]]]:
        mine = self._scratch.below(self._key(path).rstrip("/") + "/")
        files = [(key.removeprefix(self._mount), file) for key, file in mine]
        files = [(where, file) for where, file in files if isinstance(self.resolve(where), ScratchPath)]
        return [row_of(session) for session in self._listed(target)], self._collections(target), files

    def _row_of(self, session_id: str) -> ListedSession | None:
        session = self.gate.known(session_id)
        return None if session is None else row_of(session)

    def _delete(self, session_id: str) -> None:
        self._clients.require_may_delete(self._user_agent, session_id)
        self.gate.delete(session_id)

    def _make(self, session_id: str) -> None:
        is_new = self.gate.known(session_id) is None
        session = self.gate.open(session_id)
        if is_new:
            self._clients.new_files.written(session, b"", created=True)

    def _temporary(self, source: str, target: str) -> bytes | None:
        """Return the body of a temporary file that is about to replace a session; None for any other rename."""
        session = self.gate.known(source)
        if session is None or source == target or self.gate.known(target) is None:
            return None
        return self._clients.new_files.body(session)

    def _drop(self, session_id: str) -> None:
        with suppress(NotFound):  # somebody else has just deleted it
            self.gate.delete(session_id)

    def _keep_refused(self, path: str, source: str, body: bytes) -> None:
        self._scratch.put(self._key(path), body)
        self._drop(source)

    def _set_aside(self, session_id: str) -> None:
        self._clients.sets_aside(self.gate.get(session_id, "read_binary").key)

    def _configure(self, session_id: str, name: str, value: str | None, *, dry_run: bool) -> None:
        self.gate.get(session_id, "write")
        change = change_of(name, value)
        try:
            self.gate.configure(session_id, change, dry_run=dry_run)
        except InvalidSettings as error:
            raise Conflict(error.detail) from None

    def _transcript(self, session_id: str) -> tuple[str, str]:
        session = self.gate.get(session_id, "read_binary")
        return session.history.text, session.etag

    def _content(self, path: str) -> tuple[bytes, str | None]:
        """Return the bytes at a path, and the ETag of the transcript that they are or were copied from."""
        match self.resolve(path):
            case SessionPath(session_id):
                with self._on_loop.within(self.gate.loaded(session_id)):
                    text, etag = self._on_loop(partial(self._transcript, session_id))
                return text.encode(), etag
            case ScratchPath():
                file = self._on_loop(partial(self._scratch.get, self._key(path)))
                return file.data, file.view
        raise self._no_file(path)

    def _copy_to_scratch(self, path: str, target: str) -> None:
        data, view = self._content(path)
        self._on_loop(partial(self._scratch.put, self._key(target), data, view))

    def _publish(self, path: str, session_id: str) -> Scratch:
        """Write a scratch file to a session. Return the scratch file."""
        file = self._on_loop(partial(self._scratch.get, self._key(path)))
        etag = self._put(session_id, file.data, _NO_CONDITIONS, file.view or "")
        self._on_loop(partial(self._clients.moves, self._user_agent, session_id, etag))
        return file

    def _replace(self, path: str, source: str, target: str, body: bytes) -> None:
        """Write the body of a temporary file to a session, and delete the file."""
        self._on_loop(partial(self.gate.require, "delete", source))
        try:
            etag = self._put(target, body, _NO_CONDITIONS, then=partial(self._drop, source))
        except (Conflict, TooLarge, UnsupportedMedia):
            self._on_loop(partial(self._keep_refused, path, source, body))
            raise
        self._on_loop(partial(self._clients.moves, self._user_agent, target, etag))

    def _put(
        self,
        session_id: str,
        data: bytes,
        conditions: Conditions,
        hint: str = "",
        then: Callable[[], None] = lambda: None,
    ) -> str:
        if is_rclone(self._user_agent):
            self._on_loop(partial(self._clients.uploads, self._user_agent, session_id))
        return Put(self.gate, self._clients, session_id, data, conditions, hint, then).run(self._on_loop)

    def _sees(self, session_id: str) -> bool:
        """Return whether the caller may know more about a session than its existence."""
        return any(self.gate.may(operation, session_id) for operation in ("list", "file", "read_binary"))

    def _key(self, path: str) -> str:
        """Return the key of a scratch file. A principal has one store for all mounts."""
        return self._mount + path

    def _no_file(self, path: str) -> NotFound | Forbidden:
        if self.resolve(path) is None:
            return NotFound(f"nothing can be at {path!r} in {self._mount}")
        return Forbidden(f"{path!r} in {self._mount} is a collection that is there as long as its sessions are")


# `/dav/sub_sessions`: for each root session a flat collection of everything below it (W3).


class SubSessionTree(RootSessionTree):
    """The sub-sessions that one caller may use, for one request.

    `/main/coder.tester` is the session `main/coder/tester`. Writing to it steers its agent. The listing contains the
    roots that have sub-sessions. The collection of another existing root is empty. Collections can be neither created
    nor changed. A root is deleted or renamed in `/dav/sessions`.
    """

    flat = False
    _mount = "/dav/sub_sessions"

    def _parse(self, path: str) -> MountPath | None:
        return in_sub_sessions(path)

    def _session_named(self, path: str) -> MountPath | None:
        name = path.strip("/")
        legal = "/" not in name and is_legal(name)
        return Family(name) if legal and self.gate.enter(name) is not None else None

    def path_of(self, session_id: str) -> str:
        """Return the path of a sub-session."""
        root = session_id.partition("/")[0]
        return f"/{root}/{name_below(root, session_id)}"

    def _listed(self, target: MountPath | None) -> list[Session]:
        return self.gate.below(target.root) if isinstance(target, Family) else []

    def _collections(self, target: MountPath | None) -> list[tuple[str, float]]:
        if not isinstance(target, Root):
            return []
        return [(f"/{root.id}", root.created_at) for root in self.gate.roots_with_children()]

    def _look_at_family(self, target: Family, path: str) -> Resource | None:
        root = self.gate.enter(target.root)
        return None if root is None else Resource(path, collection=True, modified=root.created_at)
